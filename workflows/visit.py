"""One visit of a step: attempts, and what people and routing make of each, until a decision leaves the step."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Literal

from opentelemetry import trace
from temporalio import workflow

from schemas.calls import ConsultOut, WorkOut
from schemas.common import Execution
from schemas.facts import StepFacts
from schemas.flow import StepSpec
from schemas.messages import Approve, ExtendBudget, Reject, Resume
from schemas.questions import DEADLINE, CallRequest, Given, Question
from schemas.routing import Directive, RoutingOutcome
from schemas.run_state import PartialView, WaitFor
from workflows.attempt import Attempts
from workflows.attempt_over import AttemptOver
from workflows.facts import Carry, compose, gates_line, stopped, timeout_s
from workflows.gate import Gate, gate_after, gate_before
from workflows.held import Refused
from workflows.phases import PhaseLost
from workflows.routing import current_iteration, decide, observe
from workflows.run import Ended, Run
from workflows.standing import Order
from workflows.words import because, by, call_reason

MAX_REJECTIONS = 5
MAX_SILENCES = 5
"""How often a visit goes on by itself when nobody answers: an agent that always fails must come to an end."""
MAX_PROMPT_LIMITS = 5
"""How often in a row a provider's word is taken for when its limit ends: a visit must not fill a history with tries."""
EXECUTION: dict[str, Execution] = {
    "finished": "succeeded",
    "interrupted": "interrupted",
    "timeout": "timeout",
    "agent_failed": "failed",
    "crash": "failed",
    "server_lost": "failed",
}
CHOSEN_WAITS = "chosen-transport-waits"
"""The patch with which a transport that a person chose and that cannot be used brings the run back to a person."""
STOPPED_COUNTS = "stopped-counts"
"""The patch with which a hand-off counts against budgets also where its attempt is stopped before the route."""
BUDGET_FIRST = "budget-first"
"""The patch with which work that has no budget is waited with before its attempt begins, not by an empty one."""
_tracer = trace.get_tracer("stepwise")


