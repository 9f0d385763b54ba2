"""One run: its state, the messages people send it, its waits, and what it shows."""

from __future__ import annotations

from temporalio import workflow

from schemas.common import UtcTime
from schemas.facts import StepFacts
from schemas.flow import FlowSpec
from schemas.routing import RoutingOutcome, RoutingState
from schemas.run import DecisionSummary, FlowInput, StepSummary
from schemas.run_state import (
    MAX_DECISIONS,
    PendingItem,
    ReceiptsView,
    RoutingView,
    RunState,
    RunStatus,
)
from workflows.held import resolved
from workflows.log import log_decision
from workflows.mailbox import Mailbox
from workflows.messages import legal_now
from workflows.pending import next_command, pending_items
from workflows.standing import Ended
from workflows.view import NEEDS_HUMAN, SearchAttributes, details
from workflows.waits import Waits

__all__ = ["Ended", "Run", "fresh_state"]


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
        steers=[],
        allowed=[],
    )


class Run(Waits):
    """What everything of one run shares. Steps and the end are driven from outside; nothing here starts them."""

    def __init__(self, state: RunState, mailbox: Mailbox) -> None:
        super().__init__(state, mailbox)
        self.visit = 0
        self.attempt = 0
        self.iteration = 0
        self.is_long = False
        self._attributes = SearchAttributes()

    # What the run stands on.

    @property
    def spec(self) -> FlowSpec:
        """The resolved flow. Raises Refused before there is one."""
        return resolved(self.state).spec

    @property
    def routing(self) -> RoutingState:
        """The open loops, with the workflow's time."""
        loops = self.state.routing.loops if self.state.routing else {}
        return RoutingState(now=workflow.now(), loops=loops)

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
        flow = self.state.resolved
        workflow.set_current_details(
            details(
                self.state,
                flow.spec if flow else None,
                step_id=step_id,
                phase=self.phases.phase,
                iteration=self.iteration,
                situation=self.situation(),
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
            needs_human=self.waiting is not None and self.waiting.kind in NEEDS_HUMAN,
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
            next_command=next_command(state, self.waiting, self.situation(), done=self.outcome is not None),
        )

    def pending_view(self) -> list[PendingItem]:
        """Answer the query ``pending``: what is waited for, and which messages answer it."""
        return pending_items(self.state, self.waiting, self.live.asked, self.situation())

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
