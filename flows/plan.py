"""A flow drawn for people: as text, and as a Mermaid flowchart."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from math import prod

from schemas.flow import Branch, FlowSpec, Linear, Microloop, StepSpec, Terminal, When
from workflows.routing.graph import body

_SPECIAL = frozenset('#"<>|`\n')
_EXHAUSTED = {"escalate": "ask a human", "advance": "go on", "terminate": "end the run"}


def worst_case_visits(spec: FlowSpec) -> dict[str, int]:
    """Return how often each step can be visited at most, if no human sends the run back."""
    loops = {step.id: step.routing.bound for step in spec.steps if isinstance(step.routing, Microloop)}
    inside = {owner: body(spec, owner) for owner in loops}
    return {
        step.id: prod(bound for owner, bound in loops.items() if step.id in inside[owner])
        for step in spec.steps
    }


def plan_text(spec: FlowSpec) -> str:
    """Return the flow as text: steps, agents, gates, ways on, bounds, the worst-case number of visits."""
    visits = worst_case_visits(spec)
    lines = [f"{spec.id} (version {spec.version}): {spec.title}"]
    for name, param in spec.params.items():
        value = "required" if param.default is None else f"default {_shown(param.default)}"
        lines.append(f"  parameter {name} ({param.type}, {value}){': ' + param.help if param.help else ''}")
    lines += [f"  set-up: {shlex.join(command)}" for command in spec.setup]
    lines.append(f"  {len(spec.steps)} steps, at most {sum(visits.values())} visits")
    for number, step in enumerate(spec.steps, start=1):
        lines += [
            "",
            f"{number}. {step.id}",
            *(f"     {line}" for line in _step_lines(spec, step, visits[step.id])),
        ]
    for label, chain in (("verified or nothing to do", spec.on_complete), ("failed", spec.on_failure)):
        if chain is not None:
            lines += ["", f"then, if {label}: flow {chain.flow}"]
    return "\n".join(lines) + "\n"


def _step_lines(spec: FlowSpec, step: StepSpec, visits: int) -> Iterator[str]:
    transport = step.transport or spec.defaults.transport or "as the run says"
    named = transport if isinstance(transport, str) else ", else ".join(transport)
    policy = step.policy or spec.defaults.policy or "test"
    yield f"agent {step.agent}, transport {named}, policy {policy}, at most {visits} visit{'s' * (visits > 1)}"
    if step.inputs:
        yield f"reads {', '.join(step.inputs)}"
    if step.outputs:
        yield f"leaves {', '.join(step.outputs)}"
    for gate in step.gates:
        need = "required" if gate.required else "informative"
        yield f"gate {gate.name} ({need}, {gate.parse}): {shlex.join(gate.argv)}"
    if step.approval != "none":
        yield f"waits for approval {step.approval} its work"
    yield from _routing_lines(step)


def _routing_lines(step: StepSpec) -> Iterator[str]:
    match step.routing:
        case Linear(next=following):
            yield f"→ {following}"
        case Microloop() as loop:
            yield f"⟲ {loop.loop_target}, at most {loop.bound} iterations, until {_until(step, loop)}"
            yield f"  used up: {_EXHAUSTED[loop.on_exhausted]}"
            yield f"→ {loop.next}"
        case Branch(decided_by="agent") as branch:
            yield f"→ the agent chooses: {' | '.join(target for _, target in _choices(branch))}"
        case Branch() as branch:
            for label, target in _choices(branch):
                yield f"→ {target} {label}"
            if branch.default is None:
                yield "→ otherwise a human is asked"
        case Terminal():
            yield "■ the run ends"


def plan_mermaid(spec: FlowSpec) -> str:
    """Return the flow as a Mermaid flowchart; ids are made up, so that no step id is a word of Mermaid's."""
    ids = {step.id: f"s{index}" for index, step in enumerate(spec.steps)}
    lines = ["flowchart TD"]
    for step in spec.steps:
        shown = [step.id, step.agent, *(f"gate {gate.name}" for gate in step.gates)]
        lines.append(f'    {ids[step.id]}["{"<br/>".join(map(_escaped, shown))}"]')
    lines.append('    done(["end"])')
    for step in spec.steps:
        lines += [f"    {edge}" for edge in _edges(step, ids)]
    for label, chain in (("verified", spec.on_complete), ("failed", spec.on_failure)):
        if chain is not None:
            lines += [f'    {label}[["flow {_escaped(chain.flow)}"]]', f'    done -->|"{label}"| {label}']
    return "\n".join(lines) + "\n"


def _edges(step: StepSpec, ids: dict[str, str]) -> Iterator[str]:
    here = ids[step.id]
    match step.routing:
        case Linear(next=following):
            yield f"{here} --> {ids[following]}"
        case Microloop() as loop:
            yield f'{here} -.->|"again, at most {loop.bound} iterations"| {ids[loop.loop_target]}'
            yield f'{here} -->|"{_escaped(_until(step, loop))}"| {ids[loop.next]}'
        case Branch() as branch:
            for label, target in _choices(branch):
                chosen = "the agent chooses" if branch.decided_by == "agent" else label
                yield f'{here} -->|"{_escaped(chosen)}"| {ids[target]}'
        case Terminal():
            yield f"{here} --> done"


def _until(step: StepSpec, loop: Microloop) -> str:
    gates = step.required_gates()
    reasons = [f"{', '.join(gate.name for gate in gates)} pass"] if gates else []
    if loop.quality is not None:
        reasons.append(f"the score is {loop.quality.threshold:g}")
    if not reasons:
        reasons.append(f"the agent claims {' or '.join(loop.exit_on.status)}")
    return " and ".join(reasons)


def _choices(branch: Branch) -> list[tuple[str, str]]:
    ways = [(_condition(rule), rule.next) for rule in branch.when]
    return [*ways, ("otherwise", branch.default)] if branch.default is not None else ways


def _condition(rule: When) -> str:
    return f"if {rule.field} {rule.operator.replace('_', ' ')} {_shown(rule.value)}"


def _shown(value: object) -> str:
    return shlex.join(map(str, value)) if isinstance(value, list) else str(value)


def _escaped(text: str) -> str:
    return "".join(f"#{ord(char)};" if char in _SPECIAL else char for char in text)
