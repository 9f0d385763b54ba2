"""A session of Claude Code, whichever way it is driven: one turn at a time, each to its one result."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.envelopes import ErrorEnvelope, envelope_of
from schemas.errors import StepwiseError
from schemas.events import ErrorEvent, RateLimited, TextEvent, TurnEnded
from transports.claude_errors import Failure, classify
from transports.claude_gate import Gate, Mode
from transports.claude_messages import Reader, is_piece
from transports.claude_program import Folders, drop_socket
from transports.claude_turn import Turn, begins_run
from transports.claude_wire import Link, WireBroken, finish
from transports.port import (
    Emit,
    SessionSpec,
    StopReport,
    StructuredResult,
    WorkOutcome,
    WorkRequest,
    unwatched,
)
from transports.resuming import keep_mark
from transports.structured import TurnLost, ask_structured, unanswered

_REPEAT_S: Final = 0.3
_TIMED_OUT_GRACE_S: Final = 2.0
_LEAST_LOOK_S: Final = 0.05
_TOO_MANY: Final = "the provider refuses for now, since it was asked too often"


_ODD: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a frame raises that is not as it should be."""


class ClaudeSession:
    """One session."""

    def __init__(
        self, spec: SessionSpec, session_id: str, folders: Folders, link: Link, gate: Gate, reader: Reader
    ) -> None:
        self.spec = spec
        self._session_id = session_id
        self._folders = folders
        self._link = link
        self.gate = gate
        self.gate.before_park = self._withdraw
        self.reader = reader
        self._turn: Turn | None = None
        self._broken: WireBroken | None = None
        self._closed = False
        self._used = False
        self._speaking = asyncio.Lock()
        self._mode: SessionMode = "cold" if spec.resume is None else "resumed"
        self._closing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[StopReport] | None = None

    @property
    def session_id(self) -> str:
        """The id by which the session can be resumed."""
        return self._session_id

    @property
    def mode(self) -> SessionMode:
        """How the last turn found the session: new, resumed, or hot if it was not the first turn."""
        return self._mode

    @property
    def resumable(self) -> bool:
        """Whether the program has kept the session on disk."""
        return self._folders.has_session(self._session_id)

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._link.pid

    # What the program says.

    def take(self, frame: Mapping[str, Any]) -> None:
        """Take a frame; never raises: one that cannot be read is told, and passed over."""
        turn = self._turn
        if turn is not None and is_piece(frame):
            turn.stir()
        try:
            for event in self.reader.take(frame):
                if turn is not None:
                    turn.heard(event)
        except _ODD as error:
            if turn is not None:
                turn.heard(ErrorEvent(error=ErrorEnvelope.of(_odd(frame, error))))
        if turn is not None and turn.ended_by is None:
            self._end_if_due(turn, frame)
        if turn is None:
            return
        try:
            turn.take(frame)
        except _ODD as error:
            turn.finish(_odd(frame, error))  # it may have been the end: nothing else would tell

    def _end_if_due(self, turn: Turn, frame: Mapping[str, Any]) -> None:
        """End a turn that is held up, and one that was parked and yet goes on."""
        why = None
        if self.reader.waits_long:
            # Kept until then, it would hold a turn that does nothing; resumed then, it goes on.
            why = "rate_limited"
        elif self.gate.parked is not None and begins_run(frame):
            why = "parked"
        if why is not None:
            turn.ended_by = why
            self._ending = asyncio.create_task(self._end(turn, why, _TIMED_OUT_GRACE_S))

    def lost(self, error: WireBroken) -> None:
        """Take the end of the program."""
        self._broken = error
        if self._turn is not None:
            self._turn.finish(error)

    # The port.

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        """Run one turn; raises nothing but CancelledError."""
        try:
            async with self._running("work", emit, request.on_output) as turn:
                turn.steerable = True
                watch = asyncio.create_task(self._watch(turn, request))
                try:
                    outcome = self._outcome(turn, await self._say(turn, request.prompt))
                    outcome = replace(outcome, unheard=turn.lost)
                except asyncio.CancelledError:
                    await finish(asyncio.create_task(self._link.kill()))
                    raise
                finally:
                    watch.cancel()
        except Exception as error:  # noqa: BLE001 - the port promises an outcome, whatever goes wrong
            failed = envelope_of(error, code="transport_error")
            outcome = WorkOutcome(end="failed", stop_reason=failed.code, error=failed)
        if outcome.end == "rate_limited":
            emit(
                RateLimited(reset_at=outcome.retry_at, message=outcome.error.message if outcome.error else "")
            )
        if outcome.error is not None:
            emit(ErrorEvent(error=outcome.error))
        emit(TurnEnded(stop_reason=outcome.stop_reason or outcome.end))
        return outcome

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Ask for a value in turns that may only read; raises nothing but CancelledError."""
        try:
            result = await self._structured(prompt, schema, emit, timeout_s=timeout_s)
        except Exception as error:  # noqa: BLE001 - the port promises a result, whatever goes wrong
            result = unanswered(error)
        if result.rate_limited:
            emit(RateLimited(reset_at=result.retry_at, message=result.error.message if result.error else ""))
        if result.error is not None:
            emit(ErrorEvent(error=result.error))
        emit(TurnEnded(stop_reason=result.error.code if result.error else "completed"))
        return result

    async def steer(self, text: str) -> bool:
        """Say something to the agent while it works; it hears it after the call it makes now."""
        turn = self._turn
        if turn is None or not turn.steerable or turn.done.done() or turn.ended_by is not None:
            return False
        try:
            async with self._speaking:
                if turn.done.done() or turn.ended_by is not None or self.gate.parked is not None:
                    return False
                prompt_id = str(uuid.uuid4())
                turn.said(prompt_id, text)
                await self._link.prompt(text, prompt_id)
        except StepwiseError:
            return False
        turn.emit(TextEvent(role="user", text=text))
        return True

    async def interrupt(self, grace_s: float) -> StopReport:
        """End the running turn: ask until it ends, for up to ``grace_s`` seconds, then end the process tree."""
        turn = self._turn
        if turn is None:
            return StopReport("cooperative", "no turn was running")
        return await self._end(turn, "interrupted", grace_s)

    async def aclose(self) -> None:
        """End the session and everything it started; may be called twice."""
        self._closed = True
        self._closing = self._closing or asyncio.create_task(self._close())
        await finish(self._closing)

    # Turns.

    async def ask(self, prompt: str, emit: Emit) -> str:
        """Run one turn that may only read, and return the agent's last words; raises TurnLost."""
        async with self._running("answer", emit) as turn:
            try:
                outcome = self._outcome(turn, await self._say(turn, prompt))
            except asyncio.CancelledError:
                # The time for answers is over, but not the session.
                await finish(asyncio.create_task(self._end(turn, "interrupted", _TIMED_OUT_GRACE_S)))
                raise
        if outcome.end != "completed":
            raise TurnLost(outcome)
        return "\n".join(self.reader.words)

    async def _structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Ask for the value as text: what every way of driving the program can do."""
        return await ask_structured(lambda text: self.ask(text, emit), prompt, schema, timeout_s=timeout_s)

    @contextlib.asynccontextmanager
    async def _running(
        self, mode: Mode, emit: Emit, on_output: Callable[[], None] = unwatched
    ) -> AsyncIterator[Turn]:
        """Hold a turn for the block; raises StepwiseError when none can run. Cancelled, the program is ended first."""
        if self._closed or self._turn is not None:
            code = "session_closed" if self._closed else "session_busy"
            raise StepwiseError(code, "the session is closed" if self._closed else "another turn is running")
        if self._broken is not None:
            raise self._broken
        if self._used:
            self._mode = "hot"
        self._used = True
        self.reader.begin()
        self._turn = turn = Turn(emit, on_output)
        self.gate.open(mode, emit)
        try:
            yield turn
        finally:
            self.gate.close()
            for event in self.reader.left_open():
                turn.heard(event)
            self._turn = None

    async def _say(self, turn: Turn, prompt: str) -> Mapping[str, Any] | WireBroken:
        prompt_id = str(uuid.uuid4())
        turn.said(prompt_id)
        async with self._speaking:
            await self._link.prompt(prompt, prompt_id)
        end = await asyncio.shield(turn.done)
        if not isinstance(end, WireBroken):
            await self._keep_unheard(turn)
        return end

    async def _withdraw(self) -> None:
        """Take back the words that wait: they would have a turn go on that is to end now."""
        turn = self._turn
        with contextlib.suppress(StepwiseError, TimeoutError):
            async with asyncio.timeout(_TIMED_OUT_GRACE_S), self._speaking:
                for prompt_id in turn.waiting if turn is not None else []:
                    await self._link.withdraw(prompt_id)

    async def _keep_unheard(self, turn: Turn) -> None:
        """Keep in the session what was said to the agent and dropped when its turn was ended: it was told, it counts."""
        with contextlib.suppress(StepwiseError, TimeoutError):
            async with asyncio.timeout(_TIMED_OUT_GRACE_S):
                while turn.unheard:
                    await self._link.prompt(turn.unheard[0], str(uuid.uuid4()), begins=False)
                    turn.unheard.pop(0)

    def _outcome(self, turn: Turn, end: Mapping[str, Any] | WireBroken) -> WorkOutcome:
        if self.gate.parked is not None:
            return self.gate.parked
        good = not isinstance(end, WireBroken) and end.get("subtype") == "success" and not end.get("is_error")
        if good and not isinstance(end, WireBroken):
            return WorkOutcome(end="completed", stop_reason=str(end.get("stop_reason") or "completed"))
        if turn.ended_by in {"tokens", "seconds"}:
            return WorkOutcome(end="budget", stop_reason=turn.ended_by)
        if turn.ended_by == "rate_limited":
            found = classify(Failure(status=429, reset_at=self.reader.reset_at, text=_TOO_MANY))
            return WorkOutcome(
                end="rate_limited", stop_reason="rate_limited", retry_at=found.retry_at, error=found.error
            )
        if turn.ended_by is not None:
            error = ErrorEnvelope(
                code="interrupted", message="the turn was ended by an interrupt", retryable=True
            )
            return WorkOutcome(end="failed", stop_reason="interrupted", error=error)
        if isinstance(end, WireBroken):
            code = "session_closed" if self._closed else end.code
            return WorkOutcome(
                end="failed", stop_reason=code, error=ErrorEnvelope.of(end).model_copy(update={"code": code})
            )
        found = classify(self.reader.failure(end))
        return WorkOutcome(
            end="rate_limited" if found.rate_limited else "failed",
            stop_reason=found.error.code,
            retry_at=found.retry_at,
            error=found.error,
        )

    async def _end(self, turn: Turn, why: str, grace_s: float) -> StopReport:
        """Ask again and again, since what is asked before the program has begun its turn is lost; then kill."""
        turn.ended_by = turn.ended_by or why
        until = time.monotonic() + grace_s
        asked: set[asyncio.Task[None]] = set()
        try:
            while not turn.done.done() and (left := until - time.monotonic()) > 0:
                asked.add(asyncio.create_task(self._ask_to_end()))
                await asyncio.wait({turn.done}, timeout=min(left, _REPEAT_S))
        finally:
            for task in asked:
                task.cancel()
        if turn.done.done() and not isinstance(turn.done.result(), WireBroken):
            return StopReport("cooperative", "the turn ended when it was asked to")
        await finish(asyncio.create_task(self._link.kill()))
        turn.finish(WireBroken("agent_crashed", "the program was killed"))
        return StopReport("killed", f"the turn did not end within {grace_s:g} seconds")

    async def _ask_to_end(self) -> None:
        # Not before what is being said just now: said after the order, it would begin another run of the program.
        async with self._speaking:
            pass
        with contextlib.suppress(Exception):
            await self._link.interrupt()

    async def _watch(self, turn: Turn, request: WorkRequest) -> None:
        """End the turn when its budget is used up; the time people take is not the agent's."""
        tokens, seconds = request.max_tokens, request.max_seconds
        while tokens is not None or seconds is not None:
            if tokens is not None and turn.tokens >= tokens:
                await self._end(turn, "tokens", _TIMED_OUT_GRACE_S)
                return
            left = _REPEAT_S
            if seconds is not None:
                left = seconds - (time.monotonic() - turn.begun - self.gate.waited_s)
                if left <= 0:
                    await self._end(turn, "seconds", _TIMED_OUT_GRACE_S)
                    return
            await asyncio.sleep(min(max(left, _LEAST_LOOK_S), _REPEAT_S))

    async def _close(self) -> None:
        if self._turn is not None:
            await self._link.kill()
        await self._link.close()
        drop_socket(self.pid)
        keep_mark(self.spec.state, self._session_id, self._folders.session_file(self._session_id))
        if self._turn is not None:
            self._turn.finish(WireBroken("session_closed", "the session was closed"))


def _odd(frame: Mapping[str, Any], error: Exception) -> WireBroken:
    return WireBroken("agent_protocol", f"a frame of kind {frame.get('type')!r} cannot be read: {error!r}")
