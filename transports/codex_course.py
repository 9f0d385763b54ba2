"""The course of one turn: from its request to its end, or to the reason for which it is ended before."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schemas.cutting import cut
from schemas.envelopes import ErrorEnvelope
from transports.codex_asking import Desk
from transports.codex_errors import Failure
from transports.codex_rollout import Rollout
from transports.codex_rpc import AppServer, Gone, Refused
from transports.codex_turn import Turn
from transports.port import WorkOutcome, WorkRequest

_CALL_S: Final = 30.0
_CLEAN_S: Final = 5.0
_ENDED_S: Final = 1.0
_AGAIN_S: Final = 0.02
_OBEY_S: Final = 5.0
_MAX_SHOWN: Final = 500

Kill = Callable[[], Awaitable[None]]
"""Ends the process with its tree."""


class Course:
    """One turn of a session on its server; ``stop`` is set when somebody interrupts it."""

    def __init__(
        self,
        server: AppServer,
        session_id: str,
        turn: Turn,
        desk: Desk,
        rollout: Rollout,
        *,
        stop: asyncio.Event,
        kill: Kill,
        command_s: float,
    ) -> None:
        self._server = server
        self._session_id = session_id
        self._turn = turn
        self._desk = desk
        self._rollout = rollout
        self._stop = stop
        self._kill = kill
        self._command_s = command_s

    async def run(self, params: dict[str, Any], request: WorkRequest) -> WorkOutcome:
        """Run the turn to its end, and end what it left running. Raises Refused, Gone, TimeoutError."""
        begun = time.monotonic()
        await self._server.call("turn/start", params, timeout_s=_CALL_S)
        reason: WorkOutcome | None = None
        ending: asyncio.Task[None] | None = None
        try:
            while not self._turn.over.is_set():
                self._turn.changed.clear()
                if self._turn.answered:
                    await self._settle()
                if reason is None and (reason := self._reason(request, begun)) is not None:
                    ending = asyncio.create_task(self.ask_to_end(None if self._stop.is_set() else _OBEY_S))
                await self._end_late_commands()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if reason else self._due(request, begun)):
                        await self._turn.changed.wait()
        finally:
            if ending is not None:
                ending.cancel()
        await self.clean()
        if self._turn.unasked is not None:
            return failed(_unasked(self._turn.unasked))
        if self._stop.is_set():
            return interrupted()
        return reason or self._desk.parked or self._end()

    async def ask_to_end(self, obey_s: float | None) -> None:
        """Interrupt the turn until it is over; the process is killed after ``obey_s`` seconds, if there are any."""
        try:
            async with asyncio.timeout(obey_s):
                await self._turn.started.wait()
                while not self._turn.over.is_set():
                    await self._interrupt()
        except TimeoutError:
            await self._kill()

    async def clean(self) -> None:
        """End what the turn left running, and wait for its reports."""
        if self._server.gone.is_set():
            return
        await self._settle()
        thread = {"threadId": self._session_id}
        try:
            await self._server.call("thread/backgroundTerminals/clean", thread, timeout_s=_CLEAN_S)
        except (Refused, TimeoutError):
            await self._kill()
            return
        except Gone:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDED_S):
                while self._turn.running and not self._server.gone.is_set():
                    self._turn.changed.clear()
                    await self._turn.changed.wait()
        if self._turn.allowed and not await self._server.alone(_CLEAN_S):
            await self._kill()

    async def _settle(self) -> None:
        await self._rollout.catch_up()
        self._turn.settle(self._rollout.calls)

    async def _interrupt(self) -> None:
        """Ask once; a turn that has only just begun refuses, and is asked again."""
        asked = {"threadId": self._session_id, "turnId": self._turn.id}
        try:
            await self._server.call("turn/interrupt", asked, timeout_s=_CALL_S)
        except Refused:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await self._turn.over.wait()
            return
        except Gone:
            pass
        await self._turn.over.wait()

    def _reason(self, request: WorkRequest, begun: float) -> WorkOutcome | None:
        """Return how the turn is to end before it ends by itself, if it is to."""
        if self._stop.is_set():
            return interrupted()
        if self._desk.parked is not None:
            return self._desk.parked
        if self._turn.unasked is not None:
            return failed(_unasked(self._turn.unasked))
        if self._turn.limited is not None:
            return rate_limited(self._turn.limited)
        if request.max_tokens is not None and self._turn.tokens >= request.max_tokens:
            return WorkOutcome(end="budget", stop_reason="tokens")
        left = self._seconds_left(request, begun)
        return WorkOutcome(end="budget", stop_reason="seconds") if left is not None and left <= 0 else None

    def _seconds_left(self, request: WorkRequest, begun: float) -> float | None:
        if request.max_seconds is None or self._desk.pauses.on:
            return None
        return begun + request.max_seconds + self._desk.pauses.total_s - time.monotonic()

    def _due(self, request: WorkRequest, begun: float) -> float | None:
        """Return in how many seconds a bound is reached; None while there is none."""
        now = time.monotonic()
        running = self._turn.running.values()
        dues = [each.accepted + self._command_s - now for each in running if each.accepted is not None]
        left = self._seconds_left(request, begun)
        return min([*dues, *([] if left is None else [left])], default=None)

    async def _end_late_commands(self) -> None:
        """End commands that take longer than the step allows; the agent is told that they failed."""
        now = time.monotonic()
        for call_id, running in list(self._turn.running.items()):
            if running.accepted is None or now < running.accepted + self._command_s:
                continue
            running.accepted = None
            running.note = f"\nended: it took more than {self._command_s:g} seconds"
            with contextlib.suppress(Refused, Gone, TimeoutError):
                await self._end_command(call_id)

    async def _end_command(self, call_id: str) -> None:
        thread = {"threadId": self._session_id}
        listed = await self._server.call("thread/backgroundTerminals/list", thread, timeout_s=_CALL_S)
        for each in listed.get("data") or []:
            if each.get("itemId") == call_id:
                process = {**thread, "processId": each["processId"]}
                await self._server.call("thread/backgroundTerminals/terminate", process, timeout_s=_CALL_S)

    def _end(self) -> WorkOutcome:
        """Return how a turn ended by itself."""
        turn = self._turn
        if turn.status == "completed":
            return WorkOutcome(end="completed")
        if turn.failure is not None and turn.failure.rate_limited:
            return rate_limited(turn.failure)
        if turn.failure is not None:
            return failed(turn.failure.error)
        if turn.status:
            return failed(_error("agent_interrupted", f"the agent ended its turn as {turn.status}"))
        return failed(self._server.error or _error("session_closed", "the session was closed"))


def failed(error: ErrorEnvelope) -> WorkOutcome:
    """Return the outcome of a turn that failed with this error; its stop reason is the code."""
    return WorkOutcome(end="failed", stop_reason=error.code, error=error)


def interrupted() -> WorkOutcome:
    """Return the outcome of a turn that was ended by an interrupt."""
    return failed(_error("interrupted", "the turn was ended by an interrupt"))


def rate_limited(failure: Failure) -> WorkOutcome:
    """Return the outcome of a turn the provider refused for now; ``retry_at`` where it said until when."""
    wait = failure.retry_after_s
    retry_at = None if wait is None else datetime.now(UTC) + timedelta(seconds=wait)
    return WorkOutcome(end="rate_limited", stop_reason="rate_limited", retry_at=retry_at, error=failure.error)


def _unasked(given: str) -> ErrorEnvelope:
    message = f"Codex ran what nobody had allowed: {cut(given, _MAX_SHOWN)}"
    return ErrorEnvelope(code="policy_bypassed", message=message)


def _error(code: str, message: str) -> ErrorEnvelope:
    return ErrorEnvelope(code=code, message=message, retryable=True)
