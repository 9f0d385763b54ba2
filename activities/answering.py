"""One answer of the agent: asked in the session its work was done in, without write tools, and logged as work is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.exceptions import ApplicationError

from activities.context import WorkerContext, now
from activities.endings import done as changed
from activities.endings import of_answer
from activities.opening import READ_ONLY, open_session, session_spec, turned_out_lost
from activities.running import Stop, StopReason
from activities.sessions import HeldSession
from activities.spans import TurnSpan, turn_span
from activities.timeouts import seconds
from flows.bundle import Bundle
from schemas.calls import AnswerEnded, AttemptKey, SessionPhaseIn, WorkResult
from schemas.common import ArtifactRef, FileChanges, SessionMode
from schemas.envelopes import ErrorEnvelope
from schemas.events import TextEvent, TranscriptHeader, TransportEvent
from schemas.flow import StepSpec
from schemas.handoff import SessionRef
from store.attempt_lines import AttemptTotals
from store.attempts import AttemptLog, LogName
from transports.operations import with_operation
from transports.port import StructuredResult

M = TypeVar("M", bound=BaseModel)
Kind = Literal["finalize", "route"]

MAX_PREAMBLE_CHARS: Final = 10_000
KEPT_OPEN_S: Final = 90.0
"""A session whose provider refuses for longer than this, in seconds, is closed, and resumed when it is asked again.

More than a minute and the chance that the programs add to it, so that a refusal of a minute is always kept open for."""
_STOP_GRACE_S: Final = 5.0
_SLACK_S: Final = 30.0


@dataclass(frozen=True)
class Answer:
    """What became of one request: its value, or why there is none; what the agent did and used before."""

    value: BaseModel | None = None
    ended: AnswerEnded = "finished"
    error: ErrorEnvelope | None = None
    retry_at: datetime | None = None
    mode: SessionMode | None = None
    reprompts: int = 0
    elapsed_ms: int = 0
    totals: AttemptTotals = AttemptTotals()  # noqa: RUF009 - frozen
    logs: Mapping[LogName, ArtifactRef] = field(default_factory=dict)


@dataclass
class Asking:
    """What one request needs: the call, where its step stands, and which kind of answer is wanted."""

    ctx: WorkerContext
    call: SessionPhaseIn
    bundle: Bundle
    step: StepSpec
    kind: Kind
    stop: Stop
    done: WorkResult | None = None
    log: AttemptLog | None = None
    span: TurnSpan | None = None

    @property
    def work_key(self) -> AttemptKey:
        """The attempt whose work the agent is asked about."""
        return self.call.key.model_copy(update={"attempt": self.call.work_attempt})

    @property
    def session(self) -> SessionRef | None:
        """The session of that work."""
        return self.call.session or (self.done.out.session if self.done else None)

    @property
    def model(self) -> str | None:
        """The model that worked."""
        return self.done.out.model if self.done else None

    def emit(self, event: TransportEvent) -> None:
        """Take one event of the session; never raises."""
        event = with_operation(event)
        if self.log is not None:
            self.log.emit(event)
        if self.span is not None:
            self.span.hear(event)


async def ask(asking: Asking, prompt: str, schema: type[M]) -> Answer:
    """Ask the session of the attempt's work for a value of ``schema``.

    That there is none is a value. Raises ApplicationError where the phase is stopped: what an agent thinks has no half
    result, so the next attempt asks again.
    """
    begun = time.monotonic()
    ctx = asking.ctx
    asking.done = await ctx.blocking(ctx.results.load, asking.work_key, WorkResult)
    log = asking.log = await ctx.blocking(_open_log, asking)
    try:
        answer = await _asked(asking, prompt, schema)
    except ApplicationError:
        await ctx.blocking(log.close, complete=False)
        raise
    except BaseException:
        log.abandon()
        raise
    logs = await ctx.blocking(log.close)
    ctx.crash_at(f"{asking.kind}.logged")
    elapsed_ms = int((time.monotonic() - begun) * 1_000)
    return replace(answer, elapsed_ms=elapsed_ms, totals=log.totals, logs=logs)


async def _asked(asking: Asking, prompt: str, schema: type[M], *, anew: bool = False) -> Answer:
    """Ask the session of the work for a value; with ``anew`` a session that knows nothing of it."""
    ctx, stop = asking.ctx, asking.stop
    held, mode, error = await _session(asking, anew=anew)
    if held is None:
        ended, error = of_answer(StructuredResult(value=None, error=error))
        return Answer(ended=ended, error=error, mode=mode)
    text = prompt if mode != "cold" else f"{_preamble(asking)}\n\n{prompt}"
    limit_s = seconds(asking.bundle.spec, asking.step, asking.kind)
    asking.emit(TextEvent(role="user", text=text))
    with turn_span(asking.call.key, held, asking.model, asking.kind) as asking.span:
        turn = ctx.sessions.start(held.session.structured(text, schema, asking.emit, timeout_s=limit_s))
        stopped = asyncio.ensure_future(stop.wait())
        # The session keeps the time itself; with some more it is taken to hang.
        await asyncio.wait({turn, stopped}, timeout=limit_s + _SLACK_S, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not turn.done():
            await ctx.sessions.interrupt(held, turn, _STOP_GRACE_S)
            await ctx.sessions.close(held)
            if stop.reason is not None:
                raise _stopped(stop.reason)
            message = f"no answer within {limit_s:g} seconds"
            result = StructuredResult(
                value=None, error=ErrorEnvelope(code=f"{asking.kind}_timeout", message=message)
            )
        else:
            result = _result_of(turn, schema)
        if asking.log is not None:
            asking.span.used(asking.log.totals.usage)
    if turned_out_lost(held, result.error):
        await ctx.sessions.close(held)
        return await _asked(asking, prompt, schema, anew=True)
    ended, error = of_answer(result)
    if ended == "agent_failed" and stop.reason is not None:
        raise _stopped(stop.reason)
    if _is_kept(ended, result.retry_at):
        ctx.sessions.park(held)
    else:
        await ctx.sessions.close(held)
    value = schema.model_validate(result.value) if result.value is not None else None
    return Answer(value, ended, error, result.retry_at, mode, result.reprompts)


def _is_kept(ended: AnswerEnded, retry_at: datetime | None) -> bool:
    """Whether a session is kept open for the next phase: not one that failed, or is of no use for long."""
    if ended == "rate_limited":
        return retry_at is not None and (retry_at - now()).total_seconds() <= KEPT_OPEN_S
    return ended == "finished"


async def _session(
    asking: Asking, *, anew: bool
) -> tuple[HeldSession | None, SessionMode | None, ErrorEnvelope | None]:
    """Return the session of the attempt's work: open still, resumed by its id, or a cold one in its place."""
    ctx, work_key, session = asking.ctx, asking.work_key, asking.session
    held = ctx.sessions.take(work_key, asking.emit)
    if held is not None:
        return held, "hot", None
    if session is None:
        return None, None, ErrorEnvelope(code="no_session", message="the work left no session to ask")
    if anew:
        session = session.model_copy(update={"resumable": False})
    spec = await ctx.blocking(
        session_spec, ctx, work_key, asking.call.iteration, asking.bundle, asking.step, asking.model
    )
    opening = await open_session(
        ctx,
        work_key,
        [session.transport],
        replace(spec, read_only=True),
        session,
        asking.emit,
        asking.stop,
    )
    if opening.stopped and asking.stop.reason is not None:
        raise _stopped(asking.stop.reason)
    return opening.held, opening.held.session.mode if opening.held else None, opening.error


