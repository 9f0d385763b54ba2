"""What a step leaves for the next one: draft, envelope, and the partial handoff of a stopped attempt."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.common import ArtifactRef, Closed, Durable, FileChanges, Help, Phase, UtcTime, Verification
from schemas.questions import CallRequest, Question
from schemas.tools import NormalizedToolCall

MAX_SUMMARY_CHARS = 2_000


class HandoffDraft(Closed):
    """What the agent is asked for at the end of its work; every field is required."""

    status: Verification
    summary: str
    proposed_next_step: str | None
    notes_for_next_step: str
    confidence: float = Field(ge=0, le=1)
    can_further_iteration_help: Help
    assumptions: list[str]
    decisions: list[str]
    blockers: list[str]
    evidence_names: list[str]


class HandoffEnvelope(Durable):
    """The handoff as the engine composes it: measured facts, with the agent's words cut to size."""

    schema_version: Literal["1"] = "1"
    step_id: str
    flow_key: str
    run_id: str
    visit: int
    attempt: int
    iteration: int
    status: Verification
    claimed_status: str | None = None
    summary: str = Field(max_length=MAX_SUMMARY_CHARS)
    artifacts: dict[str, ArtifactRef] = {}
    file_changes: FileChanges = FileChanges()
    proposed_next_step: str | None = None
    notes_for_next_step: str = ""
    confidence: float | None = None
    can_further_iteration_help: Help = "unsure"
    assumptions: list[str] = []
    decisions: list[str] = []
    blockers: list[str] = []
    evidence_names: list[str] = []
    timestamp: UtcTime
    source: Literal["agent", "engine"]
    reason: str | None = None


PartialReason = Literal[
    "interrupt",
    "question",
    "approval",
    "budget",
    "rate_limit",
    "timeout",
    "worker_shutdown",
    "crash",
    "agent_failed",
    "abort",
    "cancel",
    "activity_paused",
    "activity_reset",
    "server_lost",
]
StopMethod = Literal["agent_finished_write", "cooperative", "killed"]


class Savepoint(Durable):
    """A commit that holds the working tree as it was; ``bundle`` is its copy in the store, if one was made."""

    ref: str
    commit: str
    tree: str = ""
    bundle: ArtifactRef | None = None
    not_kept: list[str] = []


class SessionRef(Durable):
    """An agent's session: which transport holds it, its id, whether it can be resumed."""

    transport: str
    session_id: str | None = None
    resumable: bool = False


class PartialHandoff(Durable):
    """``handoff_partial.json``: what a stopped attempt had done, and all that is needed to go on from there.

    ``done`` comes from measured changes; ``remaining`` only from the agent, if it wrote it.
    """

    schema_version: Literal["1"] = "1"
    run_id: str
    flow_key: str
    step_id: str
    visit: int
    attempt: int
    phase: Phase
    reason: PartialReason
    requested_by: str = ""
    requested_at: UtcTime | None = None
    stopped_at: UtcTime
    stop_method: StopMethod | None = None
    done: list[str] = []
    remaining: list[str] = []
    open_question: Question | None = None
    open_call: CallRequest | None = None
    savepoint: Savepoint | None = None
    file_changes: FileChanges = FileChanges()
    session: SessionRef | None = None
    last_tool_calls: list[NormalizedToolCall] = Field(default=[], max_length=10)
    evidence: list[ArtifactRef] = []
    transcript: ArtifactRef | None = None
    summary: str = ""
    resume_hint: str = ""
