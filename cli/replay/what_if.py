"""Recorded facts decided again under another flow: pure, from what a history says to the decisions that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from cli.replay.facts import Place, Recorded
from cli.replay.offline import Heard
from flows.params import resolve
from schemas.calls import GateRun, MeasureOut
from schemas.errors import BadInput
from schemas.facts import StepFacts
from schemas.flow import Branch, FlowSpec, StepSpec
from schemas.routing import Directive, RoutingOutcome, RoutingState
from workflows.facts import Carry, compose, unmeasured
from workflows.routing import begin, decide, observe, transition

_NOT_MEASURED: Final = "not measured in this history"
_ORDERED: Final = " ordered "
"""Stands in the explanation of a person's order behind who gave it."""

Action = Literal["retry", "skip", "goto", "abort"]
_ORDERS: Final[dict[str, Action]] = {"retry": "retry", "skip": "skip", "branch": "goto", "terminate": "abort"}
"""What was ordered, by the first word of the candidate that was chosen. A reject decides as a retry."""


@dataclass(frozen=True)
class Way:
    """Where a decision leads, in two or three words, and why."""

    to: str
    why: str


@dataclass(frozen=True)
class Difference:
    """One decision that would differ; ``elsewhere`` where the run would also have gone another way."""

    step: str
    visit: int
    iteration: int
    event: int
    recorded: Way
    new: Way
    elsewhere: bool


@dataclass
class Comparison:
    """The decisions of one flow of one run, decided again.

    ``not_compared`` counts those after the point where the paths part. ``notes`` say what was not known.
    """

    flow: str
    compared: int = 0
    differences: list[Difference] = field(default_factory=list)
    not_compared: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def parted(self) -> bool:
        """Whether the changed flow would have left the recorded path."""
        return any(difference.elsewhere for difference in self.differences)


def compare(changed: FlowSpec, executions: Sequence[tuple[Recorded, Sequence[Heard]]]) -> Comparison | None:
    """Decide the executions of one run again, in order; None if none of them ran the flow of this id.

    Raises BadInput if the changed flow cannot be filled in with the run's parameters, or if facts cannot be composed.
    """
    comparison = Comparison(changed.id)
    walk: _Walk | None = None
    for recorded, heard in executions:
        if recorded.spec is None or recorded.flow_input is None or recorded.spec.id != changed.id:
            continue
        if walk is None:
            given = recorded.flow_input
            walk = _Walk(comparison, resolve(changed, given.params, given.task), recorded)
        for one in heard:
            walk.decide_again(recorded, one)
    return comparison if walk is not None else None


