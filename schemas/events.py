"""Events: what a transport emits, what a run's journal holds, what a transcript holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from schemas.common import AgentPhase, Durable, Usage, UtcTime
from schemas.envelopes import ErrorEnvelope
from schemas.questions import Answer, Question
from schemas.tools import NormalizedToolCall


class SessionOpened(Durable):
    """A session exists: its id, how it came to be, what the server said of itself."""

    kind: Literal["session_opened"] = "session_opened"
    session_id: str
    model: str | None = None
    server_info: dict[str, Any] = {}


class TextEvent(Durable):
    """Text the agent (or, to it, the user) wrote."""

    kind: Literal["text"] = "text"
    role: Literal["assistant", "user", "system"] = "assistant"
    text: str


class ToolStarted(Durable):
    """A tool call began."""

    kind: Literal["tool_started"] = "tool_started"
    call_id: str
    tool_name: str
    input: str = ""


class ToolEnded(Durable):
    """A tool call ended, was refused, or was blocked by policy."""

    kind: Literal["tool_ended"] = "tool_ended"
    call: NormalizedToolCall


class QuestionEvent(Durable):
    """The agent asks."""

    kind: Literal["question"] = "question"
    question: Question


class QuestionAnswered(Durable):
    """What the agent asked has an answer, and by whom."""

    kind: Literal["question_answered"] = "question_answered"
    question_id: str
    answer: Answer


class RateLimited(Durable):
    """The provider refuses for now; ``reset_at`` when it said until when."""

    kind: Literal["rate_limited"] = "rate_limited"
    reset_at: UtcTime | None = None
    message: str = ""


class PermissionChanged(Durable):
    """The session's permission mode changed."""

    kind: Literal["permission_changed"] = "permission_changed"
    mode: str


class SubagentStarted(Durable):
    """A sub-agent began."""

    kind: Literal["subagent_started"] = "subagent_started"
    agent_id: str
    name: str = ""


class SubagentEnded(Durable):
    """A sub-agent ended."""

    kind: Literal["subagent_ended"] = "subagent_ended"
    agent_id: str
    name: str = ""


class UsageEvent(Durable):
    """Tokens used since the last such event."""

    kind: Literal["usage"] = "usage"
    usage: Usage


class ErrorEvent(Durable):
    """Something went wrong in the transport."""

    kind: Literal["error"] = "error"
    error: ErrorEnvelope


class TurnEnded(Durable):
    """The agent's turn is over."""

    kind: Literal["turn_ended"] = "turn_ended"
    stop_reason: str = ""


TransportEvent = Annotated[
    SessionOpened
    | TextEvent
    | ToolStarted
    | ToolEnded
    | QuestionEvent
    | QuestionAnswered
    | RateLimited
    | PermissionChanged
    | SubagentStarted
    | SubagentEnded
    | UsageEvent
    | ErrorEvent
    | TurnEnded,
    Field(discriminator="kind"),
]

RunEventKind = Literal[
    "run_created",
    "step_started",
    "phase_started",
    "phase_ended",
    "gate_measured",
    "file_changes",
    "routed",
    "question_asked",
    "question_answered",
    "human_message",
    "message_refused",
    "savepoint",
    "interrupted",
    "resumed",
    "fallback",
    "waiting",
    "step_ended",
    "run_completed",
    "execution.routed",
    "execution.sdk_routed",
    "execution.completed",
]


class RunEvent(Durable):
    """One line of the run's journal: numbered from 1 by the workflow, without gaps. Payload keys stand beside.

    ``run_id`` and ``event_id`` are empty on the way to the store, which fills them in: a history has many events.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    run_id: str = ""
    seq: int = Field(ge=1)
    event_id: str = ""
    ts: UtcTime
    kind: RunEventKind


class TranscriptHeader(Durable):
    """First line of a transcript."""

    kind: Literal["header"] = "header"
    schema_version: Literal["1"] = "1"
    run_id: str
    flow_key: str
    step_id: str
    visit: int
    attempt: int
    phase: AgentPhase = "work"
    task_id: str
    session_id: str | None = None
    transport: str
    model: str | None = None
    agents: list[str] = []
    allowed_tools: list[str] = []
    permission_mode: str = ""
    server_info: dict[str, Any] = {}


class TranscriptEvent(Durable):
    """One event of a transcript, redacted."""

    kind: Literal["event"] = "event"
    seq: int
    ts: UtcTime
    session_id: str | None = None
    task_id: str = ""
    event_type: str
    permission_mode: str = ""
    agent_id: str | None = None
    block: dict[str, Any] = {}


class TranscriptFooter(Durable):
    """Last line of a transcript; ``complete`` is false when it was written for a session that had crashed."""

    kind: Literal["footer"] = "footer"
    ts: UtcTime
    events: int
    tool_calls: int = 0
    blocked: int = 0
    complete: bool = True
