"""One work turn: what its events add up to, which limits end it, and how it is ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from activities.asking import Desk
from activities.endings import Ending, Order, of_order, of_turn
from activities.running import Stop
from activities.sessions import HeldSession, SessionRegistry
from schemas.common import Usage
from schemas.envelopes import ErrorEnvelope
from schemas.events import ToolEnded, ToolStarted, TransportEvent
from schemas.handoff import StopMethod
from store.attempts import AttemptLog
from transports.operations import with_operation
from transports.pauses import Pauses
from transports.port import StopReport, WorkOutcome, WorkRequest


@dataclass(frozen=True)
class Limits:
    """What ends a turn: seconds of work and of silence, and the budget.

    ``grace_s`` is the time an agent has to stop by itself, ``drain_s`` that while its worker is shut down.
    """

    work_s: float
    no_output_s: float
    grace_s: float
    drain_s: float
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None


class Tally:
    """Hears an attempt's events: logs each one, and knows when the agent was last heard and what it has used.

    ``finished`` says that a tool call which was running when the end was ordered came to its own end after that.
    """

    def __init__(self, log: AttemptLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self.heard_at = time.monotonic()
        self.over_budget = asyncio.Event()
        self.also: list[Callable[[TransportEvent], None]] = []
        self.finished = False
        self._running: set[str] = set()
        self._awaited: frozenset[str] = frozenset()

    def end_ordered(self) -> None:
        """Note which tool calls run now, when the agent is told to stop."""
        self._awaited = frozenset(self._running)

    def stir(self) -> None:
        """Note that the agent lives, though what it says is not whole yet: nothing of that is stored."""
        self.heard_at = time.monotonic()

    def __call__(self, event: TransportEvent) -> None:
        """Take one event; never raises."""
        event = with_operation(event)
        self.stir()
        self._log.emit(event)
        if isinstance(event, ToolStarted):
            self._running.add(event.call_id)
        elif isinstance(event, ToolEnded) and event.call.call_id is not None:
            self._running.discard(event.call.call_id)
            self.finished |= event.call.call_id in self._awaited and event.call.success
        for hear in self.also:
            hear(event)
        if event.kind == "usage" and self._exceeded(self._log.totals.usage):
            self.over_budget.set()

    def _exceeded(self, usage: Usage) -> bool:
        tokens, usd = self._limits.tokens, self._limits.usd
        if tokens is not None and usage.total >= tokens:
            return True
        return usd is not None and (usage.cost_usd or 0.0) >= usd


@dataclass(frozen=True)
class TurnEnd:
    """How a turn ended; ``method`` is set when the engine ended it, ``outcome`` when it ended by itself.

    ``unheard`` are the texts that its session took and does not hold, None where that is not known. ``had`` are the ids
    of what people said meanwhile and the session has.
    """

    ending: Ending
    method: StopMethod | None = None
    outcome: WorkOutcome | None = None
    unheard: Sequence[str] | None = ()
    had: Sequence[str] = ()


async def run_turn(
    sessions: SessionRegistry,
    held: HeldSession,
    request: WorkRequest,
    tally: Tally,
    limits: Limits,
    stop: Stop,
    desk: Desk,
) -> TurnEnd:
    """Run one turn to its end: the agent's own, that of a limit, or that of an order to stop."""
    early = stop.reason
    if early is not None:
        return TurnEnd(of_order(early), method="cooperative")
    begun = tally.heard_at = time.monotonic()
    turn = sessions.start(held.session.work(replace(request, on_output=tally.stir), tally))
    desk.begin()
    stopped = asyncio.ensure_future(stop.wait())
    over = asyncio.ensure_future(tally.over_budget.wait())
    try:
        order: Order | None = None
        while order is None and not turn.done():
            order, wait_s = _due(tally, limits, begun, desk.pauses)
            if order is None:
                await _first({turn, stopped, over}, wait_s, desk.pauses)
                # What an agent finished counts, whatever was asked of it in the same moment.
                if not turn.done() and stopped.done():
                    order = stop.reason
                elif not turn.done() and over.done():
                    order = "budget"
        if turn.done():
            return _by_itself(turn)
        assert order is not None  # noqa: S101 - the loop ends with one or the other
        tally.end_ordered()
        report = await _ended(sessions, held, turn, limits, stop, desk)
        finished = report.method == "cooperative" and tally.finished
        method = "agent_finished_write" if finished else report.method
        return TurnEnd(of_order(order), method=method, unheard=_unheard(turn))
    finally:
        stopped.cancel()
        over.cancel()


async def _first(awaited: set[asyncio.Future[Any]], wait_s: float | None, pauses: Pauses) -> None:
    """Wait for the first of these; without a bound while people are waited for, and then no longer than that."""
    answered = None if wait_s is not None else asyncio.ensure_future(pauses.over())
    also = {answered} if answered is not None else set()
    try:
        await asyncio.wait({*awaited, *also}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if answered is not None:
            answered.cancel()


async def _ended(
    sessions: SessionRegistry,
    held: HeldSession,
    turn: asyncio.Task[WorkOutcome],
    limits: Limits,
    stop: Stop,
    desk: Desk,
) -> StopReport:
    """End a turn: ask, wait for the grace, kill. A worker that is to end meanwhile leaves it less time."""
    asking = asyncio.ensure_future(sessions.interrupt(held, turn, limits.grace_s))
    # The session is asked first: what it asked people is not to look like a question that nobody answered.
    await asyncio.sleep(0)
    desk.close("the turn is to end")
    draining = asyncio.ensure_future(stop.draining())
    try:
        await asyncio.wait({asking, draining}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            await asyncio.wait({asking}, timeout=limits.drain_s)
        return asking.result() if asking.done() else await sessions.end(held, turn)
    finally:
        draining.cancel()
        asking.cancel()


def _due(tally: Tally, limits: Limits, begun: float, pauses: Pauses) -> tuple[Order | None, float | None]:
    """Return the limit that is reached, else the seconds until one is; None while people are waited for."""
    if pauses.on:
        return None, None
    now = time.monotonic()
    own = begun + pauses.total_s
    ends: list[tuple[float, Order]] = [
        (own + limits.work_s, "timeout"),
        (max(tally.heard_at, pauses.ended_at) + limits.no_output_s, "no_output"),
    ]
    if limits.seconds is not None:
        ends.append((own + limits.seconds, "budget"))
    at, order = min(ends)
    return (order, 0.0) if at <= now else (None, at - now)


def _unheard(turn: asyncio.Task[WorkOutcome]) -> Sequence[str] | None:
    known = turn.done() and not turn.cancelled() and turn.exception() is None
    return turn.result().unheard if known else None


def _by_itself(turn: asyncio.Task[WorkOutcome]) -> TurnEnd:
    if turn.cancelled() or turn.exception() is not None:
        message = "the turn was cancelled" if turn.cancelled() else f"{turn.exception()!r}"
        error = ErrorEnvelope(code="transport_error", message=message[:2_000], retryable=True)
        outcome = WorkOutcome(end="failed", stop_reason="transport_error", error=error)
    else:
        outcome = turn.result()
    return TurnEnd(of_turn(outcome), outcome=outcome, unheard=_unheard(turn))
