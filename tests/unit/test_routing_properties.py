"""Whatever the facts: the driver answers, answers alike, never guesses, and every loop ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from schemas.common import ChangeCounts, Usage
from schemas.facts import GateCounts, GateFact, StepFacts
from schemas.flow import Branch, FlowSpec, Linear, Microloop, StepSpec, Terminal
from schemas.routing import (
    Directive,
    IterationFacts,
    LoopState,
    RoutingOutcome,
    RoutingSignal,
    RoutingState,
)
from workflows.routing import (
    begin,
    decide,
    find_unbounded,
    no_path_to_terminal,
    observe,
    successors,
    transition,
    unreachable,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
IDS = ["a", "b", "c", "d", "e"]
GATES = ["unit", "lint"]
CLAIMS = st.sampled_from(
    [None, "", "VERIFIED", "verified", "UNVERIFIED", "PARTIAL", "BLOCKED", "DONE", "OK"]
) | st.text(max_size=5)
FIELDS = [
    "status",
    "claimed_status",
    "score",
    "tools",
    "file_changes.created",
    "gates.unit.passed",
    "gates.lint.measured",
    "changed_after_measure",
    "usage",
    "nonsense",
    "",
    "a.b.c",
]
SCALARS = st.one_of(
    st.sampled_from(["VERIFIED", "UNVERIFIED", "Bash", ""]),
    st.integers(-2, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
GATE_FACTS = st.builds(
    GateFact,
    name=st.sampled_from([*GATES, "other"]),
    measured=st.booleans(),
    passed=st.booleans(),
    percent=st.none() | st.floats(),
    counts=st.none() | st.just(GateCounts(passed=1)),
)
SHARED_FACTS: dict[str, Any] = {
    "claimed_status": CLAIMS,
    "can_further_iteration_help": st.sampled_from(["yes", "no", "unsure"]),
    "gates": st.lists(GATE_FACTS, max_size=3),
    "score": st.none() | st.floats() | st.floats(0, 100),
    "score_error": st.sampled_from(["none", "none", "scorer", "improver"]),
    "failure_signature": st.none() | st.sampled_from(["s", "t"]),
    "changed_after_measure": st.booleans(),
    "tools": st.lists(st.sampled_from(["Bash", "poll"]), max_size=2),
}
FACTS = st.builds(
    StepFacts,
    status=st.sampled_from(["VERIFIED", "UNVERIFIED", "PARTIAL", "BLOCKED"]),
    file_changes=st.builds(ChangeCounts, created=st.integers(0, 2)),
    usage=st.builds(Usage, prompt=st.integers(0, 9), cost_usd=st.none() | st.floats()),
    **SHARED_FACTS,
)
ITERATIONS = st.lists(st.builds(IterationFacts, files_changed=st.integers(0, 2), **SHARED_FACTS), max_size=20)
TIMES = st.integers(0, 10_000).map(lambda seconds: START + timedelta(seconds=seconds))
LOOPS = st.builds(LoopState, entered_at=TIMES, iterations=ITERATIONS)
STATES = st.builds(
    RoutingState, now=TIMES, loops=st.dictionaries(st.sampled_from(["here", "a"]), LOOPS, max_size=2)
)
SIGNALS = st.builds(
    RoutingSignal,
    decision=st.sampled_from(["advance", "loop", "terminate", "branch"]),
    next_step_id=st.none() | st.sampled_from([*IDS, "ghost", ""]),
    reason=st.text(max_size=5),
    confidence=st.floats(0, 1),
    needs_human=st.booleans(),
)
DIRECTIVES = st.builds(
    Directive,
    action=st.sampled_from(["retry", "skip", "goto", "abort", "approve", "reject"]),
    step=st.none() | st.sampled_from(IDS),
    reason=st.text(max_size=5),
    by=st.text(max_size=5),
)
TARGETS = st.sampled_from(IDS)


def microloops(
    targets: st.SearchStrategy[str], following: st.SearchStrategy[str]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "kind": st.just("microloop"),
            "loop_target": targets,
            "next": following,
            "max_iterations": st.integers(1, 3),
            "exit_on": st.sampled_from([{}, {"status": []}, {"status": ["PARTIAL"]}]),
            "quality": st.none()
            | st.just({"threshold": 70})
            | st.just({"threshold": 0, "min_improvement": 0}),
            "stall": st.just({"window": 2, "exempt_tools": ["poll"]}),
            "timeout": st.none() | st.integers(1, 10_000),
            "on_exhausted": st.sampled_from(["escalate", "advance", "advance", "terminate"]),
        }
    )


def branches(targets: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    rule = st.fixed_dictionaries(
        {
            "field": st.sampled_from(FIELDS),
            "operator": st.sampled_from(["equals", "not_equals", "in", "not_in", "contains"]),
            "value": SCALARS | st.lists(SCALARS, max_size=3),
            "next": targets,
        }
    )
    return st.fixed_dictionaries(
        {
            "kind": st.just("branch"),
            "when": st.lists(rule, max_size=3),
            "default": st.none() | targets,
            "decided_by": st.sampled_from(["rules", "agent"]),
        }
    )


def routings(
    targets: st.SearchStrategy[str], following: st.SearchStrategy[str]
) -> st.SearchStrategy[dict[str, Any]]:
    linear = st.fixed_dictionaries({"kind": st.just("linear"), "next": following})
    return microloops(targets, following) | branches(following) | linear


def a_step(name: str, routing: dict[str, Any], gates: list[str]) -> dict[str, Any]:
    listed = [
        {"name": gate, "argv": ["true"], "required": gate != "lint" or len(gates) > 1} for gate in gates
    ]
    return {"id": name, "agent": "x", "objective": "o", "routing": routing, "gates": listed}


STEPS = st.builds(
    lambda routing, gates: StepSpec.model_validate(a_step("here", routing, gates)),
    routings(TARGETS, TARGETS) | st.just({"kind": "terminal"}),
    st.lists(st.sampled_from(GATES), unique=True),
)


@st.composite
def sound_flows(draw: st.DrawFn) -> FlowSpec:
    """Draw flows of one to five steps and a terminal: nested, chained and crossing loops, branches, linear."""
    names = IDS[: draw(st.integers(1, len(IDS)))]
    loops_only = draw(st.booleans())
    steps = []
    for place, name in enumerate(names):
        ahead = [*names[place + 1 :], "end"]
        # mostly forward, so that most are sound; what is not is caught by the checks of the flow itself
        following = st.sampled_from(ahead) if draw(st.integers(0, 4)) else st.sampled_from([*names, "end"])
        targets = st.sampled_from(names)
        kind = microloops(targets, st.just(ahead[0])) if loops_only else routings(targets, following)
        routing = draw(kind)
        if draw(st.booleans()) and routing["kind"] == "microloop":
            routing = {**routing, "on_exhausted": "advance"}
        steps.append(a_step(name, routing, draw(st.lists(st.sampled_from(GATES), unique=True))))
    steps.append(a_step("end", {"kind": "terminal"}, []))
    spec = FlowSpec.model_validate({"id": "f", "version": 1, "title": "t", "steps": steps})
    assume(not (find_unbounded(spec) or unreachable(spec) or no_path_to_terminal(spec)))
    return spec


def again(step: StepSpec, *rest: Any) -> RoutingOutcome:
    """Decide from copies of all arguments that went over the wire."""
    copies = [
        None if model is None else type(model).model_validate_json(model.model_dump_json()) for model in rest
    ]
    state, facts, signal, directive = copies
    assert isinstance(state, RoutingState)
    assert isinstance(facts, StepFacts)
    assert signal is None or isinstance(signal, RoutingSignal)
    assert directive is None or isinstance(directive, Directive)
    return decide(StepSpec.model_validate_json(step.model_dump_json()), state, facts, signal, directive)


@given(step=STEPS, state=STATES, facts=FACTS, signal=st.none() | SIGNALS, directive=st.none() | DIRECTIVES)
def test_the_driver_always_answers_and_answers_alike_after_the_wire(
    step: StepSpec,
    state: RoutingState,
    facts: StepFacts,
    signal: RoutingSignal | None,
    directive: Directive | None,
) -> None:
    outcome = decide(step, state, facts, signal, directive)
    assert outcome == decide(step, state, facts, signal, directive)
    assert outcome == again(step, state, facts, signal, directive)
    assert outcome == RoutingOutcome.model_validate_json(outcome.model_dump_json())
    chosen = [way for way in outcome.candidates if way.id == outcome.chosen_candidate_id]
    assert [(way.decision, way.next_step_id) for way in chosen] == [(outcome.decision, outcome.next_step_id)]
    named = [*successors(step), step.id, directive.step if directive else None, None]
    assert outcome.next_step_id in named
    assert (outcome.next_step_id is None) == (outcome.decision in {"terminate", "escalate"})
    assert outcome.explanation


def all_passed(step: StepSpec, iteration: IterationFacts) -> bool:
    """Say independently of the code whether every required gate of the step is evidence."""
    required = {gate.name for gate in step.gates if gate.required}
    good = {gate.name for gate in iteration.gates if gate.measured and gate.passed}
    bad = {gate.name for gate in iteration.gates if not (gate.measured and gate.passed)}
    return bool(required) and required <= good - bad and not iteration.changed_after_measure


@given(step=STEPS, state=STATES, facts=FACTS, signal=st.none() | SIGNALS)
def test_unknown_is_never_success(
    step: StepSpec, state: RoutingState, facts: StepFacts, signal: RoutingSignal | None
) -> None:
    outcome = decide(step, state, facts, signal)
    routing = step.routing
    if facts.status == "BLOCKED" and not isinstance(routing, Terminal):
        assert outcome.decision == "escalate"
    if not isinstance(routing, Microloop) or outcome.decision != "advance":
        return
    last = state.loops["here"].iterations[-1]
    if outcome.needs_human:
        assert routing.on_exhausted == "advance"
    elif step.required_gates():
        assert all_passed(step, last)
    elif routing.quality is not None:
        assert last.score is not None
        assert routing.quality.threshold <= last.score < float("inf")
    else:
        assert (last.claimed_status or "").upper() in routing.exit_on.status


@given(facts=FACTS, routing=branches(TARGETS), signal=st.none() | SIGNALS)
def test_a_branch_without_a_default_goes_on_only_where_something_known_says_so(
    facts: StepFacts, routing: dict[str, Any], signal: RoutingSignal | None
) -> None:
    unknown = StepFacts(status="UNVERIFIED", claimed_status=None)
    nameless = [{**when, "field": f"no.{when['field']}"} for when in routing["when"]]
    step = StepSpec.model_validate(a_step("here", {**routing, "when": nameless, "default": None}, []))
    state = RoutingState(now=START)
    if routing["decided_by"] == "rules":
        assert decide(step, state, facts, signal).decision == "escalate"
        assert decide(step, state, unknown, signal).decision == "escalate"
    else:
        assert decide(step, state, facts, None).decision == "escalate"


def visits_bound(spec: FlowSpec) -> int:
    """Return how many visits a sound flow can have at most.

    A step is visited once for each way forward it takes, times its loop's bound, and once more; it takes a way
    forward at most as often as the steps that follow are visited.
    """
    bounds: dict[str, int] = {}

    def visits(step: StepSpec) -> int:
        if step.id not in bounds:
            routing = step.routing
            following = [routing.next] if isinstance(routing, Microloop) else successors(step)
            ways_on = sum(visits(found) for found in map(spec.step, following) if found is not None)
            each = routing.bound if isinstance(routing, Microloop) else 1
            bounds[step.id] = 1 if isinstance(routing, Terminal) else each * (1 + ways_on)
        return bounds[step.id]

    return sum(visits(step) for step in spec.steps)


def stubborn_facts(step: StepSpec, state: RoutingState) -> StepFacts:
    """Return facts that keep a loop going as long as only its bound ends it."""
    turn = len(state.loops[step.id].iterations) if step.id in state.loops else 0
    return StepFacts(status="UNVERIFIED", score=1 + 20.0 * turn, file_changes=ChangeCounts(created=1))


def drive(spec: FlowSpec, data: st.DataObject, *, stubborn: bool) -> int:
    """Run a flow to its end and return the number of visits; fail where it goes beyond its bound."""
    state, step, limit = begin(spec, START), spec.steps[0], visits_bound(spec)
    for visit in range(1, limit + 1):
        facts = stubborn_facts(step, state) if stubborn or data.draw(st.booleans()) else data.draw(FACTS)
        signal = None
        if isinstance(step.routing, Branch):
            wish = data.draw(st.sampled_from([*successors(step), "ghost"]))
            signal = RoutingSignal(decision="branch", next_step_id=wish, reason="", confidence=1)
        state = observe(state, step, facts, START + timedelta(seconds=visit))
        outcome = decide(step, state, facts, signal)
        state = transition(spec, state, step, outcome, outcome.next_step_id)
        assert all(len(loop.iterations) <= 20 for loop in state.loops.values())
        if outcome.decision in {"terminate", "escalate"}:
            return visit
        following = spec.step(outcome.next_step_id or "")
        assert following is not None
        step = following
    raise AssertionError(f"still going after {limit} visits")


@given(spec=sound_flows(), data=st.data())
def test_every_loop_ends_whatever_is_observed(spec: FlowSpec, data: st.DataObject) -> None:
    assert drive(spec, data, stubborn=False) >= 1


@given(spec=sound_flows(), data=st.data())
def test_every_loop_ends_even_if_only_its_bound_ends_it(spec: FlowSpec, data: st.DataObject) -> None:
    hard = [
        step.model_copy(update={"routing": step.routing.model_copy(update=NEVER_BETTER)})
        if isinstance(step.routing, Microloop)
        else step
        for step in spec.steps
    ]
    assert drive(spec.model_copy(update={"steps": hard}), data, stubborn=True) >= 1


NEVER_BETTER: dict[str, Any] = {"on_exhausted": "advance", "timeout": None, "quality": None}


def test_nested_loops_multiply_and_the_bound_is_reached() -> None:
    def loop(target: str, following: str) -> dict[str, Any]:
        return {
            "kind": "microloop",
            "loop_target": target,
            "next": following,
            "max_iterations": 3,
            "on_exhausted": "advance",
        }

    steps = [
        a_step("inner", loop("inner", "middle"), []),
        a_step("middle", loop("inner", "outer"), []),
        a_step("outer", loop("inner", "end"), []),
        a_step("end", {"kind": "terminal"}, []),
    ]
    spec = FlowSpec.model_validate({"id": "f", "version": 1, "title": "t", "steps": steps})
    state, step, visited = begin(spec, START), spec.steps[0], dict.fromkeys(["inner", "middle", "outer"], 0)
    stubborn = StepFacts(status="UNVERIFIED", file_changes=ChangeCounts(modified=1))
    while isinstance(step.routing, Linear | Microloop):
        visited[step.id] += 1
        state = observe(state, step, stubborn, START)
        outcome = decide(step, state, stubborn)
        state = transition(spec, state, step, outcome, outcome.next_step_id)
        following = spec.step(outcome.next_step_id or "")
        assert following is not None
        step = following
    assert visited == {"inner": 27, "middle": 9, "outer": 3}
    assert sum(visited.values()) + 1 <= visits_bound(spec)
