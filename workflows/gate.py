"""What a person is told of what they are to approve at a gate, and how to look at it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from policy.plain import typed
from schemas.common import ArtifactRef
from schemas.cutting import cut
from schemas.flow import StepSpec
from schemas.run_state import RunState
from workflows.facts import Carry, gates_line

MAX_LINE = 400
"""Characters of each line: a page is read on a narrow column, and a history keeps none of it."""


@dataclass(frozen=True)
class Gate:
    """What there is to know in a few lines, and the commands that show all of it."""

    lines: list[str] = field(default_factory=list)
    look: list[str] = field(default_factory=list)


def gate_before(state: RunState, step: StepSpec) -> Gate:
    """Return what is known before a step begins: what it is to do."""
    return Gate([_line("it is to", step.objective)], [_show(state)])


def gate_after(state: RunState, step: StepSpec, carry: Carry, envelope: ArtifactRef | None) -> Gate:
    """Return what is known of a result: what its agent says of it, and what was measured."""
    work, measure, draft = carry.work, carry.measure, carry.finalize
    lines = [_line("the agent says", draft.headline if draft and draft.headline else "nothing")]
    if work is not None:
        counts = work.changes.model_dump()
        changed = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
        lines.append(f"files: {changed or 'none changed'}")
    gates = gates_line(measure.gates) if measure else ""
    lines.append(_line("gates", gates or ("none measured" if step.gates else "it has none")))
    if envelope is not None:
        lines.append(f"the hand-off is {envelope.uri} in the store")
    look = [_show(state)]
    if work and state.acquired and work.commit_before and work.commit_before != work.commit_after:
        span = [work.commit_before, work.commit_after or "HEAD"]
        look.append(typed(["git", "-C", state.acquired.workspace, "diff", *span]))
    return Gate(lines, look)


def _show(state: RunState) -> str:
    return typed(["stepwise", "show", state.run_id])


def _line(what: str, said: str) -> str:
    return cut(f"{what}: {' '.join(said.split())}", MAX_LINE)
