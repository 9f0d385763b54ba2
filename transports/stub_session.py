"""A session of the stub: one turn at a time, played from where the session file says it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.envelopes import envelope_of
from schemas.errors import StepwiseError
from schemas.events import ErrorEvent, TextEvent, TransportEvent, TurnEnded
from schemas.scenario import Action, Ask, Turn
from transports.port import Emit, SessionSpec, StopReport, StructuredResult, WorkOutcome, WorkRequest
from transports.structured import TurnLost, ask_structured
from transports.stub_actions import Actor, answer_in, ends_once, interrupted, label_of
from transports.stub_answers import answer_text, answering_of, request_for
from transports.stub_progress import SessionFile
from transports.stub_tools import Stopped

T = TypeVar("T")


class _Budget:
    """How much of a turn's budget is used, read off its events on their way; waiting for people costs nothing."""

    def __init__(self, request: WorkRequest, emit: Emit, actor: Actor) -> None:
        self._request = request
        self._emit = emit
        self._actor = actor
        self._begun = time.monotonic()
        self._tokens = 0

    def emit(self, event: TransportEvent) -> None:
        """Count an event and pass it on."""
        if event.kind == "usage":
            self._tokens += event.usage.total
        self._emit(event)

    def used_up(self) -> str | None:
        """Return which bound is used up, if one is."""
        tokens, seconds = self._request.max_tokens, self._request.max_seconds
        if tokens is not None and self._tokens >= tokens:
            return "tokens"
        used_s = time.monotonic() - self._begun - self._actor.waited_s
        return "seconds" if seconds is not None and used_s >= seconds else None


