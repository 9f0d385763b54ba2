"""Made-up histories decided again: what golden ones do not have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.replay.facts import Finished, PhaseOut, Place, Recorded
from cli.replay.offline import Heard
from cli.replay.what_if import Comparison, compare
from schemas.calls import FinalizeOut, GateRun, MeasureOut, ProposeOut, WorkOut
from schemas.common import ArtifactRef, ChangeCounts
from schemas.errors import BadInput
from schemas.facts import GateFact, StepFacts
from schemas.flow import FlowSpec
from schemas.fork import ForkOf
from schemas.routing import Directive, RoutingOutcome, RoutingSignal, RoutingState
from schemas.run import FlowInput
from schemas.run_state import RunState
from workflows.facts import compose
from workflows.routing import begin, decide, observe, transition

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DRAFT = ArtifactRef(uri="draft.json", sha256="a" * 64, bytes=1)


def a_flow(*steps: dict[str, Any], **more: Any) -> FlowSpec:
    made = [{"agent": "implementer", "objective": "Do it.", **step} for step in steps]
    return FlowSpec.model_validate({"id": "made", "version": 1, "title": "Made", "steps": made, **more})


def a_step(name: str, kind: str = "terminal", **routing: Any) -> dict[str, Any]:
    return {"id": name, "routing": {"kind": kind, **routing}}


def a_loop(name: str, to: str, **routing: Any) -> dict[str, Any]:
    looped = a_step(name, "microloop", loop_target=name, next=to, **routing)
    return {**looped, "gates": [{"name": "tests", "argv": ["make"]}]}


class Told:
    """A run as its history would tell it: visits are played by the same driver, at given moments."""

    def __init__(self, spec: FlowSpec, recorded: Recorded | None = None, claim: str | None = None) -> None:
        self.spec = spec
        self.claim = claim
        self.now = BEGAN
        flow_input = FlowInput(flow="made", task="t", repo="r")
        self.recorded = recorded or Recorded(flow_input, None, spec, begins_flow=True)
        self.heard: list[Heard] = []
        self.state = (
            self.recorded.carried.routing if self.recorded.carried else begin(spec, BEGAN)
        ) or RoutingState(now=BEGAN)
        self._event = 0

    def visit(
        self,
        place: Place,
        *phases: PhaseOut,
        after_s: float = 0,
        wait_s: float = 0,
        order: Directive | None = None,
    ) -> RoutingOutcome:
        """Play one visit: enter it, finish its phases ``after_s`` seconds later, decide, and wait ``wait_s`` seconds."""
        step = self.spec.step(place[0])
        assert step is not None
        self.recorded.entered[place] = self.now
        self.now += timedelta(seconds=after_s)
        for phase in (
            WorkOut(ended="finished", changes=ChangeCounts(modified=1)),
            *phases,
            FinalizeOut(draft=DRAFT, claimed_status=self.claim),
        ):
            self._event += 1
            self.recorded.finished.append(Finished(place, self._event, phase))
        carry = self.recorded.carry(place, self._event)
        facts = compose(step, carry)
        self.state = observe(self.state, step, facts, self.now)
        outcome = decide(step, self.state, facts, carry.route.signal if carry.route else None)
        self._hear(place, facts, outcome)
        if order is not None:
            outcome = decide(step, self.state, facts, None, order)
            self._hear(place, facts, outcome)
        self.now += timedelta(seconds=wait_s)
        self.state = transition(self.spec, self.state, step, outcome, outcome.next_step_id, now=self.now)
        return outcome

    def _hear(self, place: Place, facts: StepFacts, outcome: RoutingOutcome) -> None:
        decision = {
            "step": place[0],
            "visit": place[1],
            "event": self._event,
            "facts": facts.model_dump(mode="json", exclude_defaults=True),
            "outcome": outcome.model_dump(mode="json", exclude_defaults=True),
        }
        self.heard.append(Heard(decision, self.state.now))

    def under(self, spec: FlowSpec) -> Comparison:
        comparison = compare(spec, [(self.recorded, self.heard)])
        assert comparison is not None
        return comparison


def measured(*, passed: bool) -> MeasureOut:
    fact = GateFact(name="tests", passed=passed, exit_code=0 if passed else 1)
    return MeasureOut(gates=[GateRun(fact=fact)], failure_signature=None if passed else "f" * 16)


def ways(comparison: Comparison) -> list[tuple[str, int, str, str]]:
    return [(one.step, one.visit, one.recorded.to, one.new.to) for one in comparison.differences]


def test_a_flow_that_begins_with_another_step_parts_at_once() -> None:
    told = Told(a_flow(a_step("one", "linear", next="two"), a_step("two")))
    told.visit(("one", 1))
    told.visit(("two", 1))

    comparison = told.under(a_flow(a_step("two", "linear", next="one"), a_step("one")))

    assert ways(comparison) == [("one", 1, "begin with one", "begin with two")]
    assert (comparison.parted, comparison.compared, comparison.not_compared) == (True, 0, 2)


def test_a_time_out_counts_from_when_the_loop_was_entered_waits_for_people_included() -> None:
    steps = [a_step("ask", "linear", next="work"), a_loop("work", "end", max_iterations=9), a_step("end")]
    told = Told(a_flow(*steps))
    told.visit(("ask", 1), after_s=1_000, wait_s=1_000)
    told.visit(("work", 1), measured(passed=False), after_s=40, wait_s=20)
    told.visit(("work", 2), measured(passed=False), after_s=40)
    told.visit(("work", 3), measured(passed=True), after_s=1)
    told.visit(("end", 1))

    def timed(seconds: int) -> Comparison:
        work = a_loop("work", "end", max_iterations=9, timeout=seconds, on_exhausted="advance")
        return told.under(a_flow(steps[0], work, steps[2]))

    assert ways(timed(101)) == []
    assert ways(timed(100)) == [("work", 2, "loop work", "advance end")]
    assert ways(timed(40)) == [("work", 1, "loop work", "advance end")]


def test_an_agents_advice_is_taken_where_the_changed_flow_asks_for_it() -> None:
    rules = [{"field": "status", "operator": "equals", "value": "BLOCKED", "next": "give_up"}]
    ends = [a_step("go_on"), a_step("give_up")]

    def branch(**more: Any) -> FlowSpec:
        return a_flow(a_step("choose", "branch", when=rules, **more), *ends)

    advice = RoutingSignal(decision="branch", next_step_id="give_up", reason="no use", confidence=1)
    asked = Told(branch(default="go_on", decided_by="agent"))
    asked.visit(("choose", 1), ProposeOut(signal=advice))
    asked.visit(("give_up", 1))
    ruled = Told(branch(default="go_on"))
    ruled.visit(("choose", 1))
    ruled.visit(("go_on", 1))

    assert ways(asked.under(branch(default="go_on"))) == [("choose", 1, "branch give_up", "branch go_on")]
    unasked = ruled.under(branch(default="go_on", decided_by="agent"))
    assert ways(unasked) == [("choose", 1, "branch go_on", "escalate")]
    assert unasked.notes == ["choose: the agent was not asked where to go in this history"]


def test_a_gate_counts_as_the_changed_flow_says() -> None:
    told = Told(a_flow(a_loop("work", "end"), a_step("end")), claim="VERIFIED")
    told.visit(("work", 1), measured(passed=False))
    told.visit(("work", 2), measured(passed=True))
    told.visit(("end", 1))

    def with_gates(*gates: dict[str, Any]) -> Comparison:
        named = [{"name": "tests", "argv": ["make"], **gate} for gate in gates]
        return told.under(a_flow({**a_loop("work", "end"), "gates": named}, a_step("end")))

    assert ways(with_gates({})) == []
    left = [("work", 1, "loop work", "advance end")]
    for none_required in (with_gates({"required": False}), with_gates()):
        assert ways(none_required) == left
        assert none_required.differences[0].new.why.startswith("The agent claims VERIFIED in iteration 1")


def test_a_person_who_went_to_a_step_that_is_no_more_cannot_have_done_so() -> None:
    told = Told(a_flow(a_step("one", "linear", next="two"), a_step("two"), a_step("aside")))
    told.visit(("one", 1), order=Directive(action="goto", step="aside", by="ada"))
    told.visit(("aside", 1))

    comparison = told.under(a_flow(a_step("one", "linear", next="two"), a_step("two")))

    (only,) = comparison.differences
    assert (only.recorded.to, only.recorded.why) == ("branch aside", "ada ordered goto after step one.")
    assert (only.new.to, only.new.why) == ("nowhere", "The changed flow has no step aside.")
    assert (comparison.compared, comparison.not_compared) == (2, 1)


@pytest.mark.parametrize("action", ["retry", "reject", "abort", "skip"])
def test_an_order_decides_alike_under_the_same_flow(action: Any) -> None:
    spec = a_flow(a_loop("work", "end"), a_step("end"))
    told = Told(spec)
    told.visit(("work", 1), measured(passed=False), order=Directive(action=action, reason="no", by="ada"))

    assert told.under(spec) == Comparison("made", compared=2)


def test_a_person_is_asked_back_where_nothing_can_be_skipped_to() -> None:
    rules = [{"field": "status", "operator": "equals", "value": "BLOCKED", "next": "end"}]
    spec = a_flow(a_step("choose", "branch", when=rules), a_step("end"))
    told = Told(spec)
    told.visit(("choose", 1), order=Directive(action="skip", by="ada"))

    assert told.under(spec).differences == []
    with_default = told.under(a_flow(a_step("choose", "branch", when=rules, default="end"), a_step("end")))
    assert ways(with_default)[0] == ("choose", 1, "escalate", "branch end")


def test_a_chain_of_executions_is_one_walk() -> None:
    spec = a_flow(a_loop("work", "end", max_iterations=9), a_step("end"))
    told = Told(spec)
    told.visit(("work", 1), measured(passed=False))
    told.visit(("work", 2), measured(passed=False))
    flow_input = FlowInput(flow="made", task="t", repo="r")
    carried = RunState(
        run_id="r", workflow_id="w", input=flow_input, started_at=BEGAN, routing=told.state, next_step="work"
    )
    later = Told(spec, Recorded(flow_input, carried, spec))
    later.visit(("work", 3), measured(passed=False))
    later.visit(("work", 4), measured(passed=True))
    later.visit(("end", 1))
    both = [(told.recorded, told.heard), (later.recorded, later.heard)]

    def bounded(bound: int) -> FlowSpec:
        return a_flow(a_loop("work", "end", max_iterations=bound), a_step("end"))

    assert compare(spec, both) == Comparison("made", compared=5)
    whole = compare(bounded(3), both)
    assert whole is not None
    assert ways(whole) == [("work", 3, "loop work", "escalate")]
    assert (whole.differences[0].iteration, whole.not_compared) == (3, 2)
    # The later execution alone stands on what the earlier ones left.
    alone = later.under(bounded(3))
    assert ways(alone) == ways(whole)
    assert alone.notes == [
        "the run had begun before this history: its earlier decisions are taken as recorded"
    ]


def test_a_step_that_is_no_more_parts_a_history_that_begins_in_it() -> None:
    spec = a_flow(a_step("one", "linear", next="two"), a_step("two"))
    flow_input = FlowInput(flow="made", task="t", repo="r")
    routing = RoutingState(now=BEGAN)
    carried = RunState(run_id="r", workflow_id="w", input=flow_input, started_at=BEGAN, routing=routing)
    told = Told(spec, Recorded(flow_input, carried, spec))
    told.visit(("two", 1))

    comparison = told.under(a_flow(a_step("one")))

    assert ways(comparison) == [("two", 1, "begin with two", "nowhere")]


def test_a_fork_begins_with_its_own_step() -> None:
    spec = a_flow(a_step("one", "linear", next="two"), a_step("two"))
    fork = ForkOf(run_id="parent", step="two", visit=1)
    told = Told(
        spec, Recorded(FlowInput(flow="made", task="t", repo="r", fork=fork), None, spec, begins_flow=True)
    )
    told.visit(("two", 1))

    assert told.under(spec) == Comparison("made", compared=1)
    assert ways(told.under(a_flow(a_step("one")))) == [("two", 1, "begin with two", "nowhere")]


def test_phases_that_do_not_compose_to_the_facts_are_refused() -> None:
    spec = a_flow(a_loop("work", "end"), a_step("end"))
    told = Told(spec)
    told.visit(("work", 1), measured(passed=False))
    del told.recorded.finished[1]

    with pytest.raises(BadInput, match=r"facts of work #1 \(event 3\) cannot be composed"):
        told.under(spec)


def test_another_flow_is_not_compared() -> None:
    told = Told(a_flow(a_step("one")))
    told.visit(("one", 1))

    assert (
        compare(a_flow(a_step("one")).model_copy(update={"id": "other"}), [(told.recorded, told.heard)])
        is None
    )
