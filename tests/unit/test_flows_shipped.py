from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from flows.loader import find_flow, known_flows, load_flow, load_text
from flows.params import resolve
from flows.personas import PersonaFile, parse_persona
from flows.reading import SHIPPED
from flows.scenarios import load_scenario
from flows.source import read_source
from schemas.export import schema_path
from schemas.flow import FlowSpec, Microloop, Terminal
from schemas.scenario import Scenario

_SCREEN = 70


def _load(name: str) -> FlowSpec:
    spec, findings = load_flow(name)
    assert list(map(str, findings)) == []
    assert spec is not None
    return spec


@pytest.mark.parametrize("name", known_flows())
def test_a_shipped_flow_lints_clean_and_fits_on_a_screen(name: str) -> None:
    assert _load(name).id == name
    assert len(find_flow(name).text.splitlines()) <= _SCREEN


@pytest.mark.parametrize("name", known_flows())
def test_a_shipped_flow_needs_no_parameter_and_takes_the_command_of_its_gate(name: str) -> None:
    gates = [gate for step in resolve(_load(name), {}, "t").steps for gate in step.gates]
    assert [gate.argv for gate in gates] == [["python3", "-m", "pytest", "-q"]]
    given = resolve(_load(name), {"test": ["python3", "-m", "unittest", "-q"]}, "t")
    assert [gate.argv[2] for step in given.steps for gate in step.gates] == ["unittest"]


@pytest.mark.parametrize("name", known_flows())
def test_a_shipped_flow_ends_in_finish_which_only_reads(name: str) -> None:
    last = _load(name).steps[-1]
    assert (last.id, last.policy, isinstance(last.routing, Terminal)) == ("finish", "read-only", True)


@pytest.mark.parametrize("name", known_flows())
def test_every_step_that_may_write_is_measured_before_the_end(name: str) -> None:
    spec = _load(name)
    writing = [index for index, step in enumerate(spec.steps) if step.policy != "read-only"]
    assert spec.steps[writing[-1]].required_gates()


def test_the_critics_of_build_end_their_loops_by_claim_and_the_implementer_by_its_gate() -> None:
    spec = _load("build")
    owners = {
        step.id: bool(step.required_gates()) for step in spec.steps if isinstance(step.routing, Microloop)
    }
    assert owners == {"critique_tests": False, "implement": True, "critique_code": False}


def test_a_plan_is_only_read_and_waits_for_approval() -> None:
    plan = _load("plan-then-implement").steps[0]
    assert (plan.policy, plan.approval) == ("read-only", "after")


@pytest.mark.parametrize("name", known_flows())
def test_a_shipped_flow_fits_the_exported_schema(name: str) -> None:
    schema = json.loads(schema_path("flow").read_text())
    source, _ = read_source(name, find_flow(name).text)
    assert source is not None
    assert list(Draft202012Validator(schema).iter_errors(source.data)) == []


def test_scenario_and_flow_are_told_apart_by_their_schemas() -> None:
    schema = json.loads(schema_path("scenario").read_text())
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"version": 1, "steps": {}})
    assert not validator.is_valid(_load("fix").model_dump(mode="json", exclude_unset=True))
    assert Scenario.model_validate({"version": 1}).steps == {}


_BLOCK = re.compile(r"^```(yaml|markdown)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_reference_are_sound() -> None:
    flow, scenario = [
        text
        for kind, text in _BLOCK.findall((SHIPPED.parent / "docs" / "flows.md").read_text())
        if kind == "yaml"
    ]
    spec, findings = load_text("docs", flow, {})
    assert findings == []
    assert spec is not None
    assert load_scenario("docs", scenario, steps=[step.id for step in spec.steps])[1] == []


def test_the_persona_of_the_reference_is_sound() -> None:
    [text] = [
        text
        for kind, text in _BLOCK.findall((SHIPPED.parent / "docs" / "flows.md").read_text())
        if kind == "markdown"
    ]
    assert parse_persona("implementer", PersonaFile("docs", text))[1] == []
