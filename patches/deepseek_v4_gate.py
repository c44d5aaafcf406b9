"""Give DeepSeek-V4's target a MoE runner that has kernels for SM120."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from sglang_sm120.checkpoint import inspection
from sglang_sm120.moe import decisions, invariance, known_kernels, launch_files, refusals, runners, stock
from sglang_sm120.moe import launch as launch_of
from sglang_sm120.moe.decisions import Decision
from sglang_sm120.moe.launch import Launch
from sglang_sm120.moe.launch_files import Files
from sglang_sm120.patching import on_import, records, replace, still_reached
from sglang_sm120.patching.records import Patch
from sglang_sm120.settings import BATCH_INVARIANT, DISABLE, RUNNER, Settings
from sglang_sm120.upstream import contracts, features, releases, server_flags, update_paths
from sglang_sm120.upstream.contracts import Target
from sglang_sm120.upstream.protocols import ResolvedFlags
from sglang_sm120.upstream.server_flags import Role

NAME = "deepseek_v4_gate"
ARCHITECTURE = "DeepseekV4ForCausalLM"
_GROUPS = "sglang.srt.arg_groups"
_REGISTRY, _HOOKS, _IMPERATIVE = f"{_GROUPS}.overrides", f"{_GROUPS}.resolution_hooks", f"{_GROUPS}.deepseek_v4_hook"
_ARGS = "sglang.srt.server_args"
NAME_PATCH = "runner_name"
DRAFT_PATCH = "mxfp4_nextn"  # makes the draft's layer what is resolved here
logger = logging.getLogger("sglang_sm120")
_installed = False
_decided: Any = None  # the flags that our provider saw last


def install(settings: Settings) -> str:
    """Decide where SGLang decides, and check after resolution; both once SGLang imports what it resolves flags with."""
    global _installed
    if _installed:
        return f"decides when {ARCHITECTURE} is resolved"
    _installed = True
    if contracts.has_module(_REGISTRY):
        # After upstream's, which that module registers while it is imported: the last provider wins.
        on_import.when_imported(_REGISTRY, lambda m: m.register_model_override(ARCHITECTURE)(_provider(settings)))
    else:
        on_import.when_imported(_IMPERATIVE, lambda module: _before_defaults(module, settings))
    if contracts.has_module(_HOOKS):
        on_import.when_imported(_HOOKS, lambda m: m.register_resolution_hook("handle_speculative_decoding")(_check))
    else:
        on_import.when_imported(_ARGS, _check_when_resolved)
    return f"decides when {ARCHITECTURE} is resolved"


def _before_defaults(module: ModuleType, settings: Settings) -> None:
    """SGLang 0.5.14 writes the flags itself; a runner that is no longer `auto` makes both of its rules pass."""
    provide = _provider(settings)

    def wrap(original: FunctionType) -> Callable[..., Any]:
        def apply_deepseek_v4_defaults(server_args: Any, model_arch: str) -> None:
            for field, value in provide(server_args, None).items():
                setattr(server_args, field, value)
            original(server_args, model_arch)

        return apply_deepseek_v4_defaults

    replace.replace(module, "apply_deepseek_v4_defaults", NAME, wrap)


def _check_when_resolved(module: ModuleType) -> None:
    """Below SGLang 0.5.20 no step of the resolution can be wrapped; the method that runs all of them can."""
    name = "resolve_once" if hasattr(module.ServerArgs, "resolve_once") else "__post_init__"

    def wrap(original: FunctionType) -> Callable[..., Any]:
        def resolve(self: Any) -> None:
            original(self)
            if self is _decided:
                _check(self, lambda _server_args: None)

        return resolve

    replace.replace(module.ServerArgs, name, NAME, wrap)


def _provider(settings: Settings) -> Callable[[Any, Any], dict[str, str]]:
    def sm120_moe_runners(server_args: Any, _hf_config: Any) -> dict[str, str]:
        global _decided
        view = server_flags.resolving(server_args)
        if view.device != "cuda":
            return {}
        still_reached.require()
        files = _files(view, server_flags.resolving_model_config(server_args).hf_text_config)
        _decided = server_args
        launch = launch_of.facts(server_args, settings, files, _unreached(view, settings))
        try:
            target = runners.route_target(launch)
            _refuse_disabled(settings, launch, target)
            declared = _declare("moe_runner_backend", "target", NAME, target)
            _say(launch, "target", target)
            if launch.speculative is not None and _draft_is_ours():
                draft = runners.route_draft(launch)
                declared |= _declare("speculative_moe_runner_backend", "draft", DRAFT_PATCH, draft)
                _say(launch, "draft", draft)
                _refuse_unpatched_schedulers(view, draft)  # a target of ours needs them too, and routing knows
                _refuse_disabled(settings, launch, draft)
            else:
                draft = runners.Route(None, "no draft of ours")
            _refuse_moved_weights(
                view, RUNNER in (target.runner, launch.target_runner), RUNNER in (draft.runner, launch.draft_runner)
            )
        except refusals.RouteError as error:
            raise SystemExit(f"sglang-sm120: {error}") from error
        _warn_of_varying_bits(view, settings, launch, target, draft)
        return declared

    return sm120_moe_runners


def _warn_of_varying_bits(
    view: ResolvedFlags, settings: Settings, launch: Launch, target: runners.Route, draft: runners.Route
) -> None:
    """Name what does not keep a token's bits, where a launch asks for that."""
    said = invariance.varying(launch, target, draft if launch.speculative is not None else None)
    if server_flags.is_deterministic(view) and settings.batch_invariant:
        said.append(invariance.ATTENTION)
    elif server_flags.is_deterministic(view):
        said.append(f"where SGLang refuses deterministic inference, {BATCH_INVARIANT.name}=1 lets it start")
    for line in said:
        logger.warning(f"sglang-sm120: {line}")


