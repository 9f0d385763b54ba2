"""Lint rules for what a step says of itself: agent, transport, budget, gates, inputs, outputs, conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath, PureWindowsPath

from flows.facts import fact_names
from flows.findings import Fault, PathInFile, one_of
from flows.known import COUNTS_CYCLES, POLICIES, REPORTS_COST, SCORERS, TRANSPORTS
from schemas.common import Budget
from schemas.flow import Branch, Defaults, FlowSpec, Gate, Microloop, StepSpec, When

_REPORT = "{report}"
_REPORT_OPTION = {"junit": f"--junitxml={_REPORT}", "coverage": f"--cov-report=xml:{_REPORT}"}


def step_faults(spec: FlowSpec) -> Iterator[Fault]:
    """Yield the faults of the defaults, of setup, and of each step taken alone."""
    yield from _setup_faults(spec)
    yield from _setting_faults(("defaults",), spec.defaults)
    ids = [step.id for step in spec.steps]
    for index, step in enumerate(spec.steps):
        path: PathInFile = ("steps", index)
        yield from _setting_faults(path, step)
        yield from _unheld_faults(path, step)
        yield from _cost_faults(path, step.budget, step, spec.defaults)
        yield from _cycle_faults(path, step, _transports(step, spec.defaults))
        yield from _gate_faults((*path, "gates"), step.gates)
        yield from _routing_faults((*path, "routing"), step)
        for number, name in enumerate(step.inputs):
            if name not in ids:
                what = f"step {step.id!r} takes the hand-off of {name!r}, which is no step"
                yield Fault((*path, "inputs", number), "unknown_input", what, one_of(name, ids))
        for number, output in enumerate(step.outputs):
            if not _stays_inside(output):
                what = f"output {output!r} is no path inside the workspace"
                mend = "write a relative path with /, without .."
                yield Fault((*path, "outputs", number), "bad_output", what, mend)
    yield from _default_cost_faults(spec)
    bound = [name for step in spec.steps if step.budget is None for name in _transports(step, spec.defaults)]
    yield from _cycle_faults(("defaults",), spec.defaults, list(dict.fromkeys(bound)))


def _setup_faults(spec: FlowSpec) -> Iterator[Fault]:
    for index, command in enumerate(spec.setup):
        if not command or not command[0]:
            yield Fault(("setup", index), "empty_argv", "the command names no program", "write its words")


def _setting_faults(path: PathInFile, owner: StepSpec | Defaults) -> Iterator[Fault]:
    named = owner.transport
    if named == []:
        yield Fault(
            (*path, "transport"), "unknown_transport", "the list is empty", "name one or leave it out"
        )
    for number, name in enumerate([named] if isinstance(named, str) else named or []):
        if name not in TRANSPORTS:
            place = (*path, "transport") if isinstance(named, str) else (*path, "transport", number)
            yield Fault(
                place, "unknown_transport", f"no transport is named {name!r}", one_of(name, TRANSPORTS)
            )
    if owner.policy is not None and owner.policy not in POLICIES:
        what = f"no policy profile is named {owner.policy!r}"
        yield Fault((*path, "policy"), "unknown_policy", what, one_of(owner.policy, POLICIES))


def _transports(step: StepSpec, defaults: Defaults) -> list[str]:
    named = step.transport or defaults.transport or []
    return [named] if isinstance(named, str) else named


def _costless(names: list[str]) -> list[str]:
    return [name for name in names if not REPORTS_COST.get(name, True)]


def _cost_faults(
    path: PathInFile, budget: Budget | None, step: StepSpec, defaults: Defaults
) -> Iterator[Fault]:
    costless = _costless(_transports(step, defaults))
    if budget is not None and budget.usd is not None and costless:
        yield _cost_fault((*path, "budget", "usd"), costless)


def _cycle_faults(path: PathInFile, owner: StepSpec | Defaults, names: list[str]) -> Iterator[Fault]:
    """Yield a bound on cycles that nothing counts: it would be taken for one that holds."""
    countless = [name for name in names if name not in COUNTS_CYCLES]
    if owner.budget is None or owner.budget.cycles is None or (names and not countless):
        return
    who = ", ".join(countless) or "any transport that a run may name"
    what = f"a budget of cycles bounds nothing: they are the turns of a tool loop, which {who} does not count"
    yield Fault((*path, "budget", "cycles"), "not_supported", what, "bound `tokens` or `seconds` instead")


def _default_cost_faults(spec: FlowSpec) -> Iterator[Fault]:
    budget = spec.defaults.budget
    if budget is None or budget.usd is None:
        return
    costless = {
        name
        for step in spec.steps
        if step.budget is None
        for name in _costless(_transports(step, spec.defaults))
    }
    if costless:
        yield _cost_fault(("defaults", "budget", "usd"), sorted(costless))


def _unheld_faults(path: PathInFile, step: StepSpec) -> Iterator[Fault]:
    """Yield what this version cannot hold: an author who wrote it would rely on it."""
    every = "every step has the tools of its transport"
    for key in ("tools", "mcp_servers", "skills", "subagents"):
        if getattr(step, key):
            what = f"step {step.id!r} names its own `{key}`; in this version {every}"
            mend = "leave it out; `policy: read-only` is for a step that may change nothing"
            yield Fault((*path, key), "not_supported", what, mend, on_key=True)
    if step.requires_evidence:
        what = f"step {step.id!r} requires evidence, of which this version knows none but gates"
        yield Fault(
            (*path, "requires_evidence"), "not_supported", what, "give it a required gate", on_key=True
        )


def _cost_fault(path: PathInFile, costless: list[str]) -> Fault:
    what = f"a budget in US dollars cannot be held: {', '.join(costless)} reports no cost"
    return Fault(path, "usd_without_cost", what, "bound `tokens` or `seconds` instead")


def _gate_faults(path: PathInFile, gates: list[Gate]) -> Iterator[Fault]:
    seen = Counter[str]()
    for index, gate in enumerate(gates):
        seen[gate.name] += 1
        if seen[gate.name] > 1:
            what = f"two gates of the step are named {gate.name!r}"
            yield Fault((*path, index, "name"), "duplicate_gate", what, "give each its own name")
        if not gate.argv[0]:
            yield Fault((*path, index, "argv"), "empty_argv", "the gate names no program", "write its words")
        if gate.parse != "exit_code" and not any(_REPORT in word for word in gate.argv):
            what = f"gate {gate.name!r} reads a {gate.parse} report, but no word of its argv holds {_REPORT}"
            mend = f"say where it is written, as in `{_REPORT_OPTION[gate.parse]}`"
            yield Fault((*path, index, "argv"), "report_missing", what, mend)


def _routing_faults(path: PathInFile, step: StepSpec) -> Iterator[Fault]:
    match step.routing:
        case Branch(when=rules):
            known = fact_names(gate.name for gate in step.gates)
            for index, rule in enumerate(rules):
                yield from _rule_faults((*path, "when", index), rule, known)
        case Microloop(quality=quality) if quality is not None and quality.scorer not in SCORERS:
            what = f"no scorer is named {quality.scorer!r}"
            mend = "end the loop by a required gate: this version has no scorer"
            yield Fault((*path, "quality"), "unknown_scorer", what, mend, on_key=True)
        case _:
            pass


def _rule_faults(path: PathInFile, rule: When, known: list[str]) -> Iterator[Fault]:
    if rule.field not in known:
        what = f"{rule.field!r} is no fact of this step"
        yield Fault((*path, "field"), "unknown_fact", what, one_of(rule.field, known))
    match rule.operator:
        case "in" | "not_in":
            needs, fitting = "a list that is not empty", isinstance(rule.value, list) and rule.value != []
        case "contains":
            needs, fitting = "a text", isinstance(rule.value, str)
        case _:
            needs, fitting = "a single value", not isinstance(rule.value, list)
    if not fitting:
        what = f"operator {rule.operator!r} compares with {needs}"
        yield Fault((*path, "value"), "bad_condition", what, f"write {needs}, or another operator")


def _stays_inside(output: str) -> bool:
    parts = PurePosixPath(output).parts
    absolute = output.startswith("/") or bool(PureWindowsPath(output).drive)
    return bool(parts) and not absolute and "\\" not in output and not {"..", ".git"} & set(parts)
