"""Reading the documents: fenced blocks, code spans, links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "THIRD_PARTY.md", "CHANGELOG.md"]
DOCUMENTS = [ROOT / name for name in WRITTEN] + sorted((ROOT / "docs").glob("*.md"))
NEEDS_GPU, NEEDS_DOCKER = "# needs an SM120", "# needs Docker"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its document, language and text."""

    document: str
    language: str
    text: str

    @property
    def mark(self):
        """`# needs ...` of its first line, or an empty string."""
        first = self.text.split("\n", 1)[0]
        return first if first.startswith("# needs ") else ""

    @property
    def commands(self):
        """The commands, continued lines joined, without comments."""
        lines = self.text.replace("\\\n", " ").split("\n")
        return [re.sub(r" +", " ", line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def blocks():
    """Every fenced block of the documents that people write."""
    return [
        Block(str(path.relative_to(ROOT)), language, text)
        for path in DOCUMENTS
        for language, text in FENCE.findall(path.read_text(encoding="utf-8"))
    ]


def prose(path):
    """A document without its fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def code_spans(path):
    """What stands between single backticks outside of fenced blocks, on one line each."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(path))]


def links(path):
    """Targets of the links."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(path))


def anchors(path):
    """Anchors of the headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", prose(path), re.M):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(slug)
    return found


def sglang_flags(noted):
    """SGLang's flags of a noted plan or launch."""
    words = noted["arguments"]
    if noted["kind"] == "launch":
        assert words[0] == "--model-path"
        return words[2:]
    return words[words.index("--") + 1 :] if "--" in words else []
