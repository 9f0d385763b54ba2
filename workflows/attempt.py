"""One attempt of a visit: work, measure, finalize and route, each called once, and the record of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow

from schemas.calls import (
    CANCELLED,
    FINALIZE,
    MEASURE,
    PROPOSE_ROUTE,
    WORK,
    AcquireOut,
    ActivityRef,
    AttemptKey,
    ConsultIn,
    FinalizeOut,
    GateRun,
    MeasureIn,
    MeasureOut,
    PhaseIn,
    ProposeOut,
    RecordIn,
    RecordOut,
    SessionPhaseIn,
    StepPlace,
    WorkIn,
    WorkOut,
)
from schemas.common import ArtifactRef, Execution, Phase
from schemas.facts import StepFacts
from schemas.flow import Branch, StepSpec
from schemas.handoff import SessionRef
from schemas.questions import CallDecision, Given
from schemas.routing import RoutingOutcome
from schemas.run_state import MAX_CONTEXT, MAX_RECEIPTS, GateSeen, ReceiptPlace
from workflows.attempt_over import AttemptOver
from workflows.consents import unused, without_doubt
from workflows.facts import Carry, timeout_s
from workflows.held import acquired, resolved
from workflows.log import logger
from workflows.phases import PhaseLost
from workflows.run import Run
from workflows.spending import Spending
from workflows.words import together

Call = TypeVar("Call", bound=PhaseIn)
Out = TypeVar("Out", bound=WorkOut | MeasureOut | FinalizeOut | ProposeOut)
Answer = TypeVar("Answer", FinalizeOut, ProposeOut)

RECORD_AS_ACTIVITY = "record-as-activity"
"""The patch with which ``record`` became an ordinary activity; runs that began before keep to the local one."""
RECORD_WITH_WORK = "record-with-work"
"""The patch with which the record of a finished attempt goes with the work that follows it."""
ANSWER_STOPS = "answer-stops"
"""The patch with which an agent that cannot be asked for hand-off or route ends the attempt, as in work."""


class Attempts:
    """The attempts of one visit, one after another: what each goes on from, and the phases it runs.

    ``carry`` holds the phases that are finished, ``partial`` and ``session`` what an unfinished work left.
    """

    def __init__(self, run: Run, step: StepSpec, visit: int) -> None:
        self.run = run
        self.step = step
        self.visit = visit
        self.number = 0
        self._begun = 0
        self.carry = Carry()
        self.note: str | None = None
        self.given: list[Given] = []
        self.decisions: list[CallDecision] = []
        self.partial: ArtifactRef | None = None
        self.session: SessionRef | None = None
        self.transport: str | None = None
        self.losses = 0
        self.spending = Spending(run, step)
        self.ended: datetime | None = None
        self.envelope: ArtifactRef | None = None
        self._began_at: datetime | None = None

    @property
    def began(self) -> datetime | None:
        """When the attempt's first phase began: what was waited for before it is not the attempt's time."""
        return self._began_at if self.has_begun else None

    @property
    def has_begun(self) -> bool:
        """Whether the attempt has run a phase, or the beginning of one."""
        return self._begun == self.number

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
            draft = await self._call(
                FINALIZE,
                SessionPhaseIn(**self._session_fields()),
                "finalize",
                4 * timeout_s(self.run.spec, step, "finalize") + 60,
                lambda out: out.finished_finalize,
            )
            carry.finalize, carry.finalize_attempt = self._answered(draft), self.number
        if self._targets and carry.route is None:
            await self._boundary()
            signal = await self._call(
                PROPOSE_ROUTE,
                SessionPhaseIn(**self._session_fields(), candidates=self._targets),
                "route",
                4 * timeout_s(self.run.spec, step, "route") + 60,
                lambda out: out.finished_route,
            )
            carry.route, carry.route_attempt = self._answered(signal), self.number

    def _answered(self, out: Answer) -> Answer:
        """Return what a phase of answers returned; raises AttemptOver where its agent could not be asked.

        Runs from before the patch took that for an answer that was missing.
        """
        if out.ended != "finished" and workflow.patched(ANSWER_STOPS):
            raise AttemptOver(ended=out.ended, work=self.carry.work, answer=out)
        return out

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
            self.run.take_note(order)

    async def _work(self) -> WorkOut:
        run, step = self.run, self.step
        if self.spending.is_used_up:
            raise AttemptOver(ended="budget", reason=self.spending.reason)
        state = run.state
        if step.id in state.chosen:
            self.transport = state.chosen[step.id]
            state.chosen = {other: name for other, name in state.chosen.items() if other != step.id}
        run.live.over()
        given, decided = run.live.too_late()
        # The last is the answer to what the work before ended with, if it ended so.
        self.given, self.decisions = [*given, *self.given], [*self.decisions, *decided]
        self.note = together(self.note, *state.steers)
        state.steers = []
        call = WorkIn(
            **self._asking_fields(),
            note=self.note,
            partial=self.partial,
            session=self.session,
            budget=self.spending.left(),
            fresh=self.partial is None,
            given=self.given[-1] if self.given else None,
            given_before=self.given[:-1],
            decisions=[*state.allowed, *self.decisions],
        )
        limit_s = timeout_s(run.spec, step, "work") + step.interrupt.grace_s + 600
        run.working = self.key()
        had: list[str] = []
        try:
            out = await self._call(WORK, call, "work", limit_s, lambda found: found.finished_work)
            had = out.had
        except AttemptOver as over:
            had = over.work.had if over.work is not None else []
            raise
        finally:
            run.working = None
            for text in run.live.end(had):
                run.say_later(text)
        if out.ended == "approval" or (out.ended == "question" and step.questions.unanswered == "human"):
            run.live.parked(self.key(), out)
        if out.session is not None:
            # Its prompt had them.
            self.given = []
        self.decisions = unused(self.decisions, out)
        self.spending.spent(out)
        return out

    def consultation(self, gate: Literal["before", "after"]) -> ConsultIn:
        """Return what the developer model is to decide at an approval gate of the step."""
        return ConsultIn(**self._asking_fields(), gate=gate)

    def _asking_fields(self) -> dict[str, Any]:
        run, step, state = self.run, self.step, self.run.state
        transports = resolved(state).transports.get(step.id, [])
        chosen = state.chosen.get(step.id, self.transport)
        return {
            **self._phase_fields(),
            "transports": [chosen] if chosen else transports,
            "model": step.model or state.input.model or run.spec.defaults.model,
            "context": state.context,
            "last_gates": state.last_gates,
        }

    def _phase_fields(self) -> dict[str, Any]:
        state = self.run.state
        return {
            "key": self.key(),
            "iteration": self.run.iteration,
            "lease": acquired(state).lease,
            "bundle": resolved(state).bundle,
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
        if self._begun != self.number:
            self._begun, self._began_at = self.number, workflow.now()
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
        self.ended = started + timedelta(milliseconds=_took_ms(out))
        run.journal.add(
            "phase_ended",
            step=step.id,
            visit=self.visit,
            attempt=self.number,
            phase=phase,
            ms=int((workflow.now() - started).total_seconds() * 1_000),
            **_how_ended(out),
        )
        return out

    async def _find(self, phase: Phase, lost: PhaseLost, finished: Callable[[AcquireOut], Out | None]) -> Out:
        """Ask what became of a lost phase: its result, or AttemptOver with what it left."""
        run = self.run
        if run.ending:
            raise AttemptOver(ended="interrupted", reason=lost.failure) from lost
        # Asked to end before any worker had it: nothing broke.
        is_cut = lost.failure == CANCELLED
        self.losses += not is_cut
        run.journal.add("phase_ended", step=self.step.id, phase=phase, attempt=self.number, lost=lost.failure)
        place = {"run_id": run.state.run_id, **self.key().model_dump(include={"visit", "attempt"})}
        logger.warning(
            "phase %s of %s was lost: %s",
            phase,
            self.step.id,
            lost.failure,
            extra={**place, "step": self.step.id},
        )
        found = await run.phases.recover(self.key(), phase, lost.failure, max(1, self.losses))
        run.state.acquired = found
        out = finished(found)
        if out is not None:
            return out
        work = found.partial_work if phase == "work" else self.carry.work
        if phase == "work" and not lost.is_unbegun:
            self._doubt(found.partial_work)
        ended = "interrupted" if is_cut else "crash"
        raise AttemptOver(ended=ended, work=work, partial=found.partial, reason=lost.failure) from lost

    def _doubt(self, left: WorkOut | None) -> None:
        """Keep of what was said of calls what lost work has not used up, or lets nothing pass.

        ``left`` is what there is of the work; None where its agent had not begun. No patch keeps runs from before from
        this: it changes what an activity is told, and no command.
        """
        if left is None:
            return
        if left.spent is None:
            self.decisions = without_doubt(self.decisions)
        else:
            self.decisions = unused(self.decisions, left)
        self.run.live.doubt()

    async def record(
        self,
        execution: Execution,
        facts: StepFacts,
        started: datetime,
        ended: datetime,
        outcome: RoutingOutcome | None,
        over: AttemptOver | None = None,
    ) -> None:
        """Store receipt and envelope of the attempt, and remember where they are; ``over`` is how it was stopped.

        That of an attempt whose phases all finished goes with the next work, where there is one at once: an activity
        of its own would be a third of what a short step costs.
        Runs from before the patch wrote that of an attempt whose phases all finished by a local activity. Whether a
        message is judged before or after the end of one is not the same in a replay as it was (sdk-core, seen with
        temporalio 1.35), so no run does that any more.
        """
        run, carry = self.run, self.carry
        state, key = run.state, self.key()
        await run.phases.catch_up()
        held = acquired(state)
        local = over is None and not workflow.patched(RECORD_AS_ACTIVITY)
        work = over.work if over is not None and carry.work is None else None
        answer = over.answer if over is not None else None
        call = RecordIn(
            key=key,
            iteration=run.iteration,
            lease=held.lease,
            bundle=resolved(state).bundle,
            branch=held.branch,
            execution_status=execution,
            facts=facts,
            work=work,
            work_attempt=self.number if work else carry.work_attempt or None,
            measure_attempt=carry.measure_attempt or None,
            finalize_attempt=carry.finalize_attempt
            or (self.number if isinstance(answer, FinalizeOut) else None),
            route_attempt=carry.route_attempt or (self.number if isinstance(answer, ProposeOut) else None),
            base_gates=held.base_gates.get(self.step.id, []),
            routing=outcome,
            stop=(run.ending_as or over.stop) if over is not None else None,
            requested_by=run.requested_by or over.by if over is not None else "",
            started_at=started,
            completed_at=max(started, ended),
            previous_sha256=state.head,
        )
        # Asked before a local activity: the task that brings its end need not be the one in which a replay sees it.
        run.is_long = workflow.info().is_continue_as_new_suggested()
        with_work = self._work_follows(outcome) and not run.is_long and workflow.patched(RECORD_WITH_WORK)

        def written(stored: RecordOut) -> None:
            self._recorded(key, stored, finished=over is None)

        if with_work:
            run.phases.record_with_work(call, written)
        else:
            if not local:
                call = call.model_copy(update={"journal": run.journal.batch()})
            written(await run.phases.record(call, local=local))
        self.note = None if over is None else self.note

    def _work_follows(self, outcome: RoutingOutcome | None) -> bool:
        """Whether the next thing the run does is the work of a step, unless a person wants something else.

        At a gate, and where the run may end, people are asked or heard when the record is written, and only then.
        """
        if outcome is None or outcome.decision in {"terminate", "escalate"} or outcome.next_step_id is None:
            return False
        following = self.run.spec.step(outcome.next_step_id)
        ungated = self.step.approval != "after" and following is not None and following.approval != "before"
        return ungated and acquired(self.run.state).takes_records

    def _recorded(self, key: AttemptKey, stored: RecordOut, *, finished: bool) -> None:
        """Remember where receipt and envelope of an attempt are."""
        state = self.run.state
        place: dict[str, Any] = {"step_id": key.step_id, "visit": key.visit, "attempt": key.attempt}
        state.head = stored.receipt.sha256
        self.envelope = stored.envelope
        receipt = ReceiptPlace(**place, sha256=stored.receipt.sha256, uri=stored.receipt.uri)
        state.receipts = [*state.receipts, receipt][-MAX_RECEIPTS:]
        state.receipts_total += 1
        if finished:
            envelope = StepPlace(**place, sha256=stored.envelope.sha256)
            state.context = [*state.context, envelope][-MAX_CONTEXT:]
        self.run.show()

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


def _how_ended(out: WorkOut | MeasureOut | FinalizeOut | ProposeOut) -> dict[str, str]:
    """Return what the journal says of how a phase ended: of one without the answer it asked for, why."""
    if isinstance(out, WorkOut):
        return {"ended": out.ended}
    if isinstance(out, MeasureOut) or out.error is None:
        return {}
    return {"ended": out.ended, "error": out.error.code}


def _took_ms(out: WorkOut | MeasureOut | FinalizeOut | ProposeOut) -> int:
    """Return how long a phase took by its own account, in milliseconds."""
    return out.elapsed_ms + (out.waited_ms if isinstance(out, WorkOut) else 0)
