"""What the engine measured of a step: the only thing routing reads of it (at most 2 KB on the wire)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.common import ChangeCounts, Durable, Help, Usage, Verification
from schemas.tools import shortened

MAX_TOOL_NAMES = 20


class GateCounts(Durable):
    """Test counts of a gate whose report was read."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class GateFact(Durable):
    """One gate's measurement. ``passed`` is meaningful only where ``measured`` is true."""

    name: str
    required: bool = True
    measured: bool = True
    passed: bool = False
    exit_code: int | None = None
    counts: GateCounts | None = None
    percent: float | None = None
    reason: Annotated[str, shortened(1_000)] | None = None


class StepFacts(Durable):
    """The facts of one attempt, composed by the workflow from what its phases returned."""

    status: Verification
    claimed_status: str | None = None
    can_further_iteration_help: Help = "unsure"
    gates: list[GateFact] = []
    score: float | None = None
    score_error: Literal["none", "scorer", "improver"] = "none"
    failure_signature: str | None = None
    file_changes: ChangeCounts = ChangeCounts()
    tree: str | None = None
    changed_after_measure: bool = False
    tools: list[str] = Field(default=[], max_length=MAX_TOOL_NAMES)
    elapsed_ms: int = 0
    usage: Usage = Usage()
    stop_reason: Annotated[str, shortened(200)] | None = None
    route_signal: str | None = None
