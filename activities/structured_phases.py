"""Finalize and route: what the agent says of its work and where to go, in its own session, without write tools."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio.exceptions import ApplicationError

from activities.context import OpenRun, WorkerContext, now
from activities.endings import done as changed
from activities.errors import translated
from activities.heartbeat import Beat, beating
from activities.opening import open_session, session_spec
from activities.running import Stop, StopReason
from activities.sessions import HeldSession
from activities.spans import turn_span
from activities.timeouts import Kind, seconds
from activities.workspace import open_run, settle
from flows.bundle import Bundle
from schemas.calls import AttemptKey, FinalizeOut, ProposeOut, SessionPhaseIn, WorkResult
from schemas.common import FileChanges, SessionMode, Usage
from schemas.errors import ErrorEnvelope
from schemas.events import TransportEvent, UsageEvent
from schemas.flow import StepSpec
from schemas.handoff import MAX_SUMMARY_CHARS, HandoffDraft
from schemas.routing import RoutingSignal
from transports.port import Emit, StructuredResult

M = TypeVar("M", bound=BaseModel)

MAX_DRAFT_ITEMS: Final = 20
MAX_DRAFT_CHARS: Final = 1_000
MAX_NOTES_CHARS: Final = 20_000
MAX_PREAMBLE_CHARS: Final = 10_000
_HEADLINE_CHARS: Final = 300
_STOP_GRACE_S: Final = 5.0
_SLACK_S: Final = 30.0

_FINALIZE: Final = """\
Your work on this step is over; do not change anything any more. Hand it over to the next step: what is its state, what
was decided and assumed, what blocks, what should the next step know. Say only what is true: the engine has measured
what it can, and both are recorded."""
_ROUTE: Final = """\
Say where this run should go from here. The engine decides; your advice counts where the flow leaves it to you. Change
nothing."""


@dataclass(frozen=True)
class _Asked:
    value: BaseModel | None
    error: ErrorEnvelope | None
    mode: SessionMode | None
    reprompts: int
    usage: Usage
    elapsed_ms: int


async def finalize(ctx: WorkerContext, call: SessionPhaseIn) -> FinalizeOut:
    """Ask for the hand-off draft. That there is none is a value; only the engine's own faults raise."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _finalize(ctx, call, beat, stop))


async def propose_route(ctx: WorkerContext, call: SessionPhaseIn) -> ProposeOut:
    """Ask for a routing signal. That there is none is a value; only the engine's own faults raise."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _propose(ctx, call, beat, stop))


async def _finalize(ctx: WorkerContext, call: SessionPhaseIn, beat: Beat, stop: Stop) -> FinalizeOut:
    key = call.key
    await _begin(ctx, call)
    stored = await ctx.blocking(ctx.results.load, key, FinalizeOut)
    if stored is not None:
        return stored
    opened, bundle, step = await _where(ctx, call)
    asked = await _ask(ctx, call, bundle, step, _FINALIZE, HandoffDraft, "finalize", stop)
    beat.say("storing the draft")
    draft = _cut(asked.value) if isinstance(asked.value, HandoffDraft) else None
    ref = await ctx.blocking(ctx.evidence.put_model, f"{key.path}/draft.json", draft) if draft else None
    ctx.crash_at("finalize.draft")
    out = FinalizeOut(
        draft=ref,
        claimed_status=draft.status if draft else None,
        can_further_iteration_help=draft.can_further_iteration_help if draft else "unsure",
        headline=_headline(ctx, draft),
        tree=(await settle(opened)).tree,
        session_mode=asked.mode,
        reprompts=asked.reprompts,
        usage=asked.usage,
        elapsed_ms=asked.elapsed_ms,
        ended_at=now(),
        error=asked.error,
    )
    await ctx.blocking(ctx.results.save, key, out)
    ctx.crash_at("finalize.done")
    return out


async def _propose(ctx: WorkerContext, call: SessionPhaseIn, beat: Beat, stop: Stop) -> ProposeOut:
    key = call.key
    await _begin(ctx, call)
    stored = await ctx.blocking(ctx.results.load, key, ProposeOut)
    if stored is not None:
        return stored
    opened, bundle, step = await _where(ctx, call)
    prompt = f"{_ROUTE}\n\nThe ways on: {', '.join(call.candidates) or 'none is named'}."
    asked = await _ask(ctx, call, bundle, step, prompt, RoutingSignal, "route", stop)
    beat.say("storing the signal")
    out = ProposeOut(
        signal=asked.value if isinstance(asked.value, RoutingSignal) else None,
        tree=(await settle(opened)).tree,
        session_mode=asked.mode,
        usage=asked.usage,
        elapsed_ms=asked.elapsed_ms,
        ended_at=now(),
        error=asked.error,
    )
    await ctx.blocking(ctx.results.save, key, out)
    ctx.crash_at("route.done")
    return out


async def _begin(ctx: WorkerContext, call: SessionPhaseIn) -> None:
    await ctx.check_lease(call.key.run_id, call.lease)
    if call.journal:
        await ctx.blocking(ctx.journal.flush, call.key.run_id, call.journal)


async def _where(ctx: WorkerContext, call: SessionPhaseIn) -> tuple[OpenRun, Bundle, StepSpec]:
    opened = await open_run(ctx, call.key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    return opened, bundle, bundle.step(call.key.step_id)


async def _ask(
    ctx: WorkerContext,
    call: SessionPhaseIn,
    bundle: Bundle,
    step: StepSpec,
    prompt: str,
    schema: type[M],
    kind: Kind,
    stop: Stop,
) -> _Asked:
    begun = time.monotonic()
    usage = Usage()

    def emit(event: TransportEvent) -> None:
        nonlocal usage
        if isinstance(event, UsageEvent):
            usage = usage.plus(event.usage)

    held, mode, error = await _session(ctx, call, bundle, step, emit, stop)
    if held is None:
        return _Asked(None, error, None, 0, usage, _since(begun))
    text = prompt if mode != "cold" else f"{await ctx.blocking(_preamble, ctx, call, step)}\n\n{prompt}"
    limit_s = seconds(bundle.spec, step, kind)
    with turn_span(call.key, held, None, "chat") as spanned:
        turn = ctx.sessions.start(held.session.structured(text, schema, emit, timeout_s=limit_s))
        stopped = asyncio.ensure_future(stop.wait())
        # The session keeps the time itself; with some more it is taken to hang.
        await asyncio.wait({turn, stopped}, timeout=limit_s + _SLACK_S, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        spanned.used(usage)
    if not turn.done():
        await ctx.sessions.interrupt(held, turn, _STOP_GRACE_S)
        await ctx.sessions.close(held)
        if stop.reason is not None:
            raise _stopped(stop.reason)
        error = ErrorEnvelope(code=f"{kind}_timeout", message=f"no answer within {limit_s:g} seconds")
        return _Asked(None, error, mode, 0, usage, _since(begun))
    ctx.sessions.park(held)
    value, reprompts, error = _read(turn, schema)
    return _Asked(value, error, mode, reprompts, usage, _since(begun))


async def _session(
    ctx: WorkerContext, call: SessionPhaseIn, bundle: Bundle, step: StepSpec, emit: Emit, stop: Stop
) -> tuple[HeldSession | None, SessionMode | None, ErrorEnvelope | None]:
    """Return the session of the attempt's work: open still, resumed by its id, or a cold one in its place."""
    work_key = _work_key(call)
    held = ctx.sessions.take(work_key, emit)
    if held is not None:
        return held, "hot", None
    done = await ctx.blocking(ctx.results.load, work_key, WorkResult)
    session = call.session or (done.out.session if done else None)
    if session is None:
        return None, None, ErrorEnvelope(code="no_session", message="the work left no session to ask")
    spec = await ctx.blocking(
        session_spec, ctx, work_key, call.iteration, bundle, step, done.out.model if done else None
    )
    opening = await open_session(
        ctx, work_key, [session.transport], replace(spec, read_only=True), session, emit, stop
    )
    if opening.stopped and stop.reason is not None:
        raise _stopped(stop.reason)
    return opening.held, opening.held.session.mode if opening.held else None, opening.error


