"""What is read of Codex beside its protocol: its session file, its totals; and what it is started with."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from schemas.common import Usage
from schemas.events import ToolEnded, TransportEvent
from transports.codex_program import Folders, arguments, command_environment, give_instructions
from transports.codex_rollout import Made, Rollout, end_of, holds_a_turn
from transports.codex_turn import Meter, Turn
from transports.port import SessionSpec


def record(**payload: Any) -> str:
    return json.dumps({"type": "response_item", "payload": payload}) + "\n"


def call(call_id: str, command: str) -> str:
    arguments = json.dumps({"cmd": command})
    return record(type="function_call", call_id=call_id, name="exec_command", arguments=arguments)


async def test_a_call_is_found_also_when_it_is_written_late_and_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    rollout = Rollout(path)
    looking = asyncio.create_task(rollout.call("2"))
    await asyncio.sleep(0)
    line = call("2", "ls")
    path.write_text('not json\n{"payload": 7}\n[]\n' + record(type="message") + call("1", "pwd") + line[:20])
    await rollout.catch_up()
    assert set(rollout.calls) == {"1"}
    with path.open("a") as file:
        file.write(line[20:])
    found = await looking
    assert found is not None
    assert (found.name, found.arguments) == ("exec_command", {"cmd": "ls"})


async def test_a_call_that_never_comes_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.codex_rollout._LIMIT_S", 0.05)
    assert await Rollout(tmp_path / "none").call("1") is None


async def test_calls_of_earlier_turns_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_text(call("1", "pwd"))
    rollout = Rollout(path)
    await rollout.skip()
    with path.open("a") as file:
        file.write(
            call("2", "ls") + record(type="function_call_output", call_id="2", output="unsupported call")
        )
        file.write(record(type="custom_tool_call", call_id="3", name="apply_patch", input="x"))
        file.write(record(type="function_call", call_id="4", name="odd", arguments="[1]"))
    await rollout.catch_up()
    assert {key: made.output for key, made in rollout.calls.items()} == {
        "2": "unsupported call",
        "3": None,
        "4": None,
    }
    assert rollout.calls["3"].arguments == {"input": "x"}
    assert rollout.calls["4"].arguments == {}


@pytest.mark.parametrize(
    ("output", "ended"),
    [
        (None, None),
        ("Chunk ID: 1\nProcess running with session ID 7\nOutput:\nhi\n", None),
        ("Chunk ID: 1\nProcess exited with code 0\nOutput:\nhi\n", (True, "hi\n")),
        ("Chunk ID: 1\nProcess exited with code -1\nOutput:\nhi\n", (False, "exit code -1\nhi\n")),
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\nSuccess\n", (True, "Success\n")),
        ("exec_command failed: no", (False, "exec_command failed: no")),
        ("unsupported call: x", (False, "unsupported call: x")),
        ('{"answers": {}}', (True, '{"answers": {}}')),
        ("Process exited with code 0", (True, "Process exited with code 0")),
    ],
)
def test_how_a_call_ended_is_read_off_what_the_model_was_told(
    output: str | None, ended: tuple[bool, str] | None
) -> None:
    assert end_of(Made("exec_command", {}, output)) == ended


def totals(read: int, cached: int, written: int, said: int) -> dict[str, int]:
    counts = ("inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens")
    return dict(zip(counts, (read, cached, written, said), strict=True))


def test_tokens_are_counted_once_also_over_a_resume() -> None:
    meter = Meter(new=True)
    first = {"total": totals(100, 20, 5, 10), "last": totals(100, 20, 5, 10)}
    assert meter.delta(first, current=True) == Usage(prompt=75, completion=10, cache_read=20, cache_write=5)
    assert meter.delta(first, current=True) is None
    second = {"total": totals(250, 20, 5, 30), "last": totals(150, 0, 0, 20)}
    assert meter.delta(second, current=True) == Usage(prompt=150, completion=20)
    resumed = Meter(new=False)
    assert resumed.delta(second, current=False) is None
    third = {"total": totals(260, 20, 5, 31), "last": totals(10, 0, 0, 1)}
    assert resumed.delta(third, current=True) == Usage(prompt=10, completion=1)
    untold = Meter(new=False)
    assert untold.delta(third, current=True) == Usage(prompt=10, completion=1)
    assert untold.delta({"total": None}, current=True) is None


def spec(tmp_path: Path, **more: Any) -> SessionSpec:
    workspace = tmp_path / 'work "space"'
    workspace.mkdir(exist_ok=True)
    given: dict[str, Any] = {
        "run_id": "r",
        "place": {},
        "workspace": workspace,
        "private": tmp_path / "private",
        "state": tmp_path / "state",
        "environment": {"PATH": "/bin", "ODD": 'a "b" \\ \n \x7f é \U0001f600 = ]'},
        "system": "",
        "model": None,
        "read_only": False,
        "command_timeout_s": 1,
        "no_output_s": 300,
    }
    return SessionSpec(**(given | more))


def test_what_it_is_started_with_is_well_formed_and_whole(tmp_path: Path) -> None:
    given = spec(tmp_path)
    folders = Folders.of(given)
    words = arguments(given, folders, {"OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": "http://model/v1"})
    assert words[0] == "app-server"
    assert set(words[1::2]) == {"-c"}
    settings = tomllib.loads("\n".join(words[2::2]))
    assert settings["shell_environment_policy"] == {
        "inherit": "none",
        "set": {**given.environment, "HOME": str(folders.home), "TMPDIR": str(folders.temporary)},
    }
    assert settings["model_providers"]["stepwise"]["base_url"] == "http://model/v1"
    assert settings["projects"][str(given.workspace)] == {"trust_level": "untrusted"}
    for permissions in settings["permissions"].values():
        assert permissions["filesystem"][str(folders.codex)] == "deny"
        assert permissions["network"] == {"enabled": False}
    assert not settings["features"]["hooks"]
    assert "secret" not in "".join(words)


def test_home_and_temporary_folder_are_those_of_the_attempt(tmp_path: Path) -> None:
    own = spec(tmp_path, environment={"HOME": "/h", "TMPDIR": "/t"})
    assert command_environment(own, Folders.of(own))["HOME"] == "/h"
    assert Folders.of(own).temporary == Path("/t")
    assert Folders.of(spec(tmp_path)).home == tmp_path / "private" / "codex" / "home"


def test_instructions_are_given_as_long_as_the_repository_is_trusted(tmp_path: Path) -> None:
    trusted = spec(tmp_path, trusted=True)
    folders = Folders.of(trusted)
    folders.make()
    (trusted.workspace / "AGENTS.md").write_text("x" * 100_000)
    give_instructions(trusted, folders)
    assert len((folders.codex / "AGENTS.md").read_text()) == 32_768
    give_instructions(spec(tmp_path, trusted=True, deterministic=True), folders)
    assert not (folders.codex / "AGENTS.md").exists()
    give_instructions(trusted, folders)
    give_instructions(spec(tmp_path), folders)
    assert not (folders.codex / "AGENTS.md").exists()


def test_a_thread_in_which_nothing_was_said_holds_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "rollout.jsonl"
    quoted = record(type="message", content="UserMessage")
    path.write_text(f'{record(type="session_meta")}{quoted}"UserMessage"\n{{"UserMessage')
    assert not holds_a_turn(path)
    with path.open("a") as file:
        file.write("\n" + record(type="item_completed", item={"type": "UserMessage"}))
    assert holds_a_turn(path)


@pytest.mark.parametrize("allowed", [True, False])
def test_an_end_that_is_told_late_is_no_second_call_but_is_still_looked_at(
    tmp_path: Path, *, allowed: bool
) -> None:
    events: list[TransportEvent] = []
    turn = Turn(events.append, Meter(new=True), tmp_path)
    item = {"type": "commandExecution", "id": "1", "command": "sleep 6"}
    turn.take("item/started", {"item": item})
    if allowed:
        turn.accepted("1")
    turn.settle({"1": Made("exec_command", {"cmd": "sleep 6"}, "aborted by user")})
    turn.take("item/completed", {"item": {**item, "status": "failed", "exitCode": -1}})
    turn.flush({})
    assert [event.kind for event in events] == ["tool_started", "tool_ended"]
    assert isinstance(events[1], ToolEnded)
    assert events[1].call.output == "aborted by user"
    assert turn.unasked == (None if allowed else "sleep 6")
