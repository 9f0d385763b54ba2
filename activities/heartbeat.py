"""Heartbeats by a ticker of their own, so that they go on whatever the phase waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity


class Beat:
    """What the heartbeats of one phase say."""

    def __init__(self) -> None:
        self.detail = ""

    def say(self, detail: str) -> None:
        """Send ``detail`` with every heartbeat from here on."""
        self.detail = detail


@asynccontextmanager
async def beating(every_s: float) -> AsyncIterator[Beat]:
    """Heartbeat every ``every_s`` seconds until the block ends."""
    beat = Beat()
    ticker = asyncio.create_task(_tick(beat, every_s))
    try:
        yield beat
    finally:
        ticker.cancel()


async def _tick(beat: Beat, every_s: float) -> None:
    # The first one is not at once: most phases end before it is due, and none is lost sooner for it.
    while True:
        await asyncio.sleep(every_s)
        activity.heartbeat(beat.detail)
