"""The time people take is counted apart, however their answers overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from transports import pauses as module
from transports.pauses import Pauses


def test_waits_that_overlap_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    pauses = Pauses()
    with pauses.pause():
        clock.now = 10
        with pauses.pause():
            clock.now = 15
        assert (pauses.on, pauses.total_s) == (True, 15)
        clock.now = 20
    clock.now = 100
    assert (pauses.on, pauses.total_s, pauses.ended_at) == (False, 20, 20)
    with pauses.pause():
        clock.now = 101
    assert pauses.total_s == 21


async def test_every_ending_of_a_wait_is_heard_by_who_waits_for_it() -> None:
    pauses = Pauses()
    await pauses.over()
    waiting: Callable[[], Awaitable[None]] = pauses.over
    with pauses.pause():
        task = asyncio.ensure_future(waiting())
        await asyncio.sleep(0)
        assert not task.done()
    await task