class StubSession:
    """One session of the stub; its progress outlives it in the session file."""

    def __init__(
        self, spec: SessionSpec, file: SessionFile, key: str, turn: Turn, *, may_crash_worker: bool
    ) -> None:
        self._spec = spec
        self._file = file
        self._key = key
        self._turn = turn
        self._stop = asyncio.Event()
        self._actor = Actor(spec, self.session_id, self._stop, may_crash_worker=may_crash_worker)
        self._running: asyncio.Task[Any] | None = None
        self._steered: Emit | None = None
        self._killed = False
        self._closed = False
        self._mode: SessionMode = "cold" if spec.resume is None else "resumed"
        self._used = False

    @property
    def session_id(self) -> str:
        """The id by which the session can be resumed."""
        return self._file.progress.session_id

    @property
    def mode(self) -> SessionMode:
        """How the last turn found the session: new, resumed, or hot if it was not the first turn."""
        return self._mode

    @property
    def resumable(self) -> bool:
        """Whether a later session can go on with this one's id: always."""
        return True

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        """Play the work of the turn from where the session is; raises nothing but CancelledError."""
        try:
            outcome = await self._play(self._work(request, _Budget(request, emit, self._actor)))
        except Exception as error:  # noqa: BLE001 - the port promises an outcome, whatever goes wrong
            outcome = _outcome_of(error)
        if outcome.error is not None:
            emit(ErrorEvent(error=outcome.error))
        emit(TurnEnded(stop_reason=outcome.stop_reason or outcome.end))
        return outcome

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Do the actions before the answer, then answer; raises nothing but CancelledError."""
        try:
            result = await self._play(self._structured(prompt, schema, emit, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 - the port promises a result, whatever goes wrong
            result = StructuredResult(value=None, error=_outcome_of(error).error)
        emit(TurnEnded(stop_reason=result.error.code if result.error else "completed"))
        return result

    async def steer(self, text: str) -> bool:
        """Note in the transcript what was said, and let the agent hear it; False when no work runs."""
        if self._steered is None or self._stop.is_set():
            return False
        self._steered(TextEvent(role="user", text=text))
        self._actor.heard.put_nowait(text)
        return True

    async def interrupt(self, grace_s: float) -> StopReport:
        """End the running turn: ask, wait up to ``grace_s`` seconds, then kill what it runs."""
        task = self._running
        if task is None:
            return StopReport("cooperative", "no turn was running")
        self._stop.set()
        await asyncio.wait({task}, timeout=grace_s)
        if task.done() and not self._killed:
            return StopReport("cooperative", "the turn ended when it was asked to")
        await self._kill(task)
        return StopReport("killed", f"the turn did not end within {grace_s:g} seconds")

    async def aclose(self) -> None:
        """End the running turn and all it started; may be called twice."""
        self._closed = True
        if self._running is not None:
            await self._kill(self._running)
        self._actor.tools.close()
        self._file.leave(self._spec)

    async def _kill(self, task: asyncio.Task[Any]) -> None:
        self._killed = True
        task.cancel()
        await asyncio.wait({task})

    async def _play(self, body: Coroutine[Any, Any, T]) -> T:
        """Run a turn as a task of its own, which an interrupt can end; raises Stopped when it did."""
        if self._closed or self._running is not None:
            body.close()
            code = "session_closed" if self._closed else "session_busy"
            raise StepwiseError(code, "the session is closed" if self._closed else "another turn is running")
        if self._used:
            self._mode = "hot"
        self._used = True
        self._stop.clear()
        self._killed = False
        self._running = task = asyncio.create_task(body)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._killed and caller is not None and not caller.cancelling():
                raise Stopped from None
            raise
        finally:
            self._running = None

    async def _work(self, request: WorkRequest, budget: _Budget) -> WorkOutcome:
        actor = self._actor
        actor.given, actor.heard, actor.waited_s = request.given, asyncio.Queue(), 0.0
        self._take_answer(budget.emit)
        self._steered = budget.emit
        try:
            outcome = await self._act("work", self._turn.work, budget.emit, budget.used_up)
        finally:
            self._steered = actor.given = None
        return outcome or WorkOutcome(end="completed")

    def _take_answer(self, emit: Emit) -> None:
        """Take the answer to the question the session was left with, if the turn brings it."""
        actor, left = self._actor, self._file.progress
        if left.asked is None:
            return
        words = answer_in(actor.given, left.asked, left.asked_id)
        if words is not None:
            actor.given = None
            actor.take_answer(words, left.save_to, f"{self.session_id}.{self._key}.answer", emit)
        self._file.unpark(answered=words is not None)

    async def _structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        request = request_for(schema)
        answering = answering_of(self._turn, request)
        tries = 0

        async def ask(text: str) -> str:
            nonlocal tries
            if tries == 0:
                outcome = await self._act(request, answering.actions, emit, lambda: None)
                if outcome is not None:
                    raise TurnLost(outcome)
            else:
                emit(TextEvent(role="user", text=text))
            answer = answer_text(answering, request, self._file.progress, tries=tries)
            emit(TextEvent(text=answer))
            tries += 1
            return answer

        return await ask_structured(ask, prompt, schema, timeout_s=timeout_s)

    async def _act(
        self, part: str, actions: Sequence[Action], emit: Emit, used_up: Callable[[], str | None]
    ) -> WorkOutcome | None:
        """Do what is left of a list of actions; return how one of them ended the turn. Raises Stopped."""
        key = f"{self._key}.{part}"
        for index in range(self._file.cursor(key), len(actions)):
            if self._stop.is_set():
                raise Stopped
            bound = used_up()
            if bound is not None:
                return WorkOutcome(end="budget", stop_reason=bound)
            action = actions[index]
            label = label_of(action)
            if ends_once(action):
                self._file.advance(key, label)
            outcome = await self._actor.do(action, f"{self.session_id}.{key}.{index}", emit)
            if isinstance(action, Ask) and outcome is not None and outcome.question is not None:
                asked_id = outcome.question.question_id
                self._file.park(
                    key, label, question=action.question, question_id=asked_id, save_to=action.save_to
                )
            elif outcome is None:
                self._file.advance(key, label)
            if outcome is not None:
                return outcome
        return None


def _outcome_of(error: Exception) -> WorkOutcome:
    if isinstance(error, Stopped):
        return interrupted()
    envelope = envelope_of(error, code="stub_error")
    return WorkOutcome(end="failed", stop_reason=envelope.code, error=envelope)
