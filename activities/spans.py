"""Spans of what an agent does: one for each turn of its session, below it one for each model turn and each tool call."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import Span

from activities.sessions import HeldSession
from schemas.calls import AttemptKey
from schemas.common import AgentPhase, Usage
from schemas.events import ToolEnded, TransportEvent, UsageEvent
from system.telemetry import Attribute, Value, past_span, span

_TURN: Final = "invoke_agent"


class TurnSpan:
    """The span of one turn; hears its events, which come from outside the activity's context."""

    def __init__(self, parent: Context, opened: Span) -> None:
        self._parent = parent
        self._opened = opened
        self._since = time.monotonic()

    def used(self, usage: Usage) -> None:
        """Say how many tokens the turn used."""
        self._opened.set_attribute(Attribute.INPUT_TOKENS.value, usage.prompt)
        self._opened.set_attribute(Attribute.OUTPUT_TOKENS.value, usage.completion)

    def hear(self, event: TransportEvent) -> None:
        """Add a span for a tool call that ended, or for a model turn whose usage is known.

        A model turn began when the one before it, or the last tool, ended.
        """
        # A price without tokens is told at the end of a turn, and is no model turn of its own.
        if isinstance(event, UsageEvent) and event.usage.total:
            used: Mapping[Attribute, Value | None] = {
                Attribute.OPERATION: "chat",
                Attribute.INPUT_TOKENS: event.usage.prompt,
                Attribute.OUTPUT_TOKENS: event.usage.completion,
            }
            past_span("chat", self._parent, used, ms=int((time.monotonic() - self._since) * 1_000))
        if isinstance(event, UsageEvent | ToolEnded):
            self._since = time.monotonic()
        if isinstance(event, ToolEnded):
            call = event.call
            attributes: Mapping[Attribute, Value | None] = {
                Attribute.OPERATION: "execute_tool",
                Attribute.TOOL_NAME: call.tool_name,
                Attribute.TOOL_CALL_ID: call.call_id,
                Attribute.ERROR_TYPE: None if call.success else "blocked" if call.blocked else "failed",
            }
            past_span(f"execute_tool {call.tool_name}", self._parent, attributes, ms=call.duration_ms)


@contextmanager
def turn_span(key: AttemptKey, held: HeldSession, model: str | None, phase: AgentPhase) -> Iterator[TurnSpan]:
    """Run the block, a turn of the agent in one of its phases, in its span."""
    attributes: Mapping[Attribute, Value | None] = {
        Attribute.RUN_ID: key.run_id,
        Attribute.STEP: key.step_id,
        Attribute.VISIT: key.visit,
        Attribute.ATTEMPT: key.attempt,
        Attribute.PHASE: phase,
        Attribute.TRANSPORT: held.transport.name,
        Attribute.SYSTEM: held.transport.capabilities.provider_name,
        Attribute.OPERATION: _TURN,
        Attribute.REQUEST_MODEL: model,
        Attribute.CONVERSATION: held.session.session_id,
    }
    with span(f"{_TURN} {held.transport.name}", attributes) as opened:
        yield TurnSpan(context.get_current(), opened)
