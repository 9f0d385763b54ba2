"""A run from its first step to its result: the loop over steps, chains, the end."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from schemas.calls import AcquireOut, Lease, ReleaseIn
from schemas.common import Outcome
from schemas.envelopes import ErrorEnvelope
from schemas.errors import OWN_ERROR_TYPES
from schemas.routing import RoutingState
from schemas.run import FlowResult
from schemas.run_state import GateSeen, OwedGate, RunState
from workflows.final import conclude, owe
from workflows.held import Refused
from workflows.log import logger
from workflows.routing import begin, transition
from workflows.run import Ended, Run
from workflows.visit import Visit


async def _reset_not_supported(run: Run) -> ApplicationError:
    """Return the error that ends a run which was reset; its workspace and evidence are not touched."""
    await _settle(run, "failed")
    message = (
        "a run cannot be reset, since its workspace has moved on; "
        f"a new run goes on from one of its steps: stepwise fork {run.state.run_id} --from STEP"
    )
    return ApplicationError(message, type="ResetNotSupported", non_retryable=True)


COMPLETED: tuple[Outcome, ...] = ("verified", "nothing_to_do", "stopped")


async def execute(run: Run) -> FlowResult:
    """Drive the run to its end. Returns for the outcomes that complete; raises ApplicationError for the others."""
    error: ErrorEnvelope | None = None
    try:
        outcome, summary = await _drive_unless_ending(run)
    except Ended as end:
        outcome, summary, error = end.outcome, end.summary, end.error
    except asyncio.CancelledError:
        if run.was_reset:
            raise await _reset_not_supported(run) from None
        outcome, summary = "cancelled", "the workflow was cancelled"
    except Refused as refused:
        if run.was_reset:
            raise await _reset_not_supported(run) from None
        if run.state.acquired is None and refused.type in OWN_ERROR_TYPES:
            await _settle(run, "failed")
            raise ApplicationError(refused.message, type=refused.type, non_retryable=True) from refused
        outcome, summary = "failed", refused.message
        error = ErrorEnvelope(code=refused.type, message=refused.message)
    try:
        return await _finish(run, outcome, summary, error)
    except asyncio.CancelledError:
        if run.was_reset:
            raise await _reset_not_supported(run) from None
        if outcome == "cancelled":
            raise
        # A cancel that comes while the run ends changes nothing any more; it comes only once.
        return await _finish(run, outcome, summary, error)


async def _drive_unless_ending(run: Run) -> tuple[Outcome, str]:
    """Drive the run; what was refused because the run is to end is that end. Raises Ended, Refused."""
    try:
        run.check_ending()
        return await _drive(run)
    except Refused:
        run.check_ending()
        raise


async def _drive(run: Run) -> tuple[Outcome, str]:
    state = run.state
    if state.resolved is None:
        await _prepare(run)
    while True:
        step = run.spec.step(state.next_step or run.spec.steps[0].id)
        if step is None:
            raise Ended("failed", f"no step {state.next_step!r}")
        visit = state.visits.get(step.id, 0) + 1
        state.visits[step.id] = visit
        run.step, run.visit = step, visit
        outcome = await Visit(run, step, visit).go()
        state.skipped = [name for name in state.skipped if name != step.id]
        if outcome.decision == "skip":
            state.skipped = [*state.skipped, step.id]
        if outcome.decision == "terminate" or outcome.next_step_id is None:
            if outcome.terminal_outcome == "stopped":
                raise Ended("stopped", outcome.explanation)
            return await conclude(run, outcome.terminal_outcome, outcome.explanation)
        state.routing = transition(
            run.spec, run.routing, step, outcome, outcome.next_step_id, now=workflow.now()
        )
        state.next_step = outcome.next_step_id
        await _continue_if_long(run)


async def _prepare(run: Run) -> None:
    """Resolve the flow, acquire the workspace unless a chain brought one, and enter the first step."""
    state = run.state
    state.resolved = await run.phases.resolve(state.flow_name)
    run.check_ending()
    spec = state.resolved.spec
    state.flow_key = spec.id
    state.chain = [*state.chain, spec.id]
    fork = state.input.fork if state.acquired is None else None
    run.journal.add(
        "run_created",
        flow=spec.id,
        bundle=state.resolved.bundle.sha256,
        repo=state.input.repo,
        forked_from=fork.model_dump(exclude_none=True) if fork else None,
    )
    first = fork.step if fork else spec.steps[0].id
    if state.acquired is None:
        run.show()
        state.acquired = await run.phases.acquire()
        state.final_tree = state.acquired.base_tree
        _go_on_from_parent(state, state.acquired)
    state.routing = begin(spec, workflow.now(), first)
    state.next_step = first
    run.check_ending()


def _go_on_from_parent(state: RunState, acquired: AcquireOut) -> None:
    """Let a fork stand where its parent stood, and owe the gates of what was visited there. Raises Refused."""
    forked = acquired.forked
    if state.input.fork is None:
        return
    if forked is None:
        raise Refused("InternalError", "the workspace was acquired by an older worker, which knows no forks")
    state.acquired = acquired.model_copy(update={"forked": None})
    state.final_tree = forked.tree
    state.context = forked.context
    state.last_gates = forked.last_gates
    state.owed = [OwedGate.model_validate(gate.model_dump(exclude={"passed"})) for gate in forked.gates]
    state.gates_seen = [
        GateSeen(
            step_id=gate.step_id if gate.flow_key == state.flow_key else f"{gate.flow_key}:{gate.step_id}",
            gate=gate.gate,
            tree=forked.tree,
            passed=gate.passed,
        )
        for gate in forked.gates
        if gate.passed is not None
    ]


async def _continue_if_long(run: Run) -> None:
    """Continue as new where Temporal suggests it: between steps, with every message judged."""
    if not run.is_long:
        return
    await workflow.wait_condition(lambda: run.settled)
    run.check_ending()
    run.state.continued += 1
    workflow.continue_as_new(args=[run.state.input, run.state])


# The end.


async def _finish(run: Run, outcome: Outcome, summary: str, error: ErrorEnvelope | None) -> FlowResult:
    """Chain on, or release the workspace and end the workflow with the status that fits the outcome."""
    state = run.state
    run.step = None
    try:
        await run.phases.catch_up()
    except Refused as refused:
        error = error or ErrorEnvelope(code=refused.type, message=refused.message)
        if outcome in ("verified", "nothing_to_do"):
            outcome, summary = "failed", refused.message
    await _chain_on(run, outcome, summary)
    if outcome != "cancelled":
        outcome, summary = state.kept_outcome or outcome, state.kept_summary or summary
    if run.outcome is None:
        run.journal.add("run_completed", outcome=outcome, summary=summary[:500])
    # It stands: nothing that people say from here on could change it, so nothing is taken.
    run.outcome = outcome
    run.show()
    released = None
    if state.acquired is not None or state.resolved is not None:
        # Also where no acquisition came back: it may have left a record, whose worker died.
        call = ReleaseIn(
            run_id=state.run_id,
            workflow_id=state.workflow_id,
            lease=state.acquired.lease if state.acquired else Lease(worker_id="", epoch=0),
            outcome=outcome,
            publish=state.input.publish,
            receipts_head=state.head,
            messages=state.messages,
            journal=run.journal.batch(),
        )
        try:
            released = await run.phases.release(call)
        except Refused as refused:
            # The outcome stands whether or not the clone could be given back; say so beside it.
            error = error or ErrorEnvelope(code=refused.type, message=refused.message)
    await _settle(run, outcome)
    await _flush_refusals(run)
    result = FlowResult(
        run_id=state.run_id,
        outcome=outcome,
        summary=summary,
        steps=list(state.steps.values()),
        decisions=state.decisions,
        decisions_truncated=state.decisions_total > len(state.decisions),
        usage=state.usage,
        git=released.git if released else None,
        pull_request=released.pull_request if released else None,
        receipts_head=state.head,
        error=error,
    )
    if outcome == "cancelled":
        raise asyncio.CancelledError
    if outcome in COMPLETED:
        return result
    raise ApplicationError(f"{outcome}: {summary}", result, type=outcome, non_retryable=True)


async def _settle(run: Run, outcome: Outcome) -> None:
    """Close the run to messages, and let every handler that is under way answer."""
    run.outcome = outcome
    run.phases.phase = None
    run.show()
    await workflow.wait_condition(lambda: run.settled)


async def _flush_refusals(run: Run) -> None:
    """Store what the journal says of messages that came while the run ended."""
    try:
        while run.state.resolved is not None and run.journal.batch():
            await run.phases.flush()
            await workflow.wait_condition(lambda: run.settled)
    except Refused as refused:
        logger.warning("the last messages are not in the journal: %s", refused.message)


async def _chain_on(run: Run, outcome: Outcome, summary: str) -> None:
    """Continue as new into the flow that follows, if one does."""
    state = run.state
    if state.resolved is None or outcome in ("stopped", "cancelled"):
        return
    follows = state.resolved.spec.on_complete if outcome in COMPLETED else state.resolved.spec.on_failure
    if follows is None or follows.flow in state.chain:
        return
    await workflow.wait_condition(lambda: run.settled)
    if run.ending or run.was_reset:
        return
    owe(run)
    if outcome not in COMPLETED:
        state.kept_outcome, state.kept_summary = state.kept_outcome or outcome, state.kept_summary or summary
    run.journal.add("run_completed", flow=state.flow_key, outcome=outcome, next_flow=follows.flow)
    state.flow_name = follows.flow
    state.resolved = None
    if state.acquired is not None:
        # They are those of this flow's gates; the next one may use the same names for others.
        state.acquired = state.acquired.model_copy(update={"base_gates": {}})
    state.next_step = None
    state.visits = {}
    state.steps = {}
    state.skipped = []
    state.chosen = {}
    state.last_gates = None
    state.routing = RoutingState(now=workflow.now(), loops={})
    state.continued += 1
    workflow.continue_as_new(args=[state.input, state])
