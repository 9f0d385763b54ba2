"""``stepwise doctor`` on a machine without a server: each check and its mend."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from cli.checks_server import _register
from cli.main import run
from system.devserver import SEARCH_ATTRIBUTES
from system.settings import load
from transports.credentials import KEYS
from transports.programs import Program


@pytest.fixture(autouse=True)
def _no_server(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_place
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")


def _checks(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str, str]]:
    assert run(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    return {one["name"]: (one["verdict"], one["seen"], one["mend"]) for one in checks}


@pytest.mark.parametrize("keys", [True, False], ids=["with keys", "without keys"])
def test_a_good_machine_lacks_only_the_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, keys: bool
) -> None:
    for name in (name for names in KEYS.values() for name in names):
        monkeypatch.delenv(name, raising=False)
    for name in ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY") if keys else ():
        monkeypatch.setenv(name, "not-a-key")
    checks = _checks(capsys)

    assert {name for name, (verdict, _, _) in checks.items() if verdict == "fail"} == {"server"}
    said = {name: (seen, mend) for name, (verdict, seen, mend) in checks.items() if verdict == "warn"}
    unused = ("installed, and no key is set", "set OPENAI_API_KEY where the worker runs")
    assert all(name.startswith("transport ") for name in said)
    assert said.get("transport codex", unused) == unused
    assert ("transport codex" in said) is not keys
    assert {"settings", "python", "git", "temporal program", "store", "data folder", "transport stub"} < set(
        checks
    )
    assert "stepwise dev" in checks["server"][2]


def test_people_get_a_line_for_each_check_and_the_mend_under_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok    settings")
    assert lines[-2].startswith("FAIL  server")
    assert lines[-1].strip().startswith("-> start one with `stepwise dev`")


def test_settings_that_cannot_be_read_are_the_first_thing_to_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPWISE_MAX_RUN", "1")

    checks = _checks(capsys)

    assert list(checks) == ["settings"]
    assert "STEPWISE_MAX_RUNS" in checks["settings"][2]


def test_without_git_the_mend_names_the_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    checks = _checks(capsys)

    assert checks["git"] == ("fail", "not found on PATH", "install git 2.39 or later")
    assert checks["temporal program"][0] == "ok"


@pytest.mark.parametrize(
    ("version", "verdict"), [("2.38.9", "fail"), ("2.39.0", "ok"), ("3.0.0", "ok"), ("", "fail")]
)
def test_an_old_git_is_found_out(
    version: str,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\necho git version {version}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert _checks(capsys)["git"][0] == verdict


def test_a_machine_without_a_process_is_told_and_not_taken_for_a_missing_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scarce(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr("transports.codex_program.find_program", lambda: _program(tmp_path / "codex", ""))
    monkeypatch.setattr("subprocess.run", scarce)

    checks = _checks(capsys)

    for name in ("git", "transport codex"):
        _, seen, mend = checks[name]
        assert "no process is left" in seen
        assert "user namespaces" not in seen
        assert "limit" in mend


@pytest.mark.parametrize("chosen", [True, False])
def test_codex_cannot_be_used_where_its_sandbox_leaves_the_workers_data_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, chosen: bool
) -> None:
    monkeypatch.setenv("STEPWISE_DATA_DIR", "/dev/shm/stepwise-doctor")
    if chosen:
        monkeypatch.setenv("STEPWISE_TRANSPORTS", "codex,stub")

    verdict, seen, _ = _checks(capsys)["transport codex"]

    assert verdict == ("fail" if chosen else "warn")
    assert "/dev/shm/stepwise-doctor" in seen
    assert "set STEPWISE_DATA_DIR to a folder on a disk" in seen


def test_codex_cannot_be_used_where_commands_cannot_be_sandboxed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codex = _program(tmp_path / "codex", "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    monkeypatch.setattr("transports.codex_program.find_program", lambda: codex)

    verdict, seen, _ = _checks(capsys)["transport codex"]

    assert verdict == "warn"
    assert "No permissions to create a new namespace (allow user namespaces" in seen


@pytest.mark.parametrize(
    ("version", "is_old"), [("v18.20.4", True), ("v20.1.0", False), ("v100.0.0", False), ("", True)]
)
def test_gemini_cli_cannot_be_used_with_an_old_node(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    is_old: bool,
) -> None:
    node = _program(tmp_path / "node", f"echo {version}")
    gemini = Program(tmp_path / "gemini", str(node))
    for module in ("gemini_cli", "trial"):
        monkeypatch.setattr(f"transports.{module}.find_program", lambda *_, **__: gemini)
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-key")

    verdict, seen, mend = _checks(capsys)["transport gemini-cli"]

    assert verdict == ("warn" if is_old else "ok")
    assert ("needs Node 20 or later" in seen, "Node 20" in mend) == (is_old, is_old)


def _program(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("variable", "value", "name", "mend"),
    [
        ("STEPWISE_STORE", "file:///dev/null/store", "store", "STEPWISE_STORE"),
        ("STEPWISE_STORE", "ftp://host/x", "store", "file:///"),
        ("STEPWISE_DATA_DIR", "/dev/null/data", "data folder", "STEPWISE_DATA_DIR"),
        ("STEPWISE_TRANSPORTS", "", "default transport", "STEPWISE_TRANSPORTS"),
        ("STEPWISE_TRANSPORTS", "stub,stbu", "transport stbu", "stub"),
        ("TEMPORAL_ADDRESS", "temporal.invalid:7233", "store", "STEPWISE_STORE_SHARED"),
    ],
)
def test_what_stops_runs_fails_with_its_mend(
    variable: str,
    value: str,
    name: str,
    mend: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)

    verdict, _, said = _checks(capsys)[name]

    assert verdict == "fail"
    assert mend in said


def test_a_shared_store_is_right_with_a_server_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.invalid:7233")
    monkeypatch.setenv("STEPWISE_STORE_SHARED", "true")

    assert _checks(capsys)["store"][0] == "ok"


def test_on_temporal_cloud_the_mend_is_a_tcld_command() -> None:
    loaded = load({"TEMPORAL_ADDRESS": "ns.acct.tmprl.cloud:7233", "TEMPORAL_NAMESPACE": "ns.acct"})

    command = _register(loaded, SEARCH_ATTRIBUTES)

    assert command.startswith(
        "tcld namespace search-attributes add --namespace ns.acct --sa StepwiseFlow=Keyword"
    )
    assert command.endswith("--sa StepwiseNeedsHuman=Bool")


def test_elsewhere_it_is_a_temporal_command_that_reaches_the_server() -> None:
    loaded = load({"TEMPORAL_ADDRESS": "t.example:7233", "TEMPORAL_NAMESPACE": "lab"})

    command = _register(loaded, ["StepwiseNeedsHuman"])

    assert command.endswith(
        "temporal operator search-attribute create --name StepwiseNeedsHuman --type Bool "
        "--address t.example:7233 --namespace lab"
    )
