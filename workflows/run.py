"""One run: its state, the messages people send it, its waits, and what it shows."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from schemas.common import Closed, Outcome, UtcTime
from schemas.errors import ErrorEnvelope
from schemas.facts import StepFacts
from schemas.flow import FlowSpec, Human, StepSpec
from schemas.messages import Abort, Approve, Pause, Reject, Resume, Verdict
from schemas.routing import RoutingOutcome, RoutingState
from schemas.run import DecisionSummary, FlowInput, StepSummary
from schemas.run_state import (
    MAX_DECISIONS,
    LastRefused,
    ReceiptsView,
    RoutingView,
    RunState,
    RunStatus,
    State,
    WaitFor,
    Waiting,
)
from workflows.journal import Journal
from workflows.log import log_decision
from workflows.mailbox import Mailbox
from workflows.messages import MESSAGES, Situation, legal_now, refusal
from workflows.phases import Phases, Refused
from workflows.view import WAITS, SearchAttributes, details, next_command

Order = Resume | Approve | Reject


class Ended(Exception):
    """Raised to end the run from wherever it is, with its outcome."""

    def __init__(self, outcome: Outcome, summary: str, error: ErrorEnvelope | None = None) -> None:
        super().__init__(summary)
        self.outcome = outcome
        self.summary = summary
        self.error = error


def fresh_state(run_id: str, flow_input: FlowInput, now: UtcTime) -> RunState:
    """Return the state a run begins with (every collection set, since only set fields are carried over)."""
    return RunState(
        run_id=run_id,
        workflow_id=workflow.info().workflow_id,
        input=flow_input,
        started_at=now,
        chain=[],
        visits={},
        steps={},
        skipped=[],
        routing=RoutingState(now=now, loops={}),
        decisions=[],
        context=[],
        receipts=[],
        gates_seen=[],
        pending=[],
    )


class Run:
    """What everything of one run shares. Steps and the end are driven from outside; nothing here starts them."""

    def __init__(self, state: RunState, mailbox: Mailbox) -> None:
        self.state = state
        self.mailbox = mailbox
        self.journal = Journal(state)
        self.phases = Phases(state, self.journal)
        self.waiting: Waiting | None = None
        self.outcome: Outcome | None = None
        self.step: StepSpec | None = None
        self.visit = 0
        self.attempt = 0
        self.iteration = 0
        self._order: Order | None = None
        self._abort: Abort | None = None
        self._attributes = SearchAttributes()
        self.was_reset = False

    # What the run stands on.

    @property
    def spec(self) -> FlowSpec:
        """The resolved flow. Raises Refused before there is one."""
        if self.state.resolved is None:
            raise Refused("InternalError", "no flow was resolved")
        return self.state.resolved.spec

    @property
    def routing(self) -> RoutingState:
        """The open loops, with the workflow's time."""
        loops = self.state.routing.loops if self.state.routing else {}
        return RoutingState(now=workflow.now(), loops=loops)

    @property
    def run_state(self) -> State:
        """The state that decides which messages are legal."""
        if self.outcome is not None:
            return "done"
        if self._abort is not None:
            return "stopping"
        return "waiting" if self.waiting else "running"

    # Ending early.

    def check_ending(self) -> None:
        """Raise Ended if the run was aborted or its workflow cancelled; ResetNotSupported after a reset."""
        if self.was_reset:
            raise Refused(
                "ResetNotSupported", "a run cannot be reset: its workspace has moved on; use stepwise fork"
            )
        if workflow.cancellation_reason() is not None:
            raise Ended("cancelled", "the workflow was cancelled")
        if self._abort is not None:
            by = f" by {self._abort.by}" if self._abort.by else ""
            reason = f": {self._abort.reason}" if self._abort.reason else ""
            raise Ended("stopped", f"aborted{by}{reason}")

    @property
    def ending(self) -> bool:
        """Whether check_ending would raise."""
        return self._abort is not None or workflow.cancellation_reason() is not None

    @property
    def requested_by(self) -> str:
        """Who asked for the stop that is under way, as far as they said."""
        return self._abort.by if self._abort else ""

    # Messages.

    def situation(self) -> Situation:
        """Return what decides whether a message is legal now."""
        resolved = self.state.resolved
        return Situation(
            state=self.run_state,
            waiting_for=self.waiting.kind if self.waiting else None,
            pause_requested=self.state.pause_reason is not None,
            steps=[step.id for step in resolved.spec.steps] if resolved else [],
            transports=resolved.offered if resolved else [],
        )

    def apply(self, name: str, payload: Closed) -> Verdict:
        """Judge a message and, where it is legal, let it take effect."""
        why_not = refusal(name, payload, self.situation())
        if why_not is not None:
            return self.refuse(name, why_not)
        verdict = self._take(name, payload)
        self.journal.add("human_message", name=name, verdict=verdict.verdict, **_said(payload))
        self.show()
        return verdict

    def refuse(self, name: str, reason: str) -> Verdict:
        """Refuse a message: said in the journal, the status and the UI."""
        legal = legal_now(self.situation())
        self.state.last_refused = LastRefused(name=name, reason=reason, legal=legal)
        self.journal.add("message_refused", name=name, reason=reason[:500])
        self.show()
        return Verdict(verdict="refused", name=name, message=reason, legal=legal)

    def _take(self, name: str, payload: Closed) -> Verdict:
        state = self.state
        already = Verdict(verdict="already", name=name, message="already so")
        match payload:
            case Pause():
                if state.pause_reason is not None or self.waiting:
                    return already
                state.pause_reason = payload.reason
                return Verdict(verdict="accepted", name=name, message="takes hold at the next phase boundary")
            case Abort():
                if self._abort is not None:
                    return already
                self._abort = payload
                self.phases.cut()
            case Resume(action="abort"):
                self._abort = Abort(by=payload.by, reason=payload.note[:2_000])
                self.phases.cut()
            case Resume() if self.waiting is None:
                state.pause_reason = None
                return Verdict(verdict="accepted", name=name, message="the pause is withdrawn")
            case Resume() | Approve() | Reject():
                if self._order is not None:
                    return already
                self._order = payload
            case _:
                return self.refuse(name, f"no message {name!r}; known: {', '.join(MESSAGES)}")
        return Verdict(verdict="accepted", name=name, message="")

    # Waits.

    async def boundary(self) -> Resume | None:
        """Between two phases: end if asked to, wait if paused. Returns what ended the wait, if there was one."""
        self.check_ending()
        if self.state.pause_reason is None:
            return None
        reason = self.state.pause_reason
        order = await self.wait("pause", reason, self.step.human if self.step else Human())
        return order if isinstance(order, Resume) else None

    async def wait(
        self, kind: WaitFor, reason: str, human: Human, until: UtcTime | None = None
    ) -> Order | None:
        """Wait for a person (or, with ``until``, at most until then: None). Raises Ended on abort and silence."""
        now = workflow.now()
        bounded = until or (
            now + timedelta(seconds=human.deadline) if human.on_silence != "keep_waiting" else None
        )
        self._order = None
        self.waiting = Waiting(
            kind=kind,
            step_id=self.step.id if self.step else None,
            reason=reason,
            since=now,
            deadline=bounded,
            legal=[],
        )
        self.waiting = self.waiting.model_copy(update={"legal": legal_now(self.situation())})
        if kind == "pause":
            self.state.pause_reason = None
        self.journal.add("waiting", waiting_for=kind, reason=reason[:500], step=self.waiting.step_id)
        self.show()
        await self.phases.flush()
        try:
            await workflow.wait_condition(
                lambda: self._order is not None or self.ending or self.was_reset,
                timeout=max(bounded - workflow.now(), timedelta()) if bounded else None,
                timeout_summary=WAITS[kind],
            )
        except TimeoutError:
            if until is None:
                why = f": {reason}" if reason else ""
                raise Ended("needs_human", f"nobody answered the wait for {kind} in time{why}") from None
        finally:
            self.waiting = None
        self.check_ending()
        self.journal.add("resumed", waited_for=kind, action=_action(self._order))
        self.show()
        return self._order

    # What the run knows of its steps.

    def decided(self, step_id: str, facts: StepFacts, outcome: RoutingOutcome) -> None:
        """Keep a routing decision for the journal, the queries, the result and the log."""
        state = self.state
        log_decision(step_id, self.visit, state.routing, facts, outcome)
        decision = DecisionSummary(
            step_id=step_id,
            visit=self.visit,
            iteration=outcome.iteration,
            decision=outcome.decision,
            next_step_id=outcome.next_step_id,
            exit=outcome.exit,
            source=outcome.source,
            explanation=(outcome.explanation or outcome.reason)[:300],
        )
        state.decisions = [*state.decisions, decision][-MAX_DECISIONS:]
        state.decisions_total += 1
        self.journal.add(
            "routed",
            step=step_id,
            visit=self.visit,
            decision=outcome.decision,
            next=outcome.next_step_id,
            candidate=outcome.chosen_candidate_id,
            exit=outcome.exit,
            source=outcome.source,
            reason=decision.explanation,
        )

    def summarise(self, step_id: str, **changes: object) -> None:
        """Update the summary of a step."""
        summary = self.state.steps.get(step_id, StepSummary(step_id=step_id))
        self.state.steps[step_id] = summary.model_copy(update=changes)

    # What people see.

    def show(self) -> None:
        """Bring details table and search attributes up to date."""
        step_id = self.step.id if self.step else None
        resolved = self.state.resolved
        workflow.set_current_details(
            details(
                self.state,
                resolved.spec if resolved else None,
                step_id=step_id,
                phase=self.phases.phase,
                iteration=self.iteration,
                run=self.run_state,
                waiting=self.waiting,
                outcome=self.outcome,
            )
        )
        self._attributes.update(
            self.state, step_id=step_id, run=self.run_state, waiting=self.waiting, outcome=self.outcome
        )

    def status(self) -> RunStatus:
        """Answer the query ``status``."""
        state, acquired = self.state, self.state.acquired
        return RunStatus(
            run_id=state.run_id,
            flow=state.flow_key,
            state=self.run_state,
            waiting=self.waiting,
            step=self.step.id if self.step else None,
            phase=self.phases.phase,
            visit=self.visit,
            attempt=self.attempt,
            iteration=self.iteration,
            needs_human=self.waiting is not None and self.waiting.kind != "rate_limit",
            pause_requested=state.pause_reason is not None,
            legal=legal_now(self.situation()),
            last_refused=state.last_refused,
            steps=list(state.steps.values()),
            outcome=self.outcome,
            usage=state.usage,
            workspace=acquired.workspace if acquired else "",
            host=acquired.host if acquired else "",
            branch=acquired.branch if acquired else "",
            receipts_head=state.head,
            next_command=next_command(state, self.waiting, done=self.outcome is not None),
        )

    def routing_view(self) -> RoutingView:
        """Answer the query ``routing``."""
        state = self.state
        loops = state.routing.loops if state.routing else {}
        return RoutingView(
            decisions=state.decisions,
            total=state.decisions_total,
            truncated=state.decisions_total > len(state.decisions),
            loops={step: len(loop.iterations) for step, loop in loops.items()},
        )

    def receipts_view(self) -> ReceiptsView:
        """Answer the query ``receipts``."""
        state = self.state
        return ReceiptsView(
            head=state.head,
            receipts=state.receipts,
            total=state.receipts_total,
            truncated=state.receipts_total > len(state.receipts),
        )


def _said(payload: Closed) -> dict[str, str]:
    return {key: str(value)[:500] for key, value in payload.model_dump(exclude_defaults=True).items()}


def _action(order: Order | None) -> str:
    match order:
        case Resume():
            return order.action
        case Approve():
            return "approve"
        case Reject():
            return "reject"
        case _:
            return "timer"
