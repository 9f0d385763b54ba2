"""What Codex may not do, shown on the real program: policy says no first, and the sandbox holds what policy let by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from codex_kit import DRAFT, KEY, one_turn, session_of, spec_in, transport_for
from model_servers.openai import OpenAIServer
from model_servers.script import Call, HandIn, Part, Run, Write, in_order, turn

from schemas.handoff import HandoffDraft
from system import processes
from transports.port import WorkRequest

COMMAND = "exec_command"
OUTSIDE = """
import os, pathlib, socket
for place in ("{outside}", ".git/stepwise-was-here", "{state}/stepwise-was-here"):
    try:
        pathlib.Path(place).write_text("x")
        print("WRITTEN", place)
    except OSError as error:
        print("no", place, error.strerror)
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5)
    print("connected")
except OSError as error:
    print("no network")
try:
    print("reads", os.listdir("{state}/codex"))
except OSError as error:
    print("no reading")
"""


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def patch(path: str) -> Call:
    return Call("apply_patch", {"input": f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch"})


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (Call(COMMAND, {"cmd": "ls", "sandbox_permissions": "require_escalated"}), "escalation_refused"),
        (
            Call(
                COMMAND, {"cmd": "ls", "sandbox_permissions": "require_escalated", "justification": "let me"}
            ),
            "escalation_refused",
        ),
        (Call(COMMAND, {"cmd": "cat", "tty": True}), "terminal_refused"),
        (Call(COMMAND, {"cmd": "ls", "workdir": "/etc"}), "E_PATH_ABSOLUTE"),
        (Run("rm -rf /"), "E_"),
        (Run("true && git reset --hard"), "E_"),
        (patch("../outside.txt"), "E_PATH_ABSOLUTE"),
        (patch(".git/hooks/post-commit"), "E_PATH_PROTECTED"),
        (patch("link/outside.txt"), "E_PATH_SYMLINK"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_is_not_allowed_has_no_effect_and_is_reported(
    part: Part, code: str, tmp_path: Path
) -> None:
    spec = spec_in(tmp_path)
    (spec.workspace / ".git" / "hooks").mkdir(parents=True)
    (spec.workspace / "link").symlink_to(tmp_path)
    with OpenAIServer(in_order(turn(part))) as server:
        turned = await one_turn(server, spec)
    (call,) = turned.calls
    assert call.blocked
    assert not call.success
    assert (call.blocked_reason or "").startswith(code), call
    assert turned.outcome.end == "completed"
    assert not (tmp_path / "outside.txt").exists()
    assert not (spec.workspace / ".git" / "hooks" / "post-commit").exists()
    assert server.seen[-1].calls[0].failed


async def test_a_program_the_agent_wrote_stays_in_the_sandbox_even_when_it_fails_there(
    tmp_path: Path,
) -> None:
    spec = spec_in(tmp_path)
    (spec.workspace / ".git").mkdir()
    outside = tmp_path / "outside.txt"
    with OpenAIServer(in_order()) as server:
        port = int(server.url.rpartition(":")[2])
        program = OUTSIDE.format(outside=outside, state=spec.state, port=port)
        server.mind = in_order(turn(Write("attack.py", program), Run("python3 attack.py; exit 1")))
        turned = await one_turn(server, spec)
    written, ran = turned.calls
    assert written.success, written
    assert not ran.blocked, ran
    assert not ran.success
    output = ran.output or ""
    assert "WRITTEN" not in output, output
    assert "no network" in output
    assert "no reading" in output
    assert not outside.exists()
    assert not (spec.workspace / ".git" / "stepwise-was-here").exists()


async def test_commands_get_a_closed_environment_without_the_key(tmp_path: Path) -> None:
    with OpenAIServer(in_order(turn(Run("env")))) as server:
        spec = spec_in(tmp_path)
        turned = await one_turn(server, spec)
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    output = turned.calls[0].output or ""
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert KEY not in output
    assert not {name for name in names if "KEY" in name or "TOKEN" in name or name == "CODEX_HOME"}
    assert f"STEPWISE_RUN={spec.run_id}" in output
    assert f"HOME={spec.private}/codex/home" in output
    kept = [path for path in spec.state.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


async def test_only_a_closed_list_of_tools_is_declared_and_what_is_not_there_fails(tmp_path: Path) -> None:
    calls = turn(Call("web_search", {"query": "x"}), Call("spawn_agent", {"message": "x"}))
    with OpenAIServer(in_order(calls)) as server:
        turned = await one_turn(server, spec_in(tmp_path))
    assert set(server.seen[0].tools) == {COMMAND, "write_stdin", "apply_patch", "request_user_input"}
    assert [(call.tool_name, call.success) for call in turned.calls] == [
        ("web_search", False),
        ("spawn_agent", False),
    ]


async def test_a_command_has_no_input_to_be_typed_into(tmp_path: Path) -> None:
    reading = Call(COMMAND, {"cmd": "cat; echo read", "yield_time_ms": 250})
    with OpenAIServer(in_order(turn(reading))) as server:
        turned = await one_turn(server, spec_in(tmp_path))
    assert turned.calls[0].output == "read\n"


async def test_a_structured_turn_changes_nothing_and_asks_nobody(tmp_path: Path) -> None:
    script = in_order(
        turn(Write("a.txt", "x\n"), Run("touch b.txt"), Run("ls")),
        turn(Call("request_user_input", _question("May I?"))),
        turn(HandIn(DRAFT)),
    )
    with OpenAIServer(script) as server:
        spec = spec_in(tmp_path)
        async with session_of(transport_for(server), spec) as (session, events):
            result = await session.structured("Sum up.", HandoffDraft, events.append, timeout_s=30)
    assert result.value == dict(DRAFT), result
    calls = {event.call.input: event.call for event in events if event.kind == "tool_ended"}
    assert {text for text, call in calls.items() if call.success} == {"ls"}
    assert sum(call.blocked for call in calls.values()) == 2
    assert not list(spec.workspace.iterdir())
    assert not [event for event in events if event.kind == "question"]
    assert "best judgement" in json.dumps([call.result for call in server.seen[-1].calls])


async def test_parallel_commands_leave_no_folders_of_their_sandboxes(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    with OpenAIServer(in_order(turn(Run("ls"), Run("pwd"), Run("date")))) as server:
        turned = await one_turn(server, spec)
    assert [call.success for call in turned.calls] == [True] * 3
    assert not list(spec.workspace.iterdir())


async def test_a_read_only_session_reads(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, read_only=True)
    (spec.workspace / "a.txt").write_text("hello\n")
    with OpenAIServer(in_order(turn(Run("cat a.txt"), Run("touch b.txt"), Write("c.txt", "x")))) as server:
        async with session_of(transport_for(server), spec) as (session, events):
            await session.work(WorkRequest("Look."), events.append)
    calls = {event.call.input: event.call for event in events if event.kind == "tool_ended"}
    assert calls["cat a.txt"].output == "hello\n"
    assert sum(call.blocked for call in calls.values()) == 2
    assert [path.name for path in spec.workspace.iterdir()] == ["a.txt"]


def _question(text: str) -> dict[str, object]:
    options = [{"label": label, "description": label} for label in ("Yes", "No")]
    return {"questions": [{"id": "q", "header": "May I", "question": text, "options": options}]}
