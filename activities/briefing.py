"""Reads from the store what a prompt is made of."""

from __future__ import annotations

import hashlib

from activities.context import WorkerContext
from activities.prompt import MAX_GATE_CHARS, GateOutput, PromptParts
from activities.resolve import Task, task_key
from schemas.calls import AttemptKey, MeasureOut, StepPlace, WorkIn
from schemas.flow import StepSpec
from schemas.handoff import HandoffEnvelope, PartialHandoff
from schemas.questions import CallDecision
from store.errors import EvidenceCorrupt, NotStored


def gather(ctx: WorkerContext, call: WorkIn, step: StepSpec) -> tuple[PromptParts, list[str]]:
    """Return the parts of a step's prompt, and what retention has taken away. Blocks; raises EvidenceCorrupt."""
    missing: list[str] = []
    envelopes = []
    for place in call.context:
        envelope = _envelope(ctx, call.key, place)
        if envelope is None:
            missing.append(f"handoff of {place.step_id} #{place.visit}.{place.attempt}: no longer stored")
        else:
            envelopes.append(envelope)
    envelopes.sort(key=lambda envelope: envelope.timestamp)
    partial: PartialHandoff | None = None
    if call.partial is not None:
        partial = PartialHandoff.model_validate_json(ctx.evidence.read(call.partial))
    gates, gone = _gates(ctx, call.last_gates)
    task = ctx.evidence.get_model(task_key(call.key.run_id), Task)
    inputs = {
        name: sorted(
            {path for envelope in envelopes if envelope.step_id == name for path in envelope.artifacts}
        )
        for name in step.inputs
    }
    parts = PromptParts(
        objective=step.objective,
        task=task.task if task else "",
        inputs=inputs,
        outputs=step.outputs,
        note=call.note,
        partial=partial,
        given=[*call.given_before, *([call.given] if call.given else [])],
        decision=_decision(call.decisions, partial),
        gates=gates,
        envelopes=envelopes,
        max_chars=step.context.max_chars,
    )
    return parts, missing + gone


def _decision(decisions: list[CallDecision], partial: PartialHandoff | None) -> CallDecision | None:
    wanted = partial.open_call.signature if partial is not None and partial.open_call is not None else None
    return next((one for one in decisions if one.signature == wanted), None)


def _envelope(ctx: WorkerContext, key: AttemptKey, place: StepPlace) -> HandoffEnvelope | None:
    where = key.model_copy(
        update={
            "run_id": place.run_id or key.run_id,
            "flow_key": place.flow_key or key.flow_key,
            "step_id": place.step_id,
            "visit": place.visit,
            "attempt": place.attempt,
        }
    ).path
    try:
        data = ctx.evidence.read_key(f"{where}/envelope.json")
    except NotStored:
        return None
    if hashlib.sha256(data).hexdigest() != place.sha256:
        raise EvidenceCorrupt("E_EVIDENCE_CORRUPT", f"{where}/envelope.json is not what was stored")
    return HandoffEnvelope.model_validate_json(data)


def _gates(ctx: WorkerContext, key: AttemptKey | None) -> tuple[list[GateOutput], list[str]]:
    measured = ctx.results.load(key, MeasureOut) if key is not None else None
    found: list[GateOutput] = []
    missing: list[str] = []
    for gate in measured.gates if measured else []:
        if gate.fact.passed or not gate.fact.measured:
            continue
        text = ""
        if gate.evidence is not None:
            try:
                text = ctx.evidence.read(gate.evidence).decode("utf-8", "replace")
            except NotStored:
                missing.append(f"output of gate {gate.fact.name}: no longer stored")
        # A bounded tail is enough; the whole may be a megabyte.
        found.append(GateOutput(gate.fact.name, gate.fact.reason or "failed", text[-2 * MAX_GATE_CHARS :]))
    return found, missing
