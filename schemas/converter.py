"""The one data converter of worker, client and replayer."""

from __future__ import annotations

import dataclasses

from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError

from schemas.errors import SAID_ERROR_TYPES


class _CompactPayloadConverter(PydanticPayloadConverter):
    """Leaves out fields nobody set: history stays small, and defaults live in one place, the models."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


class _PlainFailureConverter(DefaultFailureConverter):
    """Leaves stack traces and causes out of the answers people get; every other error keeps them."""

    def to_failure(
        self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure
    ) -> None:
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, ApplicationError) and exception.type in SAID_ERROR_TYPES:
            failure.ClearField("stack_trace")
            failure.ClearField("cause")


def build_data_converter() -> DataConverter:
    """Return the converter with which every payload of the product is written and read."""
    return dataclasses.replace(
        DataConverter.default,
        payload_converter_class=_CompactPayloadConverter,
        failure_converter_class=_PlainFailureConverter,
    )
