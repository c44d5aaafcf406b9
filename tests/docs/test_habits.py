"""What a contributor expects to find: the same checks before a commit, in CI and on the desk; forms that ask enough."""

import re

import pytest
import yaml
from documents import ROOT

from sglang_sm120 import cli

TEST = (ROOT / "scripts" / "test.sh").read_text(encoding="utf-8")
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_hooks_run_the_checks_of_the_test_command():
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    entries = " ; ".join(hook["entry"] for hook in hooks)
    checks = re.findall(r'^"\$PYTHON" (?:-m )?((?:ruff \w+|mypy|scripts/docs\.py)(?: --check)?)', TEST, re.M)
    assert {"ruff check", "ruff format --check", "mypy", "scripts/docs.py --check"} <= set(checks)
    for check in checks:
        assert check in entries
    for repo in read(".pre-commit-config.yaml")["repos"]:
        assert repo["repo"] == "local"


def test_ci_calls_the_test_command():
    (job,) = read(".github/workflows/test.yml")["jobs"].values()
    assert "./scripts/test.sh" in [step.get("run") for step in job["steps"]]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_a_form_asks_for_what_a_report_needs(form):
    body = {part["id"]: part for part in read(form)["body"] if "id" in part}
    assert body["doctor"]["validations"]["required"]
    text = form.read_text(encoding="utf-8")
    commands = {command for action in cli.parser()._actions if action.choices for command in action.choices}
    assert set(re.findall(r"sglang-sm120 (\w+)", text)) <= commands
    for name in re.findall(r"\b(?:docs/)?[A-Z]+\.md\b", text):
        assert (ROOT / name).is_file(), name


def test_there_is_a_form_for_a_fault_and_one_for_a_measurement():
    assert {form.stem for form in FORMS} == {"fault", "measurement"}
