"""Whether what a patch put in place can still be called from what is there now."""

import functools
import sys
from types import SimpleNamespace

import pytest

from sglang_sm120.patching import on_import, replace, still_reached

UPSTREAM = "class C:\n    def m(self):\n        return 'stock'\n\n\ndef f(x):\n    return x\n"
LOADER = "def _get_quantization_config(model_config, load_config):\n    return model_config, load_config\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of somebody else with a method and a function that patches have replaced."""
    (tmp_path / "upstream_reach.py").write_text(UPSTREAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(replace, "REPLACED", [])
    import upstream_reach

    replace.replace(upstream_reach.C, "m", "example", lambda original: lambda self: "ours+" + original(self))
    replace.replace(upstream_reach, "f", "example", lambda original: lambda x: original(x) + 1)
    yield upstream_reach
    sys.modules.pop("upstream_reach", None)


def closure(found):
    return lambda self: found(self)


def by_default(found):
    def theirs(self, found=found):
        return found(self)

    return theirs


def by_keyword(found):
    def theirs(self, *, found=found):
        return found(self)

    return theirs


def in_a_helper(found):
    def helper(self):
        return found(self)

    def theirs(self):
        return next(helper(self) for _ in range(1))

    return theirs


def through_its_wrapped(found):
    @functools.wraps(found)
    def theirs(self):
        return theirs.__wrapped__(self)

    return theirs


def by_a_partial(found):
    return functools.partialmethod(lambda self, f: f(self), found)


class Slots:
    """A wrapper as compiled ones are: no `__dict__`."""

    __slots__ = ("__wrapped__",)

    def __init__(self, found):
        self.__wrapped__ = found

    def __get__(self, instance, owner):
        return functools.partial(self.__wrapped__, instance)


def in_a_global(found):
    SAVED.found = found
    return uses_the_global


SAVED = SimpleNamespace()


def uses_the_global(self):
    return SAVED.found(self)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda found: found,
        closure,
        by_default,
        by_keyword,
        in_a_helper,
        through_its_wrapped,
        by_a_partial,
        Slots,
        in_a_global,
    ],
)
def test_what_calls_ours_is_left_alone(module, wrap):
    module.C.m = wrap(module.C.__dict__["m"])
    assert module.C().m() == "ours+stock"
    still_reached.require()


def replaced_for_good(found):
    @functools.wraps(found)
    def theirs(self):
        return "theirs"

    return theirs


def what_lies_under(found):
    stock = found.__wrapped__
    return lambda self: stock(self)


@pytest.mark.parametrize("theirs", [lambda _: lambda self: "theirs", replaced_for_good, what_lies_under, lambda _: 7])
def test_what_does_not_ends_the_launch_by_name(module, theirs):
    module.C.m = theirs(module.C.__dict__["m"])
    with pytest.raises(SystemExit) as caught:
        still_reached.require()
    said = str(caught.value)
    assert said.startswith("sglang-sm120: patch example: upstream_reach.C.m is now ")
    assert "7" in said or f"{__name__}." in said
    assert "SGLANG_SM120_DISABLE=example" in said
    assert "\n" not in said


def test_a_function_and_a_class_count_too(module):
    module.f = lambda x: x
    with pytest.raises(SystemExit, match=r"upstream_reach\.f is now"):
        still_reached.require()
    del module.f
    with pytest.raises(SystemExit, match=r"upstream_reach\.f is now gone"):
        still_reached.require()
    replace.REPLACED.pop()
    still_reached.require()
    module.C = type("C", (), {"m": lambda self: "theirs"})
    with pytest.raises(SystemExit, match=r"upstream_reach\.C\.m is now"):
        still_reached.require()


ASKED = []


@pytest.fixture
def loader(tmp_path, monkeypatch):
    (tmp_path / "loader_reach.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(still_reached, "LOADER", "loader_reach")
    monkeypatch.setattr(still_reached.ranks_agree, "require", lambda: ASKED.append("other ranks"))
    ASKED.clear()
    still_reached.watch()
    still_reached.watch()
    import loader_reach

    yield loader_reach
    sys.modules.pop("loader_reach", None)


def model(*architectures, **config):
    hf_config = SimpleNamespace(architectures=list(architectures))
    return SimpleNamespace(hf_config=hf_config, quantization=None, **config)


@pytest.mark.parametrize("name", ["DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN"])
def test_the_loader_looks_at_models_of_ours_only(module, loader, name):
    assert loader._get_quantization_config(model(name), load_config=2)[1] == 2
    module.C.m = lambda self: "theirs"
    with pytest.raises(SystemExit, match="example"):
        loader._get_quantization_config(model(name), 2)
    assert loader._get_quantization_config(model("LlamaForCausalLM"), 2)[1] == 2
    assert ASKED == ["other ranks"] * 2


class Fp8Config:
    """Stands for SGLang's, with what a patch put there."""

    def get_quant_method(self):
        return "ours"


class Silent(Fp8Config):
    def get_quant_method(self):
        return "theirs"


class Calling(Fp8Config):
    def get_quant_method(self):
        return super().get_quant_method()


class Holding:
    """Another plugin's, around the one that SGLang would have made."""

    def __init__(self, inner):
        self.inner = inner

    def get_quant_method(self):
        return self.inner.get_quant_method()


class Standing:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Keeping(Holding):
    def get_quant_method(self):
        return "theirs"


FP4 = {"nvfp4_moe_meta": None, "is_fp4_experts": True}


def configured(made, quantization="fp8", **facts):
    """SGLang's loader has made this configuration of a DeepSeek-V4 checkpoint with MXFP4 experts."""
    still_reached._require_in(made, SimpleNamespace(quantization=quantization, **(FP4 | facts)))


@pytest.fixture
def patched(monkeypatch):
    function = vars(Fp8Config)["get_quant_method"]
    replacement = replace.Replacement("example", "upstream", "Fp8Config.get_quant_method", function)
    monkeypatch.setattr(replace, "REPLACED", [replacement])
    monkeypatch.setattr(still_reached.server_flags, "_dequantizes_fp4", lambda: False)


def test_a_configuration_of_another_class_ends_the_launch_unless_it_calls_ours(patched):
    for made in (Fp8Config(), Calling(), type("Plain", (Fp8Config,), {})(), None):
        configured(made)
    for made in (Holding(Fp8Config()), Holding(Calling()), Standing(Fp8Config())):
        assert made.get_quant_method() == "ours"
        configured(made)
    of_the_instance = Fp8Config()
    of_the_instance.get_quant_method = lambda: "theirs"
    for made in (Silent(), of_the_instance, object(), Keeping(Fp8Config()), Holding(Silent()), Standing(Silent())):
        with pytest.raises(SystemExit, match=r"whose get_quant_method does not call upstream\.Fp8Config") as caught:
            configured(made)
        assert str(caught.value).startswith("sglang-sm120: patch example: the model's quantization is configured by ")
        assert "SGLANG_SM120_DISABLE=example" in str(caught.value)


def test_what_a_patch_is_not_about_is_left_alone(patched):
    configured(Silent(), quantization="theirs")  # asked for with --quantization
    configured(Silent(), is_fp4_experts=False)
    configured(Silent(), nvfp4_moe_meta={})  # hybrid: the other class's patch, which is not installed here
    replace.REPLACED.clear()
    configured(Silent())


def test_a_loader_without_that_step_ends_the_launch(tmp_path, monkeypatch):
    (tmp_path / "loader_gone.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    on_import.when_imported("loader_gone", still_reached._watch)
    with pytest.raises(SystemExit, match="_get_quantization_config"):
        import loader_gone  # noqa: F401
