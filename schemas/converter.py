"""The one data converter of worker, client and replayer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError

from schemas.common import Outcome
from schemas.errors import OWN_ERROR_TYPES

_SAID_TYPES = frozenset((*OWN_ERROR_TYPES, *get_args(Outcome), "Refused", "UnknownWorkflowType"))
"""ApplicationError types that answer a person: their message says everything, a stack trace would bury it."""


class Unreadable:
    """What stands for a payload that a person sent and nobody can read, such as half a character: it can be refused."""


class _CompactPayloadConverter(PydanticPayloadConverter):
    """Leaves out fields nobody set: history stays small, and defaults live in one place, the models.

    Where no type is asked for, as with what people send, what cannot be read is Unreadable: an exception would let the
    run's first task fail for ever.
    """

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Return the values of payloads. Raises what a value of a wanted type raises."""
        if type_hints is not None:
            return super().from_payloads(payloads, type_hints)
        return [self._untyped(payload) for payload in payloads]

    def _untyped(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # noqa: BLE001 - each encoding fails in its own way
            return Unreadable()


class _PlainFailureConverter(DefaultFailureConverter):
    """Leaves stack traces and causes out of the answers people get; every other error keeps them."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, ApplicationError) and exception.type in _SAID_TYPES:
            failure.ClearField("stack_trace")
            failure.ClearField("cause")


def build_data_converter() -> DataConverter:
    """Return the converter with which every payload of the product is written and read."""
    return dataclasses.replace(
        DataConverter.default,
        payload_converter_class=_CompactPayloadConverter,
        failure_converter_class=_PlainFailureConverter,
    )
