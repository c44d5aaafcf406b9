"""Every command in a fenced block of README and docs is executed; every recipe is.

Blocks marked `# needs an SM120` run with their plan or dry run instead, those marked `# needs Docker` are the business
of test_docker.py. All plans and launches are then resolved by the real SGLang on simulated SM120s.
"""

import re
import shlex

import pytest
from documents import NEEDS_DOCKER, NEEDS_GPU, blocks, sglang_flags

# The demonstration is executed in tests/integration/test_commands.py, as is `selftest`; the tests are what runs here.
ELSEWHERE = ("./scripts/demo.sh", "./scripts/test.sh")
RECIPES = [
    "target.sh $MODEL",
    "eagle.sh $MODEL",
    "eagle.sh $MODEL --steps 3 --tp 4",
    "dspark.sh $MODEL",
    "dspark.sh $MODEL --block 3 --draft $MODEL",
    "pcie.sh $MODEL --tp 2",
    "pcie.sh $MODEL --tp 4 --ep",
    "pcie.sh $MODEL --tp 4 --no-draft",
    "two_nodes.sh $MODEL --rank 0 --head 192.168.100.1 --gb10 --interface eth1",
    "two_nodes.sh $MODEL --rank 1 --head 192.168.100.1:26000 --no-draft",
    "disaggregated.sh $MODEL --eagle",
    "disaggregated.sh $MODEL --prefill-tp 2 --decode-tp 4 --transfer mooncake_tcp --context-length 8192",
]
SHELL_BLOCKS = [b for b in blocks() if b.language == "sh" and b.mark != NEEDS_DOCKER]


def as_dry_run(block):
    """The commands of a block that needs an SM120, such that they do without."""
    return [f"{c} --dry-run" if re.search(r"(^|\s)scripts/recipes/\w+\.sh\s", c) else c for c in block.commands]


@pytest.fixture(scope="module")
def outcomes(stand_ins, tree):
    """(where, command) -> outcome and notes, of all blocks and of each recipe's dry run."""
    found = {}
    for block in SHELL_BLOCKS:
        for command in as_dry_run(block) if block.mark == NEEDS_GPU else block.commands:
            if not command.startswith(ELSEWHERE):
                found[block.document, command] = stand_ins.run(command, tree)
    for recipe in RECIPES:
        found["recipes", recipe] = stand_ins.run(f"scripts/recipes/{recipe} --dry-run", tree)
    return found


def test_the_documents_have_commands():
    found = {(b.document, c.split(" -- ")[0]) for b in SHELL_BLOCKS for c in b.commands}
    assert found >= {
        ("README.md", "pip install ."),
        ("README.md", "scripts/recipes/eagle.sh $MODEL --steps 3 --tp 4"),
        ("README.md", "sglang-sm120 plan --model $MODEL --arch sm120"),
        ("docs/OPERATING.md", "sglang-sm120 doctor --fix-hints"),
        ("docs/OPERATING.md", "pip uninstall -y sglang-sm120"),
        ("CONTRIBUTING.md", "./scripts/test.sh"),
    }
    assert {b.language for b in blocks()} <= {"sh", "text", "mermaid", "python"}
    assert {b.mark for b in blocks()} <= {"", NEEDS_GPU, NEEDS_DOCKER}


def test_each_command_succeeds(outcomes):
    failed = {where: done.stdout + done.stderr for where, (done, _) in outcomes.items() if done.returncode != 0}
    assert not failed


def test_each_launch_has_kernels(outcomes, resolve, model):
    """What stands in the documents resolves, to kernels of SM120 unless the overlay is switched off."""
    noted = [n for _, notes in outcomes.values() for n in notes if n["kind"] in ("plan", "launch")]
    assert {where for where, (_, notes) in outcomes.items() if any(n in noted for n in notes)} >= {
        ("recipes", RECIPES[0]),
        ("README.md", "scripts/recipes/target.sh $MODEL --tp 4 --dry-run"),
        ("docs/OPERATING.md", "SGLANG_PLUGINS=__none__ scripts/recipes/target.sh $MODEL --dry-run"),
    }
    for n, answer in zip(noted, resolve(noted, model), strict=True):
        assert answer["errors"] == [], n
        switched_off = n["environment"].get("SGLANG_SM120") == "0" or "SGLANG_PLUGINS" in n["environment"]
        stock = "flashinfer_trtllm_routed"
        assert (answer["target"]["runner"] == stock) == switched_off, n
        speculative = "--speculative-algorithm" in sglang_flags(n)
        assert (answer["draft"] is not None) == speculative
        if speculative:
            left_out = n["environment"].get("SGLANG_SM120_DISABLE") == "mxfp4_nextn"
            assert (answer["draft"]["method"] == "Sm120Mxfp4MoEMethod") != left_out, n


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_dry_run_prints_what_it_plans(outcomes, recipe):
    done, notes = outcomes["recipes", recipe]
    printed = [shlex.split(line) for line in done.stdout.splitlines()]
    servers = [words for words in printed if "sglang.launch_server" in words]
    plans = [n for n in notes if n["kind"] == "plan"]
    assert [n["kind"] for n in notes] == ["plan"] * len(servers)  # nothing was started
    assert len(servers) == (2 if recipe.startswith("disaggregated") else 1)
    for words, plan in zip(servers, plans, strict=True):
        assert words[words.index("--model-path") + 2 :] == sglang_flags(plan)
        for setting in (w for w in words[1:] if re.match(r"[A-Z0-9_]+=", w)):
            name, _, value = setting.partition("=")
            assert plan["environment"][name] == value
    assert ("--arch" in plans[0]["arguments"]) == ("--gb10" in recipe)
    if "--context-length" in recipe:
        assert all(words[-2:] == ["--context-length", "8192"] for words in servers)


def test_the_disaggregated_servers_share_the_host(outcomes):
    _, notes = outcomes["recipes", RECIPES[-1]]
    prefill, decode = (dict(zip(f[::2], f[1::2], strict=False)) for f in map(sglang_flags, notes))
    assert (prefill["--disaggregation-mode"], decode["--disaggregation-mode"]) == ("prefill", "decode")
    assert (prefill["--tp"], decode["--tp"], decode["--base-gpu-id"]) == ("2", "4", "2")
    assert prefill["--port"] != decode["--port"]
    assert prefill["--disaggregation-transfer-backend"] == decode["--disaggregation-transfer-backend"] == "mooncake_tcp"


def test_installing_and_removing_is_what_the_documents_say(outcomes, stand_ins):
    """README installs and docs/OPERATING.md removes; both were run, in that order, in the clean environment."""
    done = [n["arguments"][0] for _, notes in outcomes.values() for n in notes if n["kind"] == "pip"]
    assert done == ["install", "uninstall"]
    left = [p for p in stand_ins.pip.parents[1].rglob("*") if "sm120" in p.name]
    assert left == []
