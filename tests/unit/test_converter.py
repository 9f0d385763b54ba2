"""What people are told stands alone; what went wrong inside keeps its stack trace."""

from __future__ import annotations

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from schemas.converter import build_data_converter


def fail_inside(type_: str) -> None:
    try:
        int("inside")
    except ValueError as error:
        raise ApplicationError("said", {"outcome": "unverified"}, type=type_) from error


async def written(type_: str) -> Failure:
    failure = Failure()
    with pytest.raises(ApplicationError) as raised:
        fail_inside(type_)
    await build_data_converter().encode_failure(raised.value, failure)
    return failure


@pytest.mark.parametrize(
    "type_", ["unverified", "UnknownFlow", "BadFlowInput", "Refused", "UnknownWorkflowType"]
)
async def test_an_answer_to_a_person_is_its_message_and_its_details(type_: str) -> None:
    failure = await written(type_)
    assert (failure.message, failure.application_failure_info.type) == ("said", type_)
    assert len(failure.application_failure_info.details.payloads) == 1
    assert not failure.stack_trace
    assert not failure.HasField("cause")


async def test_any_other_error_keeps_its_stack_trace_and_its_cause() -> None:
    failure = await written("StoreUnavailable")
    assert "test_converter.py" in failure.stack_trace
    assert "inside" in failure.cause.message
    assert failure.cause.stack_trace
