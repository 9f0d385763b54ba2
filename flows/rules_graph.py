"""Lint rules for where steps lead: every target exists, every step is reached, every loop ends for a reason."""

from __future__ import annotations

from collections.abc import Iterator

from flows.findings import Fault, PathInFile, one_of
from schemas.flow import Branch, FlowSpec, Linear, Microloop, StepSpec, Terminal
from workflows.routing.graph import body, find_unbounded, no_path_to_terminal, successors, unreachable


def graph_faults(spec: FlowSpec) -> Iterator[Fault]:
    """Yield the faults of routing; what depends on all targets is said once all of them exist."""
    missing = list(_missing_targets(spec))
    yield from missing
    for index, step in enumerate(spec.steps):
        if isinstance(step.routing, Microloop):
            yield from _loop_faults(("steps", index, "routing"), step, step.routing)
    if missing:
        return
    places: dict[str, PathInFile] = {step.id: ("steps", index) for index, step in enumerate(spec.steps)}
    first = spec.steps[0].id
    cut_off = unreachable(spec)
    for name in cut_off:
        what = f"no way leads from {first!r} to step {name!r}"
        yield Fault((*places[name], "id"), "unreachable_step", what, "route to it, or remove it")
    for circle in find_unbounded(spec):
        shown = " → ".join([*circle, circle[0]])
        what = f"nothing bounds the circle {shown}"
        mend = "make the way back a microloop: it has max_iterations"
        yield Fault((*places[circle[-1]], "routing"), "unbounded_loop", what, mend, on_key=True)
    for name in no_path_to_terminal(spec):
        if name not in cut_off:
            what = f"no way leads from step {name!r} to the end"
            mend = "route to a step with `kind: terminal`"
            yield Fault((*places[name], "routing"), "no_terminal", what, mend, on_key=True)
    for step in spec.steps:
        if isinstance(step.routing, Microloop) and not _comes_back(spec, step, step.routing):
            what = f"step {step.routing.loop_target!r} does not lead back to {step.id!r}"
            mend = "loop to a step from which this one follows"
            yield Fault((*places[step.id], "routing", "loop_target"), "no_loop", what, mend)


def _comes_back(spec: FlowSpec, owner: StepSpec, loop: Microloop) -> bool:
    inside = body(spec, owner.id)
    return loop.loop_target == owner.id or any(
        owner.id in successors(step) for step in spec.steps if step.id in inside and step.id != owner.id
    )


def _missing_targets(spec: FlowSpec) -> Iterator[Fault]:
    ids = [step.id for step in spec.steps]
    for index, step in enumerate(spec.steps):
        for path, target in _targets(step):
            if target not in ids:
                what = f"step {step.id!r} leads to {target!r}, which is no step"
                yield Fault(("steps", index, "routing", *path), "missing_target", what, one_of(target, ids))


def _targets(step: StepSpec) -> Iterator[tuple[PathInFile, str]]:
    match step.routing:
        case Linear(next=following):
            yield ("next",), following
        case Microloop(loop_target=back, next=following):
            yield ("loop_target",), back
            yield ("next",), following
        case Branch(when=rules, default=default):
            for index, rule in enumerate(rules):
                yield ("when", index, "next"), rule.next
            if default is not None:
                yield ("default",), default
        case Terminal():
            pass


def _loop_faults(path: PathInFile, step: StepSpec, loop: Microloop) -> Iterator[Fault]:
    if step.required_gates() or loop.quality is not None:
        return
    if loop.loop_target == step.id:
        what = f"step {step.id!r} loops on itself, and only its own word would end that"
        yield Fault(path, "loop_without_gate", what, "give the step a required gate", on_key=True)
    elif not loop.exit_on.status:
        what = f"the loop of step {step.id!r} has no gate and no status that ends it"
        yield Fault(
            path, "loop_without_gate", what, "give the step a required gate, or name a status", on_key=True
        )
