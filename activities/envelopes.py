"""The hand-off envelope: the engine's measurements, with the agent's words where it left any. Pure."""

from __future__ import annotations

from activities.endings import summary
from schemas.calls import RecordIn, WorkResult
from schemas.common import FileChanges
from schemas.flow import StepSpec
from schemas.handoff import MAX_SUMMARY_CHARS, HandoffDraft, HandoffEnvelope, PartialHandoff


def compose_envelope(
    call: RecordIn,
    step: StepSpec | None,
    done: WorkResult | None,
    draft: HandoffDraft | None,
    partial: PartialHandoff | None,
) -> HandoffEnvelope:
    """Return the envelope of an attempt; without a draft the engine writes it, and says why."""
    key, facts = call.key, call.facts
    changes = done.changes if done else partial.file_changes if partial else FileChanges()
    fixed = HandoffEnvelope(
        **key.model_dump(),
        iteration=call.iteration,
        status=facts.status,
        claimed_status=facts.claimed_status,
        summary="",
        artifacts=done.outputs if done else {},
        file_changes=changes,
        timestamp=call.completed_at,
        source="engine",
    )
    if draft is None:
        return fixed.model_copy(
            update={
                "summary": _engine_summary(call, step, partial)[:MAX_SUMMARY_CHARS],
                "reason": _why_no_draft(call),
            }
        )
    return fixed.model_copy(
        update={
            "source": "agent",
            "summary": draft.summary[:MAX_SUMMARY_CHARS],
            "proposed_next_step": draft.proposed_next_step,
            "notes_for_next_step": draft.notes_for_next_step,
            "confidence": draft.confidence,
            "can_further_iteration_help": draft.can_further_iteration_help,
            "assumptions": draft.assumptions,
            "decisions": draft.decisions,
            "blockers": draft.blockers,
            "evidence_names": draft.evidence_names,
        }
    )


def not_measured(call: RecordIn) -> str:
    """Return why the gates of an attempt were not measured."""
    if call.work is not None and call.work.ended != "finished":
        return f"the attempt ended as {call.work.ended}"
    return f"the attempt was {call.execution_status} before its gates were measured"


def _engine_summary(call: RecordIn, step: StepSpec | None, partial: PartialHandoff | None) -> str:
    if call.work is not None:
        return summary(call.work, partial)
    if call.measure is not None:
        passed = sum(run.fact.measured and run.fact.passed for run in call.measure.gates)
        return f"The engine measured {len(call.measure.gates)} gates on the final tree: {passed} passed."
    name = step.id if step else call.key.step_id
    return f"The attempt of {name} was {call.execution_status} before its work began or ended."


def _why_no_draft(call: RecordIn) -> str:
    if call.finalize is not None and call.finalize.error is not None:
        error = call.finalize.error
        return f"no valid draft: {error.code}: {error.message}"[:1_000]
    if call.work is not None and call.work.ended != "finished":
        return f"the work ended as {call.work.ended}"
    return "the agent was not asked for a draft"
