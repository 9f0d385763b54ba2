"""Every activity by name, with what it takes and what it returns. Workflows know activities only through this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import Field

from schemas.common import (
    ArtifactRef,
    Budget,
    ChangeCounts,
    Digest,
    Durable,
    Execution,
    FileChanges,
    Help,
    Outcome,
    Phase,
    Publish,
    SessionMode,
    Usage,
    UtcTime,
)
from schemas.envelopes import ErrorEnvelope
from schemas.events import RunEvent
from schemas.facts import GateFact, StepFacts
from schemas.flow import FlowSpec
from schemas.fork import ForkGate, ForkOf
from schemas.handoff import PartialReason, Savepoint, SessionRef, StopMethod
from schemas.questions import CallDecision, CallRequest, Given, Question
from schemas.receipt import FallbackRecord
from schemas.routing import RoutingOutcome, RoutingSignal
from schemas.run import FlowInput, GitResult
from schemas.tools import BlockedCall, shortened

In = TypeVar("In", bound=Durable)
Out = TypeVar("Out", bound=Durable)


@dataclass(frozen=True)
class ActivityRef(Generic[In, Out]):
    """An activity's registered name and the types of its argument and result."""

    name: str
    takes: type[In]
    returns: type[Out]


class Lease(Durable):
    """Who holds a run: compared with ``run.json`` before anything is written."""

    worker_id: str
    epoch: int


class AttemptKey(Durable):
    """Which attempt: keys results, paths and activity ids."""

    run_id: str
    flow_key: str
    step_id: str
    visit: int
    attempt: int

    @property
    def path(self) -> str:
        """The attempt's folder, relative to the store."""
        return f"runs/{self.run_id}/{self.flow_key}/{self.step_id}/{self.visit}/{self.attempt}"

    def activity_id(self, phase: Phase) -> str:
        """Return the activity id ``<step>.<phase>.<visit>.<attempt>``."""
        return f"{self.step_id}.{phase}.{self.visit}.{self.attempt}"


class StepPlace(Durable):
    """Where an envelope is: one attempt of an earlier step, and the digest of the envelope's bytes.

    ``flow_key`` is that of an earlier flow of a chain; empty: the flow that runs. ``run_id`` is that of the run a
    fork goes on from; empty: the run itself.
    """

    run_id: str = ""
    flow_key: str = ""
    step_id: str
    visit: int
    attempt: int
    sha256: Digest


class ResolveIn(Durable):
    """Look up, lint, bundle and pin a flow; ``flow`` overrides the input's own in a chain."""

    run_id: str
    input: FlowInput
    flow: str | None = None


class Pace(Durable):
    """The worker's time-outs that workflow code needs (seconds); pinned when the flow is resolved."""

    heartbeat_s: float = 15
    schedule_to_start_s: float = 30
    recover_old_worker_s: float = 5


class ResolveOut(Durable):
    """The flow as it will run: parameters filled in, pinned by the bundle's digest.

    ``transports`` lists per step what is tried in order; ``switch`` what a resume may switch to in a step, ``offered``
    the same of a worker that does not tell steps apart.
    """

    spec: FlowSpec
    bundle: ArtifactRef
    transports: dict[str, list[str]] = {}
    offered: list[str] = []
    switch: dict[str, list[str]] = {}
    scenario: ArtifactRef | None = None
    deterministic: bool = False
    pace: Pace = Pace()


CANCELLED: Final = "cancelled"
"""How a phase failed that was cancelled before a worker began with it."""


class Recover(Durable):
    """Which phase of which attempt did not come back, and how that showed."""

    key: AttemptKey
    phase: Phase
    failure: str = ""


class AcquireIn(Durable):
    """Take hold of a run: clone (or rebuild) its workspace, restore it, run set-up and the base gates."""

    run_id: str
    workflow_id: str
    execution_run_id: str
    flow_key: str
    bundle: ArtifactRef
    repo: str
    base: str | None = None
    allow_dirty: bool = False
    fork: ForkOf | None = None
    recover: Recover | None = None
    journal: list[RunEvent] = []


Ended = Literal[
    "finished",
    "interrupted",
    "question",
    "approval",
    "budget",
    "rate_limited",
    "agent_failed",
    "timeout",
    "worker_shutdown",
    "crash",
    "activity_paused",
    "activity_reset",
    "server_lost",
]
"""How a work phase can end."""


class RecordOut(Durable):
    """The receipt and the envelope as stored; ``receipt.sha256`` is the new head of the chain."""

    receipt: ArtifactRef
    envelope: ArtifactRef