def _unreached(view: ResolvedFlags, settings: Settings) -> str | None:
    """Why a hybrid checkpoint's layers cannot get our NVFP4 method: nobody gives it to them, or no flag can name it."""
    if NAME_PATCH in settings.disabled and features.takes_runner_names():
        return f"{DISABLE.name} leaves out {NAME_PATCH}, which registers it"
    if not _draft_is_ours():
        state = records.STATES.get(DRAFT_PATCH)
        return f"{DRAFT_PATCH}, which gives it the layers, is {f'{state.status} ({state.reason})' if state else 'out'}"
    for flag, used in _unpatched(view):
        if used:
            return f"with {flag} SGLang builds layers in processes that load no plugins"
    return None


def _draft_is_ours() -> bool:
    """Whether the draft's patch is in: left out by name, or mended upstream, SGLang decides."""
    state = records.STATES.get(DRAFT_PATCH)
    return state is not None and state.status == records.Status.APPLIED


def _declare(field: str, role: Role, patch: str, route: runners.Route) -> dict[str, str]:
    decisions.decide("resolution", Decision(role, route.runner, route.runner and patch, route.reason))
    return {} if route.runner is None else {field: server_flags.flag_name(route.runner)}


def _say(launch: Launch, role: Role, route: runners.Route) -> None:
    """Log what `auto` follows, or that nothing was measured here."""
    if launch.auto is not None:
        decisions.once(("auto", role), f"MoE {role}: {route.runner or 'SGLang decides'}: {route.reason}")


def _refuse_disabled(settings: Settings, launch: Launch, route: runners.Route) -> None:
    """A route to our runner needs the patches that register its name and give the layer our method."""
    needed = [NAME_PATCH] if launch.takes_names else []
    needed += ["mxfp4_experts"] if "mxfp4" in (launch.kind, launch.draft_kind) else []
    for patch in needed:
        if route.runner == RUNNER and patch in settings.disabled:
            raise SystemExit(
                f"sglang-sm120: {RUNNER} is to run these experts ({route.reason}), and SGLANG_SM120_DISABLE leaves out "
                f"{patch}, which it needs; take {patch} out of the list, or choose another runner"
            )


def _refuse_moved_weights(view: ResolvedFlags, target_is_ours: bool, draft_is_ours: bool) -> None:
    """Stop before weights load where SGLang would move, share or exchange what our kernel prepares in place."""
    for flag in update_paths.FLAGS:
        if (target_is_ours or (draft_is_ours and not flag.target_only)) and flag.is_used(view):
            raise SystemExit(
                f"sglang-sm120: {flag.name} {flag.why}, which {RUNNER} cannot follow; leave {flag.name} out, or "
                "choose another runner for these layers"
            )
    of_draft = getattr(view, "speculative_draft_load_format", None)
    formats = [("--load-format", view.load_format)] if target_is_ours or (draft_is_ours and not of_draft) else []
    formats += [("--speculative-draft-load-format", of_draft)] if draft_is_ours and of_draft else []
    for name, load_format in formats:
        why = update_paths.load_format_problem(load_format)
        if why is not None:
            raise SystemExit(
                f"sglang-sm120: {name} {getattr(load_format, 'value', load_format)} {why}, which {RUNNER} "
                f"cannot follow; leave {name} out, or choose another runner for these layers"
            )


def _files(view: ResolvedFlags, text: Any) -> Files:
    """The checkpoints of the launch; stop before SGLang reads what they do not have."""
    states = {name: str(state.status) for name, state in records.STATES.items()}
    try:
        files, problems = launch_files.read(view, states)
    except inspection.CheckpointError as error:
        raise SystemExit(f"sglang-sm120: {error}") from error
    problems += launch_files.count_problems(view, text)
    if problems:
        raise SystemExit(f"sglang-sm120: {'; '.join(problems)}")
    return files


