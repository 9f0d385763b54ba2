"""Which phases run in this process, one at a time for each run, and how one is told to end.

A phase is never cut off by a cancellation: it is *asked* to stop, and comes to its own end, so that what an agent
had done is stored before anybody else touches the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from temporalio import activity

T = TypeVar("T")
StopReason = Literal[
    "interrupt", "worker_shutdown", "server_lost", "activity_paused", "activity_reset", "timeout"
]
"""Why a phase was asked to stop; each is a ``PartialReason`` too."""


class Stop:
    """An order to end, given once: the first reason stands. That the worker is to end, too, leaves less time."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._draining = asyncio.Event()
        self.reason: StopReason | None = None

    def request(self, reason: StopReason) -> None:
        """Ask for the end."""
        if reason == "worker_shutdown":
            self.drain()
        if self.reason is None:
            self.reason = reason
            self._asked.set()

    async def wait(self) -> StopReason:
        """Return the reason once the end is asked for."""
        await self._asked.wait()
        assert self.reason is not None  # noqa: S101 - set before the event
        return self.reason

    def drain(self) -> None:
        """Say that the worker is to end."""
        self._draining.set()

    async def draining(self) -> None:
        """Return once the worker is to end, whatever the reason to stop was."""
        await self._draining.wait()


class Running:
    """The phases of this process."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._live: dict[str, dict[Stop, asyncio.Future[Any]]] = {}

    async def exclusive(self, run_id: str, body: Callable[[], Awaitable[T]]) -> T:
        """Run ``body`` while no phase of the run does anything in this process."""
        lock = self._locks.get(run_id)
        if lock is None:
            lock = self._locks[run_id] = asyncio.Lock()
        async with lock:
            return await body()

    async def phase(self, run_id: str, body: Callable[[Stop], Awaitable[T]]) -> T:
        """Run one phase to its own end; a cancellation of the activity becomes an order to stop.

        The cancellation is swallowed on purpose: what the body returns then is how the stopped attempt stands,
        and the server takes a returned value for a completed activity. (An activity that re-raises loses it.)
        """
        stop = Stop()
        live = self._live.setdefault(run_id, {})
        task = asyncio.ensure_future(self.exclusive(run_id, lambda: body(stop)))
        live[stop] = task
        # A phase that was cancelled once is not cancelled again when its worker is shut down.
        draining = asyncio.ensure_future(_drained(stop)) if activity.in_activity() else None
        try:
            while not task.done():
                try:
                    await asyncio.wait({task})
                except asyncio.CancelledError:
                    stop.request(_why_cancelled())
            return task.result()
        finally:
            if draining is not None:
                draining.cancel()
            del live[stop]
            if not live and self._live.get(run_id) is live:
                del self._live[run_id]

    def __contains__(self, run_id: str) -> bool:
        """Whether a phase of the run runs, or waits to run, in this process."""
        return run_id in self._live

    async def stop_run(self, run_id: str, reason: StopReason, *, within_s: float) -> bool:
        """Ask every phase of a run to end and wait for it; False if one still runs after ``within_s`` seconds."""
        live = dict(self._live.get(run_id, {}))
        for stop in live:
            stop.request(reason)
        if not live:
            return True
        _, running = await asyncio.wait(live.values(), timeout=within_s)
        return not running


async def _drained(stop: Stop) -> None:
    await activity.wait_for_worker_shutdown()
    stop.drain()


def _why_cancelled() -> StopReason:
    details = activity.cancellation_details()
    if details is None or details.cancel_requested:
        return "interrupt"
    if details.paused:
        return "activity_paused"
    if details.reset:
        return "activity_reset"
    if details.worker_shutdown:
        return "worker_shutdown"
    return "server_lost"
