"""What people say to a run, and what it waits for them to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow

from schemas.answers import checked
from schemas.calls import AttemptKey, DeliverIn, DeliverOut, Recorded
from schemas.common import Closed, Durable, Outcome, UtcTime
from schemas.errors import ErrorEnvelope
from schemas.flow import Human, StepSpec
from schemas.handoff import PartialReason
from schemas.messages import (
    Abort,
    AnswerQuestion,
    Approve,
    ExtendBudget,
    Interrupt,
    Pause,
    Reject,
    Resume,
    Steer,
    Verdict,
)
from schemas.questions import CallDecision, CallRequest, Given, Question
from schemas.run_state import Asked, LastRefused, RunState, State, WaitFor, Waiting
from workflows.held import Refused
from workflows.journal import Journal
from workflows.live import Live, Told, same_attempt
from workflows.mailbox import Mailbox, Settle
from workflows.messages import Situation, legal_now, refusal
from workflows.phases import Phases
from workflows.routing import forward
from workflows.view import WAITS
from workflows.words import action, because, by, call_reason, said, silence

Order = Resume | Approve | Reject | ExtendBudget | Given
INTERRUPT_FIRST = "interrupt-first"
"""The patch with which an interrupt holds before a wait for words, too."""
SKIP_NEEDS_NEXT = "skip-needs-next"
"""The patch with which a skip is refused where no single step follows, not accepted and asked again."""
CANCEL_STOPS = "cancel-stops"
"""The patch with which a run whose workflow is cancelled is stopping from then on, as after an abort."""
MAX_STEERS = 20
"""Texts that may be queued for an agent's next turn."""


class Ended(Exception):
    """Raised to end the run from wherever it is, with its outcome."""

    def __init__(self, outcome: Outcome, summary: str, error: ErrorEnvelope | None = None) -> None:
        super().__init__(summary)
        self.outcome = outcome
        self.summary = summary
        self.error = error


