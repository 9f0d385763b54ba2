"""What became of a phase that did not come back: its result, its unfinished commit, or what it had done so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from activities.context import OpenRun, WorkerContext, now
from activities.endings import LOST, counts, done, hint
from activities.keeping import (
    Kept,
    WorkIntent,
    close_logs,
    complete,
    intent_key,
    keep_tree,
    save_work,
    stored_ref,
    visit_name,
    write_partial,
)
from activities.structured_phases import told
from activities.trace import Trace, read_trace
from schemas.calls import (
    CANCELLED,
    AttemptKey,
    Ended,
    FinalizeOut,
    MeasureOut,
    ProposeOut,
    Recover,
    WorkOut,
    WorkResult,
)
from schemas.common import ArtifactRef, FileChanges
from schemas.errors import EvidenceConflict
from schemas.flow import StepSpec
from schemas.handoff import PartialHandoff, PartialReason, Savepoint, SessionRef, StopMethod
from store.attempt_lines import AttemptTotals
from store.attempts import AttemptLog
from store.evidence import JSON
from system.logs import logger

_log = logger("activities")


@dataclass(frozen=True)
class Found:
    """What there is of a lost phase. ``newest`` is what its attempt itself stored of the working tree."""

    work: WorkOut | None = None
    measure: MeasureOut | None = None
    finalize: FinalizeOut | None = None
    route: ProposeOut | None = None
    partial: ArtifactRef | None = None
    partial_work: WorkOut | None = None
    handoff: PartialHandoff | None = None
    intent: WorkIntent | None = None
    newest: Savepoint | None = None


@dataclass(frozen=True)
class _Loss:
    """How work ended that did not come back, by how that showed, and what a person reads of it."""

    ended: Ended
    reason: PartialReason
    method: StopMethod | None
    words: str


def look_up(ctx: WorkerContext, lost: Recover) -> Found:
    """Read what the store has of a lost phase. Blocks; raises StoreUnavailable, EvidenceCorrupt."""
    key = lost.key
    match lost.phase:
        case "measure":
            return Found(measure=ctx.results.load(key, MeasureOut))
        case "finalize":
            draft = ctx.results.load(key, FinalizeOut)
            return Found(finalize=told(draft) if draft else None)
        case "route":
            signal = ctx.results.load(key, ProposeOut)
            return Found(route=told(signal) if signal else None)
        case "work":
            return _look_up_work(ctx, key)
        case _:
            return Found()


async def complete_or_keep(
    ctx: WorkerContext, opened: OpenRun, lost: Recover, found: Found, step: StepSpec | None, *, rebuilt: bool
) -> Found:
    """Complete a lost work phase that was as good as finished, else keep what it left; others leave their logs alone."""
    match lost.phase:
        case "finalize" | "route" as phase:
            await asyncio.to_thread(AttemptLog.recover, ctx.evidence, ctx.spool, lost.key, now, phase=phase)
    if lost.phase != "work" or found.work is not None or found.partial_work is not None:
        return found
    key = lost.key
    if found.intent is not None:
        there = not rebuilt or await opened.repository.find_commit(visit_name(key), key.attempt) is not None
        if there:
            return replace(found, work=await complete(ctx, opened, key, found.intent, step, None))
    trace = await asyncio.to_thread(read_trace, ctx.folder(key.run_id), key) or _trace_of(found.intent)
    recovered = await asyncio.to_thread(AttemptLog.recover, ctx.evidence, ctx.spool, key, now)
    if recovered is None and trace is None and found.handoff is None and not rebuilt:
        # It never began here, so there is nothing that an earlier partial does not say better.
        return found
    if found.handoff is not None:
        tree = found.newest.tree if found.newest else await opened.repository.tree_of(opened.head)
        kept = Kept(tree, found.handoff.file_changes, found.newest)
    elif rebuilt:
        record = await ctx.check_lease(key.run_id, opened.held.lease)
        kept = await _of_rebuilt(opened, record.newest)
    else:
        kept = await keep_tree(ctx, opened, key)
    totals = recovered.totals if recovered else _totals_of(found.intent)
    out = _lost_work(opened, lost, found.handoff, kept, trace, totals)
    return await _store(ctx, lost, found, kept, out, totals)


def _look_up_work(ctx: WorkerContext, key: AttemptKey) -> Found:
    result = ctx.results.load(key, WorkResult)
    if result is not None:
        if result.out.ended in LOST:
            return Found(partial=result.out.partial, partial_work=result.out, newest=result.out.savepoint)
        return Found(work=result.out)
    bundle_key = f"{key.path}/work.bundle"
    newest: Savepoint | None = None
    if ctx.evidence.blobs.exists(bundle_key):
        ref = stored_ref(ctx.evidence, bundle_key, "application/x-git-bundle")
        newest = Savepoint(ref=f"refs/heads/stepwise/{key.run_id}", commit="", bundle=ref)
    partial_key = f"{key.path}/handoff_partial.json"
    partial = ctx.evidence.get_model(partial_key, PartialHandoff)
    return Found(
        intent=ctx.evidence.get_model(intent_key(key), WorkIntent),
        partial=stored_ref(ctx.evidence, partial_key, JSON) if partial else None,
        handoff=partial,
        newest=newest or (partial.savepoint if partial else None),
    )


async def _of_rebuilt(opened: OpenRun, newest: Savepoint | None) -> Kept:
    repository = opened.repository
    head = await repository.tree_of(opened.head)
    if newest is None or newest.ref == repository.branch_ref:
        return Kept(head, FileChanges())
    return Kept(newest.tree, await repository.changes(head, newest.tree), newest)


def _lost_work(
    opened: OpenRun,
    lost: Recover,
    handoff: PartialHandoff | None,
    kept: Kept,
    trace: Trace | None,
    totals: AttemptTotals,
) -> WorkOut:
    loss = _loss(lost.failure)
    session = handoff.session if handoff else None
    if trace is not None and session is None:
        session_id = totals.session_id or trace.session_id
        session = SessionRef(
            transport=trace.transport, session_id=session_id, resumable=session_id is not None
        )
    return WorkOut(
        ended=loss.ended,
        reason=handoff.reason if handoff else loss.reason,
        stop_method=handoff.stop_method if handoff else loss.method,
        session=session,
        session_mode=trace.session_mode if trace else None,
        transport=trace.transport if trace else "",
        provider=trace.provider if trace else "",
        model=totals.model or (trace.model if trace else None),
        usage=totals.usage,
        changes=counts(kept.changes),
        tree=kept.tree,
        commit_before=opened.head,
        commit_after=opened.head,
        tools=list(totals.tools),
        tool_calls=totals.tool_calls,
        tools_blocked=totals.blocked,
        **({"blocked_calls": list(totals.blocked_calls)} if totals.blocked_calls else {}),
        stop_reason=loss.ended,
        savepoint=kept.savepoint,
    )


async def _store(
    ctx: WorkerContext, lost: Recover, found: Found, kept: Kept, out: WorkOut, totals: AttemptTotals
) -> Found:
    key = lost.key
    logs = await asyncio.to_thread(close_logs, ctx, key, None)
    partial = found.partial
    if partial is None:
        reason = out.reason or "crash"
        handoff = PartialHandoff(
            **key.model_dump(),
            phase="work",
            reason=reason,
            stopped_at=now(),
            stop_method=out.stop_method,
            done=done(kept.changes),
            savepoint=kept.savepoint,
            file_changes=kept.changes,
            session=out.session,
            last_tool_calls=list(totals.last_calls),
            transcript=logs.get("transcript"),
            summary=_loss(lost.failure).words,
            resume_hint=hint(reason),
        )
        partial = await asyncio.to_thread(write_partial, ctx, handoff)
    out = out.model_copy(update={"partial": partial})
    try:
        await save_work(ctx, key, out, kept.changes, None, None)
    except EvidenceConflict:
        # The worker that was thought lost has stored its own result meanwhile. Its files are not here, so it
        # comes too late: the next attempt goes on from what this worker has.
        _log.warning("a late result of %s is not used", key.path)
    return replace(found, partial=partial, partial_work=out)


def _trace_of(intent: WorkIntent | None) -> Trace | None:
    """Return what a finished turn, whose commit is on a disk that is gone, said of its session."""
    if intent is None:
        return None
    out = intent.out
    return Trace(
        transport=out.transport,
        provider=out.provider,
        model=out.model,
        session_id=out.session.session_id if out.session else None,
        session_mode=out.session_mode,
    )


def _totals_of(intent: WorkIntent | None) -> AttemptTotals:
    if intent is None:
        return AttemptTotals()
    out = intent.out
    return AttemptTotals(
        tool_calls=out.tool_calls,
        blocked=out.tools_blocked,
        blocked_calls=tuple(out.blocked_calls),
        tools=tuple(out.tools),
        usage=out.usage,
    )


def _loss(failure: str) -> _Loss:
    if failure == CANCELLED:
        return _Loss("interrupted", "interrupt", None, "It was stopped before a worker had begun with it.")
    words = f"The worker was lost while the agent worked: {failure or 'no reason known'}."
    if "WorkerShutdown" in failure:
        return _Loss("worker_shutdown", "worker_shutdown", "killed", words)
    if "start_to_close" in failure:
        return _Loss("timeout", "timeout", "killed", words)
    return _Loss("crash", "crash", "killed", words)
