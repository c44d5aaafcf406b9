"""`plan`'s document, what its child is asked and what the child answers: typed, with JSON at the edges alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from sglang_sm120.checkpoint.inspection import Checkpoint
from sglang_sm120.checkpoint.memory import Budget

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """A launch to resolve.

    Attributes:
        model: checkpoint directory.
        flags: SGLang server flags, without the model.
        head: dtype of the checkpoint's output head, None where no header says it.
        arch: of the simulated GPUs.
        memory_gib: of each of them.
    """

    model: str
    flags: tuple[str, ...]
    arch: str
    memory_gib: int = 96
    head: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A kind of MoE layer as SGLang built it.

    Attributes:
        method: class of its method.
        runner: its runner.
        packed: its experts are packed FP4.
        faults: why it would fail or compute something else, beyond the architectures of its kernel.
        undone: what it is instead of what was decided, with a cure; None where it is that.
        changed_by: the patch that decided, None for SGLang.
        reason: one line.
        algorithm: `EAGLE` or `DSPARK` of a draft, None for the target.
        batch_invariant: its method keeps a token's bits whatever the batch.
    """

    method: str
    runner: str | None
    packed: bool
    faults: tuple[str, ...] = ()
    undone: str | None = None
    changed_by: str | None = None
    reason: str
    algorithm: str | None = None
    batch_invariant: bool = False


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Which weights are read, and what they are divided by, as SGLang resolved it; None where SGLang leaves it open."""

    tp_size: int
    ep_size: int
    moe_dp_size: int | None
    pp_size: int
    speculative_algorithm: str | None
    mem_fraction_static: float | None
    ep_num_redundant_experts: int | None = None
    speculative_draft_model_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class OtherKernels:
    """What a launch on SM120 runs beside its MoE layers; the overlay changes none of it.

    Attributes:
        attention: `--attention-backend` as resolved.
        draft_attention: the draft's, where it has one of its own.
        sparse_mla: whose sparse-MLA kernels.
        indexer: whose kernel scores the tokens to look at.
        all_reduce: who sums over ranks without NVLink; None for one rank.
    """

    attention: str
    draft_attention: str | None
    sparse_mla: str
    indexer: str
    all_reduce: str | None


@dataclass(frozen=True, kw_only=True)
class PatchState:
    """A patch in the launch's processes."""

    name: str
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a launch in the child; what it did not get to is None.

    `wants_invariance`: a token's bits are not to depend on its batch.
    """

    target: Layer | None = None
    draft: Layer | None = None
    sizes: Sizes | None = None
    others: OtherKernels | None = None
    patches: tuple[PatchState, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    wants_invariance: bool = False


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What a kind of MoE layer would run: runner and method of SGLang, the kernel's name, who chose, and why.

    `batch_invariant`: a token's result has the same bits whatever else is in the batch.
    """

    runner: str | None
    method: str
    kernel: str
    changed_by: str | None
    reason: str
    batch_invariant: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftPlan(LayerPlan):
    """The same of a draft, with its algorithm, `EAGLE` or `DSPARK`."""

    algorithm: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The document of the interface contract.

    Attributes:
        sglang: version; None where SGLang is not installed.
        overlay: version.
        arch: what the launch was resolved for.
        simulated: this machine's GPU is another one.
        stock: the overlay was left out.
        checkpoint: None where it cannot be read.
        target, draft: None where SGLang did not get to them; the draft also without speculative decoding.
        others: None on other architectures than SM120 and SM121, or where SGLang did not get to it.
        memory: None where the weights are not there, or SGLang did not resolve the flags.
        errors: a launch that would fail has some, each naming the flag or file to change.
    """

    sglang: str | None
    overlay: str
    arch: str
    simulated: bool
    stock: bool
    checkpoint: Checkpoint | None = None
    target: LayerPlan | None = None
    draft: DraftPlan | None = None
    others: OtherKernels | None = None
    memory: Budget | None = None
    patches: tuple[PatchState, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def to_json(plan: Plan) -> dict[str, Any]:
    """The document as JSON has it. A checkpoint's problems stand among the errors."""
    document = {"schema": SCHEMA} | asdict(plan)
    if document["checkpoint"] is not None:
        del document["checkpoint"]["problems"]
    return document


def write(message: Request | Answer) -> str:
    """One message between `plan` and its child."""
    return json.dumps(asdict(message))


def read_request(text: str) -> Request:
    """What `write` made of a request."""
    raw = json.loads(text)
    return Request(**raw | {"flags": tuple(raw["flags"])})


def read_answer(text: str) -> Answer:
    """What `write` made of an answer; ValueError where the child ended before it was whole."""
    raw = json.loads(text)
    return Answer(
        target=_layer(raw["target"]),
        draft=_layer(raw["draft"]),
        sizes=raw["sizes"] and Sizes(**raw["sizes"]),
        others=raw["others"] and OtherKernels(**raw["others"]),
        patches=tuple(PatchState(**state) for state in raw["patches"]),
        warnings=tuple(raw["warnings"]),
        errors=tuple(raw["errors"]),
        wants_invariance=raw["wants_invariance"],
    )


def _layer(raw: dict[str, Any] | None) -> Layer | None:
    return None if raw is None else Layer(**raw | {"faults": tuple(raw["faults"])})
