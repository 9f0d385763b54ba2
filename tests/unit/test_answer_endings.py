"""How a phase of answers ends, by what became of the request."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from activities.endings import NO_ANSWER, of_answer
from schemas.envelopes import ErrorEnvelope
from schemas.errors import StepwiseError
from transports.port import StructuredResult, WorkOutcome
from transports.structured import TurnLost, unanswered

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def without(code: str, *, retryable: bool = False) -> StructuredResult:
    return StructuredResult(value=None, error=ErrorEnvelope(code=code, message="no", retryable=retryable))


def test_a_value_finishes_the_phase_whatever_was_wrong_before_it() -> None:
    error = ErrorEnvelope(code="rate_limited", message="a moment")
    assert of_answer(StructuredResult(value={}, error=error, rate_limited=True)) == ("finished", None)


@pytest.mark.parametrize("code", sorted(NO_ANSWER))
def test_an_agent_that_does_not_answer_has_finished_without_one(code: str) -> None:
    ended, error = of_answer(without(code))
    assert ended == "finished"
    assert error is not None
    assert error.code == code


def test_no_value_and_no_error_is_no_answer() -> None:
    ended, error = of_answer(StructuredResult(value=None))
    assert ended == "finished"
    assert error is not None
    assert error.code == "no_answer"


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("code", ["auth_failed", "provider_overloaded", "agent_crashed", "never heard of"])
def test_an_agent_that_cannot_be_asked_has_failed_as_in_work(code: str, *, retryable: bool) -> None:
    ended, error = of_answer(without(code, retryable=retryable))
    assert ended == "agent_failed"
    assert error == ErrorEnvelope(code=code, message="no", retryable=retryable)


@pytest.mark.parametrize("code", ["interrupted", "session_closed", "session_busy"])
def test_a_turn_that_somebody_ended_may_be_tried_again(code: str) -> None:
    ended, error = of_answer(without(code))
    assert ended == "agent_failed"
    assert error is not None
    assert error.retryable


def test_a_limit_is_told_from_every_other_end_and_says_until_when() -> None:
    outcome = WorkOutcome(end="rate_limited", retry_at=NOON)
    result = unanswered(TurnLost(outcome), reprompts=2)
    assert (result.value, result.rate_limited, result.retry_at, result.reprompts) == (None, True, NOON, 2)
    assert of_answer(result)[0] == "rate_limited"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TurnLost(WorkOutcome(end="failed", error=ErrorEnvelope(code="cut", message="x"))), "cut"),
        (TurnLost(WorkOutcome(end="question")), "question"),
        (StepwiseError("session_closed", "the session is closed"), "session_closed"),
        (ValueError("odd"), "transport_error"),
    ],
)
def test_every_other_lost_turn_is_an_error_and_no_limit(error: Exception, code: str) -> None:
    result = unanswered(error)
    assert (result.rate_limited, result.retry_at) == (False, None)
    assert result.error is not None
    assert result.error.code == code
