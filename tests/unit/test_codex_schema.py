"""Schemas in the words of strict mode."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator
from model_servers.openai import check_strict
from pydantic import BaseModel, ConfigDict, Field

from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from transports.codex_schema import strict_schema


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(default="x", max_length=3)


class Nested(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["a", "b"] = "a"
    inner: Inner = Field(description="one", default=Inner())
    many: list[Inner | None] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="forbid")
    anything: dict[str, str]


@pytest.mark.parametrize("model", [HandoffDraft, RoutingSignal, Nested])
def test_our_schemas_can_be_said_in_strict_mode(model: type[BaseModel]) -> None:
    strict = strict_schema(model.model_json_schema())
    assert strict is not None
    Draft202012Validator.check_schema(strict)
    check_strict(strict, "$", strict)


def test_a_value_of_the_strict_schema_is_one_of_the_model() -> None:
    strict = strict_schema(Nested.model_json_schema())
    value: dict[str, Any] = {"kind": "b", "inner": {"name": "abc"}, "many": [None, {"name": ""}]}
    assert strict is not None
    assert Draft202012Validator(strict).is_valid(value)
    assert not Draft202012Validator(strict).is_valid({"kind": "b"})
    Nested.model_validate(value)


@pytest.mark.parametrize(
    "schema",
    [
        Open.model_json_schema(),
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"allOf": []}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": True}, "additionalProperties": False},
    ],
)
def test_what_strict_mode_cannot_say_is_left_to_us(schema: dict[str, Any]) -> None:
    assert strict_schema(schema) is None
