"""How tests wait for what happens elsewhere: for the end of a process, else by looking again and again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from itertools import accumulate, chain, repeat, takewhile

SLOWEST_S = 0.1


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks, for ever: short at first, longer the longer it takes.

    A look may be a query, which costs server and worker more than what they are to do meanwhile.
    """
    growing = accumulate(repeat(1.4), lambda pause, by: pause * by, initial=0.01)
    return chain(takewhile(lambda pause: pause < SLOWEST_S, growing), repeat(SLOWEST_S))


async def ends(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process and return its exit code; many may wait, and each may be cancelled."""
    if process.poll() is None:
        gone, loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            gone.set()  # somebody else was told just now
        else:
            loop.add_reader(descriptor, gone.set)
            try:
                await gone.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
    # Who forked it tells of it within a moment.
    return await asyncio.to_thread(process.wait)
