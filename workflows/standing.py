"""Where a run stands: what it waits for, what it was asked to do, and whether it is to end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from temporalio import workflow

from schemas.calls import AttemptKey
from schemas.common import Outcome
from schemas.envelopes import ErrorEnvelope
from schemas.flow import StepSpec
from schemas.handoff import PartialReason
from schemas.messages import Abort, Approve, ExtendBudget, Reject, Resume
from schemas.questions import CallRequest, Given, Question
from schemas.run_state import RunState, State, WaitFor, Waiting
from workflows.held import Refused
from workflows.journal import Journal
from workflows.live import Live
from workflows.mailbox import Mailbox
from workflows.messages import Situation, legal_now
from workflows.phases import Phases
from workflows.routing import forward
from workflows.words import because, by, call_reason, ordered_by

Order = Resume | Approve | Reject | ExtendBudget | Given
CANCEL_STOPS = "cancel-stops"
"""The patch with which a run whose workflow is cancelled is stopping from then on, as after an abort."""


class Ended(Exception):
    """Raised to end the run from wherever it is, with its outcome."""

    def __init__(self, outcome: Outcome, summary: str, error: ErrorEnvelope | None = None) -> None:
        super().__init__(summary)
        self.outcome = outcome
        self.summary = summary
        self.error = error


class Standing(ABC):
    """What of a run decides which messages are legal, and whether it goes on. The run itself says what it shows."""

    def __init__(self, state: RunState, mailbox: Mailbox) -> None:
        self.state = state
        self.mailbox = mailbox
        self.journal = Journal(state)
        self.phases = Phases(state, self.journal)
        self.phases.on_cancel = self._cancelled
        self.live = Live(self.phases)
        self.outcome: Outcome | None = None
        self.step: StepSpec | None = None
        self.working: AttemptKey | None = None
        self.was_reset = False
        self._waiting: Waiting | None = None
        self._question: Question | None = None
        self._call: CallRequest | None = None
        self._order: Order | None = None
        self._remark: Callable[[Order], str] = lambda _: ""
        self._abort: Abort | None = None
        self._stop_order: Resume | None = None
        self._stop_holds = False
        self._is_cancelled = False

    @abstractmethod
    def show(self) -> None:
        """Bring what people see up to date."""

    # Where the run stands.

    @property
    def waiting(self) -> Waiting | None:
        """What the run waits for a person for; also what its live session asks while it works."""
        first = self.live.first
        if not self.is_live or first is None:
            return self._waiting
        asked, since = first
        kind: WaitFor = "answer" if asked.question else "approval"
        return Waiting(
            kind=kind,
            step_id=self.step.id if self.step else None,
            reason=asked.question.items[0].question if asked.question else call_reason(asked.call),
            since=since,
            deadline=asked.deadline,
            on_silence="the agent's turn ends, and the run waits on",
            legal=legal_now(replace(self._asking(), state="waiting", waiting_for=kind, live=True)),
        )

    @property
    def run_state(self) -> State:
        """The state that decides which messages are legal."""
        if self.outcome is not None:
            return "done"
        if self._abort is not None or self._is_cancelled:
            return "stopping"
        if self._waiting is not None:
            return "waiting"
        if self.state.interrupt is not None or self._stop_order is not None:
            return "stopping"
        return "waiting" if self.live.first else "running"

    @property
    def is_answered(self) -> bool:
        """Whether what the run waits for is over, by an answer or an interrupt, and it has not gone on yet.

        So it is while a live session is stopped for a resume; not at the end of the run, which takes no order any more.
        """
        if self._waiting is not None:
            return self._order is not None or (self.stop_asked and self._stop_holds)
        return self._stop_holds and self._stop_order is not None and self.step is not None

    @property
    def is_live(self) -> bool:
        """Whether what is waited for is asked by a session that works, and goes on working."""
        return self._waiting is None and self.run_state == "waiting"

    def situation(self) -> Situation:
        """Return what decides whether a message is legal now."""
        resolved, waiting = self.state.resolved, self.waiting
        return replace(
            self._asking(),
            state=self.run_state,
            waiting_for=waiting.kind if waiting else None,
            pause_requested=self.state.pause_reason is not None,
            steps=[step.id for step in resolved.spec.steps] if resolved else [],
            transports=self._switchable(),
            step=self.step.id if self.step else None,
            following=forward(self.step) if self.step else None,
            live=self.is_live,
        )

    def _asking(self) -> Situation:
        """Return what people are asked, as part of a situation."""
        asked = [one for one, _ in self.live.asked] if self.is_live else []
        questions = [one.question for one in asked] if self.is_live else [self._question]
        calls = [one.call for one in asked] if self.is_live else [self._call]
        return Situation(
            state=self.run_state,
            questions=[one for one in questions if one is not None],
            calls=[one for one in calls if one is not None],
        )

    def _switchable(self) -> list[str]:
        """Return the transports that a resume may switch to now."""
        flow = self.state.resolved
        if flow is None:
            return []
        return flow.switch.get(self.step.id, flow.offered) if self.step else flow.offered

    # Ending early.

    def _cancelled(self) -> None:
        """Note that the workflow was cancelled while an activity runs: it is over once that has stopped."""
        if not self._is_cancelled and workflow.patched(CANCEL_STOPS):
            self._is_cancelled = True
            self.show()

    def check_ending(self) -> None:
        """Raise Ended if the run was aborted or its workflow cancelled; ResetNotSupported after a reset."""
        if self.was_reset:
            raise Refused(
                "ResetNotSupported", "a run cannot be reset: its workspace has moved on; use stepwise fork"
            )
        if workflow.cancellation_reason() is not None:
            raise Ended("cancelled", "the workflow was cancelled")
        if self._abort is not None:
            raise Ended("stopped", f"aborted{by(self._abort.by)}{because(self._abort.reason)}")

    @property
    def ending(self) -> bool:
        """Whether check_ending would raise."""
        return self._abort is not None or workflow.cancellation_reason() is not None

    @property
    def stop_asked(self) -> bool:
        """Whether an interrupt waits to take hold."""
        return self.state.interrupt is not None

    @property
    def ending_as(self) -> PartialReason | None:
        """Why the attempt that runs is stopped, if the whole run is ended."""
        if self._abort is not None:
            return "abort"
        return "cancel" if workflow.cancellation_reason() is not None else None

    @property
    def requested_by(self) -> str:
        """Who asked for the stop that is under way, as far as they said."""
        asked = self._abort or self.state.interrupt or self._stop_order
        if isinstance(asked, Resume):
            return ordered_by(asked)
        return asked.by if asked else ""

    @property
    def settled(self) -> bool:
        """Whether every message was judged, delivered and answered."""
        return self.mailbox.empty and self.live.idle and workflow.all_handlers_finished()
