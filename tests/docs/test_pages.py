"""What the pages promise a reader in a hurry: README's order and length, a picture of the rooms as they are."""

import re

import pytest
from documents import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DESIGN = (ROOT / "docs" / "DESIGN.md").read_text(encoding="utf-8")
OVERLAY = ROOT / "overlay" / "sglang_sm120"
KERNEL = ROOT / "kernels" / "sm120" / "fp4_moe"


def test_readme_is_short_and_in_order():
    assert len(README.splitlines()) <= 150
    sections = re.findall(r"^## (.+)$", README, re.M)
    assert sections == ["Install", "Launch", "Plan", "What changes", "Limits", "Where the rest is"]
    before = README.split("## Install")[0]
    assert "not run on an SM120 yet" in before
    assert len([line for line in before.splitlines() if line and not line.startswith("#")]) <= 4


def test_every_page_can_be_found_from_readme():
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert (ROOT / "docs" / "OPERATING.md") in pages
    for page in pages:
        assert f"(docs/{page.name})" in README


def rooms():
    """Folders of the overlay and of the kernel, as they are."""
    found = [
        path for path in (*OVERLAY.iterdir(), *KERNEL.iterdir()) if path.is_dir() and not path.name.startswith("_")
    ]
    return sorted(path.name for path in found)


@pytest.mark.parametrize("room", [room for room in rooms() if room != "kernels"])
def test_the_picture_shows_each_room(room):
    picture = re.search(r"^```mermaid\n(.*?)^```", DESIGN, re.M | re.S)[1]
    assert f"{room}/" in picture
    assert re.search(rf"^\| .*`(?:fp4_moe/)?{room}/`", DESIGN, re.M), "no row that says what the room is"


def test_the_picture_shows_no_room_that_is_gone():
    picture = re.search(r"^```mermaid\n(.*?)^```", DESIGN, re.M | re.S)[1]
    assert set(re.findall(r"\b(\w+)/(?:<br/>|\")", picture)) <= {*rooms(), "patches"}


@pytest.mark.parametrize(
    ("question", "file", "holds"),
    [
        ("a runner refused", "overlay/sglang_sm120/moe/refusals.py", " cannot run here on "),
        ("a flag become a method", "overlay/sglang_sm120/moe/choose.py", "def mxfp4_method("),
        ("a scale decoded", "kernels/sm120/fp4_moe/device/decode.py", "def scale_to_float32("),
        ("tiles chosen", "kernels/sm120/fp4_moe/host/schedule.py", "def plan("),
        ("weights repacked", "kernels/sm120/fp4_moe/weights/prepare.py", "def prepare_mxfp4("),
    ],
)
def test_the_design_says_where_to_look(question, file, holds):
    (row,) = [line for line in DESIGN.splitlines() if line.startswith("|") and f"{question}?" in line]
    assert file.rsplit("/", 1)[1] in row
    assert holds in (ROOT / file).read_text(encoding="utf-8")
