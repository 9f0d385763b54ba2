"""``stepwise start`` before it reaches a server: what is checked here, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli import start as command
from cli import starting
from cli.main import run
from schemas.run import MAX_SPEC_BYTES, FlowInput
from system.settings import Loaded

AGENT = "---\nname: {name}\ndescription: Does it.\n---\nYou do it.\n"
FLOW = """\
id: mine
version: 1
title: Mine
params:
  count: {type: integer, default: 1}
  ratio: {type: number, default: 0.5}
  fast: {type: boolean, default: false}
  label: {type: string, default: none}
  test: {type: argv, default: [make, test]}
steps:
  - id: work
    agent: doer
    objective: Do ${params.label} ${params.count} ${params.ratio} ${params.fast} times.
    gates:
      - {name: tests, argv: ["${params.test}"]}
    routing: {kind: terminal}
"""
SCENARIO = """\
version: 1
steps:
  work:
    turns:
      - work:
          - {do: say, text: hello}
"""


class _Sent(Exception):
    """Raised in place of the call that would go to the server."""

    def __init__(self, sent: FlowInput, workflow_id: str, flow: str) -> None:
        super().__init__("sent")
        self.sent, self.workflow_id, self.flow = sent, workflow_id, flow


@pytest.fixture(autouse=True)
def _files(own_place: Path) -> None:
    (own_place / "agents").mkdir()
    for name in ("doer", "other"):
        (own_place / "agents" / f"{name}.md").write_text(AGENT.format(name=name))
    (own_place / "mine.yaml").write_text(FLOW)
    (own_place / "scene.yaml").write_text(SCENARIO)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[_Sent]:
    """Hold the calls that would go to a server; the integration tests make real ones."""
    calls: list[_Sent] = []

    async def hold(_loaded: Loaded, checked: FlowInput, workflow_id: str, flow: str) -> Any:
        calls.append(_Sent(checked, workflow_id, flow))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "send", hold)
    return calls


BASE = ["start", "mine.yaml", "--task", "t", "--repo", "https://example.org/r.git"]


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_an_own_file_is_sent_whole_with_the_agents_its_steps_name(sent: list[_Sent]) -> None:
    run(BASE)

    (call,) = sent
    assert call.sent.spec is not None
    assert call.sent.spec.name == "mine.yaml"
    assert call.sent.spec.text == FLOW
    assert list(call.sent.spec.files) == ["agents/doer.md"]
    assert call.flow == "mine"
    assert call.workflow_id.startswith("mine-")


def test_only_what_was_said_is_sent(sent: list[_Sent]) -> None:
    run(["start", "fix", "--task", "t", "--repo", "r"])

    assert sent[0].sent.model_dump(exclude_unset=True) == {"flow": "fix", "task": "t", "repo": "r"}


def test_parameters_are_read_as_the_flow_says(sent: list[_Sent]) -> None:
    words = ["count=3", "ratio=2", "fast=true", "label=5 = five", "test=pytest -q 'a b'"]
    run([*BASE, *[word for one in words for word in ("--param", one)]])

    assert sent[0].sent.params == {
        "count": 3,
        "ratio": 2.0,
        "fast": True,
        "label": "5 = five",
        "test": "pytest -q 'a b'",
    }


def test_a_folder_that_is_here_is_sent_by_its_whole_path(sent: list[_Sent], tmp_path: Path) -> None:
    run(["start", "fix", "--task", "t", "--repo", "agents"])

    assert sent[0].sent.repo == str(tmp_path / "agents")


def test_a_scenario_is_sent_whole_or_by_name(sent: list[_Sent]) -> None:
    run([*BASE, "--scenario", "scene.yaml"])
    run([*BASE, "--scenario", "noop"])

    first, second = (call.sent.scenario for call in sent)
    assert not isinstance(first, str)
    assert first is not None
    assert (first.name, first.text) == ("scene.yaml", SCENARIO)
    assert second == "noop"


def test_a_shipped_scenario_that_does_not_fit_the_flow_is_refused_before_anything_starts(
    sent: list[_Sent], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*BASE, "--scenario", "demo"]) == 1
    assert "scenario demo:" in "".join(capsys.readouterr())
    assert sent == []


def test_more_fields_come_as_json(sent: list[_Sent]) -> None:
    run(
        [
            *BASE,
            "--id",
            "w-1",
            "--input",
            '{"allow_dirty": true, "budget": {"tokens": 5}, "params": {"count": 2}}',
        ]
    )

    assert sent[0].workflow_id == "w-1"
    assert sent[0].sent.allow_dirty
    assert sent[0].sent.budget is not None
    assert sent[0].sent.params == {"count": 2}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--param", "count=many"], "count=many: it is no integer"),
        (["--param", "fast=maybe"], "fast=maybe: it is no boolean -> give true or false"),
        (["--param", "count"], "--param 'count' has no value"),
        (["--param", "count=1", "--param", "count=2"], "--param count is given twice"),
        (["--param", "cuont=1"], "did you mean 'count'"),
        (["--param", "test='open"], "cannot be split into words"),
        (["--input", "{"], "--input is not JSON"),
        (["--input", "[]"], "--input is not a JSON object"),
        (["--input", '{"task": "x"}'], "task: given by an option and in --input"),
        (["--input", '{"flow": "fix"}'], "exactly one of"),
        (["--input", '{"publsh": "none"}'], "publsh: Extra inputs are not permitted"),
        (["--scenario", "absent.yaml"], "absent.yaml cannot be read"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(
    more: list[str], expected: str, sent: list[_Sent], capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in _refused([*BASE, *more], capsys)
    assert not sent


def test_task_and_repository_are_needed(sent: list[_Sent], capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing: task, repo -> add --task … --repo …" in _refused(["start", "fix"], capsys)
    assert not sent


@pytest.mark.parametrize(
    ("name", "text", "more"),
    [
        ("mine.yaml", FLOW.replace("agent: doer", "agent: nobody"), []),
        ("agents/doer.md", "no front matter\n", []),
        (
            "scene.yaml",
            SCENARIO.replace("work:\n    turns", "wrok:\n    turns"),
            ["--scenario", "scene.yaml"],
        ),
    ],
)
def test_a_file_with_findings_is_not_sent(
    name: str,
    text: str,
    more: list[str],
    sent: list[_Sent],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(text)

    assert run([*BASE, *more]) == 1
    assert capsys.readouterr().err.startswith(f"{name}:")
    assert not sent


def test_a_flow_with_agents_too_large_to_send_is_refused(
    sent: list[_Sent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents" / "doer.md").write_text(AGENT.format(name="doer") + "x" * (MAX_SPEC_BYTES - 200))

    assert f"at most {MAX_SPEC_BYTES} can be sent" in _refused(BASE, capsys)
    assert not sent


def test_without_a_server_it_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")

    line = _refused(BASE, capsys)

    assert "no Temporal server answers at 127.0.0.1:1 (address: environment TEMPORAL_ADDRESS) ->" in line


def test_summary_and_details_are_bounded() -> None:
    checked = FlowInput(flow="fix", task="line one\n" * 2_000, repo="r")

    summary, details = starting._summary("fix", checked), starting._details("fix", checked)

    assert "\n" not in summary
    assert len(summary) < starting.MAX_SUMMARY + 20
    assert len(details) < starting.MAX_DETAILS + 200
    assert json.dumps(details)