class WorkOut(Durable):
    """How the work phase ended. ``finished`` alone means the agent ended its turn by itself.

    ``elapsed_ms`` is the agent's own time; ``waited_ms`` that for which it waited for people, in milliseconds.
    ``recorded`` is the record that the call brought along, as it was written; ``had`` are the ids of what people said
    while it worked and its session took. ``spent`` are the signatures of the calls for each of which it used a decision
    that the call brought and that counts once; None where it brought none, or nobody knows.
    """

    ended: Ended
    reason: PartialReason | None = None
    stop_method: StopMethod | None = None
    session: SessionRef | None = None
    session_mode: SessionMode | None = None
    transport: str = ""
    provider: str = ""
    model: str | None = None
    usage: Usage = Usage()
    changes: ChangeCounts = ChangeCounts()
    tree: str | None = None
    commit_before: str | None = None
    commit_after: str | None = None
    tools: list[str] = []
    tool_calls: int = 0
    tools_blocked: int = 0
    blocked_calls: list[BlockedCall] = []
    stop_reason: Annotated[str, shortened(200)] | None = None
    elapsed_ms: int = 0
    waited_ms: int = 0
    question: Question | None = None
    call: CallRequest | None = None
    retry_at: UtcTime | None = None
    partial: ArtifactRef | None = None
    savepoint: Savepoint | None = None
    fallbacks: list[FallbackRecord] = []
    context_cut: list[str] = []
    error: ErrorEnvelope | None = None
    ended_at: UtcTime | None = None
    recorded: RecordOut | None = None
    had: list[str] = []
    spent: list[str] | None = None


class GateRun(Durable):
    """A gate's fact together with how long it ran and where its output is."""

    fact: GateFact
    elapsed_ms: int = 0
    evidence: ArtifactRef | None = None


class MeasureOut(Durable):
    """Gate results and the tree ids before and after them."""

    gates: list[GateRun] = []
    tree_before: str | None = None
    tree_after: str | None = None
    commit: str | None = None
    failure_signature: str | None = None
    elapsed_ms: int = 0
    stopped: PartialReason | None = None
    left_behind: list[str] = []
    ended_at: UtcTime | None = None


AnswerEnded = Literal["finished", "rate_limited", "agent_failed"]
"""How a phase of answers can end: ``finished`` also without a valid answer, the others where none could be given."""


class AnswerOut(Durable):
    """How a phase ended in which the agent was asked for an answer, and the tree id as it ended.

    ``error`` says why there is no answer. ``transcript`` and ``calls`` are in the stored result alone: history does
    not carry them.
    """

    ended: AnswerEnded = "finished"
    tree: str | None = None
    session_mode: SessionMode | None = None
    usage: Usage = Usage()
    tool_calls: int = 0
    tools_blocked: int = 0
    blocked_calls: list[BlockedCall] = []
    elapsed_ms: int = 0
    retry_at: UtcTime | None = None
    transcript: ArtifactRef | None = None
    calls: ArtifactRef | None = None
    error: ErrorEnvelope | None = None
    ended_at: UtcTime | None = None


class FinalizeOut(AnswerOut):
    """The draft the agent wrote, or why there is none."""

    draft: ArtifactRef | None = None
    claimed_status: str | None = None
    can_further_iteration_help: Help = "unsure"
    headline: str = Field(default="", max_length=300)
    reprompts: int = 0


class ProposeOut(AnswerOut):
    """The agent's advice where to go, or why there is none."""

    signal: RoutingSignal | None = None


class ForkState(Durable):
    """What a fork has from its parent: the tree it begins with, what earlier steps said, the gates that must hold."""

    tree: str
    context: list[StepPlace] = []
    last_gates: AttemptKey | None = None
    gates: list[ForkGate] = []


class AcquireOut(Durable):
    """What the run now stands on. ``finished`` carries the result of the phase that was thought lost.

    ``takes_records``: its worker writes a record that comes with work (one of before does not know that).
    """

    lease: Lease
    queue: str
    control_queue: str
    host: str = ""
    workspace: str = ""
    branch: str
    base_commit: str
    base_tree: str
    base_gates: dict[str, list[GateRun]] = {}
    search_attributes: bool = False
    forked: ForkState | None = None
    rebuilt: bool = False
    takes_records: bool = False
    finished_work: WorkOut | None = None
    finished_measure: MeasureOut | None = None
    finished_finalize: FinalizeOut | None = None
    finished_route: ProposeOut | None = None
    partial: ArtifactRef | None = None
    partial_work: WorkOut | None = None


class RecordIn(Durable):
    """Write receipt, envelope and journal of one attempt.

    What its phases returned is read from their stored results, of the attempts that finished them, or that asked the
    agent last; ``work``, ``measure``, ``finalize`` and ``route`` are given only where there is no such result. ``stop``
    is why an attempt was stopped whose work does not say so.
    """

    key: AttemptKey
    iteration: int
    lease: Lease
    bundle: ArtifactRef
    branch: str = ""
    execution_status: Execution
    facts: StepFacts
    work: WorkOut | None = None
    work_attempt: int | None = None
    measure: MeasureOut | None = None
    measure_attempt: int | None = None
    finalize: FinalizeOut | None = None
    finalize_attempt: int | None = None
    route: ProposeOut | None = None
    route_attempt: int | None = None
    base_gates: list[GateRun] = []
    routing: RoutingOutcome | None = None
    stop: PartialReason | None = None
    requested_by: str = ""
    started_at: UtcTime
    completed_at: UtcTime
    previous_sha256: Digest
    journal: list[RunEvent] = []


