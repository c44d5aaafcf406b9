"""Let SGLang's deterministic inference start with DeepSeek-V4, for those who asked for batch-invariant experts."""

from __future__ import annotations

from types import ModuleType

from sglang_sm120.patching import on_import
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import BATCH_INVARIANT, Settings
from sglang_sm120.upstream import releases
from sglang_sm120.upstream.contracts import Target

_ARGS = "sglang.srt.server_args"
BACKEND = "dsv4"  # attention of DeepSeek-V4 in every proven release


def install(_settings: Settings) -> str:
    """Extend SGLang's list once SGLang imports the module that holds it."""
    on_import.when_imported(_ARGS, _register)
    return f"--enable-deterministic-inference takes {BACKEND} attention, for which SGLang does not vouch"


def _register(args: ModuleType) -> None:
    if BACKEND not in args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        args.add_deterministic_attention_backend_choices([BACKEND])


def _not_wanted(settings: Settings) -> str | None:
    return None if settings.batch_invariant else f"{BATCH_INVARIANT.name} is not 1"


PATCH = Patch(
    name="deterministic_attention",
    summary=f"with `{BATCH_INVARIANT.name}=1` DeepSeek-V4 takes `--enable-deterministic-inference`",
    symptom=(
        "`attention backends are supported for deterministic inference, but you explicitly specified 'dsv4'`, which "
        "SGLang sets whatever `--attention-backend` says"
    ),
    targets=(
        Target(
            _ARGS,
            "ServerArgs._handle_deterministic_inference",
            releases.spans({"0.5.14": "53f29c4594ff", "0.5.15": None}),
        ),
        Target(
            "sglang.srt.arg_groups.overrides",
            "_deterministic_attention_backend",
            releases.spans({"0.5.15": "a00484da4c4a", "0.5.19": "039e0fee59ce"}),
        ),
    ),
    why="a registration through SGLang's public function; nothing is replaced",
    binding="the check reads the list object that `add_deterministic_attention_backend_choices` extends",
    untouched=(
        f"every launch without the variable; with it, what SGLang's flag does, the prefix cache that SGLang turns off "
        f"included, and `{BACKEND}` attention itself"
    ),
    remove_when=f"SGLang lists `{BACKEND}` in DETERMINISTIC_ATTENTION_BACKEND_CHOICES",
    install=install,
    not_wanted=_not_wanted,
)
