"""A second plugin that is loaded after ours and touches the same code, on real SGLang with a real entry point."""

import json

import pytest

from sglang_sm120.checkpoint import headers_only
from sglang_sm120.upstream import releases, server_flags

NEWEST = releases.PROVEN[-1]
# Flags take effect differently: one function, registered providers, hooks of the resolution.
ERAS = ["0.5.14", "0.5.19", NEWEST]
FLAGS = ["--tp", "2", *server_flags.eagle()]
QUANT, CLASS = "sglang.srt.layers.quantization.modelopt_quant", "HybridFp8NvFp4Config"
TARGET = f"{QUANT}.{CLASS}.get_quant_method"

COMMON = f'''
CALLS = []

def theirs(self, layer, prefix):
    """In the place of SGLang's."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    CALLS.append(prefix)
    return Fp8Config.get_quant_method(self, layer, prefix)

def hybrid():
    from {QUANT} import {CLASS}
    return {CLASS}

def hook(target, function, how):
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    HookRegistry.register(target, function, HookType[how])
'''
REPLACES = {
    "by assignment": "def register():\n    hybrid().get_quant_method = theirs\n",
    "by a hook of SGLang": f"def register():\n    hook('{TARGET}', theirs, 'REPLACE')\n",
    "with the class": f"""
def register():
    class Theirs(hybrid()):
        get_quant_method = theirs
    hook('{QUANT}.{CLASS}', Theirs, 'REPLACE')
""",
    "by what lies under ours": """
STOCK = []

def theirs(self, layer, prefix):
    CALLS.append(prefix)
    return STOCK[0](self, layer, prefix)

def register():
    found = hybrid().get_quant_method
    STOCK.append(getattr(found, "__wrapped__", found))
    hybrid().get_quant_method = theirs
""",
}
# After the flags have been resolved: what only a scheduler sees.
REPLACES_LATE = """
def late(result, *args, **kwargs):
    hybrid().get_quant_method = theirs

def register():
    hook('sglang.srt.layers.moe.utils.initialize_moe_config', late, 'AFTER')
"""
WRAPS = {
    "by assignment": """
def register():
    found = hybrid().get_quant_method
    def wrapper(self, layer, prefix):
        CALLS.append(prefix)
        return found(self, layer, prefix)
    hybrid().get_quant_method = wrapper
""",
    "with a global": """
FOUND = {}

def wrapper(self, layer, prefix):
    CALLS.append(prefix)
    return FOUND["get_quant_method"](self, layer, prefix)

def register():
    FOUND["get_quant_method"] = hybrid().get_quant_method
    hybrid().get_quant_method = wrapper
""",
    "by a hook of SGLang": f"""
def around(original, *args, **kwargs):
    CALLS.append(args[-1])
    return original(*args, **kwargs)

def register():
    hook('{TARGET}', around, 'AROUND')
""",
    "with a subclass": f"""
def register():
    class Theirs(hybrid()):
        def get_quant_method(self, layer, prefix):
            CALLS.append(prefix)
            return super().get_quant_method(layer, prefix)
    hook('{QUANT}.{CLASS}', Theirs, 'REPLACE')
""",
    "with an object": """
import functools

class Wrapper:
    def __init__(self, found):
        self.found = found

    def __get__(self, instance, owner):
        return functools.partial(self, instance)

    def __call__(self, instance, layer, prefix):
        CALLS.append(prefix)
        return self.found(instance, layer, prefix)

def register():
    hybrid().get_quant_method = Wrapper(hybrid().get_quant_method)
""",
}
# A class in the table from which SGLang takes a checkpoint's configuration; the patched classes stay as they are.
TABLE = """
from sglang.srt.layers.quantization.fp8 import Fp8Config, QuantizationConfig

class Own(QuantizationConfig):
    get_name = get_config_filenames = get_scaled_act_names = lambda self: []
    get_supported_act_dtypes = Fp8Config.get_supported_act_dtypes
    get_min_capability = classmethod(lambda cls: 0)
    from_config = classmethod(lambda cls, config: cls())

class Theirs({base}):
    def get_quant_method(self, layer, prefix):
        CALLS.append(prefix)
        return {answer}

def register():
    from sglang.srt.layers import quantization
    quantization.BASE_QUANTIZATION_METHODS["fp8"] = quantization.QUANTIZATION_METHODS["fp8"] = Theirs
"""
ASKS_OURS = TABLE.format(base="Fp8Config", answer="super().get_quant_method(layer, prefix)")
ASKS_NOBODY = TABLE.format(base="Fp8Config", answer="None")
OF_ITS_OWN = TABLE.format(base="Own", answer="None")
ELSEWHERE = [{}, {"SGLANG_SM120": "0"}]


