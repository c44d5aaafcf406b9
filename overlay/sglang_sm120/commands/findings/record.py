"""One thing that is known to break a launch, with what to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        name: of the check, for programs.
        says: what is so, in one line.
        remedy: what to do.
        reported: who saw it break, as `project#number`; empty where it follows from source or from the machine.
    """

    name: str
    says: str
    remedy: str
    reported: str = ""

    @property
    def line(self) -> str:
        """All of it for people."""
        return f"{self.says}; {self.remedy}{f' (reported: {self.reported})' if self.reported else ''}"
