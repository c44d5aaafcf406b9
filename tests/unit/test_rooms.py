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
        ("commands.plan", "commands.doctor", "commands.tune", "commands.selftest", "commands.bench"),
        ("commands.one_runner", "commands.report"),
        ("commands.arguments",),
        ("cli",),
        ("__main__",),
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
    "scripts and benchmarks": (
        ("scripts.markdown",),
        ("scripts.checkpoints", "benchmarks.reports"),
        ("benchmarks.e2e.servers",),
        ("scripts.layers", "scripts.compat", "scripts.machine_code"),
        ("benchmarks.e2e", "benchmarks.kernels", "benchmarks.judges"),
        ("scripts.pages",),
        ("scripts.docs",),
    ),
}
PACKAGES = {"overlay": ROOT / "overlay" / "sglang_sm120", "kernels/sm120": ROOT / "kernels" / "sm120"}
PROGRAMS = ("scripts", "benchmarks")  # started by path; they import each other by their names from the checkout's root
FLAT = "benchmarks.kernels"  # but here: by their names from this directory, which a started program has on its path
# `python -m` starts these by name, so that no process of a launch has them imported.
STARTED_BY_NAME = {"commands.plan.child", "commands.plan.observe", "commands.one_runner.child"}


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


def programs() -> dict[str, Path]:
    """Dotted name from the checkout's root -> file."""
    files = [file for folder in PROGRAMS for file in (ROOT / folder).rglob("*.py")]
    found = {}
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return {name: file for name, file in found.items() if name not in PROGRAMS}


def arrows_of_programs(known: dict[str, Path]) -> dict[str, set[str]]:
    """Module -> the programs' modules that it imports anywhere in its file."""
    inside = {name.removeprefix(f"{FLAT}."): file for name, file in known.items() if name.startswith(FLAT)}
    found = {name: imported(name, file, known, "") for name, file in known.items()}
    for name, file in inside.items():
        found[f"{FLAT}.{name}"] |= {f"{FLAT}.{target}" for target in imported(name, file, inside, "")}
    return found


def imported(name: str, file: Path, known: dict[str, Path], package: str = "sglang_sm120") -> set[str]:
    """The package's own modules that a module imports anywhere in its file, also for types only."""
    found: set[str] = set()
    here = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix(f"{package}.") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(here[: len(here) - node.level + 1] + ([node.module] if node.module else []))
            elif package and base.split(".")[0] != package:
                continue
            base = base.removeprefix(package).removeprefix(".")
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


@pytest.fixture(scope="module", params=list(ROOMS))
def package(request):
    """Module -> file, module -> what it imports, and the rooms."""
    rooms = ROOMS[request.param]
    if request.param not in PACKAGES:
        known = programs()
        return known, arrows_of_programs(known), rooms
    known = modules(PACKAGES[request.param])
    known.pop("", None)
    if request.param == "overlay":
        known = {n: f for n, f in known.items() if not n.startswith("kernels.sm120.")}
    return known, {name: imported(name, file, known) for name, file in known.items()}, rooms


def test_no_arrow_points_up_and_none_back(package):
    _, arrows, rooms = package
    assert sum(map(len, arrows.values())) > 10
    assert upward(arrows, rooms) == []
    assert circles(arrows) == []


def test_every_module_has_a_room(package):
    known, _, rooms = package
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


def test_the_product_imports_no_program():
    for package in (*PACKAGES.values(), ROOT / "patches"):
        for file in package.rglob("*.py"):
            found = {
                name.split(".")[0]
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
            }
            assert not found & {*PROGRAMS, "tests"}, file


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
        ("moe.mxfp4_method", "commands.plan.child", True),
        ("commands.plan.command", "commands.doctor.command", True),
        ("commands.plan.command", "moe.runners", False),
        ("patches.mxfp4_nextn", "moe.choose", False),
    ],
)
def test_an_arrow_up_is_found(importer, target, found):
    assert bool(upward({importer: {target}}, ROOMS["overlay"])) is found


@pytest.mark.parametrize(
    ("importer", "target", "found"),
    [
        ("scripts.checkpoints.make", "scripts.layers.demo", True),
        ("benchmarks.e2e.run", "benchmarks.kernels.workload", True),
        ("benchmarks.e2e.servers.server", "benchmarks.e2e.client", True),
        ("scripts.layers.demo", "scripts.checkpoints.tiny", False),
        ("benchmarks.e2e.session", "benchmarks.e2e.servers.ports", False),
    ],
)
def test_an_arrow_up_between_programs_is_found(importer, target, found):
    assert bool(upward({importer: {target}}, ROOMS["scripts and benchmarks"])) is found


def test_a_circle_is_found():
    assert circles({"moe.a": {"moe.b"}, "moe.b": {"moe.a"}, "moe.c": set()}) == ["moe.a", "moe.b"]
