"""What routing is told of an attempt: complete, in one line for people, and within its bound."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.calls import FinalizeOut, GateRun, MeasureOut, ProposeOut, WorkOut
from schemas.common import Usage
from schemas.converter import build_data_converter
from schemas.facts import GateCounts, GateFact
from schemas.flow import StepSpec
from schemas.run_state import RunState
from workflows.facts import MAX_FACTS_BYTES, Carry, compose, gates_line, stopped, unmeasured
from workflows.held import Refused, acquired, resolved

STEP = StepSpec.model_validate(
    {
        "id": "build",
        "agent": "doer",
        "objective": "o",
        "gates": [{"name": "tests", "argv": ["true"]}],
        "routing": {"kind": "terminal"},
    }
)


def gate(name: str, **more: object) -> GateRun:
    return GateRun(fact=GateFact.model_validate({"name": name, **more}))


def test_gates_stand_in_one_line() -> None:
    gates = [
        gate("tests", passed=False, counts=GateCounts(passed=3, failed=1)),
        gate("lint", passed=True),
        gate("types", passed=False, exit_code=2),
        gate("slow", measured=False, reason="it was stopped"),
    ]
    line = gates_line(gates)
    assert line.startswith("tests ✗ (3 passed, 1 failed), lint ✓, types ✗")
    assert line.endswith("slow not measured")
    assert gates_line(unmeasured(STEP, "why")) == "tests not measured"


def test_an_attempt_that_a_phase_of_answers_ended_took_and_used_that_phase_too() -> None:
    carry = Carry(
        work=WorkOut(ended="finished", usage=Usage(prompt=10), elapsed_ms=100),
        finalize=FinalizeOut(claimed_status="VERIFIED", usage=Usage(prompt=5), elapsed_ms=50),
    )
    limited = ProposeOut(ended="rate_limited", usage=Usage(prompt=1), elapsed_ms=7)
    facts = stopped(carry.work, carry, limited)
    assert (facts.status, facts.claimed_status, facts.stop_reason) == ("PARTIAL", "VERIFIED", "rate_limited")
    assert (facts.usage.total, facts.elapsed_ms) == (16, 157)


def test_what_an_answer_used_is_counted_once() -> None:
    carry = Carry(finalize=FinalizeOut(usage=Usage(prompt=5)))
    assert [usage.total for usage in carry.uncounted()] == [5]
    carry.route = ProposeOut(usage=Usage(prompt=2))
    assert [usage.total for usage in carry.uncounted()] == [2]
    assert carry.uncounted() == []


@pytest.mark.parametrize("letter", ["r", "漢"])
@pytest.mark.parametrize(
    ("count", "kept"), [(1, {"reason", "counts"}), (12, {"counts"}), (22, set()), (200, set())]
)
def test_facts_lose_details_of_gates_rather_than_outgrow_their_bound(
    count: int, kept: set[str], letter: str
) -> None:
    gates = [
        gate(
            f"gate-{number}",
            passed=True,
            exit_code=0,
            percent=50.0,
            reason=letter * 300,
            counts=GateCounts(passed=1_000_000, failed=1_000_000),
        )
        for number in range(count)
    ]
    work = WorkOut(ended="finished", tools=["Write"] * 30, usage=Usage(prompt=5))
    facts = compose(STEP, Carry(work=work, measure=MeasureOut(gates=gates)))
    first = facts.gates[0].model_dump(exclude_none=True)
    assert {name for name in ("reason", "counts") if name in first} == kept
    assert len(facts.gates) == count
    assert all(one.passed for one in facts.gates)
    (payload,) = build_data_converter().payload_converter.to_payloads([facts])
    assert count > 100 or len(payload.data) <= MAX_FACTS_BYTES, "as it travels"
    assert facts.usage.prompt == 5


def test_what_an_unfinished_attempt_used_counts_and_it_is_partial() -> None:
    work = WorkOut(ended="interrupted", usage=Usage(prompt=7), elapsed_ms=30)
    facts = stopped(work, Carry())
    assert (facts.status, facts.usage.prompt, facts.elapsed_ms) == ("PARTIAL", 7, 30)
    assert facts.stop_reason == "interrupted"
    assert stopped(None, Carry()).stop_reason is None


def test_a_run_that_has_not_begun_stands_on_nothing() -> None:
    nothing: dict[str, Any] = {"resolved": None, "acquired": None}
    state = RunState.model_construct(**nothing)
    with pytest.raises(Refused, match="no flow was resolved"):
        resolved(state)
    with pytest.raises(Refused, match="no workspace was acquired"):
        acquired(state)
