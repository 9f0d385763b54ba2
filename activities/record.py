"""The record of an attempt: its envelope for the next step, its receipt for people, from what its phases stored.

Store only: no workspace, no clock. A repeat finds what is there and changes nothing.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from activities.context import WorkerContext
from activities.envelopes import compose_envelope, not_measured
from activities.keeping import WorkIntent, intent_key, stored_ref
from activities.phase_receipts import phase_receipts, tool_calls
from schemas.calls import (
    AttemptKey,
    FinalizeOut,
    FlushIn,
    FlushOut,
    GateRun,
    MeasureOut,
    ProposeOut,
    RecordIn,
    RecordOut,
    WorkResult,
)
from schemas.common import ArtifactRef, Usage
from schemas.flow import StepSpec
from schemas.handoff import HandoffDraft, PartialHandoff
from schemas.receipt import (
    GateBefore,
    GateReceipt,
    GitReceipt,
    PhaseReceipt,
    StepReceipt,
    StopRecord,
    TokenCounts,
)
from store.evidence import JSON

R = TypeVar("R", WorkResult, MeasureOut, FinalizeOut, ProposeOut)


def record(ctx: WorkerContext, call: RecordIn, step: StepSpec | None) -> RecordOut:
    """Write envelope, receipt and journal of one attempt. Blocks; raises StoreUnavailable, EvidenceConflict."""
    path = call.key.path
    places = {"receipt": f"{path}/receipt.json", "envelope": f"{path}/envelope.json"}
    if ctx.evidence.blobs.exists(places["receipt"]):
        refs = {name: stored_ref(ctx.evidence, place, JSON) for name, place in places.items()}
        ctx.journal.flush(call.key.run_id, call.journal)
        return RecordOut(receipt=refs["receipt"], envelope=refs["envelope"])
    call, done = _with_results(ctx, call)
    envelope = ctx.receipts.write_envelope(
        compose_envelope(call, step, done, _draft(ctx, call), _partial(ctx, call))
    )
    ctx.crash_at("record.envelope")
    phases = phase_receipts(ctx.evidence, call, done)
    receipt = ctx.receipts.write(_receipt(call, step, done, envelope, phases, _git(ctx, call)))
    ctx.crash_at("record.receipt")
    if call.journal:
        ctx.journal.flush(call.key.run_id, call.journal)
    ctx.crash_at("record.done")
    return RecordOut(receipt=receipt, envelope=envelope)


def flush_journal(ctx: WorkerContext, call: FlushIn) -> FlushOut:
    """Write journal events; blocks, raises StoreUnavailable, EvidenceConflict."""
    return FlushOut(last_seq=ctx.journal.flush(call.run_id, call.journal))


def _with_results(ctx: WorkerContext, call: RecordIn) -> tuple[RecordIn, WorkResult | None]:
    """Return the call with what its phases stored, and the stored result of the work itself."""
    done = _stored(ctx, call.key, call.work_attempt, WorkResult)
    known = {
        "work": call.work or (done.out if done else None),
        "measure": call.measure or _stored(ctx, call.key, call.measure_attempt, MeasureOut),
        "finalize": call.finalize or _stored(ctx, call.key, call.finalize_attempt, FinalizeOut),
        "route": call.route or _stored(ctx, call.key, call.route_attempt, ProposeOut),
    }
    return call.model_copy(update=known), done


def _stored(ctx: WorkerContext, key: AttemptKey, attempt: int | None, result: type[R]) -> R | None:
    if attempt is None:
        return None
    return ctx.results.load(key.model_copy(update={"attempt": attempt}), result)


def _draft(ctx: WorkerContext, call: RecordIn) -> HandoffDraft | None:
    ref = call.finalize.draft if call.finalize else None
    return HandoffDraft.model_validate_json(ctx.evidence.read(ref)) if ref else None


def _partial(ctx: WorkerContext, call: RecordIn) -> PartialHandoff | None:
    ref = call.work.partial if call.work else None
    return PartialHandoff.model_validate_json(ctx.evidence.read(ref)) if ref else None


def _git(ctx: WorkerContext, call: RecordIn) -> GitReceipt | None:
    """Return what the attempt added to the branch; also one whose run was ended while it was looked for."""
    work = call.work
    if work is None and call.work_attempt is None:
        found = _stored(ctx, call.key, call.key.attempt, WorkResult)
        work = found.out if found else None
    if not call.branch:
        return None
    if work is not None and work.commit_before is not None:
        after = work.commit_after or work.commit_before
        return GitReceipt(branch=call.branch, commit_before=work.commit_before, commit_after=after)
    intent = ctx.evidence.get_model(intent_key(call.key), WorkIntent) if work is None else None
    run = ctx.runs.get(call.key.run_id) if intent else None
    if intent is None or run is None or run.head in ("", intent.before):
        return None
    return GitReceipt(branch=call.branch, commit_before=intent.before, commit_after=run.head)


def _receipt(
    call: RecordIn,
    step: StepSpec | None,
    done: WorkResult | None,
    envelope: ArtifactRef,
    phases: list[PhaseReceipt],
    git: GitReceipt | None,
) -> StepReceipt:
    key, work, facts = call.key, call.work, call.facts
    usage = _own_usage(call)
    earlier = [
        attempt
        for attempt in (call.work_attempt, call.measure_attempt, call.finalize_attempt, call.route_attempt)
        if attempt is not None and attempt < key.attempt
    ]
    changes = facts.file_changes
    stop = None
    if work is not None and work.reason is not None:
        # To the agent, an abort and a cancel are interrupts; who reads the receipt wants to know which it was.
        reason = call.stop if call.stop is not None and work.reason == "interrupt" else work.reason
        stop = StopRecord(reason=reason, method=work.stop_method, requested_by=call.requested_by)
    elif call.stop is not None:
        stop = StopRecord(reason=call.stop, requested_by=call.requested_by)
    return StepReceipt(
        **key.model_dump(),
        iteration=call.iteration,
        from_attempt=min(earlier) if earlier else None,
        transport=work.transport if work else "",
        provider=work.provider if work else "",
        model=work.model if work else None,
        engine=_engine(),
        execution_status=call.execution_status,
        verification_status=facts.status,
        started_at=call.started_at,
        completed_at=call.completed_at,
        duration_ms=int((call.completed_at - call.started_at).total_seconds() * 1_000),
        token_counts=TokenCounts(
            prompt=usage.prompt,
            completion=usage.completion,
            cache_read=usage.cache_read,
            cache_write=usage.cache_write,
            total=usage.total,
        ),
        cost_usd=usage.cost_usd,
        tool_calls=tool_calls(call, done),
        gates=_gates(call, step),
        claimed=_claimed(call),
        measured={
            "status": facts.status,
            "files_created": changes.created,
            "files_modified": changes.modified,
            "files_deleted": changes.deleted,
            "tree": facts.tree,
            "changed_after_measure": facts.changed_after_measure,
        },
        routing=call.routing,
        termination_reason=call.routing.exit if call.routing else None,
        fallbacks=work.fallbacks if work else [],
        context_cut=work.context_cut if work else [],
        outputs_not_kept=done.outputs_not_kept if done else {},
        session=work.session_mode if work else None,
        phases=phases,
        stop=stop,
        transcript=done.transcript if done else None,
        envelope=envelope,
        handoff_partial=work.partial if work else None,
        git=git,
        previous_sha256=call.previous_sha256,
    )


def _own_usage(call: RecordIn) -> Usage:
    """Return what the attempt itself used: a phase that it took over is counted where it was done, and only there."""
    used, attempt = call.facts.usage, call.key.attempt
    taken_over = [
        part.usage
        for part, done_in in (
            (call.work, call.work_attempt),
            (call.finalize, call.finalize_attempt),
            (call.route, call.route_attempt),
        )
        if part is not None and done_in is not None and done_in < attempt
    ]
    for usage in taken_over:
        cost = used.cost_usd
        used = Usage(
            prompt=used.prompt - usage.prompt,
            completion=used.completion - usage.completion,
            cache_read=used.cache_read - usage.cache_read,
            cache_write=used.cache_write - usage.cache_write,
            cost_usd=None if cost is None else cost - (usage.cost_usd or 0.0),
        )
    return used


def _gates(call: RecordIn, step: StepSpec | None) -> list[GateReceipt]:
    measured = call.measure
    before = {run.fact.name: run for run in call.base_gates}
    if measured is None:
        reason = not_measured(call)
        return [
            GateReceipt(
                name=gate.name,
                required=gate.required,
                measured=False,
                before=_before(before.get(gate.name)),
                reason=reason,
            )
            for gate in (step.gates if step else [])
        ]
    return [
        GateReceipt(
            name=run.fact.name,
            required=run.fact.required,
            measured=run.fact.measured,
            exit_code=run.fact.exit_code,
            passed=run.fact.passed if run.fact.measured else None,
            counts=run.fact.counts,
            percent=run.fact.percent,
            tree=measured.tree_before,
            commit=measured.commit,
            evidence=run.evidence,
            before=_before(before.get(run.fact.name)),
            reason=run.fact.reason,
            elapsed_ms=run.elapsed_ms,
        )
        for run in measured.gates
    ]


def _before(run: GateRun | None) -> GateBefore | None:
    if run is None or not run.fact.measured:
        return None
    return GateBefore(passed=run.fact.passed, exit_code=run.fact.exit_code, counts=run.fact.counts)


def _claimed(call: RecordIn) -> dict[str, str | float | None]:
    finalize = call.finalize
    if finalize is None or finalize.draft is None:
        return {}
    return {
        "status": finalize.claimed_status,
        "can_further_iteration_help": finalize.can_further_iteration_help,
        "headline": finalize.headline,
    }


@lru_cache(maxsize=1)
def _engine() -> str:
    try:
        return f"stepwise {version('stepwise')}"
    except PackageNotFoundError:
        return "stepwise"
