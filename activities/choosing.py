"""Which transports a step may use here, in order; anything that cannot be honoured is refused at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.known import COUNTS_CYCLES, REPORTS_COST
from schemas.errors import BadInput
from schemas.flow import FlowSpec, StepSpec
from schemas.run import FlowInput
from schemas.settings import WorkerSettings
from transports.port import Transport


def choose_transports(
    spec: FlowSpec, given: FlowInput, settings: WorkerSettings, offered: Mapping[str, Transport]
) -> dict[str, list[str]]:
    """Return per step the transports to try: the input's beat the step's, the flow's and the worker's.

    One that cannot be used on this machine is passed over when the step runs. Raises BadInput when one is not offered
    or cannot hold the step's budget, or when none can be used.
    """
    chosen = {}
    for step in spec.steps:
        names = named_transports(spec, step, given, settings)
        unusable = [problem for name in names if (problem := _problem(name, offered)) is not None]
        if len(unusable) == len(names) or any(name not in offered for name in names):
            raise BadInput(
                "BadFlowInput",
                f"step {step.id!r}: {'; '.join(unusable)}; {_listed(offered)}",
                mend="name one that can be used, or change the worker's STEPWISE_TRANSPORTS",
            )
        costless = [name for name in names if not _can_hold(step, spec, given, name)]
        if costless:
            raise BadInput(
                "BadFlowInput",
                f"step {step.id!r}: a budget in US dollars cannot be held, {', '.join(costless)} reports no cost",
                mend="bound tokens or seconds instead",
            )
        if given.budget is not None and given.budget.cycles is not None and set(names) - COUNTS_CYCLES:
            raise BadInput(
                "BadFlowInput",
                f"budget.cycles: it would bound nothing, {', '.join(names)} of step {step.id!r} counts no cycles",
                mend="bound tokens or seconds instead",
            )
        chosen[step.id] = names
    return chosen


def named_transports(
    spec: FlowSpec, step: StepSpec, given: FlowInput | None, settings: WorkerSettings
) -> list[str]:
    """Return the transports of a step, in order: the input's beat the step's, the flow's and the worker's."""
    wanted = given.transport if given else None
    named = wanted or step.transport or spec.defaults.transport or settings.default_transport
    return list(dict.fromkeys([named] if isinstance(named, str) else named))


def available(offered: Mapping[str, Transport]) -> list[str]:
    """Return the offered transports that can be used on this machine."""
    return [name for name, transport in offered.items() if transport.is_available().ok]


def switchable(
    spec: FlowSpec, given: FlowInput, offered: Mapping[str, Transport], *, scenario: bool
) -> dict[str, list[str]]:
    """Return per step what a person may switch to while the run goes on: what a start with it would not be refused for."""
    usable = [name for name in available(offered) if scenario or name != "stub"]
    return {step.id: [name for name in usable if _can_hold(step, spec, given, name)] for step in spec.steps}


def _can_hold(step: StepSpec, spec: FlowSpec, given: FlowInput, name: str) -> bool:
    """Whether a step's budget can be held with this transport: one in US dollars needs one that reports cost."""
    budget = step.budget or spec.defaults.budget or given.budget
    return budget is None or budget.usd is None or REPORTS_COST.get(name, False)


def refuse_stub_without_scenario(
    chosen: Mapping[str, Sequence[str]], offered: Mapping[str, Transport], *, scenario: bool
) -> None:
    """Raise BadInput if a step would run the scripted agent with nothing to play."""
    steps = [step for step, names in chosen.items() if "stub" in names]
    if steps and not scenario:
        raise BadInput(
            "BadFlowInput",
            f"transport 'stub' plays a scenario and none is given (steps: {', '.join(steps)}); {_listed(offered)}",
            mend='give "scenario", or "transport" to name another one',
        )


def _problem(name: str, offered: Mapping[str, Transport]) -> str | None:
    """Return why a transport cannot be used here, or None."""
    transport = offered.get(name)
    if transport is None:
        return f"transport {name!r} is not offered by this worker"
    found = transport.is_available()
    return None if found.ok else f"transport {name!r} cannot be used on this worker: {found}"


def _listed(offered: Mapping[str, Transport]) -> str:
    words = []
    for name, transport in offered.items():
        found = transport.is_available()
        if found.ok:
            words.append(f"{name} (available)")
        else:
            words.append(f"{name} (not available: {found})")
    return "offered: " + (", ".join(words) or "none")
