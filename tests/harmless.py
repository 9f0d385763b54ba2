"""Stands in for programs that could do harm: where a defence under test fails, they only note that they were called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_PROGRAMS: Final = ("rm", "dd", "sudo", "shutdown", "chmod")
FORK_BOMB: Final = ":(){ :; };:"
"""Reads like a fork bomb to who judges it, and only calls itself without forking if it is run: it ends at once."""


class Harmless:
    """A folder of such programs; ``path`` is a PATH on which they come first."""

    def __init__(self, folder: Path) -> None:
        self._witness = folder / "called"
        programs = folder / "harmless"
        programs.mkdir()
        for name in _PROGRAMS:
            program = programs / name
            program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"{name} $*\" >> {self._witness}\n")
            program.chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"

    def called(self) -> list[str]:
        """Return the calls there were."""
        return self._witness.read_text().splitlines() if self._witness.exists() else []
