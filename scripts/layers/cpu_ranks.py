"""SGLang's process groups on the CPU: what a rank on a simulated GPU needs to be one of several, over gloo."""

from __future__ import annotations

from typing import Any


def on_the_cpu() -> Any:
    """Context in which "cuda" means the CPU for whatever torch is asked to make or move."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = {k: "cpu" if _is_cuda(v) else v for k, v in (kwargs or {}).items()}
            return function(*("cpu" if _is_cuda(v) else v for v in args), **named)

    def _is_cuda(value: Any) -> bool:
        return isinstance(value, str | torch.device) and str(value).startswith("cuda")

    return OnCpu()


def start_groups(world: int, rank: int, init_method: str, timeout: int) -> None:
    """Build SGLang's groups at the widths that the published configuration has, as its scheduler does.

    Args:
        world: processes that take part.
        rank: of this one.
        init_method: where they meet: a `tcp://` address or a `file://` that does not exist.
        timeout: seconds after which a rank that waits for another gives up.
    """
    from sglang.srt.distributed import parallel_state

    def without_nccl(*arguments: Any, **named: Any) -> Any:
        return build(*arguments, **named | {"use_pynccl": False})

    parallel_state.set_custom_all_reduce(False)  # as --disable-custom-all-reduce
    build, parallel_state.init_model_parallel_group = parallel_state.init_model_parallel_group, without_nccl
    with on_the_cpu():
        parallel_state.init_distributed_environment(world, rank, init_method, rank, "gloo", timeout)
        parallel_state.initialize_model_parallel(backend="gloo")
