"""Named pipes between a test and a command: waited for within bounds, so that one that fails blocks no thread for ever."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import time
from pathlib import Path

from looking import pauses

WITHIN_S = 60.0


async def hear(pipe: Path) -> str:
    """Return what somebody writes into a pipe, once it is closed again."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        data, deadline = b"", time.monotonic() + WITHIN_S
        for pause in pauses():
            if poll.poll(0):
                part = os.read(reader, 65_536)
                if not part:
                    break
                data += part
                continue
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody wrote into {pipe.name}")
            await asyncio.sleep(pause)
        return data.decode()
    finally:
        os.close(reader)


async def tell(pipe: Path, text: str) -> None:
    """Write into a pipe, once somebody reads it."""
    deadline = time.monotonic() + WITHIN_S
    for pause in pauses():
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            await asyncio.sleep(pause)
            continue
        with os.fdopen(writer, "w") as file:
            file.write(text)
        return
