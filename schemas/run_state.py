"""What a run carries over continue-as-new, and what its queries show. Bounded: see the limits below."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from schemas.calls import AcquireOut, AttemptKey, ResolveOut, StepPlace
from schemas.common import ArtifactRef, Budget, ChangeCounts, Durable, Outcome, Phase, Usage, UtcTime
from schemas.events import RunEvent
from schemas.flow import GateParser
from schemas.handoff import Savepoint, SessionRef
from schemas.messages import Interrupt
from schemas.questions import CallDecision, CallRequest, Question
from schemas.receipt import GENESIS
from schemas.routing import RoutingState
from schemas.run import DecisionSummary, FlowInput, StepSummary

MAX_DECISIONS = 50
MAX_CONTEXT = 15
"""Handoffs a prompt can carry: as many as fit into it at their full length."""
MAX_RECEIPTS = 100

WaitFor = Literal["pause", "human", "answer", "approval", "budget", "rate_limit"]
State = Literal["running", "waiting", "stopping", "done"]


class GateSeen(Durable):
    """The newest measurement of one required gate: on which tree, with which result.

    ``step_id`` is ``<flow>:<step>`` for a gate of an earlier flow of the chain.
    """

    step_id: str
    gate: str
    tree: str
    passed: bool


class OwedGate(Durable):
    """A required gate of an earlier flow of the chain: it must hold for the final tree too. ``limit_s``: seconds."""

    flow_key: str
    bundle: ArtifactRef
    step_id: str
    gate: str
    argv: list[str]
    parse: GateParser = "exit_code"
    limit_s: int


class ReceiptPlace(Durable):
    """One receipt of the run's chain."""

    step_id: str
    visit: int
    attempt: int
    sha256: str
    uri: str


class LastRefused(Durable):
    """The newest message that was refused, when, and what would have been legal then."""

    name: str
    reason: str
    legal: list[str] = []
    at: UtcTime | None = None


class Waiting(Durable):
    """What the run waits for, since when, until when, and which messages are legal answers.

    ``can_continue`` says that there is something to go on from as it is. ``about`` is what there is to know of what is
    to be approved, in a few lines; ``look`` are the commands that show it. ``used_up`` are the bounds of a budget.
    """

    kind: WaitFor
    step_id: str | None = None
    reason: str = ""
    since: UtcTime
    deadline: UtcTime | None = None
    on_silence: str = ""
    can_continue: bool = False
    legal: list[str] = []
    about: list[str] = []
    look: list[str] = []
    used_up: list[str] = []


class Asked(Durable):
    """What a live session asks a human: sent by the work activity as the signal ``_asked``."""

    id: str
    key: AttemptKey
    question: Question | None = None
    call: CallRequest | None = None
    deadline: UtcTime | None = None


class Settled(Durable):
    """A live question or call that is over: sent by the work activity as the signal ``_settled``."""

    id: str
    key: AttemptKey


class LegalAnswer(Durable):
    """One message that answers a wait, with the command that sends it."""

    message: str
    help: str = ""
    command: str = ""


class PendingItem(Durable):
    """One thing a human is waited for: what, since when, until when, what silence means, what can be answered.

    ``about`` and ``look`` are those of the wait.
    """

    kind: WaitFor
    id: str | None = None
    step_id: str | None = None
    reason: str = ""
    about: list[str] = []
    look: list[str] = []
    since: UtcTime
    deadline: UtcTime | None = None
    on_silence: str = ""
    live: bool = False
    question: Question | None = None
    call: CallRequest | None = None
    legal: list[LegalAnswer] = []


class PartialView(Durable):
    """Answer of the query ``partial_handoff``: where the newest partial handoff is, and what stands in it."""

    ref: ArtifactRef
    step_id: str
    visit: int
    attempt: int
    ended: str
    reason: str = ""
    stop_method: str | None = None
    requested_by: str = ""
    session: SessionRef | None = None
    savepoint: Savepoint | None = None
    changes: ChangeCounts = ChangeCounts()
    question: Question | None = None
    call: CallRequest | None = None


class RunState(Durable):
    """Everything of a run that outlives one history; mutated in place by the workflow alone."""

    model_config = ConfigDict(extra="ignore", frozen=False)

    run_id: str
    workflow_id: str
    input: FlowInput
    started_at: UtcTime
    flow_key: str = ""
    flow_name: str | None = None
    chain: list[str] = []
    kept_outcome: Outcome | None = None
    kept_summary: str = ""
    resolved: ResolveOut | None = None
    acquired: AcquireOut | None = None
    next_step: str | None = None
    visits: dict[str, int] = {}
    steps: dict[str, StepSummary] = {}
    skipped: list[str] = []
    routing: RoutingState | None = None
    decisions: list[DecisionSummary] = []
    decisions_total: int = 0
    context: list[StepPlace] = []
    receipts: list[ReceiptPlace] = []
    receipts_total: int = 0
    head: str = GENESIS
    gates_seen: list[GateSeen] = []
    owed: list[OwedGate] = []
    final_visits: int = 0
    final_tree: str | None = None
    last_gates: AttemptKey | None = None
    usage: Usage = Usage()
    work_seconds: float = 0
    seq: int = 0
    pending: list[RunEvent] = []
    pause_reason: str | None = None
    interrupt: Interrupt | None = None
    last_refused: LastRefused | None = None
    messages: int = 0
    partial: PartialView | None = None
    steers: list[str] = []
    chosen: dict[str, str] = {}
    allowed: list[CallDecision] = []
    extended: Budget = Budget()
    continued: int = 0


class RunStatus(Durable):
    """Answer of the query ``status``."""

    run_id: str
    flow: str
    state: State
    waiting: Waiting | None = None
    step: str | None = None
    phase: Phase | None = None
    visit: int = 0
    attempt: int = 0
    iteration: int = 0
    needs_human: bool = False
    pause_requested: bool = False
    legal: list[str] = []
    last_refused: LastRefused | None = None
    steps: list[StepSummary] = []
    outcome: Outcome | None = None
    usage: Usage = Usage()
    workspace: str = ""
    host: str = ""
    branch: str = ""
    receipts_head: str = ""
    next_command: str = ""


class RoutingView(Durable):
    """Answer of the query ``routing``: the newest decisions; ``truncated`` when there were more."""

    decisions: list[DecisionSummary]
    total: int
    truncated: bool
    loops: dict[str, int] = {}


class ReceiptsView(Durable):
    """Answer of the query ``receipts``: the newest receipts and the head of the chain."""

    head: str
    receipts: list[ReceiptPlace]
    total: int
    truncated: bool
