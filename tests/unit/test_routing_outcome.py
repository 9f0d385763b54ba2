"""What a run ends as."""

from __future__ import annotations

import pytest

from workflows.routing import Measurement, RequiredGate, RunOutcome, TerminalOutcome, run_outcome

UNIT = RequiredGate(step="build", gate="unit", argv=["pytest"], parse="junit")
LINT = RequiredGate(step="build", gate="lint", argv=["ruff"])
SAME_AS_UNIT = RequiredGate(step="review", gate="tests", argv=["pytest"], parse="junit")
READ_OTHERWISE = RequiredGate(step="review", gate="tests", argv=["pytest"])


def seen(gate: RequiredGate, tree: str, passed: bool = True) -> Measurement:
    return Measurement(step=gate.step, gate=gate.gate, tree=tree, passed=passed)


def outcome(
    *measurements: Measurement,
    required: tuple[RequiredGate, ...] = (),
    final: str = "end",
    terminal: TerminalOutcome | None = None,
) -> RunOutcome | list[str]:
    return run_outcome(
        base_tree="base",
        final_tree=final,
        terminal_outcome=terminal,
        required=required,
        measurements=measurements,
    )


@pytest.mark.parametrize(
    ("terminal", "expected"), [("blocked", "blocked"), ("stopped", "stopped"), ("exhausted", "failed")]
)
def test_a_run_that_ended_otherwise_is_not_measured(terminal: TerminalOutcome, expected: str) -> None:
    assert outcome(seen(UNIT, "end"), required=(UNIT,), terminal=terminal) == expected
    assert outcome(required=(UNIT,), terminal=terminal) == expected


def test_all_required_gates_passed_on_the_final_tree_verify_the_run() -> None:
    assert outcome(seen(UNIT, "end"), seen(LINT, "end"), required=(UNIT, LINT)) == "verified"


def test_claims_alone_give_unverified() -> None:
    assert outcome() == "unverified"


def test_a_required_gate_failed_on_the_final_tree_gives_unverified() -> None:
    assert outcome(seen(UNIT, "end"), seen(LINT, "end", False), required=(UNIT, LINT)) == "unverified"
    assert outcome(seen(LINT, "end", False), required=(UNIT, LINT)) == "unverified"


def test_evidence_of_another_tree_must_be_measured_again() -> None:
    assert outcome(seen(UNIT, "older"), seen(LINT, "end"), required=(UNIT, LINT)) == ["build/unit"]
    assert outcome(required=(UNIT, LINT)) == ["build/unit", "build/lint"]


def test_the_last_measurement_of_the_final_tree_counts() -> None:
    assert outcome(seen(UNIT, "end", False), seen(UNIT, "end"), required=(UNIT,)) == "verified"
    assert outcome(seen(UNIT, "end"), seen(UNIT, "end", False), required=(UNIT,)) == "unverified"
    assert outcome(seen(UNIT, "end"), seen(UNIT, "older", False), required=(UNIT,)) == "verified"


def test_gates_with_one_command_and_parser_are_measured_once() -> None:
    both = (UNIT, SAME_AS_UNIT)
    assert outcome(required=both) == ["build/unit"]
    assert outcome(seen(SAME_AS_UNIT, "end"), required=both) == "verified"
    assert outcome(seen(UNIT, "end"), seen(SAME_AS_UNIT, "end", False), required=both) == "unverified"
    assert outcome(seen(SAME_AS_UNIT, "end", False), seen(UNIT, "end"), required=both) == "verified"


def test_gates_read_by_another_parser_are_other_gates() -> None:
    assert outcome(seen(UNIT, "end"), required=(UNIT, READ_OTHERWISE)) == ["review/tests"]


def test_a_measurement_of_a_gate_that_is_not_required_says_nothing() -> None:
    assert outcome(seen(LINT, "end", False), seen(UNIT, "end"), required=(UNIT,)) == "verified"


def test_an_unchanged_tree_on_which_no_required_gate_failed_is_nothing_to_do() -> None:
    assert outcome(final="base") == "nothing_to_do"
    assert outcome(seen(UNIT, "base"), required=(UNIT,), final="base") == "nothing_to_do"
    assert outcome(seen(UNIT, "base", False), required=(UNIT,), final="base") == "unverified"
    assert outcome(seen(UNIT, "other"), required=(UNIT,), final="base") == ["build/unit"]


def test_a_gate_measured_before_the_first_step_counts_for_the_base_tree_only() -> None:
    assert outcome(seen(UNIT, "base"), required=(UNIT,)) == ["build/unit"]
