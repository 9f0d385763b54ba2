"""One attempt of a visit: work, measure, finalize and route, each called once, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from temporalio import workflow

from policy.budgets import MAX_CYCLES, Exceeded, extend, remaining, tightest
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
from schemas.messages import ExtendBudget, Resume
from schemas.questions import CallDecision, Given
from schemas.routing import RoutingOutcome
from schemas.run_state import MAX_CONTEXT, MAX_RECEIPTS, GateSeen, ReceiptPlace
from workflows.facts import Carry, timeout_s
from workflows.log import logger
from workflows.phases import PhaseLost
from workflows.run import Ended, Run
from workflows.words import together

Call = TypeVar("Call", bound=PhaseIn)
Out = TypeVar("Out", bound=Durable)


@dataclass(eq=False)
class AttemptOver(Exception):
    """Raised when an attempt ends before all its phases have: how, and what the next one can go on from."""

    ended: str
    work: WorkOut | None = None
    partial: ArtifactRef | None = None
    order: Resume | None = None
    reason: str = ""


class Attempts:
    """The attempts of one visit, one after another: what each goes on from, and the phases it runs.

    ``carry`` holds the phases that are finished, ``partial`` and ``session`` what an unfinished work left.
    """

    def __init__(self, run: Run, step: StepSpec, visit: int) -> None:
        self.run = run
        self.step = step
        self.visit = visit
        self.number = 0
        self.carry = Carry()
        self.note: str | None = None
        self.given: Given | None = None
        self.decisions: list[CallDecision] = []
        self.partial: ArtifactRef | None = None
        self.session: SessionRef | None = None
        self.transport: str | None = None
        self.losses = 0
        self.used = Usage()
        self.seconds = 0.0
        self.extended = Budget()

    async def phases(self) -> None:
        """Run the phases that are not finished. Raises AttemptOver, Ended."""
        carry, step = self.carry, self.step
        if carry.work is None:
            await self._boundary()
            work = await self._work()
            if work.ended != "finished":
                raise AttemptOver(ended=work.ended, work=work, partial=work.partial)
            carry.work, carry.work_attempt = work, self.number
            self.session, self.partial = work.session, None
        if step.gates and carry.measure is None:
            await self._boundary()
            measure = await self._call(
                MEASURE,
                MeasureIn(**self._phase_fields()),
                "measure",
                sum(gate.timeout or timeout_s(self.run.spec, step, "gate") for gate in step.gates) + 60,
                lambda out: out.finished_measure,
            )
            if measure.stopped is not None:
                raise AttemptOver(ended="interrupted", reason=measure.stopped)
            carry.measure, carry.measure_attempt = measure, self.number
            self._saw_gates(measure.gates, measure.tree_before, measure.tree_after)
        if carry.finalize is None:
            await self._boundary()
            carry.finalize = await self._call(
                FINALIZE,
                SessionPhaseIn(**self._session_fields()),
                "finalize",
                4 * timeout_s(self.run.spec, step, "finalize") + 60,
                lambda out: out.finished_finalize,
            )
            carry.finalize_attempt = self.number
        if self._targets and carry.route is None:
            await self._boundary()
            carry.route = await self._call(
                PROPOSE_ROUTE,
                SessionPhaseIn(**self._session_fields(), candidates=self._targets),
                "route",
                4 * timeout_s(self.run.spec, step, "route") + 60,
                lambda out: out.finished_route,
            )
            carry.route_attempt = self.number

    @property
    def _targets(self) -> list[str]:
        """The steps among which the agent is to choose; none where rules do."""
        routing = self.step.routing
        if not isinstance(routing, Branch) or routing.decided_by != "agent":
            return []
        targets = [rule.next for rule in routing.when] + ([routing.default] if routing.default else [])
        return list(dict.fromkeys(targets))

    async def _boundary(self) -> None:
        order = await self.run.boundary()
        if order is not None and order.action != "continue":
            raise AttemptOver(ended="interrupted", order=order, work=self.carry.work)
        if order is not None:
            self.take_note(order)

    async def _work(self) -> WorkOut:
        run, step = self.run, self.step
        state, resolved = run.state, run.state.resolved
        transports = resolved.transports.get(step.id, []) if resolved else []
        run.live.over()
        given, decided = run.live.too_late()
        self.given, self.decisions = self.given or given, [*self.decisions, *decided]
        self.note = together(self.note, *state.steers)
        state.steers = []
        call = WorkIn(
            **self._phase_fields(),
            transports=[self.transport] if self.transport else transports,
            model=step.model or state.input.model or run.spec.defaults.model,
            context=state.context,
            note=self.note,
            partial=self.partial,
            last_gates=state.last_gates,
            session=self.session,
            budget=self._budget(),
            fresh=self.partial is None,
            given=self.given,
            decisions=[*state.allowed, *self.decisions],
        )
        limit_s = timeout_s(run.spec, step, "work") + step.interrupt.grace_s + 600
        run.working = self.key()
        try:
            out = await self._call(WORK, call, "work", limit_s, lambda found: found.finished_work)
        finally:
            run.working = None
            run.live.over()
        if out.ended == "approval" or (out.ended == "question" and step.questions.unanswered == "human"):
            run.live.parked(self.key(), out)
        if out.session is not None:
            # Its prompt had them.
            self.given, self.decisions = None, []
        self.spent(out)
        return out

    def _budget(self) -> Budget | None:
        """Return what the work may use, None if there is no bound. Raises AttemptOver when nothing is left."""
        flow, own = self._left()
        for left in (flow, own):
            if isinstance(left, Exceeded):
                raise AttemptOver(ended="budget", reason=used_up(left))
        left = tightest(own if isinstance(own, Budget) else None, flow if isinstance(flow, Budget) else None)
        return left if left != Budget() else None

    def _bounds(self) -> tuple[Budget | None, Budget | None]:
        """Return the bounds of the run and of the step, as far as people have raised them."""
        state = self.run.state
        flow, own = state.input.budget, self.step.budget or self.run.spec.defaults.budget
        return extend(flow, state.extended) if flow else None, extend(own, self.extended) if own else None

    def _left(self) -> tuple[Budget | Exceeded, Budget | Exceeded]:
        """Return what is left of the bounds of the run and of the step."""
        state = self.run.state
        flow, own = self._bounds()
        return (
            remaining(flow, state.usage, state.work_seconds, 0),
            remaining(own, self.used, self.seconds, 0),
        )

    def budget_reason(self) -> str:
        """Return which bound is used up, in words."""
        found = [used_up(left) for left in self._left() if isinstance(left, Exceeded)]
        return "; ".join(found) or "the budget of this step is used up"

    @property
    def used_up(self) -> bool:
        """Whether a bound is used up."""
        return any(isinstance(left, Exceeded) for left in self._left())

    def extend(self, order: ExtendBudget) -> None:
        """Raise the bounds: by what was given, else by what is used up once more, else by all of them once more."""
        state = self.run.state
        given = Budget(tokens=order.tokens, usd=order.usd, seconds=order.seconds, cycles=order.cycles)
        flow, own = self._bounds()
        left = self._left()
        if given == Budget():
            more = [_once_more(bound, found) for bound, found in zip((flow, own), left, strict=True)]
            if more == [Budget(), Budget()]:
                more = [
                    state.input.budget or Budget(),
                    self.step.budget or self.run.spec.defaults.budget or Budget(),
                ]
        else:
            more = [given, given]
        state.extended, self.extended = _plus(state.extended, more[0]), _plus(self.extended, more[1])

    def spent(self, out: WorkOut) -> None:
        """Count what a work phase used, for the run and for the step."""
        state = self.run.state
        state.usage = state.usage.plus(out.usage)
        state.work_seconds += out.elapsed_ms / 1_000
        self.used = self.used.plus(out.usage)
        self.seconds += out.elapsed_ms / 1_000

    def _phase_fields(self) -> dict[str, Any]:
        state = self.run.state
        if state.acquired is None or state.resolved is None:
            raise Ended("failed", "no workspace was acquired")
        return {
            "key": self.key(),
            "iteration": self.run.iteration,
            "lease": state.acquired.lease,
            "bundle": state.resolved.bundle,
            "workflow_id": state.workflow_id,
            "journal": [],
        }

    def _session_fields(self) -> dict[str, Any]:
        measure = self.carry.measure
        return {
            **self._phase_fields(),
            "work_attempt": self.carry.work_attempt,
            "session": self.session,
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
        run, step = self.run, self.step
        run.journal.add("phase_started", step=step.id, visit=self.visit, attempt=self.number, phase=phase)
        call = call.model_copy(update={"journal": run.journal.batch()})
        run.phases.phase = phase
        run.show()
        summary = f"{step.id} (iteration {run.iteration}" + (
            f", attempt {self.number})" if self.number > 1 else ")"
        )
        started = workflow.now()
        try:
            out = await run.phases.pinned(ref, call, phase, limit_s, summary=summary)
        except PhaseLost as lost:
            out = await self._find(phase, lost, finished)
        run.journal.add(
            "phase_ended",
            step=step.id,
            visit=self.visit,
            attempt=self.number,
            phase=phase,
            ms=int((workflow.now() - started).total_seconds() * 1_000),
            ended=out.ended if isinstance(out, WorkOut) else None,
        )
        return out

    async def _find(self, phase: Phase, lost: PhaseLost, finished: Callable[[AcquireOut], Out | None]) -> Out:
        """Ask what became of a lost phase: its result, or AttemptOver with what it left."""
        run = self.run
        if run.ending:
            raise AttemptOver(ended="interrupted", reason=lost.failure) from lost
        self.losses += 1
        run.journal.add("phase_ended", step=self.step.id, phase=phase, attempt=self.number, lost=lost.failure)
        place = {"run_id": run.state.run_id, **self.key().model_dump(include={"visit", "attempt"})}
        logger.warning(
            "phase %s of %s was lost: %s",
            phase,
            self.step.id,
            lost.failure,
            extra={**place, "step": self.step.id},
        )
        found = await run.phases.recover(self.key(), phase, lost.failure, self.losses)
        run.state.acquired = found
        out = finished(found)
        if out is not None:
            return out
        work = found.partial_work if phase == "work" else self.carry.work
        raise AttemptOver(ended="crash", work=work, partial=found.partial, reason=lost.failure) from lost

    async def record(
        self,
        execution: Execution,
        facts: StepFacts,
        started: datetime,
        ended: datetime,
        outcome: RoutingOutcome | None,
        work: WorkOut | None = None,
    ) -> None:
        """Store receipt and envelope of the attempt, and remember where they are.

        That of an attempt whose phases all finished depends on their results alone, so it may be written by a local
        activity; the journal, which has the workflow's own times and the messages of people, goes another way.
        """
        run, carry = self.run, self.carry
        state = run.state
        if state.acquired is None or state.resolved is None:
            return
        local = execution == "succeeded"
        call = RecordIn(
            key=self.key(),
            iteration=run.iteration,
            lease=state.acquired.lease,
            bundle=state.resolved.bundle,
            branch=state.acquired.branch,
            execution_status=execution,
            facts=facts,
            work=work,
            work_attempt=self.number if work else carry.work_attempt or None,
            measure_attempt=carry.measure_attempt or None,
            finalize_attempt=carry.finalize_attempt or None,
            base_gates=state.acquired.base_gates.get(self.step.id, []),
            routing=outcome,
            requested_by="" if local else run.requested_by,
            started_at=started,
            completed_at=max(started, ended),
            previous_sha256=state.head,
        )
        if not local:
            call = call.model_copy(update={"journal": run.journal.batch()})
        stored = await run.phases.record(call, local=local)
        self.note = None if execution == "succeeded" else self.note
        state.head = stored.receipt.sha256
        place = ReceiptPlace(
            step_id=self.step.id,
            visit=self.visit,
            attempt=self.number,
            sha256=stored.receipt.sha256,
            uri=stored.receipt.uri,
        )
        state.receipts = [*state.receipts, place][-MAX_RECEIPTS:]
        state.receipts_total += 1
        if execution == "succeeded":
            envelope = StepPlace(
                step_id=self.step.id,
                visit=self.visit,
                attempt=self.number,
                sha256=stored.envelope.sha256,
            )
            state.context = [*state.context, envelope][-MAX_CONTEXT:]
        run.show()

    def _saw_gates(self, gates: list[GateRun], before: str | None, after: str | None) -> None:
        """Remember what the gates said, for the next iteration and for the outcome."""
        run, step = self.run, self.step
        state = run.state
        for gate in gates:
            fact = gate.fact
            run.journal.add(
                "gate_measured",
                step=step.id,
                visit=self.visit,
                gate=fact.name,
                passed=fact.passed if fact.measured else None,
                exit_code=fact.exit_code,
                reason=fact.reason,
            )
            if fact.required and fact.measured and before is not None and before == after:
                seen = GateSeen(step_id=step.id, gate=fact.name, tree=before, passed=fact.passed)
                others = [one for one in state.gates_seen if (one.step_id, one.gate) != (step.id, fact.name)]
                state.gates_seen = [*others, seen]
        state.last_gates = self.key() if any(not gate.fact.passed for gate in gates) else None

    def key(self) -> AttemptKey:
        """Return which attempt this is."""
        return AttemptKey(
            run_id=self.run.state.run_id,
            flow_key=self.run.state.flow_key,
            step_id=self.step.id,
            visit=self.visit,
            attempt=self.number,
        )

    @property
    def unfinished(self) -> bool:
        """Whether the newest attempt left something that the next one can go on from."""
        return self.partial is not None or (self.carry.work is not None and not self.complete)

    @property
    def complete(self) -> bool:
        """Whether every phase is finished."""
        carry = self.carry
        return carry.finalize is not None and (carry.route is not None or not self._targets)

    def take_note(self, order: Resume) -> None:
        """Remember what a person told the agent, and which transport they chose.

        Where the order leaves the step, the words are for the agent of the step that follows.
        """
        if order.action in {"skip", "goto"}:
            self.run.say_later(order.note)
            return
        self.note = together(self.note, order.note)
        self.transport = order.transport or self.transport


def used_up(left: Exceeded) -> str:
    """Return in words which bound is used up."""
    return f"the budget of {left.limit:g} {left.which} is used up ({left.used:g} used)"


def _once_more(bound: Budget | None, left: Budget | Exceeded) -> Budget:
    """Return the bound that is used up, alone; nothing where none is."""
    if bound is None or not isinstance(left, Exceeded):
        return Budget()
    return Budget.model_validate({left.which: bound.model_dump()[left.which]})


def _plus(one: Budget, more: Budget) -> Budget:
    """Return both extensions together."""
    sums = {
        name: (value or 0) + (more.model_dump()[name] or 0) or None
        for name, value in one.model_dump().items()
    }
    cycles = sums["cycles"]
    return Budget.model_validate({**sums, "cycles": min(cycles, MAX_CYCLES) if cycles else None})
