"""A child of a child that is ended while its parent goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path


async def interrupt_child(parent: int, argument: str, within_s: float) -> None:
    """Send SIGINT to the children of a process that were started with this argument; wait for their end, within a bound."""
    for pid in _children(parent):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Held by the descriptor, the process that is looked at is the one that gets the signal.
            if os.fsencode(argument) in _arguments(pid):
                signal.pidfd_send_signal(descriptor, signal.SIGINT)
                await _ended(descriptor, within_s)
        except ProcessLookupError:
            continue
        finally:
            os.close(descriptor)


def _children(pid: int) -> list[int]:
    try:
        lists = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for children in lists for child in children.split()]


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


async def _ended(descriptor: int, within_s: float) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await ended.wait()
    finally:
        loop.remove_reader(descriptor)