class PhaseIn(Durable):
    """What every phase on the pinned queue is given."""

    key: AttemptKey
    iteration: int
    lease: Lease
    bundle: ArtifactRef
    workflow_id: str
    journal: list[RunEvent] = []


class WorkIn(PhaseIn):
    """Let the agent work: the earlier envelopes it sees, a human's note, the partial it goes on from.

    ``fresh`` starts from the last commit whatever is in the tree; ``given`` answers the question the attempt before
    ended with, ``given_before`` are answers to others that came too late for it; ``decisions`` are what humans said of
    calls that policy asks about. ``record`` is the record of the attempt before, which is written first: the agent
    sees its envelope. ``model`` says what was named, whoever it was named for: which transport is asked for which model
    is settled where it is opened (``activities/models.py``).
    """

    transports: list[str]
    model: str | None = None
    context: list[StepPlace] = []
    note: str | None = None
    partial: ArtifactRef | None = None
    last_gates: AttemptKey | None = None
    session: SessionRef | None = None
    budget: Budget | None = None
    fresh: bool = False
    given: Given | None = None
    decisions: list[CallDecision] = []
    record: RecordIn | None = None
    given_before: list[Given] = []


class ConsultIn(WorkIn):
    """Let the developer model decide at an approval gate, before a step's work or after it."""

    gate: Literal["before", "after"]


class ConsultOut(Durable):
    """What the developer model decided; ``approve`` is None where it could not be asked, and ``reason`` says why."""

    approve: bool | None = None
    reason: Annotated[str, shortened(1_000)] = ""
    model: str | None = None
    usage: Usage = Usage()


class MeasureIn(PhaseIn):
    """Run gates: the step's own, or (``gates``) those named ``<step>/<gate>`` for the last measurement."""

    gates: list[str] | None = None


class SessionPhaseIn(PhaseIn):
    """Finalize or propose a route in the attempt's session; ``measured`` is the tree the gates saw."""

    work_attempt: int
    session: SessionRef | None = None
    measured: str | None = None
    candidates: list[str] = []


class FlushIn(Durable):
    """Write journal events now (before a wait)."""

    run_id: str
    journal: list[RunEvent]


class FlushOut(Durable):
    """The last sequence number that is stored."""

    last_seq: int


class DeliverIn(Durable):
    """Hand a human's word to the live session of an attempt: text, an answer, or the decision about a call.

    ``id`` is the word's own, by which the result of the work says that its session had it.
    """

    id: str = ""
    key: AttemptKey
    lease: Lease
    steer: str | None = None
    given: Given | None = None
    call_id: str | None = None
    decision: CallDecision | None = None


class DeliverOut(Durable):
    """Whether a live session took it; ``detail`` says why not, ``unsure`` that it may have, or yet will."""

    live: bool
    unsure: bool = False
    detail: str = ""


class ReleaseIn(Durable):
    """Give the run back: publish as asked, record the outcome, end its lease.

    ``lease`` has epoch 0 where the run ends before its first acquisition came back. ``messages`` counts what people
    sent; who sent it is read off the history only where there is something.
    """

    run_id: str
    workflow_id: str
    lease: Lease
    outcome: Outcome
    publish: Publish = "none"
    receipts_head: str | None = None
    messages: int = 0
    journal: list[RunEvent] = []


class ReleaseOut(Durable):
    """Where the result is; no ``git`` where the run never had a workspace."""

    git: GitResult | None = None
    pull_request: str | None = None


RESOLVE_FLOW = ActivityRef("resolve_flow", ResolveIn, ResolveOut)
ACQUIRE = ActivityRef("acquire_workspace", AcquireIn, AcquireOut)
WORK = ActivityRef("work", WorkIn, WorkOut)
MEASURE = ActivityRef("measure", MeasureIn, MeasureOut)
FINALIZE = ActivityRef("finalize", SessionPhaseIn, FinalizeOut)
PROPOSE_ROUTE = ActivityRef("propose_route", SessionPhaseIn, ProposeOut)
CONSULT = ActivityRef("consult", ConsultIn, ConsultOut)
RECORD = ActivityRef("record", RecordIn, RecordOut)
FLUSH = ActivityRef("flush_journal", FlushIn, FlushOut)
DELIVER = ActivityRef("deliver", DeliverIn, DeliverOut)
RELEASE = ActivityRef("release_workspace", ReleaseIn, ReleaseOut)

ASKED = "_asked"
"""Signal of the work phase: a live session asks (``schemas.run_state.Asked``)."""
SETTLED = "_settled"
"""Signal of the work phase: what was asked is over (``schemas.run_state.Settled``)."""
RECORDED = "_recorded"
"""Signal of a work phase that takes its time: the record that it brought is written (``Recorded``)."""


class Recorded(Durable):
    """A record that was written: of which attempt, and where."""

    key: AttemptKey
    out: RecordOut


class WorkResult(Durable):
    """``work.json``: the work phase's result with the lists that history does not carry."""

    out: WorkOut
    changes: FileChanges = FileChanges()
    outputs: dict[str, ArtifactRef] = {}
    outputs_not_kept: dict[str, str] = {}
    transcript: ArtifactRef | None = None
    tool_calls: ArtifactRef | None = None
