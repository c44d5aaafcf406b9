"""What a receipt says of the code that it was measured with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit of this checkout; empty outside of one, where the caller is told with `--commit`."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
