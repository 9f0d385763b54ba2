"""How it is said that an activity failed."""

from __future__ import annotations

import pytest
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    TerminatedError,
    TimeoutError,  # noqa: A004 - the name that the SDK gives it
    TimeoutType,
)

from schemas.calls import CANCELLED
from workflows.phases import failure_of


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        (TimeoutError("t", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[]), "time-out (heartbeat)"),
        (TimeoutError("t", type=None, last_heartbeat_details=[]), "time-out (unknown)"),
        (CancelledError("c"), CANCELLED),
        (ApplicationError("broken", type="Broken"), "Broken: broken"),
        (ApplicationError("broken"), "error: broken"),
        (ApplicationError("x" * 900), f"error: {'x' * 493}"),
        (TerminatedError("ended by its server"), "ended by its server"),
        (None, "activity failed"),
    ],
)
def test_how_an_activity_failed_is_said_in_one_line(cause: Exception | None, says: str) -> None:
    error = ActivityError(
        "activity failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="w",
        activity_type="work",
        activity_id="only.work.1.1",
        retry_state=None,
    )
    error.__cause__ = cause
    assert failure_of(error) == says
