"""What the lines of an attempt's logs are made of: sums over events, and events as a transcript shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from schemas.common import Usage
from schemas.events import (
    PermissionChanged,
    SessionOpened,
    SubagentEnded,
    SubagentStarted,
    TextEvent,
    ToolEnded,
    TranscriptEvent,
    TranscriptHeader,
    TransportEvent,
    UsageEvent,
)
from schemas.facts import MAX_TOOL_NAMES
from schemas.tools import BlockedCall, NormalizedToolCall

MAX_LAST_CALLS: Final = 10
MAX_BLOCKED_CALLS: Final = 10
"""How many of the calls that policy blocked are named in the receipt; the logs have all."""
MAX_TOOL_CHARS: Final = 100
"""Characters of a tool's name in the totals, which travel through history; the logs have it whole."""
_SLASH_COMMAND: Final = re.compile(r"/[a-z][\w:-]*(?:\s|\Z)")
_TEXT_TYPES: Final = {"assistant": "assistant_text", "user": "user_prompt", "system": "system_text"}
_TYPES: Final = {
    "tool_started": "tool_use",
    "tool_ended": "tool_result",
    "subagent_started": "subagent_start",
    "subagent_ended": "subagent_stop",
}


@dataclass(frozen=True)
class AttemptTotals:
    """What is known of an attempt without its files: counts, names in the order first seen, tokens, the last calls."""

    events: int = 0
    transcript_events: int = 0
    tool_calls: int = 0
    blocked: int = 0
    blocked_calls: tuple[BlockedCall, ...] = ()
    tools: tuple[str, ...] = ()
    usage: Usage = Usage()  # noqa: RUF009 - frozen
    last_calls: tuple[NormalizedToolCall, ...] = ()
    session_id: str | None = None
    model: str | None = None
    permission_mode: str = ""

    def plus(self, event: TransportEvent) -> AttemptTotals:
        """Return the totals with one more event."""
        shown = int(not isinstance(event, UsageEvent))
        totals = replace(self, events=self.events + 1, transcript_events=self.transcript_events + shown)
        if isinstance(event, SessionOpened):
            return replace(totals, session_id=event.session_id, model=event.model or self.model)
        if isinstance(event, PermissionChanged):
            return replace(totals, permission_mode=event.mode)
        if isinstance(event, UsageEvent):
            return replace(totals, usage=self.usage.plus(event.usage))
        if not isinstance(event, ToolEnded):
            return totals
        name = event.call.tool_name[:MAX_TOOL_CHARS]
        new = name not in self.tools and len(self.tools) < MAX_TOOL_NAMES
        more = event.call.blocked and len(self.blocked_calls) < MAX_BLOCKED_CALLS
        return replace(
            totals,
            blocked_calls=(*self.blocked_calls, BlockedCall.of(event.call)) if more else self.blocked_calls,
            tool_calls=self.tool_calls + 1,
            blocked=self.blocked + int(event.call.blocked),
            tools=(*self.tools, name) if new else self.tools,
            last_calls=(*self.last_calls, event.call)[-MAX_LAST_CALLS:],
        )


def transcript_event(
    event: TransportEvent, *, ts: datetime, totals: AttemptTotals, header: TranscriptHeader
) -> TranscriptEvent:
    """Return the event as a transcript's line; ``totals`` counts it already."""
    agent_id: str | None = None
    event_type = _TYPES.get(event.kind, event.kind)
    block: dict[str, Any] = event.model_dump(mode="json", exclude={"kind"})
    if isinstance(event, TextEvent):
        slash = event.role == "user" and _SLASH_COMMAND.match(event.text)
        event_type = "slash_command" if slash else _TEXT_TYPES[event.role]
    elif isinstance(event, ToolEnded):
        agent_id, block = event.call.agent_id, block["call"]
    elif isinstance(event, (SubagentStarted, SubagentEnded)):
        agent_id = event.agent_id
    return TranscriptEvent(
        seq=totals.transcript_events,
        ts=ts,
        session_id=totals.session_id or header.session_id,
        task_id=header.task_id,
        event_type=event_type,
        permission_mode=totals.permission_mode or header.permission_mode,
        agent_id=agent_id,
        block=block,
    )
