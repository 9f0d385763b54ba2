"""One visit of a step: attempts of work, measure, finalize, route and record, until routing knows where to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from opentelemetry import trace
from temporalio import workflow

from policy.budgets import Exceeded, remaining, tightest
from schemas.calls import (
    FINALIZE,
    MEASURE,
    PROPOSE_ROUTE,
    WORK,
    AcquireOut,
    ActivityRef,
    AttemptKey,
    GateRun,
    MeasureIn,
    PhaseIn,
    RecordIn,
    SessionPhaseIn,
    StepPlace,
    WorkIn,
    WorkOut,
)
from schemas.common import ArtifactRef, Budget, Durable, Execution, Phase, Usage
from schemas.facts import StepFacts
from schemas.flow import Branch, StepSpec
from schemas.handoff import SessionRef
from schemas.messages import Approve, Reject, Resume
from schemas.routing import Directive, RoutingOutcome
from schemas.run_state import MAX_CONTEXT, MAX_RECEIPTS, GateSeen, ReceiptPlace, WaitFor
from workflows.facts import Carry, compose, gates_line, stopped, timeout_s
from workflows.log import logger
from workflows.phases import PhaseLost
from workflows.routing import current_iteration, decide, observe
from workflows.run import Ended, Run

Call = TypeVar("Call", bound=PhaseIn)
Out = TypeVar("Out", bound=Durable)

MAX_REJECTIONS = 5
EXECUTION: dict[str, Execution] = {
    "finished": "succeeded",
    "interrupted": "interrupted",
    "timeout": "timeout",
    "agent_failed": "failed",
    "crash": "failed",
    "server_lost": "failed",
}
_tracer = trace.get_tracer("stepwise")


@dataclass(eq=False)
class AttemptOver(Exception):
    """Raised when an attempt ends before all its phases have: how, and what the next one can go on from."""

    ended: str
    work: WorkOut | None = None
    partial: ArtifactRef | None = None
    order: Resume | None = None
    reason: str = ""


class Visit:
    """Drives one visit; ``go`` returns the decision that leaves the step."""

    def __init__(self, run: Run, step: StepSpec, visit: int) -> None:
        self._run = run
        self._step = step
        self._visit = visit
        self._attempt = 0
        self._carry = Carry()
        self._note: str | None = None
        self._partial: ArtifactRef | None = None
        self._session: SessionRef | None = None
        self._transport: str | None = None
        self._agent_failures = 0
        self._losses = 0
        self._rejections = 0
        self._used = Usage()
        self._seconds = 0.0

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
                self._attempt += 1
                run.attempt = self._attempt
                run.summarise(step.id, visits=self._visit, attempts=self._attempt)
                outcome = await self._one_attempt()
                if outcome is not None:
                    return outcome

    # One attempt.

    async def _one_attempt(self) -> RoutingOutcome | None:
        started = workflow.now()
        try:
            await self._phases()
        except AttemptOver as over:
            outcome = await self._stopped(over, started)
        else:
            outcome = await self._finished(started)
        return outcome

    async def _phases(self) -> None:
        carry, step = self._carry, self._step
        if carry.work is None:
            await self._boundary()
            work = await self._work()
            if work.ended != "finished":
                raise AttemptOver(ended=work.ended, work=work, partial=work.partial)
            carry.work, carry.work_attempt = work, self._attempt
            self._session = work.session
        if step.gates and carry.measure is None:
            await self._boundary()
            measure = await self._call(
                MEASURE,
                MeasureIn(**self._phase_fields()),
                "measure",
                sum(gate.timeout or timeout_s(self._run.spec, step, "gate") for gate in step.gates) + 60,
                lambda out: out.finished_measure,
            )
            if measure.stopped is not None:
                raise AttemptOver(ended="interrupted", reason=measure.stopped)
            carry.measure, carry.measure_attempt = measure, self._attempt
            self._saw_gates(measure.gates, measure.tree_before, measure.tree_after)
        if carry.finalize is None:
            await self._boundary()
            carry.finalize = await self._call(
                FINALIZE,
                SessionPhaseIn(**self._session_fields()),
                "finalize",
                4 * timeout_s(self._run.spec, step, "finalize") + 60,
                lambda out: out.finished_finalize,
            )
            carry.finalize_attempt = self._attempt
        if isinstance(step.routing, Branch) and step.routing.decided_by == "agent" and carry.route is None:
            await self._boundary()
            targets = [rule.next for rule in step.routing.when]
            targets += [step.routing.default] if step.routing.default else []
            carry.route = await self._call(
                PROPOSE_ROUTE,
                SessionPhaseIn(**self._session_fields(), candidates=list(dict.fromkeys(targets))),
                "route",
                4 * timeout_s(self._run.spec, step, "route") + 60,
                lambda out: out.finished_route,
            )
            carry.route_attempt = self._attempt
        await self._boundary()

    async def _boundary(self) -> None:
        order = await self._run.boundary()
        if order is None:
            return
        self._take_note(order)
        if order.action != "continue":
            raise AttemptOver(ended="interrupted", order=order, work=self._carry.work)

    async def _work(self) -> WorkOut:
        run, step = self._run, self._step
        state, resolved = run.state, run.state.resolved
        transports = resolved.transports.get(step.id, []) if resolved else []
        call = WorkIn(
            **self._phase_fields(),
            transports=[self._transport] if self._transport else transports,
            model=step.model or state.input.model or run.spec.defaults.model,
            context=state.context,
            note=self._note,
            partial=self._partial,
            last_gates=state.last_gates,
            session=self._session,
            budget=self._budget(),
        )
        limit_s = timeout_s(run.spec, step, "work") + step.interrupt.grace_s + 600
        out = await self._call(WORK, call, "work", limit_s, lambda found: found.finished_work)
        self._spent(out)
        return out

    def _budget(self) -> Budget | None:
        """Return what the work may use, None if there is no bound. Raises AttemptOver when nothing is left."""
        run, step = self._run, self._step
        state = run.state
        flow = remaining(state.input.budget, state.usage, state.work_seconds, 0)
        own = remaining(step.budget or run.spec.defaults.budget, self._used, self._seconds, 0)
        for left in (flow, own):
            if isinstance(left, Exceeded):
                what = f"the budget of {left.limit:g} {left.which} is used up ({left.used:g} used)"
                raise AttemptOver(ended="budget", reason=what)
        left = tightest(own if isinstance(own, Budget) else None, flow if isinstance(flow, Budget) else None)
        return left if left != Budget() else None

    def _spent(self, out: WorkOut) -> None:
        state = self._run.state
        state.usage = state.usage.plus(out.usage)
        state.work_seconds += out.elapsed_ms / 1_000
        self._used = self._used.plus(out.usage)
        self._seconds += out.elapsed_ms / 1_000

    def _phase_fields(self) -> dict[str, Any]:
        state = self._run.state
        if state.acquired is None or state.resolved is None:
            raise Ended("failed", "no workspace was acquired")
        return {
            "key": self._key(),
            "iteration": self._run.iteration,
            "lease": state.acquired.lease,
            "bundle": state.resolved.bundle,
            "workflow_id": state.workflow_id,
            "journal": [],
        }

    def _session_fields(self) -> dict[str, Any]:
        measure = self._carry.measure
        return {
            **self._phase_fields(),
            "work_attempt": self._carry.work_attempt,
            "session": self._session,
            "measured": measure.tree_after if measure else None,
        }

    async def _call(
        self,
        ref: ActivityRef[Call, Out],
        call: Call,
        phase: Phase,
        limit_s: float,
        finished: Callable[[AcquireOut], Out | None],
    ) -> Out:
        run, step = self._run, self._step
        run.journal.add("phase_started", step=step.id, visit=self._visit, attempt=self._attempt, phase=phase)
        call = call.model_copy(update={"journal": run.journal.batch()})
        run.phases.phase = phase
        run.show()
        summary = f"{step.id} (iteration {run.iteration}" + (
            f", attempt {self._attempt})" if self._attempt > 1 else ")"
        )
        started = workflow.now()
        try:
            out = await run.phases.pinned(ref, call, phase, limit_s, summary=summary)
        except PhaseLost as lost:
            out = await self._find(phase, lost, finished)
        run.journal.add(
            "phase_ended",
            step=step.id,
            visit=self._visit,
            attempt=self._attempt,
            phase=phase,
            ms=int((workflow.now() - started).total_seconds() * 1_000),
            ended=out.ended if isinstance(out, WorkOut) else None,
        )
        return out

    async def _find(self, phase: Phase, lost: PhaseLost, finished: Callable[[AcquireOut], Out | None]) -> Out:
        """Ask what became of a lost phase: its result, or AttemptOver with what it left."""
        run = self._run
        if run.ending:
            raise AttemptOver(ended="interrupted", reason=lost.failure) from lost
        self._losses += 1
        run.journal.add(
            "phase_ended", step=self._step.id, phase=phase, attempt=self._attempt, lost=lost.failure
        )
        logger.warning("phase %s of %s was lost: %s", phase, self._step.id, lost.failure)
        found = await run.phases.recover(self._key(), phase, lost.failure, self._losses)
        run.state.acquired = found
        out = finished(found)
        if out is not None:
            return out
        work = found.partial_work if phase == "work" else self._carry.work
        raise AttemptOver(ended="crash", work=work, partial=found.partial, reason=lost.failure) from lost

    # After an attempt.

    async def _finished(self, started: datetime) -> RoutingOutcome | None:
        run, step, carry = self._run, self._step, self._carry
        state = run.state
        facts = compose(step, carry)
        for part in (carry.finalize, carry.route):
            state.usage = state.usage.plus(part.usage if part else Usage())
        state.routing = observe(run.routing, step, facts, workflow.now())
        signal = carry.route.signal if carry.route else None
        outcome = decide(step, run.routing, facts, signal)
        gates = gates_line(carry.measure.gates) if carry.measure else ""
        run.summarise(step.id, status=facts.status, gates=gates)
        state.final_tree = facts.tree or state.final_tree
        run.decided(step.id, facts, outcome)
        run.journal.add(
            "step_ended", step=step.id, visit=self._visit, status=facts.status, gates=gates or None
        )
        await self._record("succeeded", facts, started, outcome)
        run.check_ending()
        if step.approval == "after":
            answer = await self._approved_after()
            if answer is not None:
                return await self._again_or_leave(answer, facts)
        if outcome.decision == "escalate":
            order = await run.wait("human", outcome.explanation or outcome.reason, step.human)
            return await self._ordered(order, facts)
        return outcome

    async def _stopped(self, over: AttemptOver, started: datetime) -> RoutingOutcome | None:
        """Record the attempt as stopped, then do what its end calls for."""
        run, step = self._run, self._step
        facts = stopped(over.work, self._carry)
        run.journal.add(
            "interrupted", step=step.id, visit=self._visit, attempt=self._attempt, ended=over.ended
        )
        run.summarise(step.id, status=facts.status)
        state = run.state
        if over.ended == "crash" and over.work is not None and self._carry.work is None:
            self._spent(over.work)
        state.final_tree = facts.tree or state.final_tree
        await self._record(
            EXECUTION.get(over.ended, "interrupted"),
            facts,
            started,
            None,
            work=over.work if self._carry.work is None else None,
        )
        run.check_ending()
        if over.order is not None:
            return await self._ordered(over.order, facts)
        if self._carry.work is None:
            self._partial = over.partial or self._partial
            self._session = over.work.session if over.work else self._session
        return await self._go_on_from(over, facts)

    async def _go_on_from(self, over: AttemptOver, facts: StepFacts) -> RoutingOutcome | None:
        run, step, work = self._run, self._step, over.work
        error = work.error if work else None
        match over.ended:
            case "crash":
                if self._losses <= step.retries.infrastructure:
                    return None
                return await self._ask("human", f"the worker was lost {self._losses} times", facts)
            case "worker_shutdown" | "server_lost" | "activity_reset":
                found = await run.phases.recover(self._key(), "work", over.ended, 1)
                run.state.acquired = found
                return None
            case "agent_failed" | "timeout":
                if error is not None and not error.retryable:
                    raise Ended("failed", f"{step.id}: {error.message}", error)
                self._agent_failures += 1
                if self._agent_failures <= step.retries.agent:
                    return None
                what = error.message if error else "the agent did not finish in time"
                return await self._ask("human", f"{step.id}: {what}", facts)
            case "rate_limited":
                until = work.retry_at if work and work.retry_at else workflow.now() + timedelta(minutes=1)
                order = await run.wait("rate_limit", "the provider refuses until then", step.human, until)
                if not isinstance(order, Resume) or order.action == "continue":
                    return None
                return await self._ordered(order, facts)
            case "question" if step.questions.unanswered == "default":
                self._note = "Nobody answers questions here. Use the first option, or your best judgement."
                return None
            case "question" if step.questions.unanswered == "fail":
                raise Ended("failed", f"{step.id}: the agent asked a question and the flow answers none")
            case "question":
                asked = work.question.items[0].question if work and work.question else "a question"
                return await self._ask("answer", asked, facts)
            case "budget":
                return await self._ask("budget", over.reason or "the step's budget is used up", facts)
            case "activity_paused":
                return await self._ask("pause", "the activity was paused", facts)
            case _:
                return await self._ask("human", over.reason or f"the attempt ended: {over.ended}", facts)

    # People.

    async def _ask(self, kind: WaitFor, reason: str, facts: StepFacts) -> RoutingOutcome | None:
        order = await self._run.wait(kind, reason, self._step.human)
        return await self._ordered(order, facts)

    async def _ordered(self, order: object, facts: StepFacts) -> RoutingOutcome | None:
        """Do what a resume says: None for another attempt, a decision that leaves the step otherwise."""
        if not isinstance(order, Resume):
            return await self._ask("human", "an approval does not answer this wait; use resume", facts)
        self._take_note(order)
        if order.action == "continue":
            if self._carry.finalize is not None:
                self._carry = Carry()
            return None
        action = order.action
        directive = Directive(action=action, step=order.step, reason=order.note[:300], by=order.by)
        return await self._directed(directive, facts)

    async def _directed(self, directive: Directive, facts: StepFacts) -> RoutingOutcome | None:
        run, step = self._run, self._step
        outcome = decide(step, run.routing, facts, None, directive)
        run.decided(step.id, facts, outcome)
        if outcome.decision == "escalate":
            return await self._ask("human", outcome.explanation or outcome.reason, facts)
        if outcome.decision == "loop" and outcome.next_step_id == step.id:
            self._carry = Carry()
            self._partial = self._session = None
            self._used, self._seconds = Usage(), 0.0
            return None
        return outcome

    async def _approved_before(self) -> RoutingOutcome | None:
        run, step = self._run, self._step
        if run.state.input.approval == "auto":
            run.journal.add("human_message", name="approve", by="auto", step=step.id)
            return None
        order = await run.wait("approval", f"may {step.id} start?", step.human)
        if isinstance(order, Reject):
            order = await run.wait("human", order.reason or f"{step.id} was rejected", step.human)
        if not isinstance(order, Resume):
            return None
        self._take_note(order)
        if order.action in {"continue", "retry"}:
            return None
        directive = Directive(action=order.action, step=order.step, reason=order.note[:300], by=order.by)
        facts = StepFacts(status="UNVERIFIED")
        outcome = decide(step, run.routing, facts, None, directive)
        run.decided(step.id, facts, outcome)
        return outcome

    async def _approved_after(self) -> Reject | Resume | None:
        run, step = self._run, self._step
        if run.state.input.approval == "auto":
            run.journal.add("human_message", name="approve", by="auto", step=step.id)
            return None
        order = await run.wait("approval", f"is the result of {step.id} right?", step.human)
        return None if order is None or isinstance(order, Approve) else order

    async def _again_or_leave(self, answer: Reject | Resume, facts: StepFacts) -> RoutingOutcome | None:
        if isinstance(answer, Resume):
            return await self._ordered(answer, facts)
        self._rejections += 1
        self._note = answer.reason or "The result was rejected; look at it again."
        if self._rejections > MAX_REJECTIONS:
            return await self._ask("human", f"rejected {self._rejections} times", facts)
        return await self._directed(
            Directive(action="reject", reason=answer.reason[:300], by=answer.by), facts
        )

    def _take_note(self, order: Resume) -> None:
        self._note = order.note or self._note
        self._transport = order.transport or self._transport

    # Recording.

    async def _record(
        self,
        execution: Execution,
        facts: StepFacts,
        started: datetime,
        outcome: RoutingOutcome | None,
        work: WorkOut | None = None,
    ) -> None:
        run, carry = self._run, self._carry
        state = run.state
        if state.acquired is None or state.resolved is None:
            return
        call = RecordIn(
            key=self._key(),
            iteration=run.iteration,
            lease=state.acquired.lease,
            bundle=state.resolved.bundle,
            branch=state.acquired.branch,
            execution_status=execution,
            facts=facts,
            work=work,
            work_attempt=self._attempt if work else carry.work_attempt or None,
            measure_attempt=carry.measure_attempt or None,
            finalize_attempt=carry.finalize_attempt or None,
            base_gates=state.acquired.base_gates.get(self._step.id, []),
            routing=outcome,
            requested_by=run.requested_by,
            started_at=started,
            completed_at=workflow.now(),
            previous_sha256=state.head,
            journal=run.journal.batch(),
        )
        run.phases.phase = "record"
        stored = await run.phases.record(call)
        self._note = None if execution == "succeeded" else self._note
        state.head = stored.receipt.sha256
        place = ReceiptPlace(
            step_id=self._step.id,
            visit=self._visit,
            attempt=self._attempt,
            sha256=stored.receipt.sha256,
            uri=stored.receipt.uri,
        )
        state.receipts = [*state.receipts, place][-MAX_RECEIPTS:]
        state.receipts_total += 1
        if execution == "succeeded":
            envelope = StepPlace(
                step_id=self._step.id,
                visit=self._visit,
                attempt=self._attempt,
                sha256=stored.envelope.sha256,
            )
            state.context = [*state.context, envelope][-MAX_CONTEXT:]
        run.show()

    def _saw_gates(self, gates: list[GateRun], before: str | None, after: str | None) -> None:
        """Remember what the gates said, for the next iteration and for the outcome."""
        run, step = self._run, self._step
        state = run.state
        for gate in gates:
            fact = gate.fact
            run.journal.add(
                "gate_measured",
                step=step.id,
                visit=self._visit,
                gate=fact.name,
                passed=fact.passed if fact.measured else None,
                exit_code=fact.exit_code,
                reason=fact.reason,
            )
            if fact.required and fact.measured and before is not None and before == after:
                seen = GateSeen(step_id=step.id, gate=fact.name, tree=before, passed=fact.passed)
                others = [one for one in state.gates_seen if (one.step_id, one.gate) != (step.id, fact.name)]
                state.gates_seen = [*others, seen]
        state.last_gates = self._key() if any(not gate.fact.passed for gate in gates) else None

    def _key(self) -> AttemptKey:
        return AttemptKey(
            run_id=self._run.state.run_id,
            flow_key=self._run.state.flow_key,
            step_id=self._step.id,
            visit=self._visit,
            attempt=self._attempt,
        )
