"""A release or a patch target that differs from what was proven: SM120 stops with one message, others see nothing."""

import ast
import json
import shutil

import pytest

from sglang_sm120.patches import PATCHES
from sglang_sm120.upstream import contracts, releases

NEWEST = releases.PROVEN[-1]
# As if upstream had been asked and had mended nothing, and all that a setting asks for were wanted.
NOTHING_MENDED = {"SGLANG_SM120_OBSERVED": "{}", "SGLANG_SM120_BATCH_INVARIANT": "1"}


def _files(release):
    """The files of a release that patches touch."""
    modules = {t.module for p in PATCHES for t in p.targets if release in t.fingerprints}
    modules |= {"sglang.srt.layers.moe.utils", "sglang.srt.layers.moe.moe_runner.flashinfer_cutlass"}
    return sorted(modules)


def _path(tree, module):
    path = tree.joinpath(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def _copy(tree, target, release):
    """The release's metadata and the files that patches touch."""
    shutil.copytree(tree / f"sglang-{release}.dist-info", target / f"sglang-{release}.dist-info")
    for module in ["sglang", *_files(release)]:
        source = _path(tree, module)
        if source.exists():
            copied = target / source.relative_to(tree)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copied)
    return target


def _edit(file, qualname, how):
    """Add a statement to a definition, or rename it."""
    text = file.read_text()
    node = ast.parse(text)
    for part in qualname.split("."):
        node = [n for n in node.body if isinstance(n, contracts.Definition) and n.name == part][-1]
    lines = text.splitlines(keepends=True)
    if how == "gone":
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(node.name, node.name + "_renamed", 1)
    else:
        first = node.body[0]
        indent = " " * first.col_offset
        lines.insert(first.end_lineno, f"{indent}drifted = True\n")
    file.write_text("".join(lines))


def _drifts():
    """Each target once, in the newest release that has it, changed; one of them gone."""
    found = []
    for patch in PATCHES:
        for target in patch.targets:
            release = list(target.fingerprints)[-1]
            found.append(
                pytest.param(patch, target, release, "changed", id=f"{patch.name}-{release}-{target.qualname}")
            )
    patch, target = next((p, t) for p in PATCHES for t in p.targets if NEWEST in t.fingerprints)
    return [*found, pytest.param(patch, target, NEWEST, "gone", id="gone")]


DRIFTS = _drifts()


@pytest.fixture(scope="module")
def answers(ask, release_tree, tmp_path_factory):
    """Every drift on SM120 and on SM100, all asked in one process."""
    scenarios, keys = [], []
    for number, drift in enumerate(DRIFTS):
        _patch, target, release, how = drift.values
        tree = _copy(release_tree(release), tmp_path_factory.mktemp(f"tree{number}"), release)
        _edit(_path(tree, target.module), target.qualname, how)
        for arch in ("sm120", "sm100"):
            scenarios.append({"tree": str(tree), "arch": arch, "env": NOTHING_MENDED})
            keys.append((drift.id, arch))
    found = ask("register_probe.py", stdin=json.dumps(scenarios), release=NEWEST)
    return dict(zip(keys, found, strict=True))


@pytest.mark.parametrize(("patch", "target", "release", "how"), DRIFTS)
def test_sm120_stops_and_names_everything(patch, target, release, how, answers, request):
    said = answers[request.node.callspec.id, "sm120"]["stopped"]
    assert said is not None, "the launch goes on"
    expected = target.fingerprints[release]
    assert "\n" not in said
    remedies = ("SGLANG_SM120=0", "SGLANG_SM120_ACCEPT_DRIFT=1")
    for part in (
        f"SGLang {release}",
        str(target),
        "is gone" if how == "gone" else "has fingerprint",
        expected,
        *remedies,
    ):
        assert part in said
    owners = [p.name for p in PATCHES if str(target) in map(str, p.targets)]
    assert any(f"patch {name} " in said for name in owners), said


@pytest.mark.parametrize(("patch", "target", "release", "how"), DRIFTS)
def test_sm100_sees_nothing(patch, target, release, how, answers, request):
    answer = answers[request.node.callspec.id, "sm100"]
    assert answer["stopped"] is None
    assert answer["logged"] == []
    assert answer["imported"] == 0
    assert {status for status, _ in answer["states"].values()} == {"not applicable"}


@pytest.fixture(scope="module")
def unknown(release_tree, tmp_path_factory):
    """The newest release under a version that nobody has proven."""
    tree = _copy(release_tree(NEWEST), tmp_path_factory.mktemp("unknown"), NEWEST)
    metadata = tree / f"sglang-{NEWEST}.dist-info"
    text = (metadata / "METADATA").read_text().replace(f"Version: {NEWEST}", "Version: 0.6.99", 1)
    (metadata / "METADATA").write_text(text)
    metadata.rename(tree / "sglang-0.6.99.dist-info")
    return str(tree)


def test_an_unknown_release(ask, unknown):
    scenarios = [
        {"tree": unknown, "arch": "sm120", "env": NOTHING_MENDED},
        {"tree": unknown, "arch": "sm120", "env": NOTHING_MENDED | {"SGLANG_SM120_ACCEPT_DRIFT": "1"}},
        {"tree": unknown, "arch": "sm120", "env": {"SGLANG_SM120": "0"}},
        {"tree": unknown, "arch": "sm100", "env": {}},
    ]
    stops, accepts, off, elsewhere = ask("register_probe.py", stdin=json.dumps(scenarios), release=NEWEST)
    for part in ("0.6.99", releases.describe(), "SGLANG_SM120=0", "SGLANG_SM120_ACCEPT_DRIFT=1"):
        assert part in stops["stopped"]
    assert accepts["stopped"] is None
    assert any("SGLANG_SM120_ACCEPT_DRIFT=1" in line for line in accepts["logged"])
    assert accepts["states"]["deepseek_v4_gate"][0] == "applied"
    assert off["stopped"] is elsewhere["stopped"] is None


@pytest.mark.parametrize("release", ["0.5.14", "0.5.18", "0.5.19", "0.5.20", NEWEST])
def test_registering_imports_no_sglang_and_touches_no_gpu(release, ask, release_tree):
    """A process that would never touch CUDA must not start to; SGLang's model code does on import up to 0.5.20."""
    scenario = [{"tree": str(release_tree(release)), "arch": "sm120", "env": {}}]
    (answer,) = ask("register_probe.py", stdin=json.dumps(scenario), release=release)
    assert answer["stopped"] is None
    assert answer["states"]["mxfp4_nextn"][0] == "applied"
    assert (answer["imported"], answer["cuda"]) == (0, [])


@pytest.mark.parametrize("release", ["0.5.14", "0.5.18", NEWEST])
def test_registering_costs_what_the_targets_cost_and_not_their_files(release, ask, release_tree):
    """It runs in each of a server's processes. Held against parsing the files, in the same process on the same CPU."""
    scenario = {"tree": str(release_tree(release)), "arch": "sm120", "env": {}, "cost": True}
    costs = [a["cost"] for a in ask("register_probe.py", stdin=json.dumps([scenario] * 3), release=release)]
    assert costs[0]["files"] > 5
    assert costs[0]["parsed"] < costs[0]["all"] / 5
    assert min(c["seconds"] / c["all_seconds"] for c in costs) < 0.7
