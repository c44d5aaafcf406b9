"""The overlay's environment variables: names, defaults, allowed values, and one place that reads them.

A bad value is never ignored: `read()` raises `SettingError` with the variable, the value and the good ones.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

RUNNER = "sm120_triton"
DraftRunner = Literal["auto", "sm120_triton", "flashinfer_mxfp4", "marlin"]
Activation = Literal["bf16", "mxfp8"]
AutoRunner = Literal["measured", "fixed"]
TargetRunner = Literal["auto", "sm120_triton", "flashinfer_cutlass", "marlin", "flashinfer_mxfp4"]
DRAFT_RUNNERS: tuple[DraftRunner, ...] = get_args(DraftRunner)
TARGET_RUNNERS: tuple[TargetRunner, ...] = get_args(TargetRunner)
AUTOS: tuple[AutoRunner, ...] = get_args(AutoRunner)
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
SM12X = ("sm120", "sm121")


@dataclass(frozen=True)
class Variable:
    """One environment variable, as documented."""

    name: str
    default: str
    choices: tuple[str, ...]
    meaning: str


OFF = Variable("SGLANG_SM120", "1", ("0", "1"), "`0` turns the overlay off: stock SGLang; one log line says so")
DISABLE = Variable(
    "SGLANG_SM120_DISABLE", "", (), "patches to leave out, separated by commas; an unknown name is an error"
)
DRAFT_MOE = Variable(
    "SGLANG_SM120_DRAFT_MOE",
    "auto",
    DRAFT_RUNNERS,
    f"MoE kernel of the draft where `--speculative-moe-runner-backend` does not say; `auto` means `{RUNNER}`",
)
TARGET_MOE = Variable(
    "SGLANG_SM120_TARGET_MOE",
    "auto",
    TARGET_RUNNERS,
    f"MoE kernel of the target where `--moe-runner-backend` does not say; `auto` means `{RUNNER}` for NVFP4 experts, "
    "and SGLang's choice for the others",
)
AUTO = Variable(
    "SGLANG_SM120_AUTO",
    "measured",
    AUTOS,
    "what `auto` means where `sglang-sm120 tune` has measured this GPU, SGLang, layer and parallel sizes: the fastest "
    "right runner (`measured`), or the same as without (`fixed`)",
)
ACTIVATION = Variable(
    "SGLANG_SM120_ACTIVATION",
    "bf16",
    ACTIVATIONS,
    f"activations of `{RUNNER}`: `bf16` keeps them (W4A16), `mxfp8` quantises them to e4m3 with e8m0 scales (W4A8; "
    "MXFP4 layers only)",
)
BATCH_INVARIANT = Variable(
    "SGLANG_SM120_BATCH_INVARIANT",
    "0",
    ("0", "1"),
    f"`1`: with `{RUNNER}` a token has the same bits whatever else is in the batch, `auto` means `{RUNNER}` for MXFP4 "
    "experts too, and SGLang's `--enable-deterministic-inference` starts",
)
ACCEPT_DRIFT = Variable(
    "SGLANG_SM120_ACCEPT_DRIFT",
    "0",
    ("0", "1"),
    "`1` launches on SM120 although SGLang or a patch target differs from every release it was proven on; "
    "each process logs a warning",
)
ASSUME = Variable(
    "SGLANG_SM120_ASSUME",
    "",
    SM12X,
    "treat the present GPU as that architecture when routing MoE layers (for testing)",
)
VARIABLES = (OFF, DISABLE, TARGET_MOE, DRAFT_MOE, AUTO, ACTIVATION, BATCH_INVARIANT, ACCEPT_DRIFT, ASSUME)


class SettingError(ValueError):
    """An environment variable of the overlay has a value that it cannot have."""


@dataclass(frozen=True)
class Settings:
    """The variables, read and checked."""

    enabled: bool = True
    disabled: frozenset[str] = frozenset()
    target_runner: TargetRunner = "auto"
    draft_runner: DraftRunner = "auto"
    activation: Activation = "bf16"
    batch_invariant: bool = False
    auto: AutoRunner = "measured"
    accept_drift: bool = False
    assume: str | None = None
    warnings: tuple[str, ...] = ()


def _choice(variable: Variable, environment: Mapping[str, str]) -> str:
    value = environment.get(variable.name, "").strip() or variable.default
    if value and value not in variable.choices:
        good = ", ".join(variable.choices)
        raise SettingError(f"{variable.name} is {value!r}; expected one of {good}, or unset for the default")
    return value


def _names(variable: Variable, environment: Mapping[str, str], known: tuple[str, ...]) -> frozenset[str]:
    names = [n.strip() for n in environment.get(variable.name, "").split(",") if n.strip()]
    for name in names:
        if name not in known:
            raise SettingError(f"{variable.name} names {name!r}, which is no patch; the patches are {', '.join(known)}")
    return frozenset(names)


def _near_misses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Warnings for variables that look like a misspelt one of ours (SGLang has SGLANG_SM120_* names of its own)."""
    ours = [v.name for v in VARIABLES]
    found = []
    for name in environment:
        if name.startswith("SGLANG_SM120") and name not in ours:
            close = difflib.get_close_matches(name, ours, n=1, cutoff=0.85)
            if close:
                found.append(f"{name} is set but is not a variable of sglang-sm120; is {close[0]} meant?")
    return tuple(found)


def read(patch_names: Iterable[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check every variable.

    Args:
        patch_names: names that SGLANG_SM120_DISABLE may list.
        environment: where to read; the process's environment if None.

    Raises:
        SettingError: a value is not allowed; the message names the variable, the value and the good ones.
    """
    env = os.environ if environment is None else environment
    return Settings(
        enabled=_choice(OFF, env) == "1",
        disabled=_names(DISABLE, env, tuple(patch_names)),
        target_runner=cast(TargetRunner, _choice(TARGET_MOE, env)),
        draft_runner=cast(DraftRunner, _choice(DRAFT_MOE, env)),
        auto=cast(AutoRunner, _choice(AUTO, env)),
        activation=cast(Activation, _choice(ACTIVATION, env)),
        batch_invariant=_choice(BATCH_INVARIANT, env) == "1",
        accept_drift=_choice(ACCEPT_DRIFT, env) == "1",
        assume=_choice(ASSUME, env) or None,
        warnings=_near_misses(env),
    )