def _read(
    turn: asyncio.Task[StructuredResult], schema: type[M]
) -> tuple[M | None, int, ErrorEnvelope | None]:
    if turn.cancelled() or turn.exception() is not None:
        message = "the turn was cancelled" if turn.cancelled() else f"{turn.exception()!r}"
        return None, 0, ErrorEnvelope(code="transport_error", message=message[:2_000])
    result = turn.result()
    if result.value is None:
        error = result.error or ErrorEnvelope(code="no_answer", message="the agent gave no answer")
        return None, result.reprompts, error
    try:
        return schema.model_validate(result.value), result.reprompts, None
    except ValidationError as error:
        message = (
            f"the transport let a value through that is no {schema.__name__}: {error.error_count()} faults"
        )
        return None, result.reprompts, ErrorEnvelope(code="structured_output_invalid", message=message)


def _preamble(ctx: WorkerContext, call: SessionPhaseIn, step: StepSpec) -> str:
    """Tell a session that knows nothing of the work what it was and what it changed. Blocks."""
    done = ctx.results.load(_work_key(call), WorkResult)
    changes = done.changes if done else FileChanges()
    lines = [
        "You did the work of a step in an earlier session that is gone. What you were to do:",
        step.objective.strip()[:MAX_PREAMBLE_CHARS],
        "What changed in the working directory:",
        *(changed(changes) or ["nothing"]),
    ]
    text = "\n".join(lines)
    return text if len(text) <= 2 * MAX_PREAMBLE_CHARS else f"{text[: 2 * MAX_PREAMBLE_CHARS]}\n[cut here]"


def _cut(draft: HandoffDraft) -> HandoffDraft:
    def items(texts: list[str]) -> list[str]:
        return [text[:MAX_DRAFT_CHARS] for text in texts[:MAX_DRAFT_ITEMS]]

    return draft.model_copy(
        update={
            "summary": draft.summary[:MAX_SUMMARY_CHARS],
            "notes_for_next_step": draft.notes_for_next_step[:MAX_NOTES_CHARS],
            "proposed_next_step": draft.proposed_next_step and draft.proposed_next_step[:MAX_DRAFT_CHARS],
            "assumptions": items(draft.assumptions),
            "decisions": items(draft.decisions),
            "blockers": items(draft.blockers),
            "evidence_names": items(draft.evidence_names),
        }
    )


def _headline(ctx: WorkerContext, draft: HandoffDraft | None) -> str:
    """Return the first line of the summary for history, where nothing else redacts it."""
    lines = draft.summary.strip().splitlines() if draft else []
    return ctx.evidence.redactor.text(lines[0][:_HEADLINE_CHARS])[:_HEADLINE_CHARS] if lines else ""


def _work_key(call: SessionPhaseIn) -> AttemptKey:
    return call.key.model_copy(update={"attempt": call.work_attempt})


def _stopped(reason: StopReason) -> ApplicationError:
    # A phase that says what an agent thinks has no half result: the next attempt asks again.
    return ApplicationError(f"the phase was stopped: {reason}", type=reason)


def _since(begun: float) -> int:
    return int((time.monotonic() - begun) * 1_000)
