"""Scenarios: found, checked, and those that are shipped really do on real files what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.loader import load_flow
from flows.reading import SHIPPED
from flows.scenarios import find_scenario, known_scenarios, load_scenario
from schemas.errors import BadInput
from schemas.flow import FlowSpec
from schemas.handoff import HandoffDraft
from schemas.scenario import Edit, Scenario

DEMO = SHIPPED.parent / "examples" / "demo_repo.py"
GATE = ["python3", "-m", "unittest", "-q"]
FLOW_OF = {"demo": "fix", "demo-slow": "fix", "noop": "fix"}
DRIVING = ["build", "demo", "direct", "plan-then-implement"]


def _flow(name: str) -> FlowSpec:
    spec, _ = load_flow(FLOW_OF.get(name, name))
    assert spec is not None
    return spec


def _scenario(name: str) -> Scenario:
    file = find_scenario(name)
    scenario, findings = load_scenario(
        str(file.path), file.text, steps=[step.id for step in _flow(name).steps]
    )
    assert findings == []
    assert scenario is not None
    return scenario


def test_the_shipped_scenarios_are_known() -> None:
    assert known_scenarios() == sorted([*DRIVING, "demo-slow", "noop"])


@pytest.mark.parametrize("name", known_scenarios())
def test_a_shipped_scenario_fits_its_flow(name: str) -> None:
    for script in _scenario(name).steps.values():
        for turn in script.turns:
            assert turn.finalize.value.keys() <= HandoffDraft.model_fields.keys()


def test_scenarios_of_configured_folders_are_found(tmp_path: Path) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("version: 1\n")
    assert "mine" in known_scenarios([tmp_path])
    assert find_scenario("mine", [tmp_path]).text == "version: 1\n"


@pytest.mark.parametrize("name", ["demos", "../scenarios/demo", ""])
def test_an_unknown_scenario_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        find_scenario(name)
    assert caught.value.code == "UnknownScenario"
    assert "plan-then-implement" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version: 2\n", [(1, "wrong_value")]),
        ("version: 1\nstep: {}\n", [(2, "unknown_key")]),
        ("version: 1\nsteps:\n  implment: {turns: [{}]}\n", [(3, "unknown_step")]),
        ("version: 1\nsteps:\n  implement: {turns: []}\n", [(3, "wrong_value")]),
        (
            "version: 1\nsteps:\n  implement:\n    turns:\n      - work:\n          - {do: sing}\n",
            [(6, "wrong_value")],
        ),
        (
            "version: 1\nsteps:\n  implement:\n    turns:\n      - work:\n          - {do: edit, path: a, contents: x}\n",
            [(6, "unknown_key")],
        ),
        (
            (
                "version: 1\nsteps:\n  implement:\n    turns:\n      - work:\n          - {do: edit, path: a}\n"
                "          - {do: edit, path: a, content: x, delete: true}\n          - {do: edit, path: a, replace: x}\n"
            ),
            [(6, "bad_edit"), (7, "bad_edit"), (8, "bad_edit")],
        ),
        (
            (
                "version: 1\nsteps:\n  implement:\n    turns: [{}]\n    resumed:\n      finalize:\n"
                "        actions:\n          - {do: edit, path: a, with: x, append: y}\n"
            ),
            [(8, "bad_edit")],
        ),
        ("version: 1\nsteps: [\n", [(3, "yaml_syntax")]),
    ],
)
def test_a_fault_in_a_scenario_is_said_with_its_line(text: str, expected: list[tuple[int, str]]) -> None:
    scenario, findings = load_scenario("s.yaml", text, steps=["implement"])
    assert scenario is None
    assert [(finding.line, finding.code) for finding in findings] == expected


def test_without_a_flow_a_scenario_may_name_any_step() -> None:
    assert load_scenario("s", "version: 1\nsteps:\n  anything: {turns: [{}]}\n")[1] == []


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    path = tmp_path / "demo"
    subprocess.run([sys.executable, str(DEMO), str(path)], check=True, stdout=subprocess.DEVNULL)
    return path


def _git(path: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=path, check=True, capture_output=True, text=True
    ).stdout.strip()


def _passes(path: Path) -> bool:
    return subprocess.run(GATE, cwd=path, check=False, capture_output=True, timeout=60).returncode == 0


def test_the_demo_repository_is_the_same_everywhere(demo: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    subprocess.run([sys.executable, str(DEMO), str(again)], check=True, stdout=subprocess.DEVNULL)
    assert _git(demo, "rev-parse", "main") == _git(again, "rev-parse", "main")
    assert _git(demo, "log", "--format=%an", "main").splitlines() == ["Demo", "Demo"]
    assert _git(demo, "status", "--porcelain") == ""


def test_the_demo_repository_is_clean_after_its_tests(demo: Path) -> None:
    assert not _passes(demo)
    assert _git(demo, "status", "--porcelain") == ""


def test_the_demo_repository_is_never_written_over(demo: Path) -> None:
    head = _git(demo, "rev-parse", "main")
    result = subprocess.run(
        [sys.executable, str(DEMO), str(demo)], check=False, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "exists already" in result.stderr
    assert _git(demo, "rev-parse", "main") == head


def _edit(path: Path, edit: Edit) -> None:
    file = path / edit.path
    if edit.content is not None:
        file.write_text(edit.content)
    else:
        assert edit.replace is not None
        assert edit.with_ is not None
        before = file.read_text()
        assert edit.replace in before
        file.write_text(before.replace(edit.replace, edit.with_, 1))


@pytest.mark.parametrize("name", DRIVING)
def test_a_shipped_scenario_fails_its_gate_until_its_last_turn_and_then_passes(name: str, demo: Path) -> None:
    scenario, spec = _scenario(name), _flow(name)
    measured: list[bool] = []
    for step in spec.steps:
        for turn in scenario.steps[step.id].turns:
            for action in turn.work:
                if isinstance(action, Edit):
                    _edit(demo, action)
            if step.gates:
                measured.append(_passes(demo))
    assert measured == ([True] if name == "direct" else [False, True])
    assert _passes(demo)
    assert "tests/test_stats.py" not in _git(demo, "diff", "--name-only", "HEAD")


@pytest.mark.parametrize("name", DRIVING)
def test_a_step_that_only_reads_is_not_scripted_to_edit_or_run(name: str) -> None:
    reading = {step.id for step in _flow(name).steps if step.policy == "read-only"}
    scripts = _scenario(name).steps
    refused = {
        step
        for step in reading & scripts.keys()
        for turn in scripts[step].turns
        for action in turn.work
        if action.do in {"edit", "run"}
    }
    assert refused == set()