class Conversation(ABC):
    """The messages of a run and its waits. The run itself says what it shows."""

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
        self._abort: Abort | None = None
        self._stop_order: Resume | None = None
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
            legal=legal_now(Situation(state="waiting", waiting_for=kind, live=True)),
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
    def pending(self) -> tuple[Question | None, CallRequest | None]:
        """The question and the call that are waited for."""
        first = self.live.first
        if not self.is_live or first is None:
            return self._question, self._call
        return first[0].question, first[0].call

    @property
    def is_live(self) -> bool:
        """Whether what is waited for is asked by a session that works, and goes on working."""
        return self._waiting is None and self.run_state == "waiting"

    def situation(self) -> Situation:
        """Return what decides whether a message is legal now."""
        resolved, waiting = self.state.resolved, self.waiting
        question, call = self.pending
        return Situation(
            state=self.run_state,
            waiting_for=waiting.kind if waiting else None,
            pause_requested=self.state.pause_reason is not None,
            steps=[step.id for step in resolved.spec.steps] if resolved else [],
            transports=self._switchable(),
            step=self.step.id if self.step else None,
            following=forward(self.step) if self.step else None,
            live=self.is_live,
            question=question,
            call=call,
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
        return asked.by if asked else ""

    @property
    def settled(self) -> bool:
        """Whether every message was judged, delivered and answered."""
        return self.mailbox.empty and self.live.idle and workflow.all_handlers_finished()

    # Messages.

    def apply(self, name: str, payload: Closed, settle: Settle) -> None:
        """Judge a message and, where it is legal, let it take effect."""
        now = self.situation()
        if isinstance(payload, Resume) and now.following is None and not workflow.patched(SKIP_NEEDS_NEXT):
            now = replace(now, following=now.step)
        why_not = refusal(name, payload, now)
        if why_not is not None:
            settle(self.refuse(name, why_not))
            return
        verdict = self._take(name, payload, settle)
        if verdict is not None:
            self._heard(name, payload, verdict, settle)

    def refuse(self, name: str, reason: str) -> Verdict:
        """Refuse a message: said in the journal, the status and the UI."""
        legal = legal_now(self.situation())
        name, reason = name[:100], reason[:2_000]
        self.state.last_refused = LastRefused(name=name, reason=reason, legal=legal)
        self.state.messages += 1
        self.journal.add("message_refused", name=name, reason=reason[:500])
        self.show()
        return Verdict(verdict="refused", name=name, message=reason, legal=legal)

    def heard(self, payload: Durable) -> None:
        """Take a word of the work activity: its session asks something, or a record is written.

        That a session waits for it no more is no news: either it was answered from here, or the work is about to end with
        it, and it can be answered all the same.
        """
        if isinstance(payload, Recorded):
            self.phases.written(payload.key, payload.out)
        if not isinstance(payload, Asked) or not same_attempt(payload.key, self.working):
            return
        if self.live.add(payload):
            text = payload.question.items[0].question if payload.question else call_reason(payload.call)
            self.journal.add("question_asked", id=payload.id, text=text[:500], live=True)
            self.show()

    def _heard(self, name: str, payload: Closed, verdict: Verdict, settle: Settle) -> None:
        self.state.messages += 1
        self.journal.add("human_message", name=name, verdict=verdict.verdict, **said(payload))
        self.show()
        settle(verdict)

    def _take(self, name: str, payload: Closed, settle: Settle) -> Verdict | None:
        """Let a legal message take effect; None where a session must have it first."""
        already = Verdict(verdict="already", name=name, message="already so")
        accepted = Verdict(verdict="accepted", name=name)
        match payload:
            case Pause():
                if self.state.pause_reason is not None or self._waiting is not None:
                    return already
                self.state.pause_reason = payload.reason
                return accepted.model_copy(update={"message": "takes hold at the next phase boundary"})
            case Interrupt():
                return self._take_interrupt(payload)
            case Abort() | Resume(action="abort"):
                if self._abort is not None or self._is_cancelled:
                    return already
                reason = payload.reason if isinstance(payload, Abort) else payload.note[:2_000]
                self._abort = Abort(by=payload.by, reason=reason)
                self.phases.cut()
                return accepted
            case Resume() if self.run_state == "running":
                self.state.pause_reason = None
                self.say_later(payload.note)
                return accepted.model_copy(update={"message": "the pause is withdrawn"})
            case Steer():
                return self._take_steer(payload, settle)
            case _ if self.is_live:
                return self._take_live(name, payload, settle)
            case _ if self._order is not None:
                return already.model_copy(update={"message": "this wait has its answer already"})
            case _:
                return self._take_order(name, payload)

    def _take_interrupt(self, payload: Interrupt) -> Verdict:
        waits = self._waiting is not None and self._waiting.kind != "rate_limit"
        if self.run_state == "stopping" or self.stop_asked or waits:
            return Verdict(verdict="already", name="interrupt", message="already so")
        self.state.interrupt = payload
        if self._waiting is not None:
            message = "the run waits for a resume"
        elif self.phases.cut(only=("work", "measure")):
            message = f"{self.phases.phase} is asked to stop; then the run waits for a resume"
        else:
            message = f"the run waits for a resume when {self.phases.phase or 'its preparation'} has ended"
        return Verdict(verdict="accepted", name="interrupt", message=message)

    def _take_order(self, name: str, payload: Closed) -> Verdict:
        """Let a message end the wait that is under way."""
        match payload:
            case AnswerQuestion() if self._question is not None:
                answers = checked(self._question, payload.answers)
                self._order = Given(question=self._question, answers=answers, by=payload.by)
            case Resume() | Approve() | Reject() | ExtendBudget():
                self._order = payload
            case _:
                return self.refuse(name, f"{name} answers nothing that is waited for")
        return Verdict(verdict="accepted", name=name)

    # The session that works now.

    def _take_steer(self, payload: Steer, settle: Settle) -> Verdict | None:
        word_id = self.live.word_id()

        def told(out: DeliverOut) -> None:
            verdict = Verdict(verdict="accepted", name="steer", message="the agent has it")
            took = self.live.took(word_id, payload.text, out)
            if took is None:
                verdict = _unsure("steer", out)
            elif not took:
                verdict = self._queue_steer(payload, out.detail)
            self._heard("steer", payload, verdict, settle)

        if self.phases.phase == "work" and self.working is not None:
            self._deliver({"id": word_id, "steer": payload.text}, told)
            return None
        return self._queue_steer(payload, "no agent works now")

    def take_note(self, order: Resume) -> None:
        """Keep what a person said for the agent that works next, and the transport they chose for this step's next work.

        Where the work of the visit is done already, that is in another visit.
        """
        self.say_later(order.note)
        if order.transport is not None and self.step is not None:
            self.state.chosen = {**self.state.chosen, self.step.id: order.transport}

    def say_later(self, text: str) -> None:
        """Keep words for the next turn of an agent."""
        if text:
            self.state.steers = [*self.state.steers, text][-MAX_STEERS:]

    def _queue_steer(self, payload: Steer, why: str) -> Verdict:
        self.say_later(payload.text)
        return Verdict(
            verdict="queued", name="steer", message=f"given to the agent with its next turn ({why})"[:500]
        )

    def _take_live(self, name: str, payload: Closed, settle: Settle) -> Verdict | None:
        """Hand an answer or a decision to the live session; a resume ends its work first."""
        if isinstance(payload, Resume):
            self._stop_order = payload
            self.phases.cut(only=("work",))
            return Verdict(verdict="accepted", name=name, message="the agent is stopped first")
        question, call = self.pending
        word: Given | CallDecision
        delivery: dict[str, object]
        if isinstance(payload, AnswerQuestion) and question is not None:
            word = Given(question=question, answers=checked(question, payload.answers), by=payload.by)
            asked_id, delivery = question.question_id, {"given": word}
        elif isinstance(payload, Approve | Reject) and call is not None:
            word = self.decision(call, payload)
            asked_id, delivery = call.call_id, {"call_id": call.call_id, "decision": word}
        else:
            return self.refuse(name, f"{name} answers nothing that is waited for")

        word_id = self.live.word_id()

        def told(out: DeliverOut) -> None:
            verdict = Verdict(verdict="accepted", name=name, message="the agent has it")
            took = self.live.took(word_id, word, out)
            if took:
                self.live.had(word)
            elif took is None:
                verdict = _unsure(name, out)
            else:
                text = f"given to the agent when it goes on ({out.detail})"[:500]
                verdict = Verdict(verdict="queued", name=name, message=text)
            self._heard(name, payload, verdict, settle)

        self.live.answered(asked_id, word)
        self._deliver({"id": word_id, **delivery}, told)
        return None

    def decision(self, call: CallRequest, payload: Approve | Reject) -> CallDecision:
        """Return what a person said of a call; one for the whole run is remembered."""
        approved = isinstance(payload, Approve)
        decision = CallDecision(
            signature=call.signature,
            allow=approved,
            reason="" if isinstance(payload, Approve) else payload.reason,
            by=payload.by,
            remember=payload.remember if isinstance(payload, Approve) else "once",
        )
        if decision.remember == "run":
            others = [one for one in self.state.allowed if one.signature != decision.signature]
            self.state.allowed = [*others, decision][-100:]
        return decision

    def _deliver(self, word: Mapping[str, object], told: Told) -> None:
        if self.working is None or self.state.acquired is None:
            told(DeliverOut(live=False, detail="no agent works now"))
            return
        call = DeliverIn.model_validate({"key": self.working, "lease": self.state.acquired.lease, **word})
        self.live.deliver(call, told)

    # Waits.

    async def boundary(self) -> Resume | None:
        """Between two phases: end if asked to, wait if paused or interrupted. Returns what ended the wait."""
        self.check_ending()
        human = self.step.human if self.step else Human()
        order: Order | None = None
        if self.stop_asked:
            order = await self.wait("human", self.interrupted(), human, default=True)
        elif self._stop_order is not None:
            order, self._stop_order = self._stop_order, None
        elif self.state.pause_reason is not None:
            order = await self.wait("pause", self.state.pause_reason, human, default=True)
        return order if isinstance(order, Resume) else None

    async def interrupted_first(self) -> Resume | None:
        """Wait out an interrupt that came when nothing could be stopped any more, before the run waits for words.

        Runs from before the patch forgot it.
        """
        if not self.stop_asked or not workflow.patched(INTERRUPT_FIRST):
            return None
        order = await self.wait(
            "human", self.interrupted(), self.step.human if self.step else Human(), default=True
        )
        return order if isinstance(order, Resume) else None

    def interrupted(self) -> str:
        """Return who interrupted the run, and why, as far as they said."""
        asked = self.state.interrupt or Interrupt()
        return f"interrupted{by(asked.by)}{because(asked.reason)}"

    def take_stop_order(self) -> Resume | None:
        """Return the resume for which the agent was stopped, once."""
        order, self._stop_order = self._stop_order, None
        return order

    async def wait(
        self,
        kind: WaitFor,
        reason: str,
        human: Human,
        *,
        until: UtcTime | None = None,
        default: bool = False,
        question: Question | None = None,
        call: CallRequest | None = None,
    ) -> Order | None:
        """Wait for a person. None: nobody came, and something is done by itself then.

        That is so after ``until``; after the deadline of a call, which is then denied; and after the deadline of a
        wait that has a ``default``, where the step wants it. An interrupt that came before a wait for words is waited
        out first; one that comes while the run waits until a time ends that. Raises Ended on abort and on any other
        silence.
        """
        if kind in {"answer", "budget", "approval"}:
            order = await self.interrupted_first()
            if order is not None and order.action != "continue":
                return order
            if order is not None:
                self.take_note(order)
        now = workflow.now()
        bounded = until or (
            now + timedelta(seconds=human.deadline) if human.on_silence != "keep_waiting" else None
        )
        by_itself = until is not None or call is not None or (default and human.on_silence == "default")
        self._order = self._stop_order = self.state.interrupt = None
        self.live.over()
        self._question, self._call = question, call
        step_id = self.step.id if self.step else None
        self._waiting = Waiting(
            kind=kind,
            step_id=step_id,
            reason=reason,
            since=now,
            deadline=bounded,
            on_silence=silence(kind, human, by_itself),
            can_continue=default,
        )
        if kind in {"pause", "human"}:
            # The run is held, and goes on when it is told to: no pause is left to take hold.
            self.state.pause_reason = None
        self._waiting = self._waiting.model_copy(update={"legal": legal_now(self.situation())})
        self.journal.add("waiting", waiting_for=kind, reason=reason[:500], step=step_id)
        self.show()
        await self.phases.flush()
        try:
            await workflow.wait_condition(
                lambda: self._order is not None or self.stop_asked or self.ending or self.was_reset,
                timeout=max(bounded - workflow.now(), timedelta()) if bounded else None,
                timeout_summary=WAITS[kind],
            )
        except TimeoutError:
            if self._order is None and not by_itself:
                raise Ended(
                    "needs_human", f"nobody answered the wait for {kind} in time{because(reason)}"
                ) from None
        finally:
            self._waiting = self._question = self._call = None
        self.check_ending()
        self.journal.add("resumed", waited_for=kind, action=action(self._order))
        self.show()
        return self._order


def _unsure(name: str, out: DeliverOut) -> Verdict:
    message = f"given to the agent when it goes on, unless it has it by then ({out.detail})"
    return Verdict(verdict="queued", name=name, message=message[:500])