def plugins(sources):
    return {name: COMMON + source for name, source in sources.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(headers_only.write(tmp_path_factory.mktemp("hybrid"), "hybrid-nvfp4", "nextn"))


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return str(headers_only.write(tmp_path_factory.mktemp("native"), "mxfp4", "nextn"))


@pytest.fixture(scope="module")
def launches(ask, model):
    """(release, arch, [(plugin, environment)]) -> answers."""

    def launches(release, arch, asked, preload=True, model=model):
        request = {"arch": arch, "preload": preload, "model": model, "flags": FLAGS}
        request["launches"] = [{"plugin": plugin, "env": env} for plugin, env in asked]
        return ask("plugin_probe.py", stdin=json.dumps(request), release=release)

    return launches


@pytest.fixture(scope="module", params=ERAS)
def answers(request, launches):
    """What each plugin comes to on SM120, for one release."""
    sources = {("replaces", n): p for n, p in plugins(REPLACES).items()}
    sources |= {("wraps", n): p for n, p in plugins(WRAPS).items()}
    sources |= {("late", ""): COMMON + REPLACES_LATE, ("alone", ""): None}
    found = launches(request.param, "sm120", [(plugin, {}) for plugin in sources.values()])
    return dict(zip(sources, found, strict=True))


def assert_named(error):
    assert error.startswith(f"patch mxfp4_nextn: {TARGET} is now other_overlay.theirs (plugin other of other-overlay)")
    for part in ("SGLANG_PLUGINS", "SGLANG_SM120_DISABLE=mxfp4_nextn", "SGLANG_SM120=0"):
        assert part in error
    assert "\n" not in error


@pytest.mark.parametrize("how", REPLACES)
def test_a_replaced_patch_stops_the_launch_when_flags_are_resolved(how, answers):
    answer = answers["replaces", how]
    (error,) = answer["errors"]
    assert_named(error)
    assert answer["sizes"] is None  # nothing was resolved


def test_a_patch_that_only_schedulers_see_replaced_stops_them_before_weights(answers):
    answer = answers["late", ""]
    (error,) = answer["errors"]
    assert_named(error)
    assert answer["sizes"]["tp_size"] == 2
    assert (answer["target"], answer["calls"]) == (None, 0)


@pytest.mark.parametrize("how", WRAPS)
def test_a_plugin_that_calls_what_it_found_works_beside_ours(how, answers):
    answer, alone = answers["wraps", how], answers["alone", ""]
    assert answer["errors"] == []
    assert answer["draft"]["method"] == "Sm120Mxfp4MoEMethod"
    assert (answer["target"], answer["draft"]) == (alone["target"], alone["draft"])
    assert answer["calls"] > 0


@pytest.mark.parametrize("release", ERAS)
def test_a_class_in_the_table_of_methods(release, launches, native):
    """It stops the launch before weights unless it asks ours, or SGLang makes ours of it, as of a hybrid's."""
    asked = [(COMMON + plugin, {}) for plugin in (ASKS_NOBODY, ASKS_OURS)]
    replaced, asks = launches(release, "sm120", asked, model=native)
    asked = [(COMMON + plugin, {}) for plugin in (OF_ITS_OWN, ASKS_NOBODY)]
    other, hybrid = launches(release, "sm120", asked)
    for answer, patch in ((replaced, "mxfp4_experts"), (other, "mxfp4_nextn")):
        (error,) = answer["errors"]
        assert error.startswith(
            f"patch {patch}: the model's quantization is configured by other_overlay.Theirs (plugin other"
        )
        for part in (".get_quant_method. ", "SGLANG_PLUGINS", f"SGLANG_SM120_DISABLE={patch}", "SGLANG_SM120=0"):
            assert part in error
        assert "\n" not in error
        assert (answer["target"], answer["calls"]) == (None, 0)
    assert (asks["errors"], asks["calls"] > 0) == ([], True)
    assert (hybrid["errors"], hybrid["draft"]["method"]) == ([], "Sm120Mxfp4MoEMethod")


def test_elsewhere_nobody_looks(launches):
    """The other plugin gets what it gets without the overlay."""
    ours, stock = launches(NEWEST, "sm100", [(plugins(REPLACES)["by assignment"], env) for env in ELSEWHERE])
    assert ours["calls"] > 0
    assert {p["status"] for p in ours["patches"]} == {"not applicable"}
    for part in ("target", "draft", "errors", "warnings", "calls"):
        assert ours[part] == stock[part]


def test_a_launcher_that_has_not_imported_the_code_notices_too(launches):
    """The plugin's own import sets ours in place first."""
    (answer,) = launches(NEWEST, "sm120", [(plugins(REPLACES)["by a hook of SGLang"], {})], preload=False)
    assert_named(answer["errors"][0])


def test_the_users_choice_is_taken(launches):
    """What the message offers: with the patch left out, or the plugin, the launch goes on."""
    plugin = plugins(REPLACES)["by what lies under ours"]
    choices = [{"SGLANG_SM120_DISABLE": "mxfp4_nextn"}, {"SGLANG_PLUGINS": "sm120"}, {"SGLANG_SM120": "0"}]
    theirs, ours, stock = launches(NEWEST, "sm120", [(plugin, env) for env in choices])
    assert [a["errors"] for a in (theirs, ours, stock)] == [[], [], []]
    assert (theirs["calls"] > 0, ours["calls"], stock["calls"] > 0) == (True, None, True)
    assert ours["draft"]["method"] == "Sm120Mxfp4MoEMethod"
