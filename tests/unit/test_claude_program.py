"""How Claude Code is started: a closed environment, no long or secret argument, a repository's own only if trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from transports.claude_cli import ClaudeCliTransport
from transports.claude_hand_in import HandIn, tool_for
from transports.claude_program import Folders, command_line, environment
from transports.claude_project import own_servers, project_arguments
from transports.claude_sdk import ClaudeSdkTransport
from transports.port import SessionSpec


def make_spec(folder: Path, **changes: Any) -> SessionSpec:
    given: dict[str, Any] = {
        "run_id": "r",
        "place": {"step": "build", "visit": 1, "attempt": 1, "iteration": 1},
        "workspace": folder,
        "private": folder / "private",
        "state": folder / "state",
        "environment": {"PATH": "/bin"},
        "system": "persona",
        "model": None,
        "read_only": False,
        "command_timeout_s": 60,
        "no_output_s": 600,
    }
    return SessionSpec(**{**given, **changes})


def line_of(spec: SessionSpec) -> list[str]:
    return command_line(
        Path("/claude"),
        spec,
        session_id="s",
        tools=("Read", "Bash"),
        mcp_config="{}",
        system_file=Path("/system.md"),
    )


def test_the_environment_is_what_is_allowed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "private")
    spec = make_spec(tmp_path)
    seen = environment(spec, Folders.of(spec, "claude-sdk"))
    assert seen["ANTHROPIC_API_KEY"] == "key"
    assert seen["PATH"] == "/bin"
    assert seen["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"] == "1"
    assert not {"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"} & seen.keys()
    folders = [seen["HOME"], seen["TMPDIR"], seen["CLAUDE_CONFIG_DIR"]]
    assert all(folder.startswith(str(tmp_path)) for folder in folders)
    assert seen["CLAUDE_CONFIG_DIR"] == str(tmp_path / "state" / "claude-sdk")


@pytest.mark.parametrize(
    ("trusted", "deterministic", "loads"),
    [(False, False, False), (False, True, False), (True, False, True), (True, True, False)],
)
def test_a_repositorys_own_settings_are_named_only_where_it_is_trusted(
    trusted: bool, deterministic: bool, loads: bool, tmp_path: Path
) -> None:
    line = line_of(make_spec(tmp_path, trusted=trusted, deterministic=deterministic))
    assert ("--setting-sources=project" in line) is loads
    assert ("--setting-sources=" in line) is not loads
    assert "--strict-mcp-config" in line


@pytest.mark.parametrize(
    ("listed", "known"),
    [
        ('{"mcpServers": {"theirs": {"command": "x"}, "stepwise": {"command": "x"}}}', ["theirs"]),
        ('{"mcpServers": []}', []),
        ("[]", []),
        ("no JSON", []),
        ("[" * 100_000, []),
        (None, []),
    ],
    ids=["a list", "no list", "no object", "no JSON", "too deep", "no file"],
)
def test_the_servers_of_a_repository_are_those_of_its_own_list(
    listed: str | None, known: list[str], tmp_path: Path
) -> None:
    if listed is not None:
        (tmp_path / ".mcp.json").write_text(listed)
    assert list(own_servers(tmp_path)) == known


def test_a_list_of_servers_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text('{"mcpServers": {"theirs": {"command": "x"}}}')
    (tmp_path / ".mcp.json").symlink_to(tmp_path / "theirs")
    assert own_servers(tmp_path) == {}


def test_instructions_are_read_below_the_workspace_only_also_when_a_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "real [x]").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real [x]")
    (settings,) = project_arguments(tmp_path / "link", tmp_path)
    excluded = json.loads(settings.removeprefix("--settings="))["claudeMdExcludes"]
    assert excluded == [f"!{tmp_path}/real ?x?/**"]


def test_a_session_is_begun_or_resumed_by_its_id(tmp_path: Path) -> None:
    assert "--session-id=s" in line_of(make_spec(tmp_path))
    resumed = line_of(make_spec(tmp_path, resume="s", model="opus"))
    assert "--resume=s" in resumed
    assert "--session-id=s" not in resumed
    assert "--model=opus" in resumed
    assert not any("persona" in argument for argument in resumed)


@pytest.mark.parametrize("session_id", ["*", "../x", "", "unknown"])
def test_only_a_session_that_was_kept_is_known(session_id: str, tmp_path: Path) -> None:
    folders = Folders.of(make_spec(tmp_path), "claude-sdk")
    folders.make()
    kept = folders.config / "projects" / "-w" / "0a-1b.jsonl"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert folders.has_session("0a-1b")
    assert not folders.has_session(session_id)


def test_what_is_missing_is_one_line_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ClaudeSdkTransport().is_available().ok
    assert ClaudeCliTransport().is_available().ok
    monkeypatch.setattr("transports.claude_program.importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "/nowhere")
    for transport in (ClaudeSdkTransport(), ClaudeCliTransport()):
        found = transport.is_available()
        assert not found.ok
        assert "not installed" in found.reason
        assert found.install_hint.startswith("pip install 'claude-agent-sdk")


def test_a_value_is_handed_in_by_the_tool_of_its_schema_and_refused_with_the_reasons() -> None:
    assert tool_for(HandoffDraft) == "mcp__stepwise__finalize"
    assert tool_for(RoutingSignal) == "mcp__stepwise__route"
    waited = HandIn("mcp__stepwise__route", RoutingSignal)
    assert "decision" in (waited.take({"reason": "so"}) or "")
    assert (waited.tries, waited.over, waited.value) == (1, False, None)
    assert waited.take({"decision": "advance", "reason": "so", "confidence": 0.5}) is None
    assert waited.over
    never = HandIn("mcp__stepwise__route", RoutingSignal)
    while not never.over:
        never.take_text("no JSON")
    assert never.tries == 4
