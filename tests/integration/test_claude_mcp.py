"""``stepwise mcp`` as a client of the protocol's own library sees it: the tools of a workspace, under policy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from pipes import hear
from typing import Any

import psutil
import pytest
from claude_kit import make_spec, point_at
from harmless import Harmless
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from model_servers.anthropic import AnthropicServer
from model_servers.script import in_order, turn

from cli.mcp_tools import MAX_OUTPUT
from system import processes
from transports import registry
from transports.claude_server import SERVER_SCRIPT
from transports.claude_session import ClaudeSession
from transports.claude_wire import Wire
from transports.port import WorkRequest


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a file, a repository's folder, and a link that leads out of it."""
    folder = tmp_path / "workspace"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("")
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "outside.txt").write_text("outside")
    return folder


def entry(workspace: Path, **given: Any) -> list[str]:
    """The command with which a transport starts the server."""
    options = {"read_only": False, "screened": False, "environment": None, "timeout_s": 120.0, "version": "1"}
    told = json.dumps({"workspace": str(workspace), **options, **given})
    return [sys.executable, "-I", "-S", str(SERVER_SCRIPT), told]


@contextlib.asynccontextmanager
async def served(workspace: Path, *options: str, **given: Any) -> AsyncIterator[ClientSession]:
    """A client of a server of its own; with options it is the one that people start."""
    command = [sys.executable, "-I", "-m", "cli.main", "mcp", "--workspace", str(workspace), *options]
    program, *arguments = command if options else entry(workspace, **given)
    parameters = StdioServerParameters(
        command=program, args=arguments, env={"PATH": os.environ["PATH"], "SECRET_TOKEN": "hush"}
    )
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        yield client


async def call(client: ClientSession, name: str, **arguments: Any) -> tuple[bool, str]:
    """Make a call; return whether it went well, and what was said."""
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    return not result.is_error, getattr(content, "text", "")


async def test_files_are_read_listed_written_and_edited(workspace: Path) -> None:
    async with served(workspace) as client:
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == [
            "read_file",
            "list",
            "write_file",
            "edit_file",
            "run_command",
        ]
        assert all(tool.description for tool in listed.tools)
        assert await call(client, "read_file", path="a.txt", offset=2, limit=1) == (True, "two\n")
        assert (await call(client, "write_file", path="new/b.txt", content="here\n"))[0]
        assert (workspace / "new" / "b.txt").read_text() == "here\n"
        assert (await call(client, "edit_file", path="a.txt", old="two", new="2"))[0]
        assert (workspace / "a.txt").read_text() == "one\n2\nthree\n"
        well, words = await call(client, "list", recursive=True)
        assert well
        assert {"a.txt", "new/", "new/b.txt"} <= set(words.splitlines())
        assert ".git" not in words


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("read_file", {"path": "../outside.txt"}, "E_PATH_OUTSIDE"),
        ("read_file", {"path": "/etc/hostname"}, "E_PATH_ABSOLUTE"),
        ("read_file", {"path": "link/outside.txt"}, "E_PATH_SYMLINK"),
        ("read_file", {"path": ".git/config"}, "E_PATH_PROTECTED"),
        ("write_file", {"path": ".git/hooks/x", "content": ""}, "E_PATH_PROTECTED"),
        ("write_file", {"path": ".claude/settings.json", "content": ""}, "E_PATH_PROTECTED"),
        ("edit_file", {"path": "a.txt", "old": "nowhere", "new": ""}, "text_not_found"),
        ("edit_file", {"path": "a.txt", "old": "t", "new": ""}, "text_not_unique"),
        ("run_command", {"command": "git push --force"}, "E_"),
        ("run_command", {"command": "rm -rf /"}, "E_"),
        ("read_file", {}, "bad_arguments"),
        ("read_file", {"path": "a.txt", "more": 1}, "bad_arguments"),
        ("no_such_tool", {}, "unsupported_tool_name"),
    ],
)
async def test_what_is_not_allowed_is_an_error_with_its_code(
    name: str, arguments: dict[str, Any], code: str, workspace: Path, tmp_path: Path
) -> None:
    harmless, seen = Harmless(tmp_path), tmp_path / "environment.json"
    seen.write_text(json.dumps({"PATH": harmless.path}))
    async with served(workspace, "--environment", str(seen)) as client:
        well, words = await call(client, name, **arguments)
    assert not well
    assert harmless.called() == []
    assert words.startswith(code)


@pytest.mark.parametrize("started", ["by a person", "by a transport"])
async def test_where_only_reading_is_allowed_nothing_is_changed(started: str, workspace: Path) -> None:
    server = (
        served(workspace, "--read-only") if started == "by a person" else served(workspace, read_only=True)
    )
    async with server as client:
        for name, arguments in (
            ("write_file", {"path": "b.txt", "content": "x"}),
            ("edit_file", {"path": "a.txt", "old": "one", "new": "1"}),
            ("run_command", {"command": "touch b.txt"}),
        ):
            assert not (await call(client, name, **arguments))[0]
        assert await call(client, "run_command", command="cat a.txt") == (True, "one\ntwo\nthree\n")
    assert not (workspace / "b.txt").exists()
    assert (workspace / "a.txt").read_text().startswith("one")


