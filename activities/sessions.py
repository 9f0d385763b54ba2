"""The agents' sessions of this worker, and the turns they run.

A session is opened once per attempt and used by its work, finalize and route phases. It and its turns belong to this
registry, not to the activity that asked for them: they are started in a context of their own, so that nothing of an
agent ever touches ``activity.*`` and a turn is read to its end whatever becomes of the activity.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from activities.asking import Desk
from activities.closing import CLOSE_LIMIT_S, close_session
from schemas.calls import AttemptKey
from schemas.events import TransportEvent
from transports.port import Emit, SessionSpec, StepSession, StopReport, Transport

T = TypeVar("T")
_log = logging.getLogger("stepwise.activities")
# How long a session may take, beyond the grace, to say that its turn is over.
_LADDER_SLACK_S: Final = 15.0


class Relay:
    """Where a session's events go: to whichever phase uses it now. Never raises into the transport."""

    def __init__(self) -> None:
        self.target: Emit | None = None
        self.lost = 0

    def __call__(self, event: TransportEvent) -> None:
        """Pass one event on."""
        if self.target is None:
            return
        try:
            self.target(event)
        except Exception:  # noqa: BLE001 - a transport must not feel what becomes of its events
            self.lost += 1
            _log.exception("an event of the agent could not be stored")


class HeldSession:
    """One open session: which attempt it belongs to, its transport, where its events go."""

    def __init__(self, key: AttemptKey, transport: Transport, session: StepSession, relay: Relay) -> None:
        self.key = key
        self.transport = transport
        self.session = session
        self.relay = relay
        self.parking: asyncio.TimerHandle | None = None


class SessionRegistry:
    """All open sessions, by attempt. ``park_s`` is how long an idle one is kept, in seconds."""

    def __init__(self, *, park_s: float) -> None:
        self._park_s = park_s
        self._held: dict[str, HeldSession] = {}
        self._desks: dict[str, Desk] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine that belongs to a session, outside any activity's context."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def open(self, key: AttemptKey, transport: Transport, spec: SessionSpec, emit: Emit) -> HeldSession:
        """Open a session for an attempt, closing every other one of its run. Raises TransportError."""
        await self.close_run(key.run_id)
        relay = Relay()
        relay.target = emit
        opening = self.start(transport.open_session(spec, relay))
        try:
            session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.cancel()
            await asyncio.wait({opening}, timeout=CLOSE_LIMIT_S)
            if opening.done():
                await self._close_opened(opening)
            else:
                # It does not let itself be cancelled; when it comes after all, nobody has a use for it.
                opening.add_done_callback(lambda late: self.start(self._close_opened(late)))
            raise
        held = HeldSession(key, transport, session, relay)
        self._held[key.path] = held
        return held

    def take(self, key: AttemptKey, emit: Emit) -> HeldSession | None:
        """Return the attempt's session, if it is open, with its events going to ``emit`` from now on."""
        held = self._held.get(key.path)
        if held is not None:
            if held.parking is not None:
                held.parking.cancel()
                held.parking = None
            held.relay.target = emit
        return held

    def held(self, key: AttemptKey) -> HeldSession | None:
        """Return the attempt's session, if it is open, and leave it to whoever uses it."""
        return self._held.get(key.path)

    @contextmanager
    def attending(self, desk: Desk) -> Iterator[None]:
        """Let the attempt's desk be found while the block runs; it is closed at the end."""
        self._desks[desk.key.path] = desk
        try:
            yield
        finally:
            desk.close()
            if self._desks.get(desk.key.path) is desk:
                del self._desks[desk.key.path]

    def desk(self, key: AttemptKey) -> Desk | None:
        """Return the desk of the attempt's work, while it is done."""
        return self._desks.get(key.path)

    def holds(self, run_id: str) -> bool:
        """Whether a session of the run is open."""
        return any(held.key.run_id == run_id for held in self._held.values())

    def park(self, held: HeldSession) -> None:
        """Keep a session for the attempt's next phase; it is closed when none comes in time."""
        held.relay.target = None
        if self._held.get(held.key.path) is held:
            held.parking = asyncio.get_running_loop().call_later(self._park_s, self._expire, held)

    async def interrupt(self, held: HeldSession, turn: asyncio.Task[Any], grace_s: float) -> StopReport:
        """End a running turn by the session's own ladder; a session that does not answer is closed hard."""
        asking = self.start(held.session.interrupt(grace_s))
        try:
            await asyncio.wait({asking}, timeout=grace_s + _LADDER_SLACK_S)
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                await asyncio.wait({turn}, timeout=_LADDER_SLACK_S)
                if turn.done():
                    return asking.result()
            return await self.end(held, turn)
        finally:
            asking.cancel()

    async def end(self, held: HeldSession, turn: asyncio.Task[Any]) -> StopReport:
        """End a running turn without asking: close its session, and cancel what then still runs."""
        await self.close(held)
        if not turn.done():
            turn.cancel()
            await asyncio.wait({turn}, timeout=_LADDER_SLACK_S)
        return StopReport(method="killed", detail="the turn did not end when it was asked to")

    async def close(self, held: HeldSession) -> None:
        """Close one session; may be called twice."""
        if held.parking is not None:
            held.parking.cancel()
            held.parking = None
        if self._held.get(held.key.path) is held:
            del self._held[held.key.path]
        await close_session(held.session, self.start)

    async def close_run(self, run_id: str) -> None:
        """Close all sessions of a run."""
        await self._close_where(lambda held: held.key.run_id == run_id)

    async def close_all(self) -> None:
        """Close all sessions, and end what they still run."""
        await self._close_where(lambda _: True)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_LIMIT_S)

    async def _close_where(self, chosen: Callable[[HeldSession], bool]) -> None:
        for held in [held for held in self._held.values() if chosen(held)]:
            await self.close(held)

    def _expire(self, held: HeldSession) -> None:
        if self._held.get(held.key.path) is held:
            self.start(self.close(held))

    async def _close_opened(self, opening: asyncio.Task[StepSession]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            await close_session(opening.result(), self.start)