def _result_of(turn: asyncio.Task[StructuredResult], schema: type[BaseModel]) -> StructuredResult:
    if turn.cancelled() or turn.exception() is not None:
        message = "the turn was cancelled" if turn.cancelled() else f"{turn.exception()!r}"
        error = ErrorEnvelope(code="transport_error", message=message[:2_000], retryable=True)
        return StructuredResult(value=None, error=error)
    result = turn.result()
    if result.value is None:
        return result
    try:
        schema.model_validate(result.value)
    except ValidationError as error:
        message = (
            f"the transport let a value through that is no {schema.__name__}: {error.error_count()} faults"
        )
        known = ErrorEnvelope(code="structured_output_invalid", message=message)
        return StructuredResult(value=None, reprompts=result.reprompts, error=known)
    return result


def _open_log(asking: Asking) -> AttemptLog:
    """Begin the log of the phase, where an earlier try of it left one after that is stored. Blocks."""
    ctx, key, session = asking.ctx, asking.call.key, asking.session
    AttemptLog.recover(ctx.evidence, ctx.spool, key, now, phase=asking.kind)
    header = TranscriptHeader(
        **key.model_dump(),
        phase=asking.kind,
        task_id=key.path.removeprefix("runs/"),
        session_id=session.session_id if session else None,
        transport=session.transport if session else "",
        model=asking.model,
        agents=[asking.step.agent],
        permission_mode=READ_ONLY,
    )
    return AttemptLog(ctx.evidence, ctx.spool, key, header, now)


def _preamble(asking: Asking) -> str:
    """Tell a session that knows nothing of the work what it was and what it changed."""
    changes = asking.done.changes if asking.done else FileChanges()
    lines = [
        "You did the work of a step in an earlier session that is gone. What you were to do:",
        asking.step.objective.strip()[:MAX_PREAMBLE_CHARS],
        "What changed in the working directory:",
        *(changed(changes) or ["nothing"]),
    ]
    text = "\n".join(lines)
    return text if len(text) <= 2 * MAX_PREAMBLE_CHARS else f"{text[: 2 * MAX_PREAMBLE_CHARS]}\n[cut here]"


def _stopped(reason: StopReason) -> ApplicationError:
    # A phase that says what an agent thinks has no half result: the next attempt asks again.
    return ApplicationError(f"the phase was stopped: {reason}", type=reason)
