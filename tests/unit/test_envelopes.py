"""Errors as data: one that was told as data is passed on whole."""

from __future__ import annotations

import pytest

from schemas.envelopes import ErrorEnvelope, Reported, envelope_of
from schemas.errors import StepwiseError
from transports.codex_rpc import Gone
from transports.gemini_turn import TurnFailed
from transports.port import WorkOutcome
from transports.structured import TurnLost

TOLD = ErrorEnvelope(code="overloaded", message="later", details={"a": "b"}, retryable=True, request_id="r")


@pytest.mark.parametrize(
    "error", [Reported(TOLD), Gone(TOLD), TurnFailed(TOLD), TurnLost(WorkOutcome("failed", error=TOLD))]
)
def test_an_error_that_came_as_data_is_passed_on_whole(error: StepwiseError) -> None:
    assert envelope_of(error, code="other") == TOLD
    assert (error.code, error.message, error.retryable) == (TOLD.code, TOLD.message, TOLD.retryable)


def test_a_turn_that_a_provider_refuses_for_now_can_be_tried_again() -> None:
    said = envelope_of(TurnLost(WorkOutcome("rate_limited")), code="other")
    assert (said.code, said.retryable) == ("rate_limited", True)


def test_an_error_of_ours_says_its_mend_and_one_that_is_not_has_the_code_it_is_given() -> None:
    ours = StepwiseError("no_name", "it has no name", mend="name it", field="name")
    assert envelope_of(ours, code="other") == ErrorEnvelope(
        code="no_name", message="it has no name (name it)", details={"field": "name"}
    )
    theirs = envelope_of(KeyError("x"), code="other")
    assert (theirs.code, theirs.message, theirs.retryable) == ("other", "KeyError('x')", True)