async def test_commands_have_an_environment_of_their_own_an_end_and_a_bound(
    workspace: Path, tmp_path: Path
) -> None:
    seen = tmp_path / "environment.json"
    seen.write_text(json.dumps({"PATH": os.environ["PATH"], "ONLY": "this"}))
    async with served(workspace) as client:
        _, words = await call(client, "run_command", command="env")
        assert "hush" not in words
    async with served(workspace, "--environment", str(seen)) as client:
        _, words = await call(client, "run_command", command="env; exit 3")
        assert "ONLY=this" in words
        assert words.startswith("Exit code 3")
        _, words = await call(client, "run_command", command="printf '%0100000d' 0")
        assert len(words) < MAX_OUTPUT + 100
    async with served(workspace, "--timeout", "0.5") as client:
        well, words = await call(client, "run_command", command="tail -f a.txt")
        assert not well
        assert words.startswith("Ended after 0.5 seconds")


async def test_calls_run_beside_each_other_and_end_with_the_client(workspace: Path) -> None:
    os.mkfifo(workspace / "fifo")
    os.mkfifo(workspace / "pid")
    async with served(workspace) as client:
        waiting = asyncio.create_task(call(client, "run_command", command="echo $$ > pid; cat fifo"))
        pid = int(await hear(workspace / "pid"))
        assert (await call(client, "read_file", path="a.txt"))[0]
        assert psutil.pid_exists(pid)
        waiting.cancel()
        await asyncio.wait({waiting})
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(20)
    assert not psutil.pid_exists(pid)


async def test_a_client_may_say_all_at_once_and_in_any_pieces(workspace: Path) -> None:
    def called(number: int, name: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}

    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        called(3, "read_file", path="a.txt", offset=3),
        called(4, "run_command", command="head -n 1 a.txt"),
        called(5, "read_file", path="a.txt", offset=2),
    ]
    lines = [json.dumps(message).encode() + b"\n" for message in asked]
    # In pieces: half of the next message comes with each, and the rest of it once that is answered.
    torn = [line[20:] + after[:20] for line, after in itertools.pairwise([*lines, b""])]
    torn[0] = lines[0][:20] + torn[0]
    for pieces in ([b"".join(lines)], torn):
        server = await asyncio.create_subprocess_exec(
            *entry(workspace), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert server.stdin is not None
        assert server.stdout is not None
        answers = []
        try:
            async with asyncio.timeout(60):
                for piece in pieces:
                    server.stdin.write(piece)
                    answers.append(json.loads(await server.stdout.readline()))
                answers += [json.loads(await server.stdout.readline()) for _ in asked[len(answers) :]]
                server.stdin.close()
                assert await server.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
        assert [answer["id"] for answer in answers[:2]] == [1, 2]
        read = {answer["id"]: answer["result"]["content"][0]["text"] for answer in answers[2:]}
        assert read == {3: "three\n", 4: "one\n", 5: "two\nthree\n"}


async def test_what_is_no_request_is_refused_and_the_server_goes_on(workspace: Path) -> None:
    server = await asyncio.create_subprocess_exec(
        *entry(workspace),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    lines = [
        b"no json",
        b"[]",
        b'{"jsonrpc": "2.0", "id": 1, "method": "no/such"}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": 3}}',
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}',
        b'{"jsonrpc": "2.0", "id": 3, "method": "ping"}',
    ]
    out, _ = await server.communicate(b"\n".join(lines) + b"\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer.get("error", {}).get("code") for answer in answers] == [
        -32700,
        -32600,
        -32601,
        -32602,
        None,
    ]
    assert answers[-1] == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert server.returncode == 0


async def test_the_server_of_an_agent_ends_before_the_agent_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[psutil.Process, list[psutil.Process]]] = []
    close = Wire.close

    def servers(program: psutil.Process) -> list[psutil.Process]:
        alive = [one for one in program.children() if one.status() != psutil.STATUS_ZOMBIE]
        return [one for one in alive if str(SERVER_SCRIPT) in one.cmdline()]

    async def watched(self: Wire) -> None:
        program = psutil.Process(self.pid)
        seen.append((program, servers(program)))
        assert program.is_running()
        await close(self)

    monkeypatch.setattr(Wire, "close", watched)
    with AnthropicServer(in_order(turn("Done."))) as server:
        point_at(server, monkeypatch)
        session = await registry.open("claude-cli").open_session(make_spec(tmp_path), lambda _: None)
        assert isinstance(session, ClaudeSession)
        assert len(servers(psutil.Process(session.pid))) == 1
        assert (await session.work(WorkRequest("Do it."), lambda _: None)).end == "completed"
        await session.aclose()
    await processes.shutdown()
    ((program, left),) = seen
    assert left == []
    assert not program.is_running()
