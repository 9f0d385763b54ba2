"""What goes into and comes out of the routing driver."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from schemas.common import Closed, Durable, Help, UtcTime
from schemas.facts import GateFact
from schemas.tools import shortened

Decision = Literal["advance", "loop", "terminate", "branch", "escalate", "skip", "pause"]
DecisionSource = Literal["fast_path", "deterministic", "agent", "human", "fallback"]
TerminationReason = Literal[
    "threshold_met",
    "single_iteration",
    "max_iterations",
    "stagnation",
    "oscillation",
    "timeout",
    "scorer_error",
    "execution_error",
    "fallback",
    "sdk_unavailable",
    "status_verified",
    "no_further_help",
    "stalled",
    "improver_error",
    "human",
]
IterationTermination = TerminationReason


_FEW = AfterValidator(lambda items: items[:20])


class RoutingSignal(Closed):
    """An agent's advice where to go. Advice only: the driver decides."""

    decision: Literal["advance", "loop", "terminate", "branch"]
    next_step_id: str | None = None
    route: str | None = None
    reason: Annotated[str, Field(max_length=300), shortened(300)]
    confidence: float = Field(ge=0, le=1)
    needs_human: bool = False
    factors_considered: Annotated[list[Annotated[str, shortened(300)]], _FEW] = []
    risks_identified: Annotated[list[Annotated[str, shortened(300)]], _FEW] = []


class Directive(Durable):
    """What a human ordered; it comes before every rule."""

    action: Literal["retry", "skip", "goto", "abort", "approve", "reject"]
    step: str | None = None
    reason: str = ""
    by: str = ""


class IterationFacts(Durable):
    """What one iteration of a loop left for the exit rules."""

    gates: list[GateFact] = []
    claimed_status: str | None = None
    can_further_iteration_help: Help = "unsure"
    score: float | None = None
    score_error: Literal["none", "scorer", "improver"] = "none"
    failure_signature: str | None = None
    files_changed: int = 0
    tools: list[str] = []
    changed_after_measure: bool = False


class LoopState(Durable):
    """One loop since it was entered: when, and what each iteration left (at most 20)."""

    entered_at: UtcTime
    iterations: list[IterationFacts] = []


class RoutingState(Durable):
    """All loops that are open, by the id of the step that owns the loop; ``now`` is the workflow's time."""

    now: UtcTime
    loops: dict[str, LoopState] = {}


class MicroloopExit(Durable):
    """Why a loop ends. ``exhausted`` exits follow ``on_exhausted``; the others go to ``next``."""

    reason: TerminationReason
    exhausted: bool
    claimed: bool = False
    explanation: str = ""


class Candidate(Durable):
    """One way on, with its deterministic id (``advance:<step>``, ``loop:<target>:iter_<n>``, …)."""

    id: str
    decision: Decision
    next_step_id: str | None = None


class RoutingOutcome(Durable):
    """The driver's word: what happens next and why."""

    decision: Decision
    next_step_id: str | None = None
    reason: str = ""
    needs_human: bool = False
    chosen_candidate_id: str = ""
    candidates: list[Candidate] = []
    source: DecisionSource = "deterministic"
    exit: TerminationReason | None = None
    explanation: str = ""
    iteration: int = 1
    terminal_outcome: Literal["blocked", "stopped", "exhausted"] | None = None
