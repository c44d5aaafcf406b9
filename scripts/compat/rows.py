"""The launches of the compatibility matrix: checkpoints, drafts and flags, per architecture.

A row is one launch. What must come of it, per release, stock and with the overlay, is in `expected.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_sm120.commands.plan.simulate import SIMULATED
from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG
from sglang_sm120.settings import DRAFT_MOE, RUNNER, SM12X, TARGET_MOE
from sglang_sm120.upstream import releases, server_flags

TP2 = ("--tp", "2")
EAGLE = tuple(server_flags.eagle())
DSPARK = ("--speculative-algorithm", "DSPARK")
DRAFTS = {"none": (), "EAGLE": EAGLE, "DSPARK": DSPARK}

OTHERS = tuple(arch for arch in SIMULATED if arch not in SM12X)
_HAS_DSPARK = releases.span("0.5.16")
_TAKES_NAMES = releases.span("0.5.19")
_HAS_V41 = releases.span("0.5.21")
_ALL = releases.PROVEN


@dataclass(frozen=True)
class Row:
    """One launch.

    Attributes:
        kind, draft, size: the checkpoint and the speculative algorithm.
        target_runner, draft_runner: values of SGLang's two flags; None leaves them out.
        flags: further ones.
        env: variables.
        archs: where it is asked.
        in_releases: releases that it makes sense in.
    """

    kind: str
    draft: str = "none"
    target_runner: str | None = None
    draft_runner: str | None = None
    flags: tuple[str, ...] = TP2
    env: dict[str, str] = field(default_factory=dict, hash=False)
    size: str = "flash"
    archs: tuple[str, ...] = ("sm120",)
    in_releases: tuple[str, ...] = _ALL

    @property
    def id(self) -> str:
        """Checkpoint, draft and what was asked for, in a few words."""
        words = [self.kind if self.size == "flash" else f"{self.kind} {self.size}"]
        words += [self.draft] if self.draft != "none" else []
        words += [f"target={self.target_runner}"] if self.target_runner else []
        words += [f"draft={self.draft_runner}"] if self.draft_runner else []
        words += [" ".join(self.flags)] if self.flags != TP2 else []
        words += [f"{k}={v}" for k, v in self.env.items()]
        return ", ".join(words)

    def arguments(self) -> list[str]:
        """SGLang's flags."""
        asked = [*self.flags, *DRAFTS[self.draft]]
        asked += [TARGET_FLAG, self.target_runner] if self.target_runner else []
        asked += [DRAFT_FLAG, self.draft_runner] if self.draft_runner else []
        return asked

    @property
    def checkpoint(self) -> tuple[str, str, str]:
        """Kind, draft and size of the checkpoint that it needs."""
        return self.kind, "dspark" if self.draft == "DSPARK" else "nextn", self.size


def _of(draft: str) -> tuple[str, ...]:
    return _HAS_DSPARK if draft == "DSPARK" else _ALL


def _grid() -> list[Row]:
    """Every checkpoint with every draft, no runner asked for: on all architectures."""
    kinds = ("hybrid-nvfp4", "mxfp4", "fp8")
    return [Row(kind, draft, archs=SM12X + OTHERS, in_releases=_of(draft)) for kind in kinds for draft in DRAFTS]


def _target_runners() -> list[Row]:
    asked = {
        "hybrid-nvfp4": ("flashinfer_cutlass", "marlin", "flashinfer_trtllm_routed", "flashinfer_cutedsl", "triton"),
        "mxfp4": ("flashinfer_mxfp4", "marlin", "triton", "flashinfer_cutlass"),
        "fp8": ("triton", "flashinfer_mxfp4"),
    }
    everywhere = (("hybrid-nvfp4", "flashinfer_cutlass"), ("mxfp4", "marlin"))
    rows = [
        Row(kind, target_runner=runner, archs=("sm120", *OTHERS) if (kind, runner) in everywhere else ("sm120",))
        for kind, runners in asked.items()
        for runner in runners
    ]
    rows += [Row(kind, target_runner=RUNNER, in_releases=_TAKES_NAMES) for kind in ("hybrid-nvfp4", "mxfp4")]
    by_variable = {
        "hybrid-nvfp4": ("marlin", "flashinfer_cutlass", "flashinfer_mxfp4"),
        "mxfp4": (RUNNER, "marlin"),
        "fp8": (RUNNER,),
    }
    rows += [Row(kind, env={TARGET_MOE.name: runner}) for kind, asked in by_variable.items() for runner in asked]
    rows += [
        Row("mxfp4", draft, env={TARGET_MOE.name: RUNNER}, in_releases=_of(draft)) for draft in ("EAGLE", "DSPARK")
    ]
    rows += [Row("hybrid-nvfp4", target_runner="marlin", env={TARGET_MOE.name: RUNNER})]
    return [*rows, Row("hybrid-nvfp4", "EAGLE", target_runner="marlin")]


