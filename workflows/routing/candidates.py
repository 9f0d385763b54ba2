"""The ways on that a step offers, each with an id that is the same every time."""

from __future__ import annotations

from schemas.flow import Branch, Linear, Microloop, StepSpec
from schemas.routing import Candidate
from workflows.routing.graph import branch_targets

ESCALATE = Candidate(id="escalate", decision="escalate")
TERMINATE = Candidate(id="terminate", decision="terminate")


def advance(step_id: str) -> Candidate:
    """Return the way forward to a step."""
    return Candidate(id=f"advance:{step_id}", decision="advance", next_step_id=step_id)


def loop(target: str, iteration: int) -> Candidate:
    """Return the way back to a loop's target; ``iteration`` (from 1) is the one it begins."""
    return Candidate(id=f"loop:{target}:iter_{iteration}", decision="loop", next_step_id=target)


def branch(step_id: str) -> Candidate:
    """Return the way to a step chosen among several."""
    return Candidate(id=f"branch:{step_id}", decision="branch", next_step_id=step_id)


def retry(step_id: str) -> Candidate:
    """Return the way into the same step once more, as only a human orders it."""
    return Candidate(id=f"retry:{step_id}", decision="loop", next_step_id=step_id)


def skip(step_id: str) -> Candidate:
    """Return the way past a step to ``step_id``, as only a human orders it."""
    return Candidate(id=f"skip:{step_id}", decision="skip", next_step_id=step_id)


def candidates(step: StepSpec, iteration: int) -> list[Candidate]:
    """Return all ways on after ``iteration`` of a step (from 1), in the order of its rule, escalation last."""
    routing = step.routing
    if isinstance(routing, Linear):
        return [advance(routing.next), ESCALATE]
    if isinstance(routing, Branch):
        return [*(branch(target) for target in branch_targets(routing)), ESCALATE]
    if isinstance(routing, Microloop):
        ways = [advance(routing.next), loop(routing.loop_target, iteration + 1)]
        return [*ways, TERMINATE, ESCALATE] if routing.on_exhausted == "terminate" else [*ways, ESCALATE]
    return [TERMINATE, ESCALATE]
