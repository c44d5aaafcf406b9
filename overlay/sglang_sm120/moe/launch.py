"""What the decisions about a launch look at, and where it is read from SGLang's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.checkpoint.inspection import Inspected
from sglang_sm120.checkpoint.shares import expert_width
from sglang_sm120.moe import auto, known_kernels
from sglang_sm120.moe.auto import Auto
from sglang_sm120.moe.known_kernels import Format
from sglang_sm120.moe.launch_files import Files
from sglang_sm120.moe.runner_tables import Layer
from sglang_sm120.settings import RUNNER, Settings
from sglang_sm120.upstream import features, server_flags, update_paths
from sglang_sm120.upstream.protocols import ResolvedFlags

CUTLASS_MULTIPLE = 128  # of hidden and per-rank intermediate size, in SGLang's FlashInfer CUTLASS MXFP4 method


@dataclass(frozen=True)
class Launch:
    """What the decisions look at.

    Attributes:
        kind: `hybrid-nvfp4`, `mxfp4` or another kind, as SGLang's model configuration has it.
        hidden_size, moe_intermediate_size: of a routed expert, unsharded.
        tp, ep, moe_dp: tensor-parallel, expert-parallel and MoE data-parallel sizes.
        target_runner, draft_runner, quantization: the flags as given; `auto` and None where they are not.
        speculative: EAGLE, DSPARK or None.
        target_default, draft_default: what SGLANG_SM120_TARGET_MOE and SGLANG_SM120_DRAFT_MOE say.
        all_to_all: `--moe-a2a-backend`; any but `none` brings its own dispatch, which sm120_triton does not speak.
        draft_all_to_all: `--speculative-moe-a2a-backend`, which EAGLE reads and DSpark does not; None is the target's.
        draft_quantization: `--speculative-draft-model-quantization` as given.
        draft_kind: format of the draft's experts, where it is known apart from the target's.
        input_scales: the NVFP4 experts have scales for activations.
        converted_scales, draft_converted_scales: type of the target's and the draft's scales where SGLang's loader
            would convert them as numbers; None where it keeps them.
        takes_names: this SGLang's flags accept registered runner names, hence ours.
        cutlass_mxfp4: this SGLang's FlashInfer CUTLASS MXFP4 method runs on SM120.
        deep_gemm_fp4: this SGLang's DeepGEMM runner has a kernel for packed FP4 experts on SM120.
        ids_per_layer: this SGLang's dispatcher numbers experts as each layer's method wants; before, as the global
            runner does, which under DSpark is the target's.
        unreached: why the layers of a hybrid checkpoint cannot get our NVFP4 method; None where they can.
        invariant: a token's bits are not to depend on its batch: our variable or SGLang's deterministic inference.
        auto: what `auto` follows where it was measured; None where it is fixed.
        ours_can_follow: no flag, load format or left-out patch keeps sm120_triton from a native MXFP4 target.
        experts, top_k: routed experts of the target, and how many a token takes.
        draft_experts, draft_top_k: a DSpark draft's own; None where they are the target's.
        default_reads_fp4_only: this SGLang's `auto` on SM120 is a runner for FP4 experts, whatever the experts are.
    """

    kind: Kind
    hidden_size: int
    moe_intermediate_size: int
    tp: int = 1
    ep: int = 1
    moe_dp: int = 1
    target_runner: str = "auto"
    draft_runner: str | None = None
    quantization: str | None = None
    speculative: str | None = None
    target_default: str = "auto"
    draft_default: str = "auto"
    all_to_all: str = "none"
    draft_all_to_all: str | None = None
    draft_quantization: str | None = None
    draft_kind: Kind | None = None
    input_scales: bool = True
    converted_scales: str | None = None
    draft_converted_scales: str | None = None
    takes_names: bool = True
    cutlass_mxfp4: bool = True
    deep_gemm_fp4: bool = True
    default_reads_fp4_only: bool = False
    ids_per_layer: bool = True
    unreached: str | None = None
    invariant: bool = False
    auto: Auto | None = None
    ours_can_follow: bool = True
    experts: int = 0
    top_k: int = 0
    draft_experts: int | None = None
    draft_top_k: int | None = None

    @property
    def rank_intermediate_size(self) -> int:
        """Columns of a routed expert that a rank holds."""
        return expert_width(self.moe_intermediate_size, self.tp, self.ep, self.moe_dp)

    def layer(self, experts: Format, role: server_flags.Role) -> Layer:
        """The target's or the draft's layer as a rank holds it, by which tables of runners name it."""
        own = role == "draft"
        counts = (own and self.draft_experts) or self.experts, (own and self.draft_top_k) or self.top_k
        return Layer(experts, counts[0], self.hidden_size, self.rank_intermediate_size, counts[1], self.tp, self.ep)

    @property
    def fits_cutlass(self) -> bool:
        """Whether SGLang's FlashInfer CUTLASS MXFP4 method takes the per-rank shapes."""
        return self.hidden_size % CUTLASS_MULTIPLE == 0 and self.rank_intermediate_size % CUTLASS_MULTIPLE == 0


