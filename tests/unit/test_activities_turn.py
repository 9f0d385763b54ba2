"""What ends a turn, and when: limits and budgets, but never the time that people take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from activities import turn
from activities.turn import Limits, Tally, _due
from schemas.calls import AttemptKey
from schemas.common import Usage
from schemas.events import ToolEnded, ToolStarted, TranscriptHeader, UsageEvent
from schemas.tools import NormalizedToolCall
from store.attempts import AttemptLog
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from transports import pauses as pauses_module
from transports.pauses import Pauses

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEY = AttemptKey(run_id="r", flow_key="f", step_id="s", visit=1, attempt=1)
LIMITS = Limits(work_s=100, no_output_s=50, grace_s=1, drain_s=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that is set by hand."""
    made = SimpleNamespace(now=0.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(turn, "time", made)
    monkeypatch.setattr(pauses_module, "time", made)
    return made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AttemptLog]:
    """The log of an attempt."""
    blobs = open_blobs(f"file://{tmp_path}/store", fsync=False, shared=True, temporal_is_loopback=True)
    header = TranscriptHeader(**KEY.model_dump(), task_id="t", transport="stub")
    made = AttemptLog(Evidence(blobs, Redactor()), tmp_path / "spool", KEY, header, lambda: NOON)
    yield made
    made.abandon()


@pytest.mark.parametrize(
    ("limits", "at", "heard_at", "order"),
    [
        (LIMITS, 49, 0, None),
        (LIMITS, 50, 0, "no_output"),
        (LIMITS, 99, 60, None),
        (LIMITS, 100, 60, "timeout"),
        (replace(LIMITS, seconds=30), 30, 29, "budget"),
    ],
)
def test_each_limit_ends_the_turn_at_its_time(
    log: AttemptLog, clock: SimpleNamespace, limits: Limits, at: float, heard_at: float, order: str | None
) -> None:
    tally = Tally(log, limits)
    tally.heard_at, clock.now = heard_at, at

    due, wait_s = _due(tally, limits, 0, Pauses())

    assert due == order
    assert wait_s == (0 if order else 1)


def test_no_limit_runs_while_people_are_waited_for(log: AttemptLog, clock: SimpleNamespace) -> None:
    limits, pauses = replace(LIMITS, seconds=60), Pauses()
    tally = Tally(log, limits)
    clock.now = 40
    with pauses.pause():
        clock.now = 100_000
        assert _due(tally, limits, 0, pauses) == (None, None)

    assert _due(tally, limits, 0, pauses) == (None, 20), "the budget goes on where it stood"
    clock.now += 10
    tally.heard_at = clock.now
    assert _due(tally, replace(limits, seconds=None), 0, pauses) == (None, 50), "heard just now"
    clock.now += 49
    assert _due(tally, replace(limits, seconds=None), 0, pauses) == (None, 1)
    clock.now += 1
    assert _due(tally, replace(limits, seconds=None), 0, pauses)[0] in {"timeout", "no_output"}


def test_a_sign_of_life_ends_the_silence_and_is_not_stored(log: AttemptLog, clock: SimpleNamespace) -> None:
    tally = Tally(log, LIMITS)
    clock.now = 49
    tally.stir()
    clock.now = 98
    assert _due(tally, LIMITS, 0, Pauses()) == (None, 1)
    clock.now = 99
    assert _due(tally, LIMITS, 0, Pauses()) == ("no_output", 0)
    assert log.totals.events == 0


def test_silence_counts_from_the_answer(log: AttemptLog, clock: SimpleNamespace) -> None:
    pauses = Pauses()
    with pauses.pause():
        clock.now = 1_000
    assert _due(Tally(log, LIMITS), LIMITS, 0, pauses) == (None, 50)


def call_of(call_id: str, *, success: bool) -> NormalizedToolCall:
    return NormalizedToolCall(
        tool_name="edit", success=success, source="stub", timestamp=NOON, call_id=call_id
    )


@pytest.mark.parametrize(
    ("begun", "ended", "finished"),
    [
        (["1"], [("1", True)], True),
        (["1"], [("1", False)], False),
        ([], [("1", True)], False),
        (["1", "2"], [("1", False), ("2", True)], True),
        (["1"], [], False),
    ],
)
def test_a_call_that_ran_when_the_end_was_ordered_and_came_to_its_own_end_was_finished(
    log: AttemptLog, begun: list[str], ended: list[tuple[str, bool]], *, finished: bool
) -> None:
    tally = Tally(log, LIMITS)
    for call_id in ["0", *begun]:
        tally(ToolStarted(call_id=call_id, tool_name="edit", input=""))
    tally(ToolEnded(call=call_of("0", success=True)))

    tally.end_ordered()
    for call_id, success in ended:
        tally(ToolEnded(call=call_of(call_id, success=success)))

    assert tally.finished == finished


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        (LIMITS, False),
        (replace(LIMITS, tokens=101), False),
        (replace(LIMITS, tokens=100), True),
        (replace(LIMITS, usd=0.5), True),
        (replace(LIMITS, usd=0.51), False),
    ],
)
async def test_what_is_used_ends_the_turn_when_its_bound_is_reached(
    log: AttemptLog, limits: Limits, *, over: bool
) -> None:
    tally = Tally(log, limits)

    tally(UsageEvent(usage=Usage(prompt=90, completion=10, cost_usd=0.5)))

    assert tally.over_budget.is_set() == over