class Visit:
    """Drives one visit; ``go`` returns the decision that leaves the step."""

    def __init__(self, run: Run, step: StepSpec, visit: int) -> None:
        self._run = run
        self._step = step
        self._visit = visit
        self._at = Attempts(run, step, visit)
        self._facts = StepFacts(status="UNVERIFIED")
        self._agent_failures = 0
        self._rejections = 0
        self._silences = 0
        self._limits = 0
        self._limited_in: type[object] | None = None

    async def go(self) -> RoutingOutcome:
        """Run attempts until routing leaves the step. Raises Ended."""
        run, step = self._run, self._step
        run.iteration = current_iteration(run.routing, step)
        run.phases.phase = None
        run.journal.add("step_started", step=step.id, visit=self._visit, iteration=run.iteration)
        with _tracer.start_as_current_span(
            f"step {step.id}", attributes={"stepwise.step": step.id, "stepwise.visit": self._visit}
        ):
            if step.approval == "before":
                left = await self._approved_before()
                if left is not None:
                    return left
            while True:
                left = await self._affordable()
                if left is not None:
                    return left
                self._at.number += 1
                run.attempt = self._at.number
                run.summarise(step.id, visits=self._visit, attempts=self._at.number)
                outcome = await self._one_attempt()
                if outcome is not None:
                    return outcome

    # One attempt.

    async def _one_attempt(self) -> RoutingOutcome | None:
        entered = workflow.now()
        try:
            await self._at.phases()
        except AttemptOver as over:
            outcome = await self._stopped(over, self._at.began or entered)
        except (Ended, Refused, asyncio.CancelledError):
            # The run ends in its midst: what it did has its record too.
            if self._at.has_begun and not self._run.was_reset:
                cut = AttemptOver(ended="interrupted", work=self._at.carry.work)
                await self._record_stop(cut, self._at.began or entered)
            raise
        else:
            outcome = await self._finished(self._at.began or entered)
        return outcome

    # After an attempt.

    async def _finished(self, started: datetime) -> RoutingOutcome | None:
        run, step, carry = self._run, self._step, self._at.carry
        state = run.state
        facts = compose(step, carry)
        state.partial = None
        self._facts = facts
        for usage in carry.uncounted():
            self._at.spending.used(usage)
        # Decided as of the end of the last phase: what is recorded now must be the same if it is recorded again.
        ended = self._at.ended or workflow.now()
        state.routing = observe(run.routing, step, facts, ended)
        signal = carry.route.signal if carry.route else None
        outcome = decide(step, state.routing, facts, signal)
        gates = gates_line(carry.measure.gates) if carry.measure else ""
        run.summarise(step.id, status=facts.status, gates=gates)
        state.final_tree = facts.tree or state.final_tree
        run.decided(step.id, facts, outcome)
        run.journal.add(
            "step_ended", step=step.id, visit=self._visit, status=facts.status, gates=gates or None
        )
        await self._at.record("succeeded", facts, started, ended, outcome)
        order = await run.boundary()
        if order is not None and order.action != "continue":
            return await self._ordered(order, facts)
        if order is not None:
            self._run.take_note(order)
        if step.approval == "after":
            answer = await self._approved_after()
            if answer is not None:
                return await self._again_or_leave(answer, facts)
        if outcome.decision == "escalate":
            return await self._ask("human", outcome.explanation or outcome.reason, facts)
        return outcome

    async def _stopped(self, over: AttemptOver, started: datetime) -> RoutingOutcome | None:
        """Record the attempt as stopped, then do what its end calls for."""
        facts = self._facts = await self._record_stop(over, started)
        self._run.check_ending()
        self._keep_partial(over)
        if over.order is not None:
            return await self._ordered(over.order, facts)
        return await self._go_on_from(over, facts)

    async def _record_stop(self, over: AttemptOver, started: datetime) -> StepFacts:
        run, step = self._run, self._step
        facts = stopped(over.work, self._at.carry, over.answer)
        run.journal.add(
            "interrupted",
            step=step.id,
            visit=self._visit,
            attempt=self._at.number,
            ended=over.ended,
            method=over.work.stop_method if over.work else None,
            savepoint=over.work.savepoint.ref if over.work and over.work.savepoint else None,
            by=run.requested_by or None,
        )
        run.summarise(step.id, status=facts.status)
        state = run.state
        if over.ended == "crash" and over.work is not None and self._at.carry.work is None:
            self._at.spending.spent(over.work)
        if over.answer is not None:
            self._at.spending.used(over.answer.usage)
        if self._at.carry.finalize is not None and workflow.patched(STOPPED_COUNTS):
            for usage in self._at.carry.uncounted():
                self._at.spending.used(usage)
        state.final_tree = facts.tree or state.final_tree
        await self._at.record(
            EXECUTION.get(over.ended, "interrupted"),
            facts,
            started,
            workflow.now(),
            None,
            over,
        )
        return facts

    def _keep_partial(self, over: AttemptOver) -> None:
        """Go on from what the attempt left, and let the query show it.

        Where its agent was not there yet or did nothing (a switch to one that has no key), or all that it did is lost
        with its disk, what is there to go on from is what an earlier attempt left, if any did; a step that was begun anew
        is then begun anew once more.
        """
        run, work = self._run, over.work
        if self._at.carry.work is not None or over.partial is None or work is None or work.session is None:
            return
        if self._at.partial is not None and _did_nothing(work):
            return
        self._at.partial, self._at.session = over.partial, work.session
        run.state.partial = PartialView(
            ref=over.partial,
            step_id=self._step.id,
            visit=self._visit,
            attempt=self._at.number,
            ended=over.ended,
            reason=work.reason or "",
            stop_method=work.stop_method,
            requested_by=run.requested_by,
            session=work.session,
            savepoint=work.savepoint,
            changes=work.changes,
            question=work.question,
            call=work.call,
        )

    async def _go_on_from(self, over: AttemptOver, facts: StepFacts) -> RoutingOutcome | None:
        """Do what the end of a stopped attempt calls for: None for another one, else a decision that leaves."""
        run, step, work = self._run, self._step, over.work
        error = over.out.error if over.out else None
        if over.ended in {"worker_shutdown", "server_lost", "activity_reset"}:
            run.state.acquired = await run.phases.recover(self._at.key(), "work", over.ended, 1)
        ordered = run.take_stop_order()
        if ordered is not None:
            return await self._ordered(ordered, facts)
        match over.ended:
            case "crash":
                if self._at.losses <= step.retries.infrastructure:
                    return None
                return await self._ask("human", f"the worker was lost {self._at.losses} times", facts)
            case "worker_shutdown" | "server_lost" | "activity_reset":
                return None
            case "agent_failed" | "timeout":
                if error is not None and not error.retryable:
                    if self._at.transport is not None and workflow.patched(CHOSEN_WAITS):
                        # Whoever chose it for this step did not mean to end the run.
                        said = f"{step.id}: {self._at.transport} cannot be used: {error.message}"
                        self._at.transport = None
                        return await self._ask("human", said, facts)
                    raise Ended("failed", f"{step.id}: {error.message}", error)
                self._agent_failures += 1
                if self._agent_failures <= step.retries.agent:
                    return None
                what = error.message if error else "the agent did not finish in time"
                return await self._ask("human", f"{step.id}: {what}", facts)
            case "rate_limited":
                return await self._limited(over, facts)
            case "question" if work is not None and work.question is not None:
                return await self._question(work.question, facts)
            case "approval" if work is not None and work.call is not None:
                return await self._call(work.call, facts)
            case "budget":
                return await self._budget(over.reason or self._at.spending.reason, facts)
            case "activity_paused":
                return await self._ask("pause", "the activity was paused", facts)
            case _:
                return await self._interrupted(over, facts)

    # People.

    async def _interrupted(self, over: AttemptOver, facts: StepFacts) -> RoutingOutcome | None:
        run = self._run
        reason = over.reason or f"the attempt ended: {over.ended}"
        return await self._ask("human", run.interrupted() if run.stop_asked else reason, facts)

    async def _affordable(self) -> RoutingOutcome | None:
        """Wait until there is budget for the work that is to come; or return a decision that leaves. Raises Ended.

        Runs from before the patch began an attempt, which ended at once, and waited then.
        """
        run, spending = self._run, self._at.spending
        reason = spending.reason
        while self._at.carry.work is None and spending.is_used_up and workflow.patched(BUDGET_FIRST):
            run.check_ending()
            run.attempt = self._at.number
            left = await self._budget(reason, self._facts)
            if left is not None:
                return left
            reason = f"that is not enough: {spending.reason}"
        return None

    async def _budget(self, reason: str, facts: StepFacts) -> RoutingOutcome | None:
        """Wait until there is budget to go on with, however often a person allows too little."""
        while True:
            order = await self._run.wait(
                "budget",
                reason,
                self._step.human,
                remark=self._remark,
                used_up=self._at.spending.used_up,
            )
            if not isinstance(order, ExtendBudget):
                return await self._ordered(order, facts)
            self._at.spending.extend(order)
            if not self._at.spending.is_used_up:
                return None
            reason = f"that is not enough: {self._at.spending.reason}"

    def _remark(self, order: Order) -> str:
        """Return what an order leaves used up of the budgets that the work it leads to would need, in words."""
        spending = self._at.spending
        if isinstance(order, ExtendBudget):
            return spending.lacks(order)
        if not isinstance(order, Resume):
            return ""
        works = self._at.carry.work is None or self._at.complete
        goes_on = order.action == "continue" and works
        return spending.lacks_for(order) if goes_on or order.action == "retry" else ""

    async def _limited(self, over: AttemptOver, facts: StepFacts) -> RoutingOutcome | None:
        """Wait until the provider's limit is over; where somebody interrupts, for a person."""
        run = self._run
        if not run.stop_asked:
            order = await run.wait(
                "rate_limit",
                f"the provider refuses until then{over.asked_again}",
                self._step.human,
                until=self._until(over),
                default=True,
                remark=self._remark,
            )
            if order is not None:
                return await self._ordered(order, facts)
        return await self._ask("human", run.interrupted(), facts) if run.stop_asked else None

    def _until(self, over: AttemptOver) -> datetime:
        """Return when to try again: when the provider said, and less and less often where it lets nothing be done then."""
        out = over.out
        # A phase is limited for the first time where another one was before: what is between them was done.
        goes_on = type(out) is self._limited_in and (out is None or out.tool_calls == 0)
        self._limits, self._limited_in = self._limits + 1 if goes_on else 1, type(out)
        now = workflow.now()
        said = out.retry_at if out and out.retry_at else now + timedelta(minutes=1)
        doublings = self._limits - MAX_PROMPT_LIMITS
        return max(said, now + timedelta(minutes=min(60, 2**doublings))) if doublings > 0 else said

    async def _question(self, question: Question, facts: StepFacts) -> RoutingOutcome | None:
        """Give the next attempt the answer to a question: an early one, a human's, the default."""
        run, step = self._run, self._step
        given: Given | None = run.live.given.pop(question.question_id, None)
        if given is None and step.questions.unanswered == "fail":
            raise Ended("failed", f"{step.id}: the agent asked a question and the flow answers none")
        if given is None and step.questions.unanswered == "human":
            asked = question.items[0].question
            order = await run.wait("answer", asked, step.human, default=True, question=question)
            if order is not None and not isinstance(order, Given):
                return await self._ordered(order, facts)
            given = order
        given = given or Given(question=question, answers=question.defaults, by="default")
        self._at.given = [*self._at.given, given]
        run.journal.add("question_answered", id=question.question_id, step=step.id, by=given.by or None)
        return None

    async def _call(self, call: CallRequest, facts: StepFacts) -> RoutingOutcome | None:
        """Give the next attempt the decision about a call: an early one, a human's, or (silence) a denial."""
        run, step = self._run, self._step
        decision = run.live.decided.pop(call.signature, None)
        if decision is None:
            order = await run.wait("approval", call_reason(call), step.human, call=call)
            if order is not None and not isinstance(order, Approve | Reject):
                return await self._ordered(order, facts)
            silence = Reject(reason="nobody decided in time", by=DEADLINE)
            decision = run.decision(call, order or silence)
        self._at.decisions = [*self._at.decisions, decision]
        return None

    async def _ask(self, kind: WaitFor, reason: str, facts: StepFacts) -> RoutingOutcome | None:
        """Wait for a person; silence may go on by itself where there is something to go on from."""
        default = kind == "pause" or (self._at.unfinished and self._silences < MAX_SILENCES)
        order = await self._run.wait(kind, reason, self._step.human, default=default, remark=self._remark)
        self._silences += order is None
        return await self._ordered(order or Resume(), facts)

    async def _ordered(self, order: object, facts: StepFacts) -> RoutingOutcome | None:
        """Do what a resume says: None for another attempt, a decision that leaves the step otherwise."""
        if not isinstance(order, Resume):
            return await self._ask("human", "this does not answer the wait; use resume", facts)
        self._run.take_note(order)
        if order.action == "continue":
            if self._at.complete:
                self._at.carry = Carry()
            return None
        return await self._directed(_directive(order), facts)

    async def _directed(self, directive: Directive, facts: StepFacts) -> RoutingOutcome | None:
        run, step = self._run, self._step
        outcome = decide(step, run.routing, facts, None, directive)
        run.decided(step.id, facts, outcome)
        if outcome.decision == "escalate":
            return await self._ask("human", outcome.explanation or outcome.reason, facts)
        if outcome.decision == "loop" and outcome.next_step_id == step.id:
            self._at.carry = Carry()
            self._at.partial = self._at.session = None
            # They were said of calls of an agent whose work is thrown away.
            self._at.decisions = []
            self._at.spending.begin_anew()
            return None
        return outcome

    async def _approved_before(self) -> RoutingOutcome | None:
        run, step = self._run, self._step
        order: Order | None = None
        if run.state.input.approval != "auto":
            order = await run.boundary()
        if isinstance(order, Resume) and order.action in {"continue", "retry"}:
            self._run.take_note(order)
            order = None
        if order is None:
            order = await self._decided("before", f"may {step.id} start?")
        if isinstance(order, Reject):
            said = f"{step.id} was rejected{by(order.by)}{because(order.reason)}"
            order = await run.wait("human", said, step.human)
        facts = StepFacts(status="UNVERIFIED")
        while isinstance(order, Resume):
            self._run.take_note(order)
            if order.action in {"continue", "retry"}:
                break
            outcome = decide(step, run.routing, facts, None, _directive(order))
            run.decided(step.id, facts, outcome)
            if outcome.decision != "escalate":
                return outcome
            order = await run.wait("human", outcome.explanation or outcome.reason, step.human)
        return None

    async def _approved_after(self) -> Reject | Resume | None:
        order = await self._decided("after", f"is the result of {self._step.id} right?")
        return order if isinstance(order, Reject | Resume) else None

    async def _decided(self, gate: Literal["before", "after"], question: str) -> Order | None:
        """Return what is decided at an approval gate by whom the run's input says; people where a model cannot."""
        run, step = self._run, self._step
        if run.state.input.approval == "auto":
            run.journal.add("human_message", name="approve", by="auto", step=step.id)
            return None
        if run.state.input.approval == "developer":
            said = await self._consulted(gate)
            if said.approve is not None:
                run.journal.add(
                    "human_message",
                    name="approve" if said.approve else "reject",
                    by="developer",
                    step=step.id,
                    reason=said.reason or None,
                    model=said.model,
                )
                return None if said.approve else Reject(reason=said.reason, by="developer")
            question = f"{question} The developer model did not decide: {said.reason}"
            held = await run.interrupted_first()
            if held is not None and (held.action == "continue" or (gate, held.action) == ("before", "retry")):
                run.take_note(held)
            elif held is not None:
                return held
        shown = gate_before(run.state, step) if gate == "before" else self._result()
        return await run.wait("approval", question, step.human, about=shown)

    def _result(self) -> Gate:
        """Return what is known of the result that a person is to approve."""
        return gate_after(self._run.state, self._step, self._at.carry, self._at.envelope)

    async def _consulted(self, gate: Literal["before", "after"]) -> ConsultOut:
        """Ask the developer model while there is budget to, again where its worker is lost. Raises Ended, Refused."""
        run, step, spending = self._run, self._step, self._at.spending
        losses = 0
        await run.phases.catch_up()
        while not spending.is_used_up:
            call = self._at.consultation(gate)
            try:
                said = await run.phases.consult(call, timeout_s(run.spec, step, "answer"))
            except PhaseLost as lost:
                run.check_ending()
                losses += 1
                if losses > step.retries.infrastructure:
                    return ConsultOut(reason=lost.failure)
                # A model that is asked leaves nothing behind: only the workspace has to be found again.
                run.state.acquired = await run.phases.recover(call.key, "acquire", lost.failure, losses)
            else:
                spending.used(said.usage)
                run.check_ending()
                return said
        return ConsultOut(reason=spending.reason)

    async def _again_or_leave(self, answer: Reject | Resume, facts: StepFacts) -> RoutingOutcome | None:
        if isinstance(answer, Resume):
            return await self._ordered(answer, facts)
        self._rejections += 1
        self._at.note = answer.reason or "The result was rejected; look at it again."
        if self._rejections > MAX_REJECTIONS:
            return await self._ask("human", f"rejected {self._rejections} times", facts)
        return await self._directed(
            Directive(action="reject", reason=answer.reason[:300], by=answer.by), facts
        )


def _did_nothing(work: WorkOut) -> bool:
    """Whether an agent ended before it had worked: no session of it holds anything that an earlier one does not."""
    never = work.ended == "agent_failed" or work.session is None or work.session.session_id is None
    return never and work.tool_calls == 0 and work.usage.total == 0


def _directive(order: Resume) -> Directive:
    return Directive(action=order.action, step=order.step, reason=order.note[:300], by=order.by)
