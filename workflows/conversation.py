"""What people say to a run: each message is judged, and takes effect where it is legal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from temporalio import workflow

from schemas.answers import checked
from schemas.calls import DeliverIn, DeliverOut, Recorded
from schemas.common import Closed, Durable
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
from schemas.questions import CallDecision, CallRequest, Given
from schemas.run_state import Asked, LastRefused
from workflows.live import Told, same_attempt
from workflows.mailbox import Settle
from workflows.messages import Situation, find_call, find_question, legal_now, refusal, withdraws
from workflows.standing import Standing
from workflows.words import call_reason, said

SKIP_NEEDS_NEXT = "skip-needs-next"
"""The patch with which a skip is refused where no single step follows, not accepted and asked again."""
ALL_THAT_WAITS = "all-that-waits"
"""The patch with which all that a session asks can be answered, not the oldest alone, and a pause that was asked for
before can be withdrawn meanwhile."""
RESUME_WITHDRAWS = "resume-withdraws"
"""The patch with which a resume that orders something withdraws a pause that has not taken hold, too."""
STOP_HOLDS = "stop-holds"
"""The patch with which what comes behind a stop is judged by what follows: that of a live session for a resume, and that of
the wait for a rate limit by an interrupt."""
MAX_STEERS = 20
"""Texts that may be queued for an agent's next turn."""


class Conversation(Standing):
    """The messages of a run."""

    def apply(self, name: str, payload: Closed, settle: Settle) -> None:
        """Judge a message and, where it is legal, let it take effect."""
        now = self._judged_by(payload)
        why_not = refusal(name, payload, now)
        if why_not is not None:
            settle(self.refuse(name, why_not))
            return
        verdict = self._take(name, payload, now, settle)
        if verdict is not None:
            self._heard(name, payload, verdict, settle)

    def _judged_by(self, payload: Closed) -> Situation:
        """Return the situation as this run judges a message by it: one from before a patch knows less of it."""
        now = self.situation()
        if isinstance(payload, Resume) and now.following is None and not workflow.patched(SKIP_NEEDS_NEXT):
            now = replace(now, following=now.step)
        beside = isinstance(payload, Resume) and now.state == "waiting" and withdraws(payload, now)
        is_answer = isinstance(payload, AnswerQuestion | Approve | Reject)
        several = is_answer and len(now.questions) + len(now.calls) > 1
        if (beside or several) and not workflow.patched(ALL_THAT_WAITS):
            is_question = now.waiting_for == "answer"
            now = replace(
                now,
                pause_requested=now.pause_requested and now.state != "waiting",
                questions=now.questions[:1] if is_question else [],
                calls=[] if is_question else now.calls[:1],
            )
        return now

    def refuse(self, name: str, reason: str) -> Verdict:
        """Refuse a message: said in the journal, the status and the UI."""
        legal = legal_now(self.situation())
        name, reason = name[:100], reason[:2_000]
        self.state.last_refused = LastRefused(name=name, reason=reason, legal=legal, at=workflow.now())
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

    def _take(self, name: str, payload: Closed, now: Situation, settle: Settle) -> Verdict | None:
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
            case Resume() if withdraws(payload, now):
                self.state.pause_reason = None
                self.say_later(payload.note)
                return accepted.model_copy(update={"message": "the pause is withdrawn"})
            case Steer():
                return self._take_steer(payload, settle)
            case _ if self.is_live:
                return self._take_live(name, payload, now, settle)
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
            self._stop_holds = workflow.patched(STOP_HOLDS)
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
                if isinstance(payload, Resume):
                    self._withdraw_pause()
            case _:
                return self.refuse(name, f"{name} answers nothing that is waited for")
        return Verdict(verdict="accepted", name=name, message=self._remark(self._order))

    def _withdraw_pause(self) -> None:
        """Forget a pause that has not taken hold: a person has ordered something since."""
        if self.state.pause_reason is not None and workflow.patched(RESUME_WITHDRAWS):
            self.state.pause_reason = None

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

    def _take_live(self, name: str, payload: Closed, now: Situation, settle: Settle) -> Verdict | None:
        """Hand an answer or a decision to the live session; a resume ends its work first."""
        if isinstance(payload, Resume):
            self._stop_order = payload
            self._stop_holds = workflow.patched(STOP_HOLDS)
            self._withdraw_pause()
            self.phases.cut(only=("work",))
            return Verdict(verdict="accepted", name=name, message="the agent is stopped first")
        word: Given | CallDecision
        delivery: dict[str, object]
        if isinstance(payload, AnswerQuestion) and (question := find_question(now, payload.question_id)):
            word = Given(question=question, answers=checked(question, payload.answers), by=payload.by)
            asked_id, delivery = question.question_id, {"given": word}
        elif isinstance(payload, Approve | Reject) and (call := find_call(now, payload.call_id)):
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


def _unsure(name: str, out: DeliverOut) -> Verdict:
    message = f"given to the agent when it goes on, unless it has it by then ({out.detail})"
    return Verdict(verdict="queued", name=name, message=message[:500])
