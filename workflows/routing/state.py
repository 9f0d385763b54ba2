"""What routing remembers of the loops that are open."""

from __future__ import annotations

from datetime import datetime

from schemas.facts import StepFacts
from schemas.flow import FlowSpec, Microloop, StepSpec
from schemas.routing import IterationFacts, LoopState, RoutingOutcome, RoutingState
from workflows.routing.graph import body

MAX_ITERATIONS_KEPT = 20
"""No loop may be longer, so an exit rule never misses an iteration that was dropped."""


def begin(spec: FlowSpec, now: datetime, step_id: str | None = None) -> RoutingState:
    """Return the state of a run that is about to enter ``step_id``, else its first step, at ``now`` (an aware time)."""
    return _enter(spec, RoutingState(now=now), step_id or spec.steps[0].id)


def observe(state: RoutingState, step: StepSpec, facts: StepFacts, now: datetime) -> RoutingState:
    """Return the state at ``now`` with the facts of a loop's step appended; called before ``decide``."""
    if not isinstance(step.routing, Microloop):
        return RoutingState(now=now, loops=state.loops)
    loop = state.loops.get(step.id) or LoopState(entered_at=state.now)
    iterations = [*loop.iterations, _iteration(facts)][-MAX_ITERATIONS_KEPT:]
    seen = LoopState(entered_at=loop.entered_at, iterations=iterations)
    return RoutingState(now=now, loops={**state.loops, step.id: seen})


def transition(
    spec: FlowSpec,
    state: RoutingState,
    step: StepSpec,
    outcome: RoutingOutcome,
    next_step_id: str | None,
    *,
    now: datetime | None = None,
) -> RoutingState:
    """Return the state for the step that is entered; a loop that was left is forgotten.

    ``now`` is when it is entered, if later than the last observation (after a wait). Escalate and pause leave
    nothing: the loops stay as they are. A human's goto forgets all loops.
    """
    if outcome.decision in {"escalate", "pause"}:
        return state
    moved = RoutingState(now=now or state.now)
    if next_step_id is None:
        return moved
    if not (outcome.source == "human" and outcome.decision == "branch"):
        kept = {
            owner: loop
            for owner, loop in state.loops.items()
            if _stays(spec, owner, step, outcome, next_step_id)
        }
        moved = moved.model_copy(update={"loops": kept})
    return _enter(spec, moved, next_step_id)


def current_iteration(state: RoutingState, step: StepSpec) -> int:
    """Return the number (from 1) of the iteration a step is about to do or is doing; always 1 outside loops.

    Only human retries go beyond 20, where the number stays.
    """
    loop = state.loops.get(step.id)
    if loop is None or not isinstance(step.routing, Microloop):
        return 1
    return min(len(loop.iterations) + 1, MAX_ITERATIONS_KEPT)


def _stays(spec: FlowSpec, owner: str, step: StepSpec, outcome: RoutingOutcome, next_step_id: str) -> bool:
    if owner == step.id and outcome.decision != "loop":
        return False
    return next_step_id in body(spec, owner)


def _enter(spec: FlowSpec, state: RoutingState, step_id: str) -> RoutingState:
    """Start the clock of each loop whose target or owner is entered and that is not open yet."""
    opened = {
        step.id: LoopState(entered_at=state.now)
        for step in spec.steps
        if isinstance(step.routing, Microloop)
        and step_id in {step.id, step.routing.loop_target}
        and step.id not in state.loops
    }
    return RoutingState(now=state.now, loops={**state.loops, **opened})


def _iteration(facts: StepFacts) -> IterationFacts:
    changes = facts.file_changes
    return IterationFacts(
        gates=facts.gates,
        claimed_status=facts.claimed_status,
        can_further_iteration_help=facts.can_further_iteration_help,
        score=facts.score,
        score_error=facts.score_error,
        failure_signature=facts.failure_signature,
        files_changed=changes.created + changes.modified + changes.deleted,
        tools=facts.tools,
        changed_after_measure=facts.changed_after_measure,
    )
