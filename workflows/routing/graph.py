"""The graph a flow's routing rules draw: ways on, loops, and what a sound flow must not contain."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from schemas.flow import Branch, FlowSpec, Linear, Microloop, StepSpec, Terminal

Edges = Mapping[str, Sequence[str]]


def forward(step: StepSpec) -> str | None:
    """Return the step that follows when nothing is chosen: ``next``, a branch's ``default``, else None."""
    if isinstance(step.routing, Linear | Microloop):
        return step.routing.next
    return step.routing.default if isinstance(step.routing, Branch) else None


def branch_targets(routing: Branch) -> list[str]:
    """Return each step a branch can lead to once, in the order written, the default last."""
    targets = [when.next for when in routing.when]
    if routing.default is not None:
        targets.append(routing.default)
    return list(dict.fromkeys(targets))


def successors(step: StepSpec) -> list[str]:
    """Return each step this one can lead to once, its loop target first; none after a terminal step."""
    if isinstance(step.routing, Microloop):
        return list(dict.fromkeys([step.routing.loop_target, step.routing.next]))
    return _without_loops(step)


def back_edges(spec: FlowSpec) -> list[tuple[str, str]]:
    """Return ``(owner, target)`` of each microloop, in the order of the steps."""
    return [(step.id, step.routing.loop_target) for step in spec.steps if isinstance(step.routing, Microloop)]


def body(spec: FlowSpec, step_id: str) -> tuple[str, ...]:
    """Return the steps of the loop that ``step_id`` owns, in the order of the flow; nothing if it owns none.

    They are the loop's owner, its target, and every step on a walk from the target to the owner that does
    not leave by the owner.
    """
    owner = spec.step(step_id)
    if owner is None or not isinstance(owner.routing, Microloop):
        return ()
    edges = {step.id: [] if step.id == step_id else successors(step) for step in spec.steps}
    ahead = _reach(edges, [owner.routing.loop_target])
    behind = _reach(_reversed(edges), [step_id])
    ends = (step_id, owner.routing.loop_target)
    return tuple(
        step.id for step in spec.steps if step.id in ends or (step.id in ahead and step.id in behind)
    )


def find_unbounded(spec: FlowSpec) -> list[list[str]]:
    """Return the cycles no microloop bounds: those that stay when every loop's way back is taken out.

    Each is a shortest one, begins at its first step in the order of the flow, and is not closed by repeating
    that step; cycles that share a step with one already listed are left out.
    """
    edges = {step.id: _without_loops(step) for step in spec.steps}
    cycles: list[list[str]] = []
    listed: dict[str, None] = {}
    for step in spec.steps:
        cycle = [] if step.id in listed else _shortest_cycle(edges, step.id)
        if cycle and not any(member in listed for member in cycle):
            cycles.append(cycle)
            listed.update(dict.fromkeys(cycle))
    return cycles


def unreachable(spec: FlowSpec) -> list[str]:
    """Return the steps no walk from the first step meets, in the order of the flow."""
    seen = _reach({step.id: successors(step) for step in spec.steps}, [spec.steps[0].id])
    return [step.id for step in spec.steps if step.id not in seen]


def no_path_to_terminal(spec: FlowSpec) -> list[str]:
    """Return the steps from which no terminal step can be reached, in the order of the flow."""
    edges = {step.id: successors(step) for step in spec.steps}
    ends = [step.id for step in spec.steps if isinstance(step.routing, Terminal)]
    seen = _reach(_reversed(edges), ends)
    return [step.id for step in spec.steps if step.id not in seen]


def _without_loops(step: StepSpec) -> list[str]:
    if isinstance(step.routing, Branch):
        return branch_targets(step.routing)
    following = forward(step)
    return [] if following is None else [following]


def _reversed(edges: Edges) -> dict[str, list[str]]:
    turned: dict[str, list[str]] = {}
    for source, targets in edges.items():
        for target in targets:
            turned.setdefault(target, []).append(source)
    return turned


def _reach(edges: Edges, starts: Iterable[str]) -> dict[str, None]:
    """Return the starts and all that follows from them; a dict, because its order is the same every time."""
    seen = dict.fromkeys(starts)
    waiting = deque(seen)
    while waiting:
        for target in edges.get(waiting.popleft(), ()):
            if target not in seen:
                seen[target] = None
                waiting.append(target)
    return seen


def _shortest_cycle(edges: Edges, start: str) -> list[str]:
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while waiting:
        source = waiting.popleft()
        for target in edges.get(source, ()):
            if target == start:
                cycle = [source]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if target not in came_from:
                came_from[target] = source
                waiting.append(target)
    return []
