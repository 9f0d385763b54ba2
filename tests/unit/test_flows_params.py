from __future__ import annotations

import pytest

from flows.loader import load_text
from flows.params import resolve
from flows.values import Value
from schemas.errors import BadInput
from schemas.flow import FlowSpec

FLOW = """\
id: filled
version: 1
title: Filled
params:
  test: {type: argv, default: [make, test]}
  extra: {type: argv, default: []}
  goal: {required: true, help: what to reach}
  count: {type: integer, default: 3}
  ratio: {type: number, default: 0.5}
  fast: {type: boolean, default: true}
setup:
  - [install, "--n=${params.count}"]
steps:
  - id: only
    agent: implementer
    objective: "Reach ${params.goal} ${params.count} ${params.ratio} ${params.fast}: ${task} ($${params.goal})"
    gates:
      - {name: tests, argv: [nice, "${params.test}", "${params.extra}", "--goal=${params.goal}", "${task}"]}
    routing: {kind: terminal}
"""


@pytest.fixture
def spec() -> FlowSpec:
    spec, findings = load_text("filled", FLOW, {})
    assert findings == []
    assert spec is not None
    return spec


def _argv(spec: FlowSpec, **given: Value) -> list[str]:
    return resolve(spec, {"goal": "g", **given}, "t").steps[0].gates[0].argv


def test_parameters_and_task_are_filled_in_where_they_stand(spec: FlowSpec) -> None:
    filled = resolve(spec, {"goal": "the end", "fast": False}, "do it")
    assert filled.steps[0].objective == "Reach the end 3 0.5 false: do it (${params.goal})"
    assert filled.setup == [["install", "--n=3"]]
    assert filled.steps[0].gates[0].argv == ["nice", "make", "test", "--goal=the end", "do it"]


def test_what_is_filled_in_is_not_looked_at_again(spec: FlowSpec) -> None:
    filled = resolve(spec, {"goal": "${task} ${params.count} $${"}, "${params.goal}")
    assert filled.steps[0].objective.startswith(
        "Reach ${task} ${params.count} $${ 3 0.5 true: ${params.goal} ("
    )


def test_a_list_of_words_is_spliced_and_a_text_for_it_is_split_as_a_shell_would(spec: FlowSpec) -> None:
    assert _argv(spec, test=["a b", "c"], extra=["-x"]) == ["nice", "a b", "c", "-x", "--goal=g", "t"]
    assert _argv(spec, test="run 'a b' $(c) > d") == ["nice", "run", "a b", "$(c)", ">", "d", "--goal=g", "t"]


def test_a_value_with_spaces_stays_one_word(spec: FlowSpec) -> None:
    assert _argv(spec, goal="a 'b; c")[-2:] == ["--goal=a 'b; c", "t"]


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({}, "params.goal", "required"),
        ({"goal": "g", "cuont": 3}, "params.cuont", "did you mean 'count'?"),
        ({"goal": 5}, "params.goal", "give a text"),
        ({"goal": "g", "count": "3"}, "params.count", "give a whole number"),
        ({"goal": "g", "count": True}, "params.count", "give a whole number"),
        ({"goal": "g", "count": 3.5}, "params.count", "give a whole number"),
        ({"goal": "g", "ratio": False}, "params.ratio", "give a number"),
        ({"goal": "g", "fast": 1}, "params.fast", "give true or false"),
        ({"goal": "g", "test": 5}, "params.test", "give a list of words"),
        ({"goal": "g", "test": "open 'quote"}, "params.test", "cannot be split"),
        ({"goal": ["g"]}, "params.goal", "give a text"),
        ({"goal": "a\0b"}, "params.goal", "NUL"),
        ({"goal": "g", "extra": ["\ud800"]}, "params.extra", "half a character"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_field(
    spec: FlowSpec, given: dict[str, Value], field: str, said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(spec, given, "t")
    assert caught.value.code == "BadFlowInput"
    assert caught.value.details["field"] == field
    assert said in str(caught.value)


def test_a_task_that_is_no_text_is_refused(spec: FlowSpec) -> None:
    with pytest.raises(BadInput) as caught:
        resolve(spec, {"goal": "g"}, "a\0b")
    assert caught.value.details["field"] == "task"


@pytest.mark.parametrize("test", [[], "", [""]])
def test_a_command_that_is_left_without_a_program_is_refused(test: Value) -> None:
    words = '[nice, "${params.test}", "${params.extra}", "--goal=${params.goal}", "${task}"]'
    assert words in FLOW
    spec, findings = load_text("filled", FLOW.replace(words, '["${params.test}", "${params.extra}"]'), {})
    assert findings == []
    assert spec is not None
    with pytest.raises(BadInput, match="gate 'tests' of step 'only'"):
        resolve(spec, {"goal": "g", "test": test}, "t")


def test_what_nobody_set_stays_unset(spec: FlowSpec) -> None:
    filled = resolve(spec, {"goal": "g"}, "t")
    assert filled.model_dump(exclude_unset=True).keys() == spec.model_dump(exclude_unset=True).keys()
    assert "timeouts" not in filled.steps[0].model_fields_set
