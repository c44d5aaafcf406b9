"""The model that a launch would serve, among flags as given."""

import pytest

from sglang_sm120.commands.plan import config_file


@pytest.mark.parametrize("flags", [[], ["--tp", "2"], ["--trust-remote-code"], ["--model-path", "here"]])
def test_flags_that_name_no_other_model_are_let_through(flags):
    config_file.require_one_model(flags, flags, "here")


@pytest.mark.parametrize(
    "flags", [["--model-path", "there"], ["--model-path=there"], ["--tp", "2", "--model", "there"]]
)
def test_another_model_is_named(flags):
    with pytest.raises(SystemExit, match=r"the flags have .* there, which a launch would serve; plan takes here"):
        config_file.require_one_model(flags, flags, "here")
