"""Our server of tools, as a program of Claude Code has it: started by the program, and ended before it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from system.children import interrupt_child

SERVER_SCRIPT: Final = Path(__file__).parents[1] / "cli" / "mcp_entry.py"
"""The server as a script: who starts it by its module's name waits for site-packages, too."""

_LIMIT_S: Final = 0.5


async def end_server(program: int) -> None:
    """End the server that a program has started, within a bound; nothing where there is none.

    A program that is to end does so itself, but looks only every 50 ms whether the server has.
    """
    await interrupt_child(program, str(SERVER_SCRIPT), _LIMIT_S)
