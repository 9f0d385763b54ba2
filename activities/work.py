"""The work phase: an agent's turn, and whatever it takes that neither its end nor any other loses what it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from activities.asking import Desk, teller
from activities.briefing import gather
from activities.context import OpenRun, WorkerContext, now
from activities.developer import Developer, Reviewer, developer_model
from activities.endings import Ending, counts, done, failed, hint, of_order, summary
from activities.errors import translated
from activities.heartbeat import Beat, beating
from activities.keeping import (
    Kept,
    WorkIntent,
    close_logs,
    complete,
    fixed_time,
    intent_key,
    keep_tree,
    save_work,
    stand_at_commit,
    write_partial,
)
from activities.models import Models
from activities.opening import is_read_only, open_session, session_spec, step_models, turned_out_lost
from activities.prompt import PromptParts, compose
from activities.recording import telling, with_envelope, write_record
from activities.running import Stop
from activities.sessions import HeldSession
from activities.spans import turn_span
from activities.timeouts import seconds
from activities.trace import trace_of, write_trace
from activities.turn import Limits, Tally, TurnEnd, run_turn
from activities.workspace import open_run, settle
from flows.bundle import Bundle
from schemas.calls import Recorded, WorkIn, WorkOut, WorkResult
from schemas.common import FileChanges, SessionMode
from schemas.events import TextEvent, TranscriptHeader
from schemas.flow import StepSpec
from schemas.handoff import PartialHandoff, SessionRef, StopMethod
from schemas.receipt import FallbackRecord
from schemas.run_record import RunRecord
from store.attempts import AttemptLog
from system.leftovers import end_leftovers
from system.logs import logger
from system.untrusted import remove_tree
from transports.port import SessionSpec, WorkRequest

_LEFTOVERS_GRACE_S: Final = 0.5
_log = logger("activities")


@dataclass
class _Attempt:
    """One attempt's work while it is done."""

    call: WorkIn
    bundle: Bundle
    step: StepSpec
    opened: OpenRun
    limits: Limits
    desk: Desk
    models: Models
    begun: float = 0.0
    log: AttemptLog | None = None
    held: HeldSession | None = None
    mode: SessionMode | None = None
    model: str | None = None
    fallbacks: list[FallbackRecord] = field(default_factory=list)
    context_cut: list[str] = field(default_factory=list)


