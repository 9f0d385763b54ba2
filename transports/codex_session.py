"""A session of Codex: one app-server process with one thread, for the work, finalize and route of a step."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.envelopes import ErrorEnvelope, envelope_of
from schemas.errors import StepwiseError
from schemas.events import ErrorEvent, RateLimited, TextEvent, TurnEnded
from transports.codex_asking import Desk
from transports.codex_course import Course, failed, interrupted
from transports.codex_line import Line
from transports.codex_program import READ, WORK
from transports.codex_rollout import Rollout
from transports.codex_rpc import AppServer, Gone, Refused
from transports.codex_schema import strict_schema
from transports.codex_turn import Turn
from transports.port import Emit, SessionSpec, StopReport, StructuredResult, WorkOutcome, WorkRequest
from transports.resuming import keep_mark
from transports.structured import TurnLost, ask_structured

_STEER_S: Final = 10.0
_OBEY_S: Final = 5.0
_SANDBOX_FOLDERS: Final = (".agents", ".aws", ".codex")
_UNBOUNDED: Final = WorkRequest("")


class CodexSession:
    """One session; Codex keeps what it knows in the run's folder, under the thread's id."""

    def __init__(
        self, spec: SessionSpec, server: AppServer, line: Line, session_id: str, rollout: Rollout
    ) -> None:
        self._spec = spec
        self._server = server
        self._line = line
        self._session_id = session_id
        self._rollout = rollout
        self._mode: SessionMode = "cold" if spec.resume is None else "resumed"
        self._used = False
        self._closed = False
        self._works = False
        self._turn: Turn | None = None
        self._told: list[str] = []
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._leaving: asyncio.Future[None] | None = None

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
        """Whether a later session can go on with this one's id: Codex has a file of it from its first turn on."""
        return self._used or self._spec.resume is not None

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        """Run one turn to its end; raises nothing but CancelledError, and then nothing of the session is left."""
        try:
            outcome, _ = await self._take_turn(request.prompt, request, emit, schema=None)
        except Exception as error:  # noqa: BLE001 - the port promises an outcome, whatever goes wrong
            outcome = interrupted() if self._stop.is_set() else failed(_envelope_of(error))
        outcome = replace(outcome, unheard=self._unheard())
        if outcome.end == "rate_limited":
            message = outcome.error.message if outcome.error else ""
            emit(RateLimited(reset_at=outcome.retry_at, message=message))
        elif outcome.error is not None:
            emit(ErrorEvent(error=outcome.error))
        emit(TurnEnded(stop_reason=outcome.stop_reason or outcome.end))
        return outcome

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        """Ask for a value in turns that only read; raises nothing but CancelledError."""
        strict = strict_schema(schema.model_json_schema())
        asked = 0

        async def ask(text: str) -> str:
            nonlocal asked
            if asked:
                emit(TextEvent(role="user", text=text))
            asked += 1
            outcome, said = await self._take_turn(text, None, emit, schema=strict)
            if outcome.end != "completed":
                raise TurnLost(outcome)
            return said

        try:
            result = await ask_structured(ask, prompt, schema, timeout_s=timeout_s)
        except Exception as error:  # noqa: BLE001 - the port promises a result, whatever goes wrong
            result = StructuredResult(value=None, error=_envelope_of(error))
        if result.rate_limited:
            emit(RateLimited(reset_at=result.retry_at, message=result.error.message if result.error else ""))
        if result.error is not None:
            emit(ErrorEvent(error=result.error))
        emit(TurnEnded(stop_reason=result.error.code if result.error else "completed"))
        return result

    async def steer(self, text: str) -> bool:
        """Say something to the agent while it works; True only if the server took it for the running turn."""
        turn = self._turn
        if turn is None or not self._works:
            return False
        await turn.started.wait()
        if turn.over.is_set() or self._stop.is_set():
            return False
        said = {"threadId": self._session_id, "expectedTurnId": turn.id, "input": _input(text)}
        try:
            await self._server.call("turn/steer", said, timeout_s=_STEER_S)
        except (Refused, Gone, TimeoutError):
            return False
        turn.emit(TextEvent(role="user", text=text))
        self._told.append(text)
        if not turn.over.is_set():
            return True
        # The end of the turn may not have known of it.
        await self._rollout.catch_up()
        return text not in self._unheard()

    async def interrupt(self, grace_s: float) -> StopReport:
        """End the running turn: ask, wait up to ``grace_s`` seconds, then end the process with its tree."""
        if self._turn is None:
            return StopReport("cooperative", "no turn was running")
        self._stop.set()
        self._turn.changed.set()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            await self._kill()
            await self._idle.wait()
            return StopReport("killed", f"the turn did not end within {grace_s:g} seconds")
        if self._server.gone.is_set():
            return StopReport("killed", "the agent's process has ended")
        return StopReport("cooperative", "the turn ended when it was asked to")

    async def aclose(self) -> None:
        """End the session and everything it started; may be called twice."""
        self._closed = True
        await self._server.end()
        await self._idle.wait()
        keep_mark(self._spec.state, self._session_id, self._rollout.path)

    def _unheard(self) -> list[str]:
        """Return what the turn was told and its model never had: the server forgets it where the turn ends before."""
        heard = Counter(self._rollout.prompts)
        return list((Counter(self._told) - heard).elements())

    async def _kill(self) -> None:
        self._closed = True
        await self._server.end(0)

    async def _take_turn(
        self, prompt: str, request: WorkRequest | None, emit: Emit, *, schema: Mapping[str, Any] | None
    ) -> tuple[WorkOutcome, str]:
        """Run a turn (without a request one that only reads), and return how it ended and what was said last."""
        if self._closed or self._turn is not None:
            code = "session_closed" if self._closed else "session_busy"
            raise StepwiseError(code, "the session is closed" if self._closed else "another turn is running")
        if self._used:
            self._mode = "hot"
        self._used = True
        self._stop.clear()
        self._idle.clear()
        self._works = request is not None
        self._told.clear()
        given = request or _UNBOUNDED
        self._turn = turn = Turn(emit, self._line.meter, self._spec.workspace, given.on_output)
        course = self._course_of(turn)
        try:
            await self._rollout.skip()
            outcome = await course.run(self._params(prompt, schema), given)
        except asyncio.CancelledError:
            await self._leave(self._kill() if self._works else self._end_gently(course))
            raise
        except TimeoutError:
            # Whether the server has begun the turn is not known any more.
            await self._kill()
            raise
        finally:
            self._line.detach()
            turn.lost()
            try:
                await self._rollout.catch_up()
            finally:
                turn.flush(self._rollout.calls)
                _tidy(self._spec.workspace)
                self._turn = None
                self._idle.set()
        return outcome, turn.text

    def _course_of(self, turn: Turn) -> Course:
        desk = Desk(
            self._spec, turn, self._rollout, self._session_id, stop=self._stop, only_reads=not self._works
        )
        self._line.attach(turn, desk)
        return Course(
            self._server,
            self._session_id,
            turn,
            desk,
            self._rollout,
            stop=self._stop,
            kill=self._kill,
            command_s=self._spec.command_timeout_s,
        )

    def _params(self, prompt: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
        only_reads = self._spec.read_only or not self._works
        return {
            "threadId": self._session_id,
            "input": _input(prompt),
            "approvalPolicy": "untrusted",
            "permissions": READ if only_reads else WORK,
            "outputSchema": schema,
        }

    async def _leave(self, ending: Coroutine[Any, Any, None]) -> None:
        """Have a turn ended that nobody waits for any more; a second cancellation does not stop that."""
        self._stop.set()
        self._leaving = asyncio.ensure_future(ending)
        await asyncio.shield(self._leaving)

    async def _end_gently(self, course: Course) -> None:
        """End a turn but not the session: it was only asked for too long."""
        await course.ask_to_end(_OBEY_S)
        await course.clean()


def _tidy(workspace: Path) -> None:
    """Remove the empty folders that sandboxes which run beside each other leave in a workspace."""
    for name in _SANDBOX_FOLDERS:
        with contextlib.suppress(OSError):
            (workspace / name).rmdir()


def _input(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "text_elements": []}]


def _envelope_of(error: Exception) -> ErrorEnvelope:
    return envelope_of(error, code="agent_silent" if isinstance(error, TimeoutError) else "transport_error")
