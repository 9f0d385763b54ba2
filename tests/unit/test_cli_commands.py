"""The command line: its errors, and the commands that need no server."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.main import COMMANDS, run
from schemas.common import ArtifactRef
from schemas.handoff import HandoffEnvelope
from schemas.receipt import GENESIS, StepReceipt
from schemas.settings import WorkerSettings
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.receipts import Receipts
from store.redaction import Redactor

ROOT = Path(__file__).resolve().parents[2]
AGENT = "---\nname: {name}\ndescription: Does it.\n---\nYou do it.\n"
FLOW = """\
id: mine
version: 1
title: Mine
params:
  test:
    type: argv
    default: [make, test]
steps:
  - id: work
    agent: doer
    objective: Do it.
    gates:
      - {name: tests, argv: ["${params.test}"]}
    routing: {kind: microloop, loop_target: work, next: close}
  - id: close
    agent: doer
    objective: Close it.
    routing: {kind: terminal}
"""


pytestmark = pytest.mark.usefixtures("own_place")


def _flow(tmp_path: Path, text: str = FLOW) -> Path:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "doer.md").write_text(AGENT.format(name="doer"))
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def _failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


# errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["lint"], "Missing argument"),
        (["config", "--jsn"], "No such option: --jsn"),
        (["dev", "--port", "many"], "Invalid value for '--port'"),
        (["lint", "absent.yaml"], "absent.yaml cannot be read: No such file"),
        (["plan", "fixx"], "did you mean 'fix'"),
        (["start", "fix", "--task", "t", "--repo", "r", "--id"], "--id"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _failed(arguments, capsys)

    assert line.startswith("stepwise: ")
    assert expected in line


def test_a_wrong_setting_is_an_error_of_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPWISE_TASK_QUEU", "x")

    assert "did you mean STEPWISE_TASK_QUEUE?" in _failed(["config"], capsys)


def test_a_fault_of_ours_is_one_line_too_and_its_traceback_can_be_had(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise LookupError("first\nsecond")

    monkeypatch.setattr("cli.config.config", broken)

    assert "this should not happen: LookupError: first ->" in _failed(["config"], capsys)

    monkeypatch.setenv("STEPWISE_LOG_LEVEL", "DEBUG")
    assert run(["config"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0

    output = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert f"\n  {name:8}{summary[:40]}" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_what_it_says_of_itself(name: str) -> None:
    module, summary = COMMANDS[name]
    said = inspect.getdoc(getattr(importlib.import_module(module), name))

    assert said is not None
    assert summary == " ".join(said.partition("\n\n")[0].split())


def test_it_runs_as_a_module_and_as_a_program() -> None:
    program = Path(sys.executable).parent / "stepwise"
    for argv in ([sys.executable, "-m", "cli.main"], [str(program)]):
        done = subprocess.run([*argv, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "Usage: stepwise" in done.stdout


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "plan", "fix"], cwd=ROOT, env=env, capture_output=True, check=True
    )
    assert rb"\u2192 finish" in done.stdout


def test_a_reader_that_has_enough_is_not_answered_with_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "plan", "fix"],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)

    assert done.stderr == b""


# config


def test_config_shows_every_setting_with_its_origin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "stepwise.toml").write_text("max_agents = 2\n")
    monkeypatch.setenv("STEPWISE_TRUSTED_REPOS", "https://me:t0ken@example.org/r.git")
    monkeypatch.setenv("TEMPORAL_API_KEY", "k3y")

    assert run(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    assert set(shown["settings"]) == set(WorkerSettings.model_fields)
    assert shown["settings"]["max_agents"] == {
        "value": 2,
        "origin": f"file {tmp_path}/stepwise.toml:1",
        "meaning": "Agents that may work at once.",
    }
    assert shown["settings"]["trusted_repos"]["value"] == ["https://***@example.org/r.git"]
    assert shown["settings"]["store"]["value"] == f"file://{tmp_path}/.local/state/stepwise/store"
    assert shown["temporal"]["temporal.api_key"]["value"] == "***"
    assert shown["temporal"]["temporal.target_host"]["origin"] == "default"


def test_config_is_a_table_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPWISE_TRUSTED_REPOS", "https://me:t0ken@example.org/[odd].git")

    assert run(["config"]) == 0
    table = capsys.readouterr().out

    (row,) = [line for line in table.splitlines() if line.startswith("trusted_repos")]
    assert row.split()[1:4] == ["https://***@example.org/[odd].git", "environment", "STEPWISE_TRUSTED_REPOS"]
    assert "t0ken" not in table
    assert len([line for line in table.splitlines() if line.strip()]) == len(WorkerSettings.model_fields) + 3


# lint and plan


def test_a_flow_without_faults_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(_flow(tmp_path))]) == 0
    assert capsys.readouterr().out == ""


def test_every_fault_is_a_line_with_its_place_and_its_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _flow(tmp_path, FLOW.replace("next: close", "next: clsoe").replace("title:", "titel:"))
    (tmp_path / "agents" / "doer.md").write_text("no front matter\n")

    assert run(["lint", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith(f"{path}:3:1 unknown_key ") and " -> " in line for line in lines)


def test_a_fault_of_an_agent_is_at_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _flow(tmp_path)
    (tmp_path / "agents" / "doer.md").write_text("no front matter\n")

    assert run(["lint", "mine.yaml", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)

    assert {finding["file"] for finding in findings} == {"agents/doer.md"}
    assert {finding["code"] for finding in findings} == {"bad_persona"}
    assert path.exists()


def test_a_plan_is_of_a_file_or_of_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(_flow(tmp_path))]) == 0
    assert "1. work" in capsys.readouterr().out

    assert run(["plan", "fix", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart TD\n")


def test_a_flow_with_faults_has_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(_flow(tmp_path, FLOW.replace("next: close", "next: gone")))]) == 1

    output = capsys.readouterr()
    assert output.out == ""
    assert "mine.yaml:" in output.err


# verify


def _stored(tmp_path: Path) -> tuple[str, ArtifactRef, Path]:
    """Store one receipt with its envelope; return the store's URL, the receipt, and the envelope's file."""
    folder = tmp_path / "store"
    receipts = Receipts(Evidence(FileBlobs(folder, fsync=False), Redactor()))
    now = datetime(2026, 1, 2, tzinfo=UTC)
    place = {"step_id": "work", "flow_key": "mine", "run_id": "r-1", "visit": 1, "attempt": 1, "iteration": 1}
    envelope = receipts.write_envelope(
        HandoffEnvelope.model_validate(
            {**place, "status": "UNVERIFIED", "summary": "s", "timestamp": now, "source": "engine"}
        )
    )
    receipt = receipts.write(
        StepReceipt.model_validate(
            {
                **place,
                "transport": "stub",
                "execution_status": "succeeded",
                "verification_status": "UNVERIFIED",
                "started_at": now,
                "completed_at": now,
                "duration_ms": 0,
                "envelope": envelope.model_dump(),
                "previous_sha256": GENESIS,
            }
        )
    )
    return folder.as_uri(), receipt, folder / envelope.uri


def test_evidence_that_is_whole_verifies_up_to_its_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, receipt, _ = _stored(tmp_path)

    assert run(["verify", "r-1", "--store", url]) == 0
    assert "its end was not checked" in capsys.readouterr().out
    assert run(["verify", "r-1", "--store", url, "--head", receipt.sha256]) == 0
    assert capsys.readouterr().out.startswith("ok: 1 receipt in one chain")


def test_an_altered_file_and_another_head_are_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _, envelope = _stored(tmp_path)
    other = hashlib.sha256(b"other").hexdigest()

    assert run(["verify", "r-1", "--store", url, "--head", other]) == 1
    envelope.write_bytes(envelope.read_bytes().replace(b"UNVERIFIED", b"VERIFIED"))
    assert run(["verify", "r-1", "--store", url, "--json"]) == 1

    first, _, rest = capsys.readouterr().out.partition("{")
    assert "does not reach its head" in first
    assert json.loads("{" + rest)["problems"][0]["path"].endswith("envelope.json")


def test_the_store_of_the_settings_is_verified_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, _ = _stored(tmp_path)
    monkeypatch.setenv("STEPWISE_STORE", url)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "far.example:7233")

    assert run(["verify", "r-1"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["r-1", "--store", "file:///nowhere/store"],
        ["../r-1"],
        ["r-2"],
        ["r-1", "--head", "abc"],
        ["r-1", "--store", "ftp://x/y"],
    ],
)
def test_what_cannot_be_verified_is_an_error_and_makes_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _failed(["verify", *arguments], capsys)

    assert not Path("/nowhere").exists()
    assert not (tmp_path / ".local").exists()
