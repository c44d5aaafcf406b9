"""Environment variables: defaults, every good value, and what a bad one says."""

import pytest

from sglang_sm120 import settings

PATCHES = ("one", "two")


def read(**environment):
    return settings.read(PATCHES, environment)


def test_defaults():
    assert read() == settings.Settings()


@pytest.mark.parametrize("variable", [v for v in settings.VARIABLES if v.choices], ids=lambda v: v.name)
def test_every_documented_value_is_accepted(variable):
    for value in variable.choices:
        read(**{variable.name: value})


@pytest.mark.parametrize("variable", [v for v in settings.VARIABLES if v.choices], ids=lambda v: v.name)
def test_a_bad_value_names_variable_value_and_good_ones(variable):
    with pytest.raises(settings.SettingError) as caught:
        read(**{variable.name: "nonsense"})
    said = str(caught.value)
    assert variable.name in said
    assert "'nonsense'" in said
    assert all(choice in said for choice in variable.choices)


def test_empty_means_default():
    assert read(SGLANG_SM120="", SGLANG_SM120_ASSUME=" ") == settings.Settings()


def test_disable_takes_names_with_blanks():
    assert read(SGLANG_SM120_DISABLE=" two, one,").disabled == {"one", "two"}


def test_a_misspelt_patch_is_an_error_that_lists_the_patches():
    with pytest.raises(settings.SettingError, match=r"'thre'.*one, two"):
        read(SGLANG_SM120_DISABLE="one,thre")


def test_a_misspelt_variable_is_pointed_out_and_sglangs_own_are_not():
    assert read(SGLANG_SM120_FLASHMLA_BACKEND="triton").warnings == ()
    (warning,) = read(SGLANG_SM120_DISABEL="one").warnings
    assert "SGLANG_SM120_DISABEL" in warning
    assert "SGLANG_SM120_DISABLE" in warning