def _refuse_unpatched_schedulers(view: ResolvedFlags, draft: runners.Route) -> None:
    """Ray actors and the weight-cache daemon build models without loading plugins: the draft would be stock."""
    if draft.runner is None:
        return
    for flag, used in _unpatched(view):
        if used:
            raise SystemExit(
                f"sglang-sm120: with {flag} SGLang builds the draft in processes that load no plugins, so it would get "
                f"kernels that SM120 does not have; leave {flag} out, or leave out speculative decoding"
            )


def _unpatched(view: ResolvedFlags) -> tuple[tuple[str, bool], ...]:
    """The flags whose processes load no plugins, and whether they are used; the weight cache is new in 0.5.18."""
    cache = getattr(view, "weight_cache_mode", "off")
    return ("--use-ray", bool(view.use_ray)), ("--weight-cache-mode", cache != "off")


def _check(server_args: Any, previous: Callable[[Any], None]) -> None:
    """After resolution: nobody may have put an SM100-only runner back."""
    previous(server_args)
    view = server_flags.resolving(server_args)
    if view.device != "cuda" or server_flags.target_kind(server_args) != "hybrid-nvfp4":
        return
    reason = known_kernels.why_not("nvfp4", server_flags.meant(view.moe_runner_backend))
    if reason is not None:
        raise SystemExit(
            f"sglang-sm120: {runners.TARGET_FLAG} was resolved to {view.moe_runner_backend} after {NAME} had chosen: "
            f"{reason}. Pass {runners.TARGET_FLAG} {launch_of.flag_values('nvfp4')}"
        )


PATCH = Patch(
    name=NAME,
    summary=f"hybrid FP8+NVFP4 targets run on `{RUNNER}` (or FlashInfer CUTLASS, or Marlin) instead of trtllm-gen",
    symptom=(
        "`trtllm_fp4_block_scale_routed_moe` fails at the first forward: the resolved arguments say "
        "`moe_runner_backend='flashinfer_trtllm_routed'`, whose kernels exist for SM100 only"
    ),
    targets=(
        Target(_IMPERATIVE, "apply_deepseek_v4_defaults", releases.spans({"0.5.14": "6b9450249a00", "0.5.15": None})),
        Target(_REGISTRY, "_deepseek_v4_overrides", releases.spans({"0.5.15": "eefe85920684", "0.5.19": None})),
        Target(
            f"{_GROUPS}.model_overrides.deepseek_v4",
            "_deepseek_v4_overrides",
            releases.spans({"0.5.19": "c43c7b68a912", "0.5.20": "93189ce1abfa", "0.5.21": "e2e4bccbf92d"}),
        ),
        Target(
            _REGISTRY,
            "_deepseek_v4_sm120_moe",
            releases.spans({"0.5.15": "e37ede7ff215", "0.5.16": "b819e31c7df4", "0.5.19": None}),
        ),
        Target(_REGISTRY, "register_model_override", releases.spans({"0.5.15": "c6fa4aefd5f0", "0.5.19": None})),
        Target(f"{_GROUPS}.model_override_base", "register_model_override", releases.spans({"0.5.19": "c6fa4aefd5f0"})),
        Target(
            _REGISTRY,
            "collect_model_override_declarations",
            releases.spans({"0.5.15": "886cc04551f3", "0.5.19": "6a83e17b7da3"}),
        ),
        Target(
            _ARGS,
            "ServerArgs.__post_init__",
            releases.spans(
                {
                    "0.5.14": "3d530447dabd",
                    "0.5.15": "bd8439b4999e",
                    "0.5.16": "988fb41988a2",
                    "0.5.17": "99ed951fca21",
                    "0.5.18": "38a4e2eb0203",
                    "0.5.19": None,
                }
            ),
        ),
        Target(_ARGS, "ServerArgs.resolve_once", releases.spans({"0.5.19": "d4279647094d", "0.5.20": None})),
        Target(_HOOKS, "register_resolution_hook", releases.spans({"0.5.20": "f0ca0da01f36"})),
    ),
    why=(
        "from SGLang 0.5.15 a registration (0.5.14 has none, there one function is wrapped): upstream's provider sets "
        "the runner whenever the checkpoint is hybrid, without a look at the GPU, and the rule that would save SM120 "
        "asks for `quantization == 'modelopt_fp4'`, which such checkpoints lack"
    ),
    binding=(
        "providers of one architecture are collected in order of registration and the last one wins; SGLang 0.5.14 "
        "imports the wrapped function in the place that calls it"
    ),
    untouched=(
        "runners that were asked for and work; native MXFP4 checkpoints whose shapes FlashInfer takes; FP8 experts, "
        "but in SGLang 0.5.14 to 0.5.18, whose default on SM120 has no kernel for them, `auto` becomes `triton`"
    ),
    remove_when="upstream's `_deepseek_v4_overrides` gives a hybrid checkpoint on SM120 another runner than trtllm",
    install=install,
    mended=lambda: stock.mended_layer("target"),
)