async def work(ctx: WorkerContext, call: WorkIn) -> WorkOut:
    """Let the agent work on one attempt. Whatever becomes of the agent is a value; only the engine's faults raise."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _work(ctx, call, beat, stop))


async def _work(ctx: WorkerContext, call: WorkIn, beat: Beat, stop: Stop) -> WorkOut:
    key = call.key
    record = await ctx.check_lease(key.run_id, call.lease)
    if call.journal:
        await ctx.blocking(ctx.journal.flush, key.run_id, call.journal)
    if call.record is None:
        return await _new_or_stored(ctx, call, record, beat, stop)
    recorded = Recorded(key=call.record.key, out=await write_record(ctx, call.record))
    async with telling(ctx, call.workflow_id, recorded):
        out = await _new_or_stored(ctx, with_envelope(call, recorded), record, beat, stop)
    return out.model_copy(update={"recorded": recorded.out})


async def _new_or_stored(
    ctx: WorkerContext, call: WorkIn, record: RunRecord, beat: Beat, stop: Stop
) -> WorkOut:
    """Return the result of an attempt's work: the stored one, or that of the work which is done now."""
    key = call.key
    stored = await ctx.blocking(ctx.results.load, key, WorkResult)
    if stored is not None:
        return stored.out
    opened = await open_run(ctx, key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    step = bundle.step(key.step_id)
    intent = await ctx.blocking(ctx.evidence.get_model, intent_key(key), WorkIntent)
    if intent is not None:
        return await complete(ctx, opened, key, intent, step, None)
    limits, desk = _limits(ctx, call, bundle, step), _desk(ctx, call, step, beat)
    models = await ctx.blocking(step_models, ctx, key, bundle, step)
    attempt = _Attempt(call, bundle, step, opened, limits, desk, models)
    try:
        if key.attempt == 1 or call.fresh:
            # Another visit may have been left unfinished, or this one is begun anew; a savepoint has what was done.
            await stand_at_commit(ctx, opened, record)
            if not opened.settled:
                await settle(opened)
        opened.settled = False
        async with _slot(ctx, beat, stop):
            attempt.begun = time.monotonic()
            with ctx.sessions.attending(desk):
                end = await _turn(ctx, attempt, stop)
                end = replace(end, had=await desk.had(end.unheard))
        beat.say("storing what was done")
        keep = _finished if end.ending.ended == "finished" else _stopped
        out = await keep(ctx, attempt, end)
    except BaseException:
        # The engine's own fault: the phase is lost, and what it left here is for its recovery.
        if attempt.log is not None:
            attempt.log.abandon()
        if attempt.held is not None:
            await ctx.sessions.close(attempt.held)
        raise
    await desk.told()
    return out


@asynccontextmanager
async def _slot(ctx: WorkerContext, beat: Beat, stop: Stop) -> AsyncIterator[None]:
    """Hold one of the worker's places for agents; without one if the attempt is to stop before there is any."""
    if ctx.slots.locked():
        beat.say("waiting for a slot")
    place = asyncio.ensure_future(ctx.slots.acquire())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({place, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not place.done():
        place.cancel()
        await asyncio.wait({place})
    try:
        beat.say("")
        yield
    finally:
        if not place.cancelled():
            ctx.slots.release()


async def _turn(ctx: WorkerContext, attempt: _Attempt, stop: Stop) -> TurnEnd:
    """Open a session and run its turn. Nothing is opened for an attempt that is to stop already."""
    early = stop.reason
    if early is not None:
        return TurnEnd(of_order(early))
    call, key = attempt.call, attempt.call.key
    parts, missing = await ctx.blocking(gather, ctx, call, attempt.step)
    spec = await ctx.blocking(session_spec, ctx, key, call.iteration, attempt.bundle, attempt.step)
    spec = replace(spec, on_question=attempt.desk.on_question, on_call=attempt.desk.on_call)
    header = _header(attempt)
    attempt.log = await ctx.blocking(AttemptLog, ctx.evidence, ctx.spool, key, header, now)
    tally = Tally(attempt.log, attempt.limits)
    log = attempt.log

    def trying(name: str, model: str | None) -> None:
        log.set_header(header.model_copy(update={"transport": name, "model": model}))

    session = call.session
    while True:
        opening = await open_session(
            ctx, key, call.transports, spec, session, tally, stop, trying, attempt.models
        )
        attempt.fallbacks = opening.fallbacks
        held = attempt.held = opening.held
        if held is None:
            if opening.stopped and stop.reason is not None:
                return TurnEnd(of_order(stop.reason))
            error = opening.error
            assert error is not None  # noqa: S101 - either a session or an error
            return TurnEnd(Ending("agent_failed", "agent_failed", error.code, error))
        attempt.mode, attempt.model = held.session.mode, opening.model
        await ctx.blocking(write_trace, ctx.folder(key.run_id), key, trace_of(held, attempt.model))
        end = await _played(ctx, attempt, held, spec, parts, missing, tally, stop)
        if end.outcome is None or not turned_out_lost(held, end.outcome.error):
            return end
        await ctx.sessions.close(held)
        tally.also.clear()
        session = None


async def _played(
    ctx: WorkerContext,
    attempt: _Attempt,
    held: HeldSession,
    spec: SessionSpec,
    parts: PromptParts,
    missing: Sequence[str],
    tally: Tally,
    stop: Stop,
) -> TurnEnd:
    """Run the turn of a session that is open."""
    call, key, log = attempt.call, attempt.call.key, attempt.log
    assert log is not None  # noqa: S101 - it is begun before any session is opened
    prompt = compose(parts, resumed=attempt.mode == "resumed")
    attempt.context_cut = [*prompt.cut, *missing]
    tally(TextEvent(role="user", text=prompt.text))
    ctx.crash_at("work.started")
    limits = attempt.limits
    request = WorkRequest(prompt.text, limits.tokens, limits.seconds, given=call.given)
    with turn_span(key, held, attempt.model, "work") as spanned:
        tally.also.append(spanned.hear)
        async with _attended(ctx, attempt, held, spec, parts.task, tally):
            end = await run_turn(ctx.sessions, held, request, tally, limits, stop, attempt.desk)
        spanned.used(log.totals.usage)
        return end


@asynccontextmanager
async def _attended(
    ctx: WorkerContext, attempt: _Attempt, held: HeldSession, spec: SessionSpec, task: str, tally: Tally
) -> AsyncIterator[None]:
    """Have the developer model answer questions, and read along where the step says so, while the block runs."""
    attempt.desk.note = tally
    developer = _developer(ctx, attempt, held, spec, task, tally)
    if developer is None:
        yield
        return
    tally.also.append(developer.history.hear)
    attempt.desk.developer = developer
    steers = held.transport.capabilities.steering
    every = attempt.step.developer.review_every_turns if steers else 0
    reviewer = Reviewer(developer, every, held.session.steer) if every else None
    if reviewer is not None:
        tally.also.append(reviewer.hear)
    try:
        yield
    finally:
        if reviewer is not None:
            await reviewer.close()


def _developer(
    ctx: WorkerContext, attempt: _Attempt, held: HeldSession, spec: SessionSpec, task: str, tally: Tally
) -> Developer | None:
    """Return who answers the agent; None where its transport has no model, or the worker wants nobody to."""
    model = developer_model(held.transport, ctx.settings, attempt.models)
    if model is None:
        return None
    return Developer(
        transport=held.transport,
        spec=spec,
        model=model or None,
        limit_s=seconds(attempt.bundle.spec, attempt.step, "answer"),
        task=task,
        emit=tally,
        start=ctx.sessions.start,
    )


async def _finished(ctx: WorkerContext, attempt: _Attempt, end: TurnEnd) -> WorkOut:
    """Commit what a finished attempt changed, and store its result; a step that must change nothing is checked."""
    key, opened = attempt.call.key, attempt.opened
    # A turn may take an hour, and the run may be another worker's by now.
    await ctx.check_lease(key.run_id, opened.held.lease)
    repository = opened.repository
    measured = await repository.tree_id()
    before = await repository.tree_of(opened.head)
    unchanged = measured.tree == before and measured.head == opened.head
    if not unchanged and is_read_only(attempt.bundle, attempt.step):
        violation = failed(
            "read_only_violated", "the step may change nothing, and it did; its changes are undone"
        )
        return await _stopped(ctx, attempt, TurnEnd(violation))
    out = _out(attempt, end, Kept(before, FileChanges()))
    if attempt.held is not None:
        ctx.sessions.park(attempt.held)
    if unchanged and measured.branch == repository.branch:
        return await save_work(ctx, key, out, FileChanges(), attempt.step, attempt.log)
    intent = WorkIntent(
        out=out,
        message=f"{key.flow_key}/{key.step_id} #{key.visit}",
        when=fixed_time(),
        before=opened.head,
    )
    await ctx.blocking(ctx.evidence.put_model, intent_key(key), intent)
    ctx.crash_at("work.intent")
    return await complete(ctx, opened, key, intent, attempt.step, attempt.log)


async def _stopped(ctx: WorkerContext, attempt: _Attempt, end: TurnEnd) -> WorkOut:
    """Keep what a stopped attempt did, so that the next one can go on from there; store that, and return it."""
    key = attempt.call.key
    held = attempt.held
    session = _session(held)
    if held is not None:
        await _end_session(ctx, held, killed=end.method == "killed")
    await ctx.check_lease(key.run_id, attempt.opened.held.lease)
    if is_read_only(attempt.bundle, attempt.step):
        kept = await _undo(attempt.opened)
    else:
        kept = await keep_tree(ctx, attempt.opened, key)
    out = _out(attempt, end, kept).model_copy(update={"session": session})
    logs = await ctx.blocking(close_logs, ctx, key, attempt.log)
    reason = end.ending.reason or "agent_failed"
    handoff = PartialHandoff(
        **key.model_dump(),
        phase="work",
        reason=reason,
        stopped_at=now(),
        stop_method=end.method,
        done=done(kept.changes),
        open_question=out.question,
        open_call=out.call,
        savepoint=kept.savepoint,
        file_changes=kept.changes,
        session=session,
        last_tool_calls=list(attempt.log.totals.last_calls) if attempt.log else [],
        transcript=logs.get("transcript"),
        summary=summary(out),
        resume_hint=hint(reason),
    )
    partial = await ctx.blocking(write_partial, ctx, handoff)
    ctx.crash_at("work.partial")
    out = out.model_copy(update={"partial": partial})
    return await save_work(ctx, key, out, kept.changes, None, attempt.log)


async def _end_session(ctx: WorkerContext, held: HeldSession, *, killed: bool) -> None:
    """Close a session that is not gone on with here: nothing of it may write from now on, or stay behind."""
    key = held.key
    await ctx.sessions.close(held)
    folder = ctx.folder(key.run_id)
    if killed:
        # It did not do as it was told, so whatever it started is looked for, too.
        left = await end_leftovers(key.run_id, _LEFTOVERS_GRACE_S, home=folder.path)
        if left:
            _log.error("processes of %s cannot be ended: %s", key.path, left, extra={"run_id": key.run_id})
    await asyncio.to_thread(remove_tree, folder.attempt(key) / "tmp")


async def _undo(opened: OpenRun) -> Kept:
    """Put the tree and the branch back to the last commit of the engine."""
    await settle(opened)
    return Kept(await opened.repository.tree_of(opened.head), FileChanges())


def _out(attempt: _Attempt, end: TurnEnd, kept: Kept) -> WorkOut:
    totals = attempt.log.totals if attempt.log else None
    held, ending, outcome, desk = attempt.held, end.ending, end.outcome, attempt.desk
    method: StopMethod | None = end.method
    waited_ms = int(desk.pauses.total_s * 1_000)
    elapsed_ms = int((time.monotonic() - attempt.begun) * 1_000) - waited_ms
    question, call = (outcome.question, outcome.call) if outcome else (None, None)
    out = WorkOut(
        ended=ending.ended,
        reason=ending.reason,
        stop_method=method,
        session=_session(held),
        session_mode=attempt.mode,
        transport=held.transport.name if held else "",
        provider=held.transport.capabilities.provider_name if held else "",
        model=(totals.model if totals else None) or attempt.model,
        usage=totals.usage if totals else WorkOut(ended="finished").usage,
        changes=counts(kept.changes),
        tree=kept.tree,
        commit_before=attempt.opened.head,
        commit_after=attempt.opened.head,
        tools=list(totals.tools) if totals else [],
        tool_calls=totals.tool_calls if totals else 0,
        tools_blocked=totals.blocked if totals else 0,
        stop_reason=ending.stop_reason,
        elapsed_ms=elapsed_ms,
        ended_at=now(),
        question=desk.shown(question) if question else None,
        call=desk.shown_call(call) if call else None,
        retry_at=outcome.retry_at if outcome else None,
        savepoint=kept.savepoint,
        fallbacks=attempt.fallbacks,
        context_cut=attempt.context_cut,
        error=ending.error,
    )
    # What is rare stands in history only where there is some.
    more: dict[str, object] = {"waited_ms": waited_ms} if waited_ms else {}
    if end.had:
        more["had"] = end.had
    if desk.spent is not None:
        more["spent"] = desk.spent
    if totals and totals.blocked_calls:
        more["blocked_calls"] = list(totals.blocked_calls)
    return out.model_copy(update=more) if more else out


def _session(held: HeldSession | None) -> SessionRef | None:
    if held is None:
        return None
    return SessionRef(
        transport=held.transport.name,
        session_id=held.session.session_id,
        resumable=held.session.resumable and held.session.session_id is not None,
    )


def _header(attempt: _Attempt) -> TranscriptHeader:
    key, step, transports = attempt.call.key, attempt.step, attempt.call.transports
    return TranscriptHeader(
        **key.model_dump(),
        task_id=key.path.removeprefix("runs/"),
        transport=transports[0] if transports else "",
        model=attempt.models.of(transports[0]) if transports else None,
        agents=[step.agent],
        permission_mode=step.policy or attempt.bundle.spec.defaults.policy or "test",
    )


def _desk(ctx: WorkerContext, call: WorkIn, step: StepSpec, beat: Beat) -> Desk:
    return Desk(
        call.key,
        teller(ctx.client, call.workflow_id),
        ctx.evidence,
        hold_s=ctx.settings.hold_s,
        unanswered=step.questions.unanswered,
        decisions=call.decisions,
        say=beat.say,
    )


def _limits(ctx: WorkerContext, call: WorkIn, bundle: Bundle, step: StepSpec) -> Limits:
    budget = call.budget
    return Limits(
        work_s=seconds(bundle.spec, step, "work"),
        no_output_s=seconds(bundle.spec, step, "no_output"),
        grace_s=step.interrupt.grace_s,
        # What the agent leaves must still be kept, and told, before the worker's own time is over.
        drain_s=ctx.settings.drain_s / 2,
        tokens=budget.tokens if budget else None,
        usd=budget.usd if budget else None,
        seconds=budget.seconds if budget else None,
    )
