"""One work turn: what its events add up to, which limits end it, and how it is ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from activities.endings import Ending, Order, of_order, of_turn
from activities.running import Stop
from activities.sessions import HeldSession, SessionRegistry
from schemas.common import Usage
from schemas.errors import ErrorEnvelope
from schemas.events import TransportEvent
from schemas.handoff import StopMethod
from store.attempts import AttemptLog
from transports.port import WorkOutcome, WorkRequest


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
    """Hears an attempt's events: logs each one, and knows when the agent was last heard and what it has used."""

    def __init__(self, log: AttemptLog, limits: Limits) -> None:
        self._log = log
        self._limits = limits
        self.heard_at = time.monotonic()
        self.over_budget = asyncio.Event()
        self.also: Callable[[TransportEvent], None] | None = None

    def __call__(self, event: TransportEvent) -> None:
        """Take one event; never raises."""
        self.heard_at = time.monotonic()
        self._log.emit(event)
        if self.also is not None:
            self.also(event)
        if event.kind == "usage" and self._exceeded(self._log.totals.usage):
            self.over_budget.set()

    def _exceeded(self, usage: Usage) -> bool:
        tokens, usd = self._limits.tokens, self._limits.usd
        if tokens is not None and usage.total >= tokens:
            return True
        return usd is not None and (usage.cost_usd or 0.0) >= usd


@dataclass(frozen=True)
class TurnEnd:
    """How a turn ended; ``method`` is set when the engine ended it, ``outcome`` when it ended by itself."""

    ending: Ending
    method: StopMethod | None = None
    outcome: WorkOutcome | None = None


async def run_turn(
    sessions: SessionRegistry, held: HeldSession, prompt: str, tally: Tally, limits: Limits, stop: Stop
) -> TurnEnd:
    """Run one turn to its end: the agent's own, that of a limit, or that of an order to stop."""
    begun = tally.heard_at = time.monotonic()
    request = WorkRequest(prompt=prompt, max_tokens=limits.tokens, max_seconds=limits.seconds)
    turn = sessions.start(held.session.work(request, tally))
    stopped = asyncio.ensure_future(stop.wait())
    over = asyncio.ensure_future(tally.over_budget.wait())
    try:
        order: Order | None = None
        while order is None and not turn.done():
            order, wait_s = _due(tally, limits, begun)
            if order is None:
                await asyncio.wait({turn, stopped, over}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                # What an agent finished counts, whatever was asked of it in the same moment.
                if not turn.done() and stopped.done():
                    order = stop.reason
                elif not turn.done() and over.done():
                    order = "budget"
        if turn.done():
            return _by_itself(turn)
        assert order is not None  # noqa: S101 - the loop ends with one or the other
        grace_s = min(limits.grace_s, limits.drain_s) if order == "worker_shutdown" else limits.grace_s
        report = await sessions.interrupt(held, turn, grace_s)
        return TurnEnd(of_order(order), method=report.method)
    finally:
        stopped.cancel()
        over.cancel()


def _due(tally: Tally, limits: Limits, begun: float) -> tuple[Order | None, float]:
    now = time.monotonic()
    ends: list[tuple[float, Order]] = [
        (begun + limits.work_s, "timeout"),
        (tally.heard_at + limits.no_output_s, "no_output"),
    ]
    if limits.seconds is not None:
        ends.append((begun + limits.seconds, "budget"))
    at, order = min(ends)
    return (order, 0.0) if at <= now else (None, at - now)


def _by_itself(turn: asyncio.Task[WorkOutcome]) -> TurnEnd:
    if turn.cancelled() or turn.exception() is not None:
        message = "the turn was cancelled" if turn.cancelled() else f"{turn.exception()!r}"
        error = ErrorEnvelope(code="transport_error", message=message[:2_000], retryable=True)
        outcome = WorkOutcome(end="failed", stop_reason="transport_error", error=error)
    else:
        outcome = turn.result()
    return TurnEnd(of_turn(outcome), outcome=outcome)
