"""What is remembered of open loops, and when it is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.common import ChangeCounts
from schemas.facts import GateFact, StepFacts
from schemas.flow import FlowSpec, StepSpec
from schemas.routing import Directive, RoutingOutcome, RoutingState
from workflows.routing import begin, body, current_iteration, decide, observe, transition

START = datetime(2026, 1, 1, tzinfo=UTC)
UNVERIFIED = StepFacts(status="UNVERIFIED")


def a_step(name: str, **routing: Any) -> dict[str, Any]:
    return {"id": name, "agent": "a", "objective": "o", "routing": routing}


SPEC = FlowSpec.model_validate(
    {
        "id": "f",
        "version": 1,
        "title": "t",
        "steps": [
            a_step("plan", kind="linear", next="code"),
            a_step("code", kind="microloop", loop_target="code", next="review", on_exhausted="advance"),
            a_step("review", kind="microloop", loop_target="plan", next="end", on_exhausted="terminate"),
            a_step("end", kind="terminal"),
        ],
    }
)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def step(name: str) -> StepSpec:
    found = SPEC.step(name)
    assert found is not None
    return found


def go(
    state: RoutingState, name: str, at: float, directive: Directive | None = None
) -> tuple[RoutingState, RoutingOutcome]:
    seen = observe(state, step(name), UNVERIFIED, later(at))
    outcome = decide(step(name), seen, UNVERIFIED, None, directive)
    return transition(SPEC, seen, step(name), outcome, outcome.next_step_id), outcome


def counts(state: RoutingState) -> dict[str, int]:
    return {name: len(loop.iterations) for name, loop in state.loops.items()}


def test_an_iteration_keeps_what_the_exits_read() -> None:
    facts = StepFacts(
        status="PARTIAL",
        claimed_status="VERIFIED",
        can_further_iteration_help="yes",
        gates=[GateFact(name="unit", passed=True)],
        score=12.5,
        score_error="improver",
        failure_signature="abc",
        file_changes=ChangeCounts(created=1, modified=2, deleted=4),
        changed_after_measure=True,
        tools=["Bash"],
    )
    state = observe(RoutingState(now=START), step("code"), facts, later(5))
    (seen,) = state.loops["code"].iterations
    assert state.now == later(5)
    assert (seen.files_changed, seen.score, seen.score_error) == (7, 12.5, "improver")
    assert (seen.gates, seen.tools, seen.failure_signature) == (facts.gates, ["Bash"], "abc")
    assert (seen.claimed_status, seen.can_further_iteration_help) == ("VERIFIED", "yes")
    assert seen.changed_after_measure is True


def test_a_step_that_owns_no_loop_is_not_counted() -> None:
    state = observe(RoutingState(now=START), step("plan"), UNVERIFIED, later(1))
    assert state == RoutingState(now=later(1))
    assert current_iteration(state, step("plan")) == 1


def test_a_loop_is_entered_when_its_target_is_entered() -> None:
    state = begin(SPEC, START)
    assert {name: loop.entered_at for name, loop in state.loops.items()} == {"review": START}
    state, _ = go(state, "plan", 10)
    assert state.loops["code"].entered_at == later(10)
    assert state.loops["review"].entered_at == START


def test_a_wait_before_a_loop_does_not_count_into_it() -> None:
    seen = observe(begin(SPEC, START), step("plan"), UNVERIFIED, later(10))
    outcome = decide(step("plan"), seen, UNVERIFIED)
    state = transition(SPEC, seen, step("plan"), outcome, "code", now=later(99))
    assert (state.now, state.loops["code"].entered_at) == (later(99), later(99))


def test_a_loop_nobody_opened_counts_from_the_last_observation() -> None:
    state = observe(RoutingState(now=later(3)), step("code"), UNVERIFIED, later(9))
    assert state.loops["code"].entered_at == later(3)


def test_iterations_are_numbered_from_one_and_only_twenty_are_kept() -> None:
    state = RoutingState(now=START)
    numbers = []
    for second in range(25):
        numbers.append(current_iteration(state, step("code")))
        facts = UNVERIFIED.model_copy(update={"score": float(second)})
        state = observe(state, step("code"), facts, later(second))
    assert numbers == [*range(1, 21), 20, 20, 20, 20, 20]
    assert [seen.score for seen in state.loops["code"].iterations] == [float(n) for n in range(5, 25)]


def test_going_back_by_the_own_loop_keeps_the_counters() -> None:
    state, outcome = go(begin(SPEC, START), "code", 1)
    assert (outcome.decision, outcome.next_step_id) == ("loop", "code")
    state, outcome = go(state, "code", 2)
    assert (counts(state)["code"], outcome.iteration) == (2, 2)


def test_an_exit_drops_the_own_counters_and_keeps_the_outer_loop() -> None:
    state = begin(SPEC, START)
    for second in range(3):
        state, outcome = go(state, "code", second)
    assert (outcome.decision, outcome.next_step_id, outcome.exit) == ("advance", "review", "max_iterations")
    assert counts(state) == {"review": 0}


def test_an_outer_loop_counts_on_while_the_inner_begins_anew() -> None:
    state = begin(SPEC, START)
    for turn in range(1, 4):
        state, _ = go(state, "plan", turn)
        for _ in range(3):
            assert decide_count(state) < 3
            state, _ = go(state, "code", turn)
        state, outcome = go(state, "review", turn)
        assert outcome.iteration == turn
    assert (outcome.decision, outcome.terminal_outcome) == ("terminate", "exhausted")
    assert counts(state) == {}


def decide_count(state: RoutingState) -> int:
    return counts(state).get("code", 0)


def test_a_skip_leaves_the_loop_and_a_retry_does_not() -> None:
    state, _ = go(begin(SPEC, START), "code", 1)
    retried, _ = go(state, "code", 2, Directive(action="retry"))
    skipped, _ = go(state, "code", 2, Directive(action="skip"))
    assert counts(retried) == {"review": 0, "code": 2}
    assert counts(skipped) == {"review": 0}


def test_a_goto_forgets_all_loops() -> None:
    state, _ = go(begin(SPEC, START), "code", 1)
    state, outcome = go(state, "review", 2, Directive(action="goto", step="code"))
    assert (outcome.decision, counts(state)) == ("branch", {"code": 0})


@pytest.mark.parametrize("decision", ["escalate", "pause"])
def test_waiting_for_a_human_leaves_every_loop_as_it_is(decision: str) -> None:
    state, _ = go(begin(SPEC, START), "code", 1)
    outcome = RoutingOutcome.model_validate({"decision": decision})
    assert transition(SPEC, state, step("code"), outcome, None) == state


def test_moving_out_of_a_loop_from_its_middle_drops_its_counters() -> None:
    spec = FlowSpec.model_validate(
        {
            "id": "f",
            "version": 1,
            "title": "t",
            "steps": [
                a_step("a", kind="branch", default="b", when=[]),
                a_step("b", kind="microloop", loop_target="a", next="c"),
                a_step("c", kind="terminal"),
            ],
        }
    )
    middle, owner = spec.steps[0], spec.steps[1]
    state = observe(begin(spec, START), owner, UNVERIFIED, later(1))
    inside = RoutingOutcome(decision="branch", next_step_id="b")
    outside = RoutingOutcome(decision="branch", next_step_id="c")
    assert counts(transition(spec, state, middle, inside, "b")) == {"b": 1}
    assert counts(transition(spec, state, middle, outside, "c")) == {}


def test_an_exit_drops_the_own_counters_even_where_the_way_on_lies_within_the_loop() -> None:
    spec = FlowSpec.model_validate(
        {
            "id": "f",
            "version": 1,
            "title": "t",
            "steps": [
                a_step(
                    "a",
                    kind="branch",
                    when=[{"field": "status", "operator": "equals", "value": "PARTIAL", "next": "c"}],
                    default="b",
                ),
                a_step("b", kind="microloop", loop_target="a", next="c"),
                a_step("c", kind="microloop", loop_target="a", next="d"),
                a_step("d", kind="terminal"),
            ],
        }
    )
    owner = spec.steps[1]
    assert body(spec, "b") == ("a", "b", "c")
    state = observe(begin(spec, START), owner, UNVERIFIED, later(1))
    left = RoutingOutcome(decision="advance", next_step_id="c", exit="threshold_met")
    assert counts(transition(spec, state, owner, left, "c")) == {"c": 0}


def test_the_counters_of_a_step_the_flow_does_not_have_are_dropped() -> None:
    state = observe(RoutingState(now=START), step("code"), UNVERIFIED, later(1))
    renamed = RoutingState(now=state.now, loops={"gone": state.loops["code"]})
    outcome = RoutingOutcome(decision="advance", next_step_id="end")
    assert transition(SPEC, renamed, step("review"), outcome, "end").loops == {}
