"""What is left of what people said of calls when work ends in one way or another."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.calls import WorkOut
from schemas.handoff import SessionRef
from schemas.questions import CallDecision
from workflows.consents import unused, without_doubt

YES = CallDecision(signature="yes", allow=True)
NO = CallDecision(signature="no", allow=False, reason="not here")
ALWAYS = CallDecision(signature="always", allow=True, remember="run")
ALL = [YES, NO, ALWAYS]
SESSION = SessionRef(transport="stub", session_id="s", resumable=True)


@pytest.mark.parametrize("ended", ["interrupted", "rate_limited", "budget", "timeout", "worker_shutdown"])
@pytest.mark.parametrize(
    ("spent", "left"), [([], [YES, NO]), (["yes"], [NO]), (["no"], [YES]), (["yes", "no"], [])]
)
def test_what_an_agent_did_not_come_to_is_left_for_the_next_work(
    ended: Any, spent: list[str], left: list[CallDecision]
) -> None:
    assert unused(ALL, WorkOut(ended=ended, session=SESSION, spent=spent)) == left


def test_what_a_session_used_is_used_up_also_where_another_could_not_be_opened_after_it() -> None:
    assert unused(ALL, WorkOut(ended="agent_failed", spent=["yes"])) == [NO]


def test_work_that_ended_well_leaves_nothing() -> None:
    assert unused(ALL, WorkOut(ended="finished", session=SESSION, spent=[])) == []


@pytest.mark.parametrize(("session", "left"), [(SESSION, []), (None, ALL)])
def test_an_older_worker_that_does_not_say_what_was_used_leaves_nothing_once_it_had_a_session(
    session: SessionRef | None, left: list[CallDecision]
) -> None:
    assert unused(ALL, WorkOut(ended="interrupted", session=session)) == left


def test_of_work_of_which_nobody_knows_only_what_lets_nothing_pass_is_left() -> None:
    assert without_doubt(ALL) == [NO]
