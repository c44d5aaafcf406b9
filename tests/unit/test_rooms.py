"""Imports go one way, from the command line down to the kernels: no arrow up, none between neighbours, no circle."""

import ast
import itertools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Lowest first. A module may import its own room and the rooms of lower lines; rooms of one line do not know each other.
ROOMS = {
    "overlay": (
        ("kernels",),
        ("settings", "gpu", "files", "schemas", "checkpoint"),
        ("upstream",),
        ("patching",),
        ("moe",),
        ("patches",),
        ("plugin",),
        ("commands",),
        ("commands.plan", "commands.doctor", "commands.tune", "commands.selftest"),
        ("commands.arguments",),
        ("cli",),
    ),
    "kernels/sm120": (
        ("tile_tables",),
        ("fp4_moe.runtime",),
        ("fp4_moe.weights", "fp4_moe.reference"),
        ("fp4_moe.device",),
        ("fp4_moe.host",),
        ("fp4_moe.layer",),
        ("fp4_moe.warming",),
        ("fp4_moe",),
    ),
}
PACKAGES = {"overlay": ROOT / "overlay" / "sglang_sm120", "kernels/sm120": ROOT / "kernels" / "sm120"}
# `python -m` starts these by name, so that no process of a launch has them imported.
STARTED_BY_NAME = {"commands.plan.child", "commands.plan.observe"}


def modules(package: Path) -> dict[str, Path]:
    """Dotted name below the package -> file; the overlay's links to patches and kernels are followed."""
    links = [p for p in package.iterdir() if p.is_symlink()]
    found = {}
    for file in itertools.chain(package.rglob("*.py"), *(link.resolve().rglob("*.py") for link in links)):
        base = next((link for link in links if file.is_relative_to(link.resolve())), None)
        inside = file.relative_to(package) if base is None else Path(base.name) / file.relative_to(base.resolve())
        parts = inside.with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The package's own modules that a module imports anywhere in its file, also for types only."""
    found: set[str] = set()
    here = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix("sglang_sm120.") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(here[: len(here) - node.level + 1] + ([node.module] if node.module else []))
            elif base.split(".")[0] != "sglang_sm120":
                continue
            base = base.removeprefix("sglang_sm120").removeprefix(".")
            targets = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
            targets = [t if t in known else base for t in targets]
        else:
            continue
        found |= {t for t in targets if t in known}
    return found - {name, ""}


def room_of(name: str, rooms) -> tuple[int, str]:
    """Line and name of the innermost room that a module is in."""
    fitting = [(line, r) for line, names in enumerate(rooms) for r in names if name == r or name.startswith(f"{r}.")]
    return max(fitting, key=lambda entry: len(entry[1]))


def upward(arrows: dict[str, set[str]], rooms) -> list[str]:
    """The imports that no room may have."""
    wrong = []
    for name, targets in arrows.items():
        line, room = room_of(name, rooms)
        for target in targets:
            below, other = room_of(target, rooms)
            if other != room and below >= line:
                wrong.append(f"{name} imports {target}")
    return wrong


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Modules that can get back to themselves."""
    reach = {name: set(targets) for name, targets in arrows.items()}
    for middle, name in itertools.product(arrows, arrows):
        if middle in reach[name]:
            reach[name] |= reach[middle]
    return [name for name, targets in reach.items() if name in targets]


@pytest.fixture(scope="module", params=list(PACKAGES))
def package(request):
    known = modules(PACKAGES[request.param])
    known.pop("", None)
    if request.param == "kernels/sm120":
        return known, ROOMS[request.param]
    return {n: f for n, f in known.items() if not n.startswith("kernels.sm120.")}, ROOMS[request.param]


def test_no_arrow_points_up_and_none_back(package):
    known, rooms = package
    arrows = {name: imported(name, file, known) for name, file in known.items()}
    assert upward(arrows, rooms) == []
    assert circles(arrows) == []


def test_every_module_has_a_room(package):
    known, rooms = package
    assert [
        name for name in known if not any(name == r or name.startswith(f"{r}.") for line in rooms for r in line)
    ] == []


def test_the_kernel_can_be_lifted_out():
    for file in PACKAGES["kernels/sm120"].rglob("*.py"):
        assert "sglang_sm120" not in {
            (n.module or "").split(".")[0]
            for n in ast.walk(ast.parse(file.read_text()))
            if isinstance(n, ast.ImportFrom)
        }, file


def test_nobody_but_cli_imports_a_command():
    known = modules(PACKAGES["overlay"])
    for name, file in known.items():
        if name and name != "cli" and not name.startswith("commands"):
            assert not {t for t in imported(name, file, known) if t.startswith("commands")}, name
    assert set(known) >= STARTED_BY_NAME


@pytest.mark.parametrize(
    ("importer", "target", "found"),
    [
        ("upstream.server_flags", "moe.runners", True),
        ("moe.method", "commands.plan.child", True),
        ("commands.plan.command", "commands.doctor.command", True),
        ("commands.plan.command", "moe.runners", False),
        ("patches.mxfp4_nextn", "moe.choose", False),
    ],
)
def test_an_arrow_up_is_found(importer, target, found):
    assert bool(upward({importer: {target}}, ROOMS["overlay"])) is found


def test_a_circle_is_found():
    assert circles({"moe.a": {"moe.b"}, "moe.b": {"moe.a"}, "moe.c": set()}) == ["moe.a", "moe.b"]
