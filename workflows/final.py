"""What a run ends as: judged by the gates on its final tree, which are measured once more where they were not."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby

from temporalio import workflow

from schemas.calls import MEASURE, AttemptKey, MeasureIn, MeasureOut, RecordIn
from schemas.common import FINAL_STEP, Execution, Outcome
from schemas.facts import StepFacts
from schemas.handoff import PartialReason
from schemas.run_state import MAX_RECEIPTS, GateSeen, OwedGate, ReceiptPlace
from workflows.facts import gates_line, timeout_s
from workflows.held import acquired, resolved
from workflows.phases import PhaseLost
from workflows.routing import Measurement, RequiredGate, TerminalOutcome, run_outcome, verification
from workflows.run import Ended, Run

MAX_FINAL_LOSSES = 5
_SLACK_S = 60


async def conclude(run: Run, terminal: TerminalOutcome | None, why: str) -> tuple[Outcome, str]:
    """Return the outcome and one sentence, measuring on the final tree what was not measured there. Raises Ended."""
    found = _judge(run, terminal, why)
    if not isinstance(found, list):
        return found
    for _, group in groupby(found, key=lambda gate: gate.flow_key):
        await _measure(run, list(group))
    found = _judge(run, terminal, why)
    if isinstance(found, list):
        return "unverified", "the gates change the tree they measure, so nothing holds for the final tree"
    return found


def owe(run: Run) -> None:
    """Before the next flow of a chain: its end must hold for the gates of this one, and of those before it."""
    state = run.state
    state.owed = _required(run)
    state.gates_seen = [
        seen
        if ":" in seen.step_id
        else seen.model_copy(update={"step_id": f"{state.flow_key}:{seen.step_id}"})
        for seen in state.gates_seen
    ]
    state.context = [
        place if place.flow_key else place.model_copy(update={"flow_key": state.flow_key})
        for place in state.context
    ]


def _required(run: Run) -> list[OwedGate]:
    """Return the gates that must hold: those of this flow's visited steps that nobody skipped, then the owed ones."""
    state, flow = run.state, resolved(run.state)
    own = [
        OwedGate(
            flow_key=state.flow_key,
            bundle=flow.bundle,
            step_id=step.id,
            gate=gate.name,
            argv=gate.argv,
            parse=gate.parse,
            limit_s=gate.timeout or timeout_s(flow.spec, step, "gate"),
        )
        for step in flow.spec.steps
        if step.id in state.visits and step.id not in state.skipped
        for gate in step.required_gates()
    ]
    # After a failure the outcome stands, whatever a later flow of the chain does.
    return own if state.kept_outcome else [*own, *state.owed]


def _label(run: Run, gate: OwedGate) -> str:
    return gate.step_id if gate.flow_key == run.state.flow_key else f"{gate.flow_key}:{gate.step_id}"


def _judge(run: Run, terminal: TerminalOutcome | None, why: str) -> tuple[Outcome, str] | list[OwedGate]:
    """Return the outcome with its sentence, or the gates that must first be measured on the final tree."""
    state, held = run.state, acquired(run.state)
    required = {
        gate.key: (gate, owed)
        for owed in _required(run)
        for gate in [RequiredGate(step=_label(run, owed), gate=owed.gate, argv=owed.argv, parse=owed.parse)]
    }
    base = [
        Measurement(step=step, gate=one.fact.name, tree=held.base_tree, passed=one.fact.passed)
        for step, gates in sorted(held.base_gates.items())
        for one in gates
        if one.fact.measured
    ]
    seen = [
        Measurement(step=one.step_id, gate=one.gate, tree=one.tree, passed=one.passed)
        for one in state.gates_seen
    ]
    final_tree = state.final_tree or held.base_tree
    found = run_outcome(
        base_tree=held.base_tree,
        final_tree=final_tree,
        terminal_outcome=terminal,
        required=[gate for gate, _ in required.values()],
        measurements=[*base, *seen],
    )
    if isinstance(found, list):
        return [required[key][1] for key in found]
    passed = {f"{one.step}/{one.gate}": one.passed for one in (*base, *seen) if one.tree == final_tree}
    return found, _summary(run, found, why, [key for key in required if passed.get(key) is False])


def _summary(run: Run, outcome: Outcome, why: str, failed: list[str]) -> str:
    match outcome:
        case "verified":
            return "every required gate passed on the final tree"
        case "nothing_to_do":
            return "the final tree is the base tree and no required gate failed"
        case "unverified":
            if failed:
                return f"failed on the final tree: {', '.join(failed)}"
            skipped = run.state.skipped
            return f"skipped: {', '.join(skipped)}" if skipped else "no required gate was measured"
        case _:
            return why


