"""What a newer SGLang changes under the overlay's patches.

    python scripts/compat/drift.py --check sglang-0.5.24-cp311-cp311-manylinux_2_34_x86_64.whl
    python scripts/compat/drift.py --check PATH/TO/sglang-source-tree [--json]

Takes a wheel, an unpacked one, or a source tree, and compares each patch target with the newest proven release: `same`,
`changed` (with a diff of the code), `gone`. Lists the public registrations that SGLang has gained since, one of which
may let a patch retire. Reads source only; imports no SGLang. Exit status: 0 all the same, 1 something changed or is
gone, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.compat import cache
from sglang_sm120.patches import PATCHES
from sglang_sm120.upstream import contracts, definitions, releases
from sglang_sm120.upstream.contracts import Target

# Where a registration would have to appear that lets a patch retire.
_PACKAGES = ("sglang.srt.layers.quantization", "sglang.srt.layers.moe", "sglang.srt.arg_groups", "sglang.srt.plugins")
_REGISTRATIONS = ("register_", "add_")


@dataclass(frozen=True)
class Finding:
    """One patch target in the SGLang that was looked at.

    Attributes:
        patch, target: which.
        state: `same`, `changed` or `gone`.
        diff: unified diff of the code without comments, for `changed`.
    """

    patch: str
    target: str
    state: str
    diff: str = ""


class Tree:
    """An SGLang source tree: the directory that holds the package `sglang`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, module: str, qualname: str) -> contracts.Definition | None:
        """A definition; None if there is none."""
        path = self.directory.joinpath(*module.split("."))
        files = [f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()]
        if not files:
            return None
        return definitions.find(files[0].read_text(encoding="utf-8"), qualname)

    def functions(self, *packages: str) -> Iterator[tuple[str, str]]:
        """(module, name) of the public functions of some packages."""
        for package in packages:
            for file in sorted(self.directory.joinpath(*package.split(".")).rglob("*.py")):
                module = ".".join(file.relative_to(self.directory).with_suffix("").parts)
                for node in ast.parse(file.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                        yield module, node.name


def locate(given: Path, scratch: Path) -> Path | None:
    """The directory that holds the package `sglang`, from a wheel, an unpacked wheel or a checkout; else None."""
    if given.suffix == ".whl" and given.is_file():
        cache.unpack(given, scratch)
        given = scratch
    for candidate in (given, given / "python", given.parent):
        if (candidate / "sglang" / "srt").is_dir():
            return candidate
    return None


def compare(basis: str, old: Tree, new: Tree) -> list[Finding]:
    """Every target of every patch that the basis has."""
    return [
        _finding(patch.name, target, basis, old, new)
        for patch in PATCHES
        for target in patch.targets
        if basis in target.fingerprints
    ]


def _finding(patch: str, target: Target, basis: str, old: Tree, new: Tree) -> Finding:
    seen = new.find(target.module, target.qualname)
    if seen is None:
        return Finding(patch, str(target), "gone")
    if contracts.fingerprint(seen) == target.fingerprints[basis]:
        return Finding(patch, str(target), "same")
    before = old.find(target.module, target.qualname)
    lines = difflib.unified_diff(_code(before), _code(seen), basis, "looked at", lineterm="", n=2)
    return Finding(patch, str(target), "changed", "\n".join(lines))


def _code(node: contracts.Definition | None) -> list[str]:
    return [] if node is None else ast.unparse(node).splitlines()


def seams(old: Tree, new: Tree) -> list[str]:
    """Public registrations that the basis lacks: `module.function` each, for a person to hold against `remove_when`."""
    known = set(old.functions(*_PACKAGES))
    return [f"{m}.{n}" for m, n in new.functions(*_PACKAGES) if (m, n) not in known and n.startswith(_REGISTRATIONS)]


def render(findings: list[Finding], gained: list[str]) -> str:
    """For people."""
    lines = []
    for f in findings:
        lines.append(f"{f.state:8} {f.patch}: {f.target}")
        lines += [f"    {line}" for line in f.diff.splitlines()]
    lines += ["", "Registrations that SGLang has gained:", *(f"  {s}" for s in gained or ["none"])]
    if gained:
        lines += ["", "A patch can retire when:", *(f"  {p.name}: {p.remove_when}" for p in PATCHES)]
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=Path, required=True, metavar="WHEEL_OR_TREE")
    parser.add_argument(
        "--basis", choices=releases.PROVEN, default=releases.PROVEN[-1], help="compare with this release"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    a = parser.parse_args()
    try:
        old = Tree(cache.tree(a.basis))
    except cache.Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        directory = locate(a.check, Path(scratch))
        if directory is None:
            parser.error(f"--check {a.check}: neither a wheel of SGLang nor a directory that holds sglang/srt")
        new = Tree(directory)
        findings, gained = compare(a.basis, old, new), seams(old, new)
    if a.json:
        print(json.dumps({"basis": a.basis, "targets": [asdict(f) for f in findings], "seams": gained}, indent=1))
    else:
        print(render(findings, gained))
    return int(any(f.state != "same" for f in findings))


if __name__ == "__main__":
    sys.exit(main())