class _Walk:
    """One way through the changed flow, along the recorded one for as long as both are the same."""

    def __init__(self, comparison: Comparison, spec: FlowSpec, first: Recorded) -> None:
        self._comparison = comparison
        self._spec = spec
        self._state: RoutingState | None = None
        self._first = first.forked_at or spec.steps[0].id
        self._last: tuple[Place, RoutingOutcome] | None = None
        if first.carried is not None and not first.begins_flow:
            self._state = first.carried.routing
            self._note("the run had begun before this history: its earlier decisions are taken as recorded")

    def decide_again(self, recorded: Recorded, heard: Heard) -> None:
        """Compare one more decision, or count it if the paths have parted. Raises BadInput."""
        if self._comparison.parted:
            self._comparison.not_compared += 1
            return
        decision = heard.decision
        place, event = (str(decision["step"]), int(decision["visit"])), int(decision["event"])
        was = RoutingOutcome.model_validate(decision["outcome"])
        step = self._spec.step(place[0])
        state = self._entered(place, recorded.entered.get(place, heard.at))
        if step is None or state is None:
            self._begins_elsewhere(place, event)
            return
        self._comparison.compared += 1
        order = _order(was)
        if order is None:
            carry = _carry(recorded, place, event, decision["facts"])
            new = self._measured(step, recorded, carry, state, heard)
        else:
            self._state = RoutingState(now=heard.at, loops=state.loops)
            new = decide(step, self._state, StepFacts.model_validate(decision["facts"]), None, order)
        self._last = (place, new)
        self._differs(place, event, was, new)

    def _differs(self, place: Place, event: int, was: RoutingOutcome, new: RoutingOutcome) -> None:
        target = new.next_step_id
        exists = target is None or self._spec.step(target) is not None
        elsewhere = not exists or _lead(new) != _lead(was)
        if elsewhere or (was.source != "human" and _kind(new) != _kind(was)):
            way = _way(new) if exists else _no_step(target)
            self._comparison.differences.append(
                Difference(*place, was.iteration, event, _way(was), way, elsewhere=elsewhere)
            )

    def _entered(self, place: Place, at: datetime) -> RoutingState | None:
        """Return the routing state of a visit that was entered ``at``; None if the changed flow begins elsewhere."""
        if self._last is None:
            if self._state is not None:
                return self._state
            return begin(self._spec, at, self._first) if self._first == place[0] else None
        last, outcome = self._last
        left = self._spec.step(last[0])
        if last == place or left is None or self._state is None:
            return self._state
        return transition(self._spec, self._state, left, outcome, outcome.next_step_id, now=at)

    def _begins_elsewhere(self, place: Place, event: int) -> None:
        comparison = self._comparison
        comparison.not_compared += 1
        recorded = Way(f"begin with {place[0]}", "It is the first step in this history.")
        new = (
            Way(f"begin with {self._first}", "It is the changed flow's first step.")
            if self._state is None and self._first != place[0]
            else _no_step(place[0])
        )
        comparison.differences.append(Difference(*place, 1, event, recorded, new, elsewhere=True))

    def _measured(
        self, step: StepSpec, recorded: Recorded, carry: Carry, state: RoutingState, heard: Heard
    ) -> RoutingOutcome:
        """Decide from the phases' results, as the changed step would have composed them."""
        asked = isinstance(step.routing, Branch) and step.routing.decided_by == "agent"
        if asked and carry.route is None:
            self._note(f"{step.id}: the agent was not asked where to go in this history")
        was = recorded.spec.step(step.id) if recorded.spec else None
        seen = replace(
            carry,
            measure=self._gates(step, was, carry.measure),
            route=carry.route if asked else None,
        )
        facts = compose(step, seen)
        self._state = observe(state, step, facts, heard.at)
        return decide(step, self._state, facts, seen.route.signal if seen.route else None)

    def _gates(self, step: StepSpec, was: StepSpec | None, measure: MeasureOut | None) -> MeasureOut | None:
        """Return what the changed step's gates said, as far as they were measured."""
        if not step.gates:
            return None
        measured = {run.fact.name: run for run in (measure.gates if measure else [])}
        commands = {gate.name: (gate.argv, gate.parse) for gate in (was.gates if was else [])}
        unknown = {run.fact.name: run for run in unmeasured(step, _NOT_MEASURED)}
        gates: list[GateRun] = []
        for gate in step.gates:
            run = measured.get(gate.name)
            if run is None:
                self._note(
                    f"{step.id}: gate {gate.name} was not measured in this history, so it is not passed"
                )
            elif commands.get(gate.name) != (gate.argv, gate.parse):
                self._note(f"{step.id}: gate {gate.name} is another command now; its old result is used")
            fact = (run or unknown[gate.name]).fact.model_copy(update={"required": gate.required})
            gates.append((run or unknown[gate.name]).model_copy(update={"fact": fact}))
        failed = any(run.fact.measured and not run.fact.passed for run in gates)
        found = measure or MeasureOut()
        signature = found.failure_signature if failed else None
        return found.model_copy(update={"gates": gates, "failure_signature": signature})

    def _note(self, text: str) -> None:
        if text not in self._comparison.notes:
            self._comparison.notes.append(text)


def _carry(recorded: Recorded, place: Place, event: int, facts: Mapping[str, Any]) -> Carry:
    """Return the phases behind a decision. Raises BadInput if its facts cannot be composed from them."""
    carry = recorded.carry(place, event)
    step = recorded.spec.step(place[0]) if recorded.spec else None
    composed = compose(step, carry).model_dump(mode="json", exclude_defaults=True) if step else None
    if composed != facts:
        raise BadInput(
            "E_FACTS",
            f"the facts of {place[0]} #{place[1]} (event {event}) cannot be composed from the phases in history",
            mend="use the version of stepwise that ran it",
        )
    return carry


def _order(outcome: RoutingOutcome) -> Directive | None:
    """Return the order of a person behind a decision; None if a rule made it."""
    if outcome.source != "human":
        return None
    action = _ORDERS.get(outcome.chosen_candidate_id.partition(":")[0])
    by = outcome.explanation.partition(_ORDERED)[0]
    if action is None:  # it was asked back: there was no single step to skip to
        return Directive(action="skip", by=by)
    return Directive(action=action, step=outcome.next_step_id, reason=outcome.reason, by=by)


def _way(outcome: RoutingOutcome) -> Way:
    words = [
        outcome.decision,
        outcome.next_step_id,
        f"({outcome.terminal_outcome})" if outcome.terminal_outcome else None,
    ]
    return Way(" ".join(word for word in words if word), outcome.explanation or outcome.reason)


def _no_step(name: str | None) -> Way:
    return Way("nowhere", f"The changed flow has no step {name}.")


def _lead(outcome: RoutingOutcome) -> tuple[bool, str | None, str | None]:
    return outcome.decision == "terminate", outcome.next_step_id, outcome.terminal_outcome


def _kind(outcome: RoutingOutcome) -> tuple[str | None, ...]:
    return outcome.decision, outcome.exit, outcome.source, outcome.reason
