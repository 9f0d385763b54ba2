from __future__ import annotations

import re

import pytest

from flows.loader import known_flows, load_flow, load_text
from flows.plan import plan_mermaid, plan_text, worst_case_visits
from schemas.flow import FlowSpec

BRANCHED = """\
id: branched
version: 2
title: 'A "quoted" title'
setup: [[make, deps]]
steps:
  - id: end
    agent: implementer
    objective: Begin.
    transport: [claude-sdk, stub]
    outputs: [report.md]
    gates:
      - {name: lint, argv: [make, "a b"], required: false}
    routing:
      kind: branch
      when:
        - {field: status, operator: in, value: [PARTIAL, BLOCKED], next: finish}
      default: choose
  - id: choose
    agent: planner
    objective: Choose.
    routing:
      kind: branch
      decided_by: agent
      when: [{field: status, operator: equals, value: PARTIAL, next: end_it}]
      default: finish
  - {id: end_it, agent: integrator, objective: End., routing: {kind: terminal}}
  - {id: finish, agent: integrator, objective: End., approval: before, routing: {kind: terminal}}
on_complete: {flow: fix}
on_failure: {flow: direct}
"""


def _load(name: str) -> FlowSpec:
    spec, findings = load_flow(name)
    assert findings == []
    assert spec is not None
    return spec


def _branched() -> FlowSpec:
    spec, findings = load_text("branched", BRANCHED, {})
    assert findings == []
    assert spec is not None
    return spec


def test_visits_are_bounded_by_all_loops_around_a_step() -> None:
    assert worst_case_visits(_load("build")) == {
        "load_context": 1,
        "author_tests": 3,
        "critique_tests": 3,
        "implement": 15,
        "critique_code": 3,
        "self_review": 1,
        "finish": 1,
    }


def test_the_text_names_steps_agents_gates_ways_and_bounds() -> None:
    text = plan_text(_load("fix"))
    for part in (
        "fix (version 1): Fix a defect until the tests pass",
        "3 steps, at most 7 visits",
        "1. implement",
        "agent implementer",
        "gate tests (required, exit_code): '${params.test}'",
        "⟲ implement, at most 5 iterations, until tests pass",
        "used up: ask a human",
        "→ review",
        "■ the run ends",
    ):
        assert part in text


def test_the_text_of_a_flow_with_branches_says_who_decides_and_what_follows() -> None:
    text = plan_text(_branched())
    for part in (
        "set-up: make deps",
        "transport claude-sdk, else stub",
        "gate lint (informative, exit_code): make 'a b'",
        "leaves report.md",
        "→ finish if status in PARTIAL BLOCKED",
        "→ choose otherwise",
        "→ the agent chooses: end_it | finish",
        "waits for approval before its work",
        "then, if verified or nothing to do: flow fix",
        "then, if failed: flow direct",
    ):
        assert part in text


_LINE = re.compile(
    r'    (s\d+\["[^"]+"\]|done\(\["end"\]\)|\w+\[\["[^"]+"\]\]|\w+ (-->|-\.->)(\|"[^"|<>]+"\|)? \w+)'
)


@pytest.mark.parametrize("spec", [*map(_load, known_flows()), _branched()], ids=lambda spec: spec.id)
def test_the_chart_is_a_mermaid_flowchart_whose_edges_join_its_nodes(spec: FlowSpec) -> None:
    head, *lines = plan_mermaid(spec).splitlines()
    assert head == "flowchart TD"
    assert [line for line in lines if not _LINE.fullmatch(line)] == []
    nodes = {match[1] for line in lines if (match := re.match(r"    (\w+)[\[(]", line))}
    ends = {
        end
        for line in lines
        if (match := re.match(r"    (\w+) -.*?>(?:\|.*\|)? (\w+)$", line))
        for end in match.groups()
    }
    assert ends == nodes


def test_words_of_mermaid_and_quotes_in_texts_do_no_harm() -> None:
    spec = _branched()
    gate = spec.steps[0].gates[0].model_copy(update={"name": 'a"|<b>'})
    step = spec.steps[0].model_copy(update={"gates": [gate]})
    chart = plan_mermaid(spec.model_copy(update={"steps": [step, *spec.steps[1:]]}))
    assert 's0["end<br/>implementer<br/>gate a#34;#124;#60;b#62;"]' in chart
