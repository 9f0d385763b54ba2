"""The receipt of one attempt: what was measured, what was claimed, where the evidence is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.common import (
    AgentPhase,
    ArtifactRef,
    Digest,
    Durable,
    Execution,
    SessionMode,
    UtcTime,
    Verification,
)
from schemas.envelopes import ErrorEnvelope
from schemas.facts import GateCounts
from schemas.handoff import PartialReason, StopMethod
from schemas.routing import RoutingOutcome, TerminationReason
from schemas.tools import BlockedCall, shortened

GENESIS = "0" * 64
"""``previous_sha256`` of a run's first receipt."""


class TokenCounts(Durable):
    """Tokens of one attempt."""

    prompt: int = 0
    completion: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total: int = 0


class ToolCallCounts(Durable):
    """How many tool calls there were, how many policy blocked (the first of each phase), and where those of work are.

    ``StepReceipt.phases`` says the same of each phase.
    """

    count: int = 0
    blocked: int = 0
    blocked_calls: list[BlockedCall] = []
    ref: ArtifactRef | None = None


class GateBefore(Durable):
    """What the same gate said of the tree before the first step."""

    passed: bool
    exit_code: int | None = None
    counts: GateCounts | None = None


class GateReceipt(Durable):
    """A gate of the step: measured with its result and the tree it saw, or not measured with the reason."""

    name: str
    required: bool = True
    measured: bool
    exit_code: int | None = None
    passed: bool | None = None
    counts: GateCounts | None = None
    percent: float | None = None
    tree: str | None = None
    commit: str | None = None
    evidence: ArtifactRef | None = None
    before: GateBefore | None = None
    reason: str | None = None
    elapsed_ms: int = 0


class FallbackRecord(Durable):
    """A transport that was refused before another one was tried, with the routing-decision code."""

    transport: str
    code: str
    reason: Annotated[str, shortened(1_000)] = ""


class GitReceipt(Durable):
    """The run's branch and its commits before and after the attempt."""

    branch: str
    commit_before: str
    commit_after: str


class StopRecord(Durable):
    """How an attempt was stopped: why, who asked, which rung of the ladder worked."""

    reason: PartialReason
    method: StopMethod | None = None
    requested_by: str = ""


class PhaseReceipt(Durable):
    """A phase in which the agent was asked: in which attempt, how its session was found, what it did there.

    ``calls`` lists its tool calls, of which policy blocked ``blocked``; ``error`` says why it has no answer.
    """

    phase: AgentPhase
    attempt: int
    session: SessionMode | None = None
    tool_calls: int = 0
    blocked: int = 0
    calls: ArtifactRef | None = None
    transcript: ArtifactRef | None = None
    error: ErrorEnvelope | None = None


class StepReceipt(Durable):
    """The evidence of one attempt. ``previous_sha256`` chains it to the receipt before it.

    Phases that an earlier attempt of the visit finished (the first of them: ``from_attempt``) are shown as they were;
    their tokens and cost are counted there, so that those of all receipts add up to the run's.
    ``outputs_not_kept`` names the step's outputs that are not in the store, each with the reason. ``session`` and
    ``transcript`` are those of the work; ``phases`` has them of every phase.
    """

    schema_version: Literal["1"] = "1"
    step_id: str
    flow_key: str
    run_id: str
    visit: int
    attempt: int
    iteration: int
    from_attempt: int | None = None
    transport: str
    provider: str = ""
    model: str | None = None
    engine: str = ""
    execution_status: Execution
    verification_status: Verification
    started_at: UtcTime
    completed_at: UtcTime
    duration_ms: int
    token_counts: TokenCounts = TokenCounts()
    cost_usd: float | None = None
    tool_calls: ToolCallCounts = ToolCallCounts()
    gates: list[GateReceipt] = []
    claimed: dict[str, str | float | None] = {}
    measured: dict[str, int | str | bool | None] = {}
    routing: RoutingOutcome | None = None
    termination_reason: TerminationReason | None = None
    fallbacks: list[FallbackRecord] = []
    context_cut: list[str] = []
    outputs_not_kept: dict[str, str] = Field(default={}, exclude_if=lambda reasons: not reasons)
    session: SessionMode | None = None
    phases: list[PhaseReceipt] = []
    stop: StopRecord | None = None
    transcript: ArtifactRef | None = None
    envelope: ArtifactRef | None = None
    handoff_partial: ArtifactRef | None = None
    git: GitReceipt | None = None
    previous_sha256: Digest
