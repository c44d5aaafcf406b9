"""Patch records, their status, and the one way in which they are applied.

A patch is a record: what it cures, what it touches, why no public seam reaches that, and when it can go. Applying
checks first that upstream is what the patch was proven on, then that nobody else has replaced the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from sglang_sm120.patching.replace import PatchError
from sglang_sm120.settings import ACCEPT_DRIFT, OFF, Settings
from sglang_sm120.upstream import releases
from sglang_sm120.upstream.contracts import Target


class Status(StrEnum):
    """What became of a patch in this process."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"


@dataclass
class State:
    """A patch's status and why."""

    name: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Patch:
    """One concern.

    Attributes:
        name: what SGLANG_SM120_DISABLE lists.
        summary: what changes for the user, in a line.
        symptom: the literal error or wrong result without it.
        targets: upstream code that it replaces or relies on, with the fingerprints it was proven on.
        why: why no registry or flag of SGLang does it.
        binding: how SGLang looks the target up, hence why the replacement takes effect.
        untouched: what stays stock.
        remove_when: a condition that can be checked.
        install: applies it; returns a line for the status. It may raise PatchError.
        proven_on: releases whose fault the patch cures, each run in the compatibility matrix.
        elsewhere: status and reason in the other proven releases.
        mended: asked when upstream is not what was proven: runs upstream's own code and returns how it does right by
            itself, None if it does not or cannot be asked. The patch then stands down instead of stopping the launch.
        not_wanted: why the settings do without it, None where they do not.
    """

    name: str
    summary: str
    symptom: str
    targets: tuple[Target, ...]
    why: str
    binding: str
    untouched: str
    remove_when: str
    install: Callable[[Settings], str]
    proven_on: tuple[str, ...] = releases.PROVEN
    elsewhere: tuple[Status, str] = (Status.NOT_NEEDED, "SGLang does this itself")
    mended: Callable[[], str | None] | None = None
    not_wanted: Callable[[Settings], str | None] | None = None


STATES: dict[str, State] = {}


def apply_all(patches: Iterable[Patch], settings: Settings) -> None:
    """Apply every patch that this SGLang needs and that is not disabled, in order, and record each one's state.

    Nothing is touched before all of them have been checked.

    Raises:
        PatchError: one could not be applied. The launch must not go on.
    """
    wanted = [patch for patch in patches if not _stands_down(patch, settings)]
    for patch in wanted:
        try:
            reason = patch.install(settings)
        except PatchError as error:
            STATES[patch.name] = State(patch.name, Status.FAILED, str(error))
            raise
        STATES[patch.name] = State(patch.name, Status.APPLIED, reason)


def _stands_down(patch: Patch, settings: Settings) -> bool:
    """Whether the patch stays out, with its state recorded; raises PatchError when upstream is unknown and unmended."""
    state = judge(patch, settings)
    if state is None:
        return False
    STATES[patch.name] = state
    if state.status == Status.FAILED:
        raise PatchError(refusal(patch, [state.reason]))
    return True


def judge(patch: Patch, settings: Settings) -> State | None:
    """The state that keeps the patch from being installed on the SGLang at hand; None where it is to be installed."""
    if patch.name in settings.disabled:
        return State(patch.name, Status.NOT_APPLICABLE, "left out by SGLANG_SM120_DISABLE")
    why_not = patch.not_wanted(settings) if patch.not_wanted is not None else None
    if why_not is not None:
        return State(patch.name, Status.NOT_NEEDED, why_not)
    release = releases.installed()
    differences = drift(patch, release)
    if not differences:
        needed = releases.base(str(release)) in patch.proven_on
        return None if needed else State(patch.name, *patch.elsewhere)
    mended = patch.mended() if patch.mended is not None else None
    if mended is not None:
        return State(patch.name, Status.NOT_NEEDED, mended)
    return None if settings.accept_drift else State(patch.name, Status.FAILED, "; ".join(differences))


def set_all(patches: Iterable[Patch], status: Status, reason: str) -> None:
    """Record one state for all of them."""
    for patch in patches:
        STATES[patch.name] = State(patch.name, status, reason)


def drift(patch: Patch, release: str | None) -> list[str]:
    """How upstream differs from what the patch was proven on; empty when it does not."""
    if release is None:
        return ["SGLang is not installed as a distribution"]
    found = []
    if not releases.is_proven(release):
        found.append(f"SGLang {release} is not among the proven releases ({releases.describe()})")
    differences = (target.difference(releases.base(release)) for target in patch.targets)
    return found + [difference for difference in differences if difference is not None]


def refusal(patch: Patch, differences: Iterable[str]) -> str:
    """The line that ends a launch on an SGLang that the patch was not proven on."""
    return (
        f"patch {patch.name} was not proven on the installed SGLang {releases.installed()}: {'; '.join(differences)}. "
        f"Run stock SGLang with {OFF.name}=0, or accept the risk with {ACCEPT_DRIFT.name}=1"
    )
