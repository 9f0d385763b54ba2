"""One representation of a tool call, whichever transport made it."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, field_validator

from schemas.common import AgentPhase, Durable, UtcTime
from schemas.cutting import cut

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def shortened(limit: int) -> AfterValidator:
    """Cut a text above so many characters, and blank what takes effect on a terminal.

    What agents and programs say has no bound, and history has one; what stands there is printed by other programs.
    """
    return AfterValidator(partial(_shortened, limit=limit))


def _shortened(text: str, limit: int) -> str:
    return cut(_CONTROL.sub(" ", text), limit)


class NormalizedToolCall(Durable):
    """A tool call as every receipt shows it; input and output are cut at 2,000 characters each."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    tool_name: str
    input: str = Field(default="", validation_alias=AliasChoices("input", "tool_input"))
    output: str | None = Field(default=None, validation_alias=AliasChoices("output", "tool_output"))
    success: bool
    duration_ms: int = 0
    blocked: bool = False
    blocked_reason: str | None = None
    source: Literal["sdk", "cli-observed", "kernel-executed", "stub"]
    timestamp: UtcTime
    call_id: str | None = None
    operation: str | None = None
    cycle: int | None = None
    agent_id: str | None = None
    request_id: str | None = None
    correlation_id: str | None = None

    @field_validator("input", "output", mode="before")
    @classmethod
    def _as_cut_text(cls, value: Any) -> Any:
        if value is None:
            return value
        if not isinstance(value, str):
            import json  # noqa: PLC0415 - only where a transport hands over structured input

            value = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
        return cut(value)


class BlockedCall(Durable):
    """A call that policy did not allow: in which phase, what was to be called, the policy's stable code, and why."""

    phase: AgentPhase = "work"
    tool_name: Annotated[str, shortened(100)]
    code: Annotated[str, shortened(100)] = ""
    reason: Annotated[str, shortened(300)] = ""

    @classmethod
    def of(cls, call: NormalizedToolCall) -> BlockedCall:
        """Return what a blocked call's reason says, which begins with its code."""
        code, _, reason = (call.blocked_reason or "").partition(": ")
        return cls(tool_name=call.tool_name, code=code, reason=reason)
