"""What the decisions about a launch look at, and where it is read from SGLang's flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_sm120.checkpoint.expert_formats import Kind
from sglang_sm120.checkpoint.shares import expert_width
from sglang_sm120.moe import auto, known_kernels
from sglang_sm120.moe.auto import Auto
from sglang_sm120.moe.known_kernels import Format
from sglang_sm120.moe.runner_tables import Layer
from sglang_sm120.settings import RUNNER, Settings
from sglang_sm120.upstream import features, server_flags
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
        draft_kind: format of the draft's experts where `--speculative-draft-model-path` names another checkpoint.
        takes_names: this SGLang's flags accept registered runner names, hence ours.
        cutlass_mxfp4: this SGLang's FlashInfer CUTLASS MXFP4 method runs on SM120.
        ids_per_layer: this SGLang's dispatcher numbers experts as each layer's method wants; before, as the global
            runner does, which under DSpark is the target's.
        unreached: why the layers of a hybrid checkpoint cannot get our NVFP4 method; None where they can.
        auto: what `auto` follows where it was measured; None where it is fixed.
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
    draft_kind: Kind | None = None
    takes_names: bool = True
    cutlass_mxfp4: bool = True
    default_reads_fp4_only: bool = False
    ids_per_layer: bool = True
    unreached: str | None = None
    auto: Auto | None = None
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


def facts(server_args: Any, settings: Settings, unreached: str | None = None) -> Launch:
    """What routing looks at, from flags that are being resolved; `unreached` as in `Launch`."""
    view, config = server_flags.resolving(server_args), server_flags.resolving_model_config(server_args)
    text = config.hf_text_config
    return Launch(
        kind=server_flags.expert_kind(config),
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
        draft_kind=_draft_kind(server_args, view),
        takes_names=features.takes_runner_names(),
        cutlass_mxfp4=features.has_cutlass_mxfp4(),
        default_reads_fp4_only=features.default_reads_fp4_only(),
        ids_per_layer=features.numbers_experts_per_layer(),
        unreached=unreached,
        auto=auto.of_launch(view) if settings.auto == "measured" else None,
        experts=text.n_routed_experts,
        top_k=text.num_experts_per_tok,
        draft_experts=getattr(text, "dspark_n_routed_experts", None),
        draft_top_k=getattr(text, "dspark_num_experts_per_tok", None),
    )


def flag_values(experts: Format) -> str:
    """The values of this SGLang's runner flags that run experts of a format, for a message."""
    offered = known_kernels.offered(experts)
    return " or ".join(r for r in offered if r != RUNNER or features.takes_runner_names())


def _draft_kind(server_args: Any, view: ResolvedFlags) -> Kind | None:
    """Format of the draft's experts where it is another checkpoint than the target's, which is the usual one."""
    path = view.speculative_draft_model_path
    if not view.speculative_algorithm or path is None or path == view.model_path:
        return None
    return server_flags.expert_kind(server_flags.model_config(server_args, draft_path=path))
