"""From what the phases returned to the facts that routing reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.calls import AnswerOut, FinalizeOut, GateRun, MeasureOut, ProposeOut, WorkOut
from schemas.common import AgentPhase, ChangeCounts, Usage
from schemas.facts import GateCounts, GateFact, StepFacts
from schemas.flow import DEFAULT_TIMEOUTS, FlowSpec, StepSpec
from workflows.routing import verification

MAX_FACTS_BYTES = 2_048


@dataclass
class Carry:
    """The finished phases of a visit, each with the attempt that finished it."""

    work: WorkOut | None = None
    work_attempt: int = 0
    measure: MeasureOut | None = None
    measure_attempt: int = 0
    finalize: FinalizeOut | None = None
    finalize_attempt: int = 0
    route: ProposeOut | None = None
    route_attempt: int = 0
    not_measured: list[GateRun] = field(default_factory=list)
    counted: list[AgentPhase] = field(default_factory=list)

    def uncounted(self) -> list[Usage]:
        """Return what the phases of answers used, of each once: the caller counts it."""
        fresh: list[Usage] = []
        if self.finalize is not None and "finalize" not in self.counted:
            self.counted.append("finalize")
            fresh.append(self.finalize.usage)
        if self.route is not None and "route" not in self.counted:
            self.counted.append("route")
            fresh.append(self.route.usage)
        return fresh

    def usage(self) -> Usage:
        """Return what all finished phases used."""
        total = Usage()
        for part in (self.work, self.finalize, self.route):
            if part is not None:
                total = total.plus(part.usage)
        return total

    def elapsed_ms(self) -> int:
        """Return how long all finished phases took, in milliseconds."""
        parts = (self.work, self.measure, self.finalize, self.route)
        return sum(part.elapsed_ms for part in parts if part is not None)


def timeout_s(spec: FlowSpec, step: StepSpec, name: str) -> int:
    """Return the time-out ``name`` in seconds: the step's beats the flow's beats the default."""
    for timeouts in (step.timeouts, spec.defaults.timeouts):
        value: int | None = timeouts.model_dump()[name]
        if value is not None:
            return value
    return DEFAULT_TIMEOUTS[name]


def unmeasured(step: StepSpec, reason: str) -> list[GateRun]:
    """Return the step's gates as not measured, with the reason."""
    return [
        GateRun(
            fact=GateFact(name=gate.name, required=gate.required, measured=False, passed=False, reason=reason)
        )
        for gate in step.gates
    ]


def gates_line(gates: Sequence[GateRun]) -> str:
    """Return the gates in one line for people, such as ``tests ✗ (1 failed), lint ✓``."""
    return ", ".join(_gate_word(run.fact) for run in gates)


def _gate_word(gate: GateFact) -> str:
    if not gate.measured:
        return f"{gate.name} not measured"
    word = f"{gate.name} {'✓' if gate.passed else '✗'}"
    counts: GateCounts | None = gate.counts
    if counts is not None:
        return f"{word} ({counts.passed} passed, {counts.failed} failed)"
    if not gate.passed:
        return f"{word} (exit {gate.exit_code})" if gate.exit_code is not None else f"{word} ({gate.reason})"
    return word


def compose(step: StepSpec, carry: Carry) -> StepFacts:
    """Return the facts of a visit whose phases have all finished."""
    work, measure, finalize, route = carry.work, carry.measure, carry.finalize, carry.route
    gates = [run.fact for run in (measure.gates if measure else [])]
    trees = [work.tree if work else None]
    if measure is not None:
        trees += [measure.tree_before, measure.tree_after]
    trees += [part.tree for part in (finalize, route) if part is not None]
    known = [tree for tree in trees if tree is not None]
    changed = any(tree != known[0] for tree in known[1:])
    claimed = finalize.claimed_status if finalize else None
    status = verification(
        gates=gates,
        required=[gate.name for gate in step.required_gates()],
        claimed_status=claimed,
        caused=None,
        changed_after_measure=changed,
    )
    facts = StepFacts(
        # Without a hand-off from the agent the step is not verified, whatever its gates say.
        status=status if finalize is None or finalize.draft is not None else "UNVERIFIED",
        claimed_status=claimed,
        can_further_iteration_help=finalize.can_further_iteration_help if finalize else "unsure",
        gates=gates,
        failure_signature=measure.failure_signature if measure else None,
        file_changes=work.changes if work else ChangeCounts(),
        tree=known[0] if known else None,
        changed_after_measure=changed,
        tools=(work.tools if work else [])[:20],
        elapsed_ms=carry.elapsed_ms(),
        usage=carry.usage(),
        stop_reason=work.stop_reason if work else None,
        route_signal=route.signal.decision if route and route.signal else None,
    )
    return _within_bounds(facts)


def stopped(work: WorkOut | None, carry: Carry, answer: AnswerOut | None = None) -> StepFacts:
    """Return the facts of an attempt that was stopped: PARTIAL, nothing measured.

    ``answer`` is the phase of answers that ended it, which took and used something, too.
    """
    unfinished = work if carry.work is None else None
    usage, elapsed_ms = carry.usage(), carry.elapsed_ms()
    if answer is not None:
        usage, elapsed_ms = usage.plus(answer.usage), elapsed_ms + answer.elapsed_ms
    return _within_bounds(
        StepFacts(
            status="PARTIAL",
            claimed_status=carry.finalize.claimed_status if carry.finalize else None,
            file_changes=work.changes if work else ChangeCounts(),
            tree=work.tree if work else None,
            tools=(work.tools if work else [])[:20],
            elapsed_ms=unfinished.elapsed_ms if unfinished else elapsed_ms,
            usage=unfinished.usage if unfinished else usage,
            stop_reason=answer.ended if answer else work.ended if work else None,
        )
    )


def _within_bounds(facts: StepFacts) -> StepFacts:
    if _bytes(facts) > MAX_FACTS_BYTES:
        facts = facts.model_copy(update={"tools": []})
        for lost in ("reason", "counts", "percent", "exit_code"):
            gates = [gate.model_copy(update={lost: None}) for gate in facts.gates]
            facts = facts.model_copy(update={"gates": gates})
            if _bytes(facts) <= MAX_FACTS_BYTES:
                break
    # What travels is what was set, so nothing is set that is as it would be anyway.
    return StepFacts.model_validate(facts.model_dump(exclude_defaults=True))


def _bytes(facts: StepFacts) -> int:
    return len(facts.model_dump_json(exclude_defaults=True).encode())
