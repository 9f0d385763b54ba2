"""The one data converter of worker, client and replayer."""

from __future__ import annotations

import dataclasses

from temporalio.contrib.pydantic import PydanticPayloadConverter, ToJsonOptions
from temporalio.converter import DataConverter


class _CompactPayloadConverter(PydanticPayloadConverter):
    """Leaves out fields nobody set: history stays small, and defaults live in one place, the models."""

    def __init__(self) -> None:
        super().__init__(ToJsonOptions(exclude_unset=True))


def build_data_converter() -> DataConverter:
    """Return the converter with which every payload of the product is written and read."""
    return dataclasses.replace(DataConverter.default, payload_converter_class=_CompactPayloadConverter)
