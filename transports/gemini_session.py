"""A session of Gemini CLI: each turn is a process of its own, which goes on with what the ones before left on disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, Required, TypedDict, TypeVar, Unpack

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.envelopes import ErrorEnvelope, envelope_of
from schemas.errors import StepwiseError
from schemas.events import ErrorEvent, TextEvent, TurnEnded
from transports.gemini_home import Home
from transports.gemini_log import SessionLost, session_file
from transports.gemini_turn import Stopped, Turn
from transports.port import (
    SESSION_LOST,
    Emit,
    SessionSpec,
    StopReport,
    StructuredResult,
    WorkOutcome,
    WorkRequest,
)
from transports.programs import Program
from transports.resuming import keep_mark
from transports.structured import TurnLost, ask_structured

T = TypeVar("T")

_NUDGE_S: Final = 0.5


class _Bounds(TypedDict, total=False):
    """What bounds a turn."""

    read_only: Required[bool]
    max_tokens: int | None
    max_seconds: float | None


class GeminiSession:
    """One session of Gemini CLI; its history outlives it in the run's folder."""

    def __init__(self, spec: SessionSpec, program: Program, session_id: str, *, attempts: int) -> None:
        self._spec = spec
        self._program = program
        self._id = session_id
        self._home = Home(spec, attempts)
        self._mode: SessionMode = "cold" if spec.resume is None else "resumed"
        self._stop = asyncio.Event()
        self._turn: Turn | None = None
        self._running: asyncio.Task[Any] | None = None
        self._killed = False
        self._closed = False
        self._used = False

    @property
    def session_id(self) -> str:
        """The id by which the session can be resumed."""
        return self._id

    @property
    def mode(self) -> SessionMode:
        """How the last turn found the session: new, or resumed from disk, as every turn but a first one is."""
        return self._mode

    @property
    def resumable(self) -> bool:
        """Whether there is a history to go on with."""
        return session_file(self._home.chats, self._id) is not None

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        """Run one turn in a process of its own; raises nothing but CancelledError."""
        turn = self._turn_of(
            emit,
            read_only=self._spec.read_only,
            max_tokens=request.max_tokens,
            max_seconds=request.max_seconds,
        )
        try:
            outcome, _ = await self._play(self._run(turn, request.prompt))
            if outcome.end == "completed" and turn.cut_short is not None:
                outcome = WorkOutcome(end="failed", stop_reason=turn.cut_short.code, error=turn.cut_short)
        except Exception as error:  # noqa: BLE001 - the port promises an outcome, whatever goes wrong
            outcome = _outcome_of(error)
        if outcome.error is not None:
            emit(ErrorEvent(error=outcome.error))
        emit(TurnEnded(stop_reason=outcome.stop_reason or outcome.end))
        return outcome

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Ask in turns that may only read, each with the errors of the one before; raises nothing but CancelledError."""
        try:
            result = await self._play(self._structured(prompt, schema, emit, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 - the port promises a result, whatever goes wrong
            result = StructuredResult(value=None, error=_outcome_of(error).error)
        if result.error is not None:
            emit(ErrorEvent(error=result.error))
        emit(TurnEnded(stop_reason=result.error.code if result.error else "completed"))
        return result

    async def steer(self, text: str) -> bool:
        """Return False: a process takes one prompt, and nothing after it."""
        del text
        return False

    async def interrupt(self, grace_s: float) -> StopReport:
        """End the running turn: SIGINT, at which the program ends; after ``grace_s`` seconds its whole tree is killed."""
        task = self._running
        if task is None:
            return StopReport("cooperative", "no turn was running")
        self._stop.set()
        deadline = time.monotonic() + grace_s
        while not task.done() and (left := deadline - time.monotonic()) > 0:
            # Again and again: a program that only starts does not hear the first one.
            if self._turn is not None:
                self._turn.nudge()
            await asyncio.wait({task}, timeout=min(left, _NUDGE_S))
        if task.done() and not self._killed:
            return StopReport("cooperative", "the program ended at SIGINT")
        await self._kill(task)
        return StopReport("killed", f"the program did not end within {grace_s:g} seconds")

    async def aclose(self) -> None:
        """End the running turn and all it started; may be called twice."""
        self._closed = True
        if self._running is not None:
            await self._kill(self._running)
        keep_mark(self._spec.state, self._id, session_file(self._home.chats, self._id))

    async def _kill(self, task: asyncio.Task[Any]) -> None:
        self._killed = True
        _cancel(task)
        await asyncio.wait({task})

    async def _play(self, body: Coroutine[Any, Any, T]) -> T:
        """Run a turn as a task of its own, which an interrupt can end; raises Stopped when it did."""
        if self._closed or self._running is not None:
            body.close()
            code = "session_closed" if self._closed else "session_busy"
            raise StepwiseError(code, "the session is closed" if self._closed else "another turn is running")
        if self._used:
            self._mode = "resumed"
        self._used = True
        self._stop.clear()
        self._killed = False
        self._running = task = asyncio.create_task(body)
        try:
            await asyncio.wait({task})
        finally:
            await _end(task)
            self._running = None
        if task.cancelled():
            raise Stopped
        return task.result()

    def _turn_of(self, emit: Emit, **bounds: Unpack[_Bounds]) -> Turn:
        return Turn(self._home, self._program, self._id, self._stop, emit, **bounds)

    async def _run(self, turn: Turn, prompt: str) -> tuple[WorkOutcome, str]:
        self._turn = turn
        try:
            return await turn.run(prompt, resumes=self._mode == "resumed")
        finally:
            self._turn = None

    async def _structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        tries = 0

        async def ask(text: str) -> str:
            nonlocal tries
            if tries:
                emit(TextEvent(role="user", text=text))
            tries += 1
            outcome, answer = await self._run(self._turn_of(emit, read_only=True), text)
            if outcome.error is not None or outcome.end != "completed":
                raise TurnLost(outcome)
            return answer

        return await ask_structured(ask, prompt, schema, timeout_s=timeout_s)


def _cancel(task: asyncio.Task[T]) -> None:
    """Cancel a task, but only once: a second time would cut short how it ends its child."""
    if not task.cancelling():
        task.cancel()


async def _end(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait until it has ended, even if we are cancelled meanwhile: it may hold a child."""
    _cancel(task)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # the result is read where it counts
    if cancelled is not None:
        raise cancelled


def _outcome_of(error: Exception) -> WorkOutcome:
    if isinstance(error, Stopped):
        envelope = ErrorEnvelope(
            code="interrupted", message="the turn was ended by an interrupt", retryable=True
        )
    elif isinstance(error, SessionLost):
        envelope = ErrorEnvelope(code=SESSION_LOST, message=str(error), retryable=True)
    else:
        envelope = envelope_of(error, code="gemini_cli_error")
    return WorkOutcome(end="failed", stop_reason=envelope.code, error=envelope)
