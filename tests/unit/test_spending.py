"""What a person who allows more adds to which bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.common import Budget, Usage
from schemas.flow import StepSpec
from schemas.messages import ExtendBudget
from schemas.run import FlowInput
from schemas.run_state import RunState
from workflows.spending import Spending


def spending(run: Budget | None, step: Budget | None, used: int = 0) -> Spending:
    """Return the spending of a step in a run, each with its budget, of which some tokens are used."""
    state = RunState(
        run_id="r-1",
        workflow_id="r",
        input=FlowInput(flow="fix", task="t", repo="/r", budget=run),
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    spec = StepSpec.model_validate(
        {"id": "only", "agent": "a", "objective": "o", "routing": {"kind": "terminal"}}
    ).model_copy(update={"budget": step})
    a_run: Any = SimpleNamespace(state=state, spec=SimpleNamespace(defaults=SimpleNamespace(budget=None)))
    made = Spending(a_run, spec)
    made.used(Usage(prompt=used))
    return made


@pytest.mark.parametrize(("is_patched", "left"), [(True, Budget(tokens=100)), (False, None)])
def test_without_a_number_one_whole_bound_is_left_but_not_in_a_run_from_before(
    is_patched: bool, left: Budget | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temporalio.workflow.patched", lambda _: is_patched)
    found = spending(Budget(tokens=100), None, 350)
    assert (found.lacks(ExtendBudget()) == "") == is_patched
    found.extend(ExtendBudget())
    assert found.is_used_up != is_patched
    assert found.left() == left


@pytest.mark.parametrize(
    ("run", "step", "used", "order", "left"),
    [
        (Budget(tokens=100), None, 100, ExtendBudget(), Budget(tokens=100)),
        (Budget(tokens=100, usd=2.0), None, 100, ExtendBudget(), Budget(tokens=100, usd=2.0)),
        (Budget(tokens=100), None, 100, ExtendBudget(tokens=7), Budget(tokens=7)),
        (Budget(tokens=100), Budget(tokens=40), 40, ExtendBudget(), Budget(tokens=40)),
        (Budget(tokens=100), Budget(seconds=60), 30, ExtendBudget(), Budget(tokens=170, seconds=120)),
        (Budget(tokens=100), None, 30, ExtendBudget(usd=1.0), Budget(tokens=70)),
        (None, None, 30, ExtendBudget(), None),
    ],
)
def test_more_is_what_was_given_or_what_is_used_up_or_else_every_bound_once_more(
    run: Budget | None, step: Budget | None, used: int, order: ExtendBudget, left: Budget | None
) -> None:
    found = spending(run, step, used)
    found.extend(order)
    assert not found.is_used_up
    assert found.left() == left