def facts(server_args: Any, settings: Settings, files: Files, unreached: str | None = None) -> Launch:
    """What routing looks at, from flags that are being resolved and the checkpoints that they name.

    Args:
        unreached: as in `Launch`.
    """
    view, config = server_flags.resolving(server_args), server_flags.resolving_model_config(server_args)
    text, kind = config.hf_text_config, server_flags.expert_kind(config)
    known = files.target is not None and not server_flags.format_is_forced()
    return Launch(
        kind=kind,
        hidden_size=text.hidden_size,
        moe_intermediate_size=text.moe_intermediate_size,
        tp=view.tp_size,
        ep=view.ep_size,
        moe_dp=view.moe_dp_size,
        target_runner=view.moe_runner_backend,
        draft_runner=view.speculative_moe_runner_backend,
        quantization=view.quantization,
        speculative=view.speculative_algorithm,
        target_default=settings.target_runner,
        draft_default=settings.draft_runner,
        all_to_all=view.moe_a2a_backend,
        draft_all_to_all=view.speculative_moe_a2a_backend,
        draft_quantization=view.speculative_draft_model_quantization,
        draft_kind=_draft_kind(server_args, view, files.draft if known and kind != "other" else None),
        input_scales=files.target is None or files.target.input_scales,
        converted_scales=files.target.converted_scales(draft=False) if files.target else None,
        draft_converted_scales=files.draft.converted_scales(draft=True) if files.draft else None,
        takes_names=features.takes_runner_names(),
        cutlass_mxfp4=features.has_cutlass_mxfp4(),
        deep_gemm_fp4=features.has_deep_gemm_fp4(),
        default_reads_fp4_only=features.default_reads_fp4_only(),
        ids_per_layer=features.numbers_experts_per_layer(),
        unreached=unreached,
        invariant=settings.batch_invariant or server_flags.is_deterministic(view),
        auto=auto.of_launch(view) if settings.auto == "measured" else None,
        ours_can_follow=_ours_can_follow(view, settings),
        experts=text.n_routed_experts,
        top_k=text.num_experts_per_tok,
        draft_experts=getattr(text, "dspark_n_routed_experts", None),
        draft_top_k=getattr(text, "dspark_num_experts_per_tok", None),
    )


def _ours_can_follow(view: ResolvedFlags, settings: Settings) -> bool:
    """Whether a launch in which nobody asked for our runner would start with it; the gate refuses the others."""
    moved = any(flag.is_used(view) for flag in update_paths.FLAGS)
    left_out = settings.disabled & {"runner_name", "mxfp4_experts"}
    return not (moved or left_out or update_paths.load_format_problem(view.load_format))


def flag_values(experts: Format) -> str:
    """The values of this SGLang's runner flags that run experts of a format, for a message."""
    missing = set() if features.takes_runner_names() else {RUNNER}
    missing |= set() if features.has_deep_gemm_fp4() else {"deep_gemm"}
    return " or ".join(runner for runner in known_kernels.offered(experts) if runner not in missing)


def _draft_kind(server_args: Any, view: ResolvedFlags, found: Inspected | None) -> Kind | None:
    """Format of the draft's experts by its own headers; else SGLang's word, where it is another checkpoint's."""
    if not view.speculative_algorithm:
        return None
    if found is not None and found.draft_kind is not None:
        return found.draft_kind
    path = view.speculative_draft_model_path
    if path is None or path == view.model_path:
        return None
    return server_flags.expert_kind(server_flags.model_config(server_args, draft_path=path))