def _draft_runners() -> list[Row]:
    rows = []
    for kind in ("hybrid-nvfp4", "mxfp4"):
        for draft in ("EAGLE", "DSPARK"):
            for runner in ("marlin", "flashinfer_mxfp4", "triton"):
                rows.append(Row(kind, draft, draft_runner=runner, in_releases=_of(draft)))
            named = tuple(r for r in _of(draft) if r in _TAKES_NAMES)
            rows.append(Row(kind, draft, draft_runner=RUNNER, in_releases=named))
            for runner in (RUNNER, "marlin"):
                rows.append(Row(kind, draft, env={DRAFT_MOE.name: runner}, in_releases=_of(draft)))
    return [*rows, Row("fp8", "EAGLE", env={DRAFT_MOE.name: RUNNER})]


def _shapes() -> list[Row]:
    ep2 = ("--tp", "4", "--ep-size", "2")
    whole = {"SGLANG_SHARED_EXPERT_TP1": "1"}  # a sixteenth of V4-Pro's is 192 columns, which SGLang refuses
    return [
        Row("hybrid-nvfp4", "EAGLE", flags=ep2),
        Row("hybrid-nvfp4", target_runner="flashinfer_cutlass", flags=ep2),
        Row("hybrid-nvfp4", "EAGLE", flags=("--tp", "4", "--ep-size", "4"), archs=SM12X),
        Row("hybrid-nvfp4", "EAGLE", flags=(*TP2, "--quantization", "fp8")),
        Row("mxfp4", "EAGLE", flags=("--tp", "16"), size="pro", env=whole),
        Row("mxfp4", "EAGLE", flags=("--tp", "16"), size="pro", draft_runner="flashinfer_mxfp4", env=whole),
        Row("hybrid-nvfp4", "EAGLE", flags=("--tp", "16"), size="pro", env=whole),
        # Two copies of the experts, so that a rank has 384 columns of V4-Pro's and not 192.
        Row("mxfp4", "EAGLE", flags=("--tp", "16", "--moe-dp-size", "2", "--attn-cp-size", "2"), size="pro", env=whole),
    ]


def _models() -> list[Row]:
    """Other models than V4-Flash and -Pro, and a draft in a format of its own."""
    tp8, ep8 = ("--tp", "8"), ("--tp", "8", "--ep-size", "8")
    v41 = [
        Row("hybrid-nvfp4", "DSPARK", flags=tp8, size="v4.1", in_releases=_HAS_V41),
        Row("hybrid-nvfp4", "DSPARK", flags=tp8, size="v4.1", target_runner="flashinfer_cutlass", in_releases=_HAS_V41),
        Row("hybrid-nvfp4", "DSPARK", flags=ep8, size="v4.1", target_runner="flashinfer_cutlass", in_releases=_HAS_V41),
        Row("mxfp4", "DSPARK", flags=tp8, size="v4.1", in_releases=_HAS_V41),
    ]
    pruned = [Row(kind, "EAGLE", size="reap-160") for kind in ("hybrid-nvfp4", "mxfp4")]
    mixed = [Row("fp8", draft, size="mxfp4-draft", in_releases=_of(draft)) for draft in ("EAGLE", "DSPARK")]
    return [*v41, *pruned, *mixed, Row("mxfp4", target_runner="deep_gemm")]


ROWS = _grid() + _target_runners() + _draft_runners() + _shapes() + _models()
# What CI asks each time: one launch of each kind that the overlay changes, on one release of each era.
SMOKE_RELEASES = ("0.5.14", "0.5.16", "0.5.18", "0.5.20")
SMOKE_ROWS = [row for row in ROWS if row.archs == SM12X + OTHERS or row.flags != TP2 or row.size == "mxfp4-draft"]


def rows_for(release: str, arch: str, rows: list[Row] | None = None) -> list[Row]:
    """The rows of a release on an architecture."""
    return [r for r in (ROWS if rows is None else rows) if arch in r.archs and release in r.in_releases]
