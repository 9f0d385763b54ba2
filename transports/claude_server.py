"""Our server of tools, as a program of Claude Code has it: started by the program, and ended before it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

SERVER_SCRIPT: Final = Path(__file__).parents[1] / "cli" / "mcp_entry.py"
"""The server as a script: who starts it by its module's name waits for site-packages, too."""

_LIMIT_S: Final = 0.5


async def end_server(program: int) -> None:
    """End the server that a program has started, within a bound; nothing where there is none.

    A program that is to end does so itself, but looks only every 50 ms whether the server has.
    """
    for pid in _children(program):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Held by the descriptor, the process that is looked at is the one that gets the signal.
            if _is_server(pid):
                signal.pidfd_send_signal(descriptor, signal.SIGINT)
                await _ended(descriptor)
        finally:
            os.close(descriptor)


def _children(pid: int) -> list[int]:
    try:
        lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for children in lists for child in children.split()]


def _is_server(pid: int) -> bool:
    try:
        return os.fsencode(SERVER_SCRIPT) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


async def _ended(descriptor: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_S):
                await ended.wait()
    finally:
        loop.remove_reader(descriptor)
