"""Where a run goes next: the order of the rules, and that none of them guesses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from schemas.common import ChangeCounts
from schemas.facts import GateCounts, GateFact, StepFacts
from schemas.flow import Gate, StepSpec
from schemas.routing import Directive, IterationFacts, LoopState, RoutingSignal, RoutingState
from workflows.routing import decide

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING_OPEN = RoutingState(now=NOW)


def a_step(routing: dict[str, Any], **more: Any) -> StepSpec:
    return StepSpec.model_validate(
        {"id": "here", "agent": "coder", "objective": "o", "routing": routing, **more}
    )


def a_loop(**more: Any) -> StepSpec:
    return a_step({"kind": "microloop", "loop_target": "back", "next": "on", **more})


def a_branch(*when: tuple[str, str, Any], default: str | None = None) -> StepSpec:
    rules = [
        {"field": field, "operator": operator, "value": value, "next": f"to{number}"}
        for number, (field, operator, value) in enumerate(when)
    ]
    return a_step({"kind": "branch", "when": rules, "default": default})


def loops(*iterations: IterationFacts) -> RoutingState:
    return RoutingState(now=NOW, loops={"here": LoopState(entered_at=NOW, iterations=list(iterations))})


LINEAR = a_step({"kind": "linear", "next": "on"})
TERMINAL = a_step({"kind": "terminal"})
AGENT = a_step(
    {
        "kind": "branch",
        "decided_by": "agent",
        "when": [{"field": "status", "operator": "equals", "value": "VERIFIED", "next": "left"}],
        "default": "right",
    }
)
UNVERIFIED = StepFacts(status="UNVERIFIED")
BLOCKED = StepFacts(status="BLOCKED")


def test_a_linear_step_is_followed_by_its_next_step() -> None:
    outcome = decide(LINEAR, NOTHING_OPEN, UNVERIFIED)
    assert (outcome.decision, outcome.next_step_id, outcome.source) == ("advance", "on", "fast_path")
    assert outcome.chosen_candidate_id == "advance:on"
    assert [candidate.id for candidate in outcome.candidates] == ["advance:on", "escalate"]


def test_a_terminal_step_ends_the_run() -> None:
    outcome = decide(TERMINAL, NOTHING_OPEN, UNVERIFIED)
    assert (outcome.decision, outcome.next_step_id, outcome.terminal_outcome) == ("terminate", None, None)
    assert outcome.chosen_candidate_id == "terminate"


def test_a_blocked_terminal_step_ends_the_run_blocked_and_asks_nobody() -> None:
    outcome = decide(TERMINAL, NOTHING_OPEN, BLOCKED)
    assert (outcome.decision, outcome.terminal_outcome) == ("terminate", "blocked")


@pytest.mark.parametrize(
    "step", [LINEAR, a_loop(), a_branch(("status", "equals", "BLOCKED")), AGENT], ids=lambda s: s.routing.kind
)
def test_any_other_blocked_step_waits_for_a_human(step: StepSpec) -> None:
    signal = RoutingSignal(decision="branch", next_step_id="left", reason="r", confidence=1)
    passing = loops(IterationFacts(claimed_status="VERIFIED"))
    outcome = decide(step, passing, BLOCKED, signal)
    assert (outcome.decision, outcome.reason, outcome.needs_human) == ("escalate", "status_blocked", True)


@pytest.mark.parametrize("step", [LINEAR, TERMINAL, a_loop(), AGENT], ids=lambda step: step.routing.kind)
@pytest.mark.parametrize(
    ("directive", "decision", "following", "terminal"),
    [
        (Directive(action="retry"), "loop", "here", None),
        (Directive(action="reject", reason="too slow"), "loop", "here", None),
        (Directive(action="goto", step="there"), "branch", "there", None),
        (Directive(action="goto"), "escalate", None, None),
        (Directive(action="goto", step=""), "escalate", None, None),
        (Directive(action="abort"), "terminate", None, "stopped"),
    ],
    ids=lambda value: value.action if isinstance(value, Directive) else None,
)
def test_a_directive_comes_before_every_rule(
    step: StepSpec, directive: Directive, decision: str, following: str | None, terminal: str | None
) -> None:
    outcome = decide(step, loops(IterationFacts(claimed_status="VERIFIED")), BLOCKED, None, directive)
    assert (outcome.decision, outcome.next_step_id) == (decision, following)
    assert (outcome.source, outcome.terminal_outcome) == ("human", terminal)
    assert outcome.chosen_candidate_id in [candidate.id for candidate in outcome.candidates]


@pytest.mark.parametrize(
    ("step", "following"),
    [(LINEAR, "on"), (a_loop(), "on"), (AGENT, "right"), (a_branch(), None), (TERMINAL, None)],
)
def test_skip_goes_to_the_one_step_that_follows_or_asks(step: StepSpec, following: str | None) -> None:
    outcome = decide(step, NOTHING_OPEN, UNVERIFIED, None, Directive(action="skip", by="dana"))
    assert outcome.next_step_id == following
    assert outcome.decision == ("skip" if following else "escalate")
    assert outcome.explanation.startswith("dana ordered skip after step here.")
    if following is None:
        assert "goto" in outcome.explanation


def test_a_rejection_carries_its_reason_and_leaves_the_loop_open() -> None:
    directive = Directive(action="reject", reason="no tests", by="dana")
    outcome = decide(a_loop(), loops(IterationFacts()), UNVERIFIED, None, directive)
    assert (outcome.reason, outcome.exit, outcome.chosen_candidate_id) == ("no tests", None, "retry:here")


@pytest.mark.parametrize(("step", "expected"), [(a_loop(), "human"), (LINEAR, None)])
def test_a_loop_left_by_order_says_that_a_human_ended_it(step: StepSpec, expected: str | None) -> None:
    for action in ("skip", "goto", "abort"):
        directive = Directive.model_validate({"action": action, "step": "there"})
        assert decide(step, NOTHING_OPEN, UNVERIFIED, None, directive).exit == expected


def test_an_approval_lets_the_rules_go_on_and_is_said() -> None:
    approval = Directive(action="approve", by="dana")
    outcome = decide(LINEAR, NOTHING_OPEN, UNVERIFIED, None, approval)
    assert (outcome.decision, outcome.source) == ("advance", "fast_path")
    assert outcome.explanation == "dana approved. Step here is followed by on."
    blocked = decide(LINEAR, NOTHING_OPEN, BLOCKED, None, approval)
    assert blocked.decision == "escalate"


def test_long_words_of_a_human_are_cut() -> None:
    directive = Directive(action="retry", reason="r" * 5_000, by="b" * 5_000)
    outcome = decide(LINEAR, NOTHING_OPEN, UNVERIFIED, None, directive)
    assert (len(outcome.reason), len(outcome.explanation)) == (
        2_000,
        200 + len(" ordered retry after step here."),
    )


def test_a_loop_without_an_observed_iteration_waits_for_a_human() -> None:
    for state in (NOTHING_OPEN, loops()):
        outcome = decide(a_loop(), state, StepFacts(status="VERIFIED", claimed_status="VERIFIED"))
        assert (outcome.decision, outcome.reason) == ("escalate", "no_routing_strategy_matched")
        assert outcome.source == "fallback"


def test_a_loop_without_an_exit_goes_back_to_its_target() -> None:
    outcome = decide(a_loop(), loops(IterationFacts()), UNVERIFIED)
    assert (outcome.decision, outcome.next_step_id, outcome.iteration) == ("loop", "back", 1)
    assert outcome.chosen_candidate_id == "loop:back:iter_2"
    assert (outcome.exit, outcome.needs_human) == (None, False)


def test_a_loop_that_reached_its_aim_advances_without_a_human() -> None:
    gates = [Gate(name="unit", argv=["true"]), Gate(name="extra", argv=["true"], required=False)]
    step = a_loop().model_copy(update={"gates": gates})
    outcome = decide(step, loops(IterationFacts(gates=[GateFact(name="unit", passed=True)])), UNVERIFIED)
    assert (outcome.decision, outcome.next_step_id, outcome.exit) == ("advance", "on", "status_verified")
    assert outcome.needs_human is False


@pytest.mark.parametrize(
    ("on_exhausted", "decision", "following", "terminal"),
    [
        ("escalate", "escalate", None, None),
        ("advance", "advance", "on", None),
        ("terminate", "terminate", None, "exhausted"),
    ],
)
def test_a_used_up_loop_does_what_it_says_and_needs_a_human(
    on_exhausted: str, decision: str, following: str | None, terminal: str | None
) -> None:
    step = a_loop(on_exhausted=on_exhausted, max_iterations=1)
    outcome = decide(step, loops(IterationFacts()), UNVERIFIED)
    assert (outcome.decision, outcome.next_step_id) == (decision, following)
    assert (outcome.exit, outcome.needs_human) == ("max_iterations", True)
    assert outcome.terminal_outcome == terminal
    assert outcome.chosen_candidate_id in [candidate.id for candidate in outcome.candidates]


def test_the_first_rule_that_matches_decides() -> None:
    step = a_branch(
        ("status", "equals", "PARTIAL"), ("status", "equals", "UNVERIFIED"), ("score", "equals", 1)
    )
    outcome = decide(step, NOTHING_OPEN, StepFacts(status="UNVERIFIED", score=1))
    assert (outcome.decision, outcome.next_step_id, outcome.source) == ("branch", "to1", "deterministic")
    assert outcome.chosen_candidate_id == "branch:to1"
    assert "Not matched: status equals 'PARTIAL'" in outcome.explanation


def test_without_a_match_only_a_written_default_is_taken() -> None:
    with_default = decide(a_branch(("status", "equals", "PARTIAL"), default="d"), NOTHING_OPEN, UNVERIFIED)
    assert (with_default.decision, with_default.next_step_id, with_default.reason) == (
        "branch",
        "d",
        "default",
    )
    without = decide(a_branch(("status", "equals", "PARTIAL")), NOTHING_OPEN, UNVERIFIED)
    assert (without.decision, without.reason) == ("escalate", "no_routing_strategy_matched")


FACTS = StepFacts(
    status="UNVERIFIED",
    claimed_status="VERIFIED",
    score=55.0,
    file_changes=ChangeCounts(created=2),
    tools=["Bash", "Edit"],
    changed_after_measure=True,
    gates=[
        GateFact(name="unit", passed=True, counts=GateCounts(passed=3), percent=float("inf")),
        GateFact(name="lint", measured=False, passed=True),
        GateFact(name="twice", passed=True),
        GateFact(name="twice", passed=False),
    ],
)


@pytest.mark.parametrize(
    ("field", "operator", "value"),
    [
        ("status", "equals", "UNVERIFIED"),
        ("status", "not_equals", "VERIFIED"),
        ("status", "in", ["PARTIAL", "UNVERIFIED"]),
        ("status", "not_in", ["PARTIAL"]),
        ("status", "contains", "VERI"),
        ("tools", "contains", "Bash"),
        ("score", "equals", 55),
        ("file_changes.created", "equals", 2),
        ("file_changes.created", "in", [1, 2.0]),
        ("gates.unit.passed", "equals", True),
        ("gates.unit.counts.passed", "equals", 3),
        ("gates.lint.measured", "equals", False),
        ("changed_after_measure", "not_equals", False),
        ("usage.prompt", "equals", 0),
    ],
)
def test_a_rule_matches_a_known_value(field: str, operator: str, value: Any) -> None:
    assert decide(a_branch((field, operator, value)), NOTHING_OPEN, FACTS).next_step_id == "to0"


@pytest.mark.parametrize(
    ("field", "operator", "value", "said"),
    [
        ("nonsense", "not_equals", "x", "no known value"),
        ("failure_signature", "not_equals", "x", "no known value"),
        ("gates", "not_equals", "x", "no known value"),
        ("gates.lint.passed", "equals", True, "no known value"),
        ("gates.lint.passed", "not_equals", True, "no known value"),
        ("gates.twice.passed", "equals", True, "no known value"),
        ("gates.absent.passed", "not_equals", True, "no known value"),
        ("gates.unit.percent", "not_equals", 3, "no known value"),
        ("file_changes", "not_equals", "x", "no known value"),
        ("usage.cost_usd", "not_equals", 3, "no known value"),
        ("score", "not_equals", "55", "does not fit"),
        ("score", "not_equals", float("nan"), "does not fit"),
        ("score", "contains", "5", "does not fit"),
        ("status", "contains", ["VERI"], "does not fit"),
        ("status", "in", "UNVERIFIED", "does not fit"),
        ("status", "not_in", [], "does not fit"),
        ("status", "not_in", [1, 2], "does not fit"),
        ("status", "equals", ["UNVERIFIED"], "does not fit"),
        ("tools", "not_equals", "Bash", "does not fit"),
        ("tools", "contains", True, "does not fit"),
        ("changed_after_measure", "equals", 1, "does not fit"),
        ("file_changes.created", "not_in", [True], "does not fit"),
        ("status", "equals", "unverified", "the value is 'UNVERIFIED'"),
        ("status", "not_in", ["UNVERIFIED"], "the value is 'UNVERIFIED'"),
    ],
)
def test_what_is_unknown_or_does_not_fit_never_matches_and_is_said(
    field: str, operator: str, value: Any, said: str
) -> None:
    outcome = decide(a_branch((field, operator, value)), NOTHING_OPEN, FACTS)
    assert outcome.decision == "escalate"
    assert said in outcome.explanation


@pytest.mark.parametrize("decision", ["advance", "branch"])
@pytest.mark.parametrize("following", ["left", "right"])
def test_an_agent_may_choose_any_target_whatever_its_rule_says(decision: str, following: str) -> None:
    signal = RoutingSignal.model_validate(
        {"decision": decision, "next_step_id": following, "reason": "why", "confidence": 0.2}
    )
    outcome = decide(AGENT, NOTHING_OPEN, UNVERIFIED, signal)
    assert (outcome.decision, outcome.next_step_id, outcome.source) == ("branch", following, "agent")
    assert (outcome.chosen_candidate_id, outcome.reason) == (f"branch:{following}", "why")


@pytest.mark.parametrize(
    "fault",
    [
        None,
        {"next_step_id": None},
        {"next_step_id": "unknown"},
        {"next_step_id": "here"},
        {"needs_human": True},
        {"decision": "loop"},
        {"decision": "terminate"},
    ],
)
def test_an_invalid_signal_waits_for_a_human(fault: dict[str, Any] | None) -> None:
    good = {"decision": "branch", "next_step_id": "left", "reason": "why", "confidence": 1.0}
    signal = None if fault is None else RoutingSignal.model_validate({**good, **fault})
    outcome = decide(AGENT, NOTHING_OPEN, StepFacts(status="VERIFIED"), signal)
    assert (outcome.decision, outcome.reason, outcome.needs_human) == ("escalate", "no_valid_signal", True)


def test_a_signal_is_no_advice_where_the_rule_asks_for_none() -> None:
    signal = RoutingSignal(decision="terminate", reason="stop", confidence=1)
    assert decide(LINEAR, NOTHING_OPEN, UNVERIFIED, signal) == decide(LINEAR, NOTHING_OPEN, UNVERIFIED)
