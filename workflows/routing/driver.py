"""The one place that decides where a run goes next."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.facts import StepFacts
from schemas.flow import Branch, Linear, Microloop, StepSpec, Terminal
from schemas.routing import (
    Candidate,
    DecisionSource,
    Directive,
    MicroloopExit,
    RoutingOutcome,
    RoutingSignal,
    RoutingState,
    TerminationReason,
)
from workflows.routing import candidates as ways
from workflows.routing.conditions import fact_values, matches
from workflows.routing.exits import microloop_exit
from workflows.routing.graph import branch_targets, forward

MAX_REASON = 2_000
MAX_EXPLANATION = 1_000


def decide(
    step: StepSpec,
    state: RoutingState,
    facts: StepFacts,
    signal: RoutingSignal | None = None,
    directive: Directive | None = None,
) -> RoutingOutcome:
    """Return what happens after ``step``; pure, never raises, and never goes on where nothing says so.

    ``state`` is what ``observe`` returned for these facts. The order: a human's directive, a terminal step,
    status BLOCKED, the step's own rule; where none of them speaks, a human is asked.
    """
    desk = _Desk(step, state)
    if directive is not None and directive.action != "approve":
        return _ordered(desk, directive)
    outcome = _ruled(desk, facts, signal)
    if directive is None:
        return outcome
    approved = f"{_who(directive)} approved. {outcome.explanation}"
    return outcome.model_copy(update={"explanation": _cut(approved, MAX_EXPLANATION)})


class _Desk:
    """One decision being made: the step, its state, and the form every outcome takes."""

    def __init__(self, step: StepSpec, state: RoutingState) -> None:
        self.step = step
        self.now = state.now
        self.loop = state.loops.get(step.id)
        self.iteration = max(1, len(self.loop.iterations)) if self.loop else 1

    def outcome(
        self,
        chosen: Candidate,
        source: DecisionSource,
        reason: str,
        explanation: str,
        *,
        exited: TerminationReason | None = None,
        needs_human: bool = False,
    ) -> RoutingOutcome:
        offered = ways.candidates(self.step, self.iteration)
        if chosen not in offered:
            offered.append(chosen)
        return RoutingOutcome(
            decision=chosen.decision,
            next_step_id=chosen.next_step_id,
            reason=_cut(reason, MAX_REASON),
            needs_human=needs_human,
            chosen_candidate_id=chosen.id,
            candidates=offered,
            source=source,
            exit=exited,
            explanation=_cut(explanation, MAX_EXPLANATION),
            iteration=self.iteration,
        )

    def escalate(
        self, source: DecisionSource, reason: str, explanation: str, exited: TerminationReason | None = None
    ) -> RoutingOutcome:
        return self.outcome(ways.ESCALATE, source, reason, explanation, exited=exited, needs_human=True)


def _ordered(desk: _Desk, directive: Directive) -> RoutingOutcome:
    action, step = directive.action, desk.step
    reason = directive.reason or f"human_{action}"
    said = f"{_who(directive)} ordered {action} after step {step.id}."
    left: TerminationReason | None = "human" if isinstance(step.routing, Microloop) else None
    if action == "abort":
        stopped = desk.outcome(ways.TERMINATE, "human", reason, said, exited=left)
        return stopped.model_copy(update={"terminal_outcome": "stopped"})
    if action == "skip":
        following = forward(step)
        if following is None:
            why = f"{said} No single step follows it: name one with goto."
            return desk.escalate("human", "nothing_to_skip_to", why)
        return desk.outcome(ways.skip(following), "human", reason, said, exited=left)
    if action == "goto":
        if not directive.step:
            return desk.escalate("human", "goto_without_step", f"{said} The step to go to is not named.")
        return desk.outcome(ways.branch(directive.step), "human", reason, said, exited=left)
    return desk.outcome(ways.retry(step.id), "human", reason, said)


def _ruled(desk: _Desk, facts: StepFacts, signal: RoutingSignal | None) -> RoutingOutcome:
    routing = desk.step.routing
    if isinstance(routing, Terminal):
        blocked = facts.status == "BLOCKED"
        said = f"Step {desk.step.id} is terminal and its status is {facts.status}."
        ended = desk.outcome(ways.TERMINATE, "fast_path", "terminal_step", said)
        return ended.model_copy(update={"terminal_outcome": "blocked"}) if blocked else ended
    if facts.status == "BLOCKED":
        return desk.escalate("deterministic", "status_blocked", f"Step {desk.step.id} is BLOCKED.")
    found: RoutingOutcome | None = None
    tried = ""
    if isinstance(routing, Linear):
        said = f"Step {desk.step.id} is followed by {routing.next}."
        found = desk.outcome(ways.advance(routing.next), "fast_path", "linear", said)
    elif isinstance(routing, Microloop):
        found = _looped(desk, routing)
        tried = "No iteration of the loop was observed."
    elif routing.decided_by == "agent":
        return _chosen(desk, routing, signal)
    else:
        found, tried = _matched(desk, routing, facts)
    return found or desk.escalate(
        "fallback",
        "no_routing_strategy_matched",
        f"No rule of step {desk.step.id} says what follows. {tried}",
    )


def _looped(desk: _Desk, policy: Microloop) -> RoutingOutcome | None:
    if desk.loop is None or not desk.loop.iterations:
        return None
    required = [gate.name for gate in desk.step.required_gates()]
    ended = microloop_exit(policy, desk.loop, desk.now, required=required)
    if ended is None:
        said = f"No exit of the loop holds after iteration {desk.iteration} of {policy.bound}."
        back = ways.loop(policy.loop_target, desk.iteration + 1)
        return desk.outcome(back, "deterministic", "loop_goes_on", said)
    if not ended.exhausted or policy.on_exhausted == "advance":
        return _left(desk, ways.advance(policy.next), ended)
    if policy.on_exhausted == "terminate":
        over = _left(desk, ways.TERMINATE, ended)
        return over.model_copy(update={"terminal_outcome": "exhausted"})
    return desk.escalate("deterministic", ended.reason, ended.explanation, ended.reason)


def _left(desk: _Desk, way: Candidate, ended: MicroloopExit) -> RoutingOutcome:
    return desk.outcome(
        way,
        "deterministic",
        ended.reason,
        ended.explanation,
        exited=ended.reason,
        needs_human=ended.exhausted,
    )


def _matched(desk: _Desk, routing: Branch, facts: StepFacts) -> tuple[RoutingOutcome | None, str]:
    values = fact_values(facts)
    seen: list[str] = []
    for when in routing.when:
        holds, said = matches(when, values)
        if holds:
            why = " ".join([f"Matched: {said}.", *_missed(seen)])
            return desk.outcome(ways.branch(when.next), "deterministic", "rule_matched", why), ""
        seen.append(said)
    if routing.default is None:
        return None, " ".join(_missed(seen))
    why = " ".join(["No rule matched; the default is taken.", *_missed(seen)])
    return desk.outcome(ways.branch(routing.default), "deterministic", "default", why), ""


def _missed(seen: Sequence[str]) -> list[str]:
    return [f"Not matched: {said}." for said in seen]


def _chosen(desk: _Desk, routing: Branch, signal: RoutingSignal | None) -> RoutingOutcome:
    offered = branch_targets(routing)
    if signal is None:
        fault = "The agent gave no valid signal."
    elif signal.needs_human:
        fault = f"The agent asks for a human: {signal.reason}"
    elif signal.decision not in {"advance", "branch"}:
        fault = f"The agent may choose a step here, not {signal.decision}."
    elif signal.next_step_id is None or signal.next_step_id not in offered:
        fault = f"The agent chose {signal.next_step_id}, the candidates are {', '.join(offered) or 'none'}."
    else:
        said = f"The agent chose {signal.next_step_id} (confidence {signal.confidence:g}): {signal.reason}"
        return desk.outcome(ways.branch(signal.next_step_id), "agent", signal.reason, said)
    return desk.escalate("fallback", "no_valid_signal", fault)


def _who(directive: Directive) -> str:
    return _cut(directive.by, 200) or "A human"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