async def _measure(run: Run, gates: list[OwedGate]) -> None:
    """Measure gates of one flow once more on the final tree, as step ``_final`` with its own receipt."""
    state = run.state
    state.final_visits += 1
    visit = state.final_visits
    names = [f"{gate.step_id}/{gate.gate}" for gate in gates]
    run.step, run.visit, run.iteration = None, visit, 1
    run.journal.add("step_started", step=FINAL_STEP, visit=visit, gates=names)
    measure, started = await _attempts(run, gates, names)
    unchanged = measure.tree_before is not None and measure.tree_before == measure.tree_after
    facts = StepFacts(
        status=verification([one.fact for one in measure.gates], names, None, None, not unchanged),
        gates=[one.fact for one in measure.gates],
        tree=measure.tree_before,
        changed_after_measure=not unchanged,
        elapsed_ms=measure.elapsed_ms,
    )
    labels = {f"{gate.step_id}/{gate.gate}": (_label(run, gate), gate.gate) for gate in gates}
    for one in measure.gates:
        run.journal.add("gate_measured", step=FINAL_STEP, gate=one.fact.name, passed=one.fact.passed)
        if unchanged and measure.tree_before is not None:
            step_id, name = labels[one.fact.name]
            seen = GateSeen(step_id=step_id, gate=name, tree=measure.tree_before, passed=one.fact.passed)
            state.gates_seen = [*state.gates_seen, seen]
    state.final_tree = measure.tree_before or state.final_tree
    line = gates_line(measure.gates)
    run.summarise(FINAL_STEP, visits=visit, attempts=run.attempt, status=facts.status, gates=line)
    run.journal.add("step_ended", step=FINAL_STEP, visit=visit, status=facts.status)
    await _record(run, gates[0], "succeeded", facts, started, measure)
    await run.boundary()


async def _attempts(run: Run, gates: list[OwedGate], names: list[str]) -> tuple[MeasureOut, datetime]:
    """Return the measurement, and when its attempt began; each attempt that was lost has a receipt too."""
    state = run.state
    losses, attempt = 0, 0
    while losses < MAX_FINAL_LOSSES:
        await run.boundary()
        attempt += 1
        run.attempt = attempt
        started = workflow.now()
        call = MeasureIn(
            key=_key(run, gates[0]),
            iteration=1,
            lease=acquired(state).lease,
            bundle=gates[0].bundle,
            workflow_id=state.workflow_id,
            journal=run.journal.batch(),
            gates=names,
        )
        run.show()
        limit_s = sum(gate.limit_s for gate in gates) + _SLACK_S
        try:
            out = await run.phases.pinned(MEASURE, call, "measure", limit_s, summary="final measurement")
        except PhaseLost as lost:
            losses += 1
            found = None
            try:
                run.check_ending()
                found = await run.phases.recover(_key(run, gates[0]), "measure", lost.failure, losses)
            finally:
                if found is None or found.finished_measure is None:
                    await _record(run, gates[0], "failed", _stopped("crash"), started, None, "crash")
            state.acquired = found
            if found.finished_measure is not None:
                return found.finished_measure, started
        else:
            if out.stopped is None:
                return out, started
            await _record(run, gates[0], "interrupted", _stopped(out.stopped), started, None, out.stopped)
    raise Ended("unverified", "the final measurement was lost again and again")


def _stopped(reason: PartialReason) -> StepFacts:
    return StepFacts(status="PARTIAL", stop_reason=reason)


async def _record(
    run: Run,
    gate: OwedGate,
    execution: Execution,
    facts: StepFacts,
    started: datetime,
    measure: MeasureOut | None,
    stop: PartialReason | None = None,
) -> None:
    state, held = run.state, acquired(run.state)
    await run.phases.catch_up()
    call = RecordIn(
        key=_key(run, gate),
        iteration=1,
        lease=held.lease,
        bundle=gate.bundle,
        branch=held.branch,
        execution_status=execution,
        facts=facts,
        measure_attempt=run.attempt if measure else None,
        stop=stop,
        requested_by=run.requested_by if stop else "",
        started_at=started,
        completed_at=workflow.now(),
        previous_sha256=state.head,
        journal=run.journal.batch(),
    )
    stored = await run.phases.record(call)
    state.head = stored.receipt.sha256
    place = ReceiptPlace(
        step_id=FINAL_STEP, visit=run.visit, attempt=run.attempt, sha256=state.head, uri=stored.receipt.uri
    )
    state.receipts = [*state.receipts, place][-MAX_RECEIPTS:]
    state.receipts_total += 1


def _key(run: Run, gate: OwedGate) -> AttemptKey:
    return AttemptKey(
        run_id=run.state.run_id,
        flow_key=gate.flow_key,
        step_id=FINAL_STEP,
        visit=run.visit,
        attempt=run.attempt,
    )
