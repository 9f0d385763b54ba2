"""The time people take to answer: it is not the agent's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pauses:
    """How long a turn has waited for people. Overlapping waits count once; ``ended_at`` is when the last one ended."""

    def __init__(self) -> None:
        self._open = 0
        self._since = 0.0
        self._past_s = 0.0
        self._none = asyncio.Event()
        self._none.set()
        self.ended_at = 0.0

    @property
    def on(self) -> bool:
        """Whether somebody is waited for now."""
        return self._open > 0

    @property
    def total_s(self) -> float:
        """All waiting so far, in seconds."""
        return self._past_s + (time.monotonic() - self._since if self.on else 0.0)

    async def over(self) -> None:
        """Return once nobody is waited for."""
        await self._none.wait()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Count the block as waiting."""
        if not self.on:
            self._since = time.monotonic()
            self._none.clear()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self.on:
                self.ended_at = time.monotonic()
                self._past_s += self.ended_at - self._since
                self._none.set()
