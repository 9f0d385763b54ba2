"""The agents' programs driven without Stepwise, with as little as it takes: the three turns of a step.

Each way takes a folder of its own, in which ``workspace`` is new every time and ``home`` stays from time to time. Where
the model is, and its key, stand in the environment. Raises AssertionError when a turn does not end as it must.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import uuid
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, query
from step_kit import ASKED, TASK

from transports.claude_program import bundled_program
from transports.codex import DEFAULT_MODEL as CODEX_MODEL
from transports.codex_program import find_program as find_codex
from transports.codex_schema import strict_schema
from transports.gemini_cli import PROGRAM as GEMINI
from transports.gemini_home import DEFAULT_MODEL as GEMINI_MODEL
from transports.gemini_log import make_resumable
from transports.programs import Program, find_program

Way = Callable[[Path], Awaitable[None]]
"""Takes the three turns in a folder."""

_LINE: Final = 2**24
_CLAUDE_TOOLS: Final = ["Read", "Glob", "Grep", "Edit", "Write", "Bash"]
_CLAUDE_MODE: Final = "acceptEdits"
_GEMINI_SETTINGS: Final = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
}
_CODEX_OFF: Final = ("plugins", "apps", "unbounded_connection_retries", "multi_agent", "tool_suggest")


def _schemas() -> list[tuple[str, dict[str, Any]]]:
    return [(prompt, schema.model_json_schema()) for prompt, schema in ASKED]


def _as_text(prompt: str, schema: Mapping[str, Any]) -> str:
    return f"{prompt}\n\nAnswer with one JSON object alone. It must validate against\n{json.dumps(schema)}"


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """Return a whole environment: a home in the folder, the model's address and key, no more."""
    home = folder / "home"
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "LANG"} or name.endswith(("_API_KEY", "_BASE_URL"))
    }
    return {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp"), **more}


def _claude_environment(folder: Path) -> dict[str, str]:
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return _environment(folder, CLAUDE_CONFIG_DIR=str(folder / "home" / "claude"), **quiet)


# Claude through its SDK.


def _options(folder: Path, **more: Any) -> ClaudeAgentOptions:
    return ClaudeAgentOptions(
        cwd=folder / "workspace",
        env=_claude_environment(folder),
        tools=_CLAUDE_TOOLS,
        allowed_tools=_CLAUDE_TOOLS,
        permission_mode=_CLAUDE_MODE,
        setting_sources=[],
        **more,
    )


async def claude_client(folder: Path) -> None:
    """One ``ClaudeSDKClient`` with three turns."""
    async with ClaudeSDKClient(_options(folder)) as client:
        await client.query(TASK)
        await _result(client.receive_response())
        for prompt, schema in _schemas():
            await client.query(_as_text(prompt, schema))
            json.loads((await _result(client.receive_response())).result or "")


async def claude_queries(folder: Path) -> None:
    """Three ``query()`` calls, each of which resumes the one before."""
    done = await _result(query(prompt=TASK, options=_options(folder)))
    for prompt, schema in _schemas():
        wanted = {"type": "json_schema", "schema": schema}
        options = _options(folder, resume=done.session_id, output_format=wanted)
        done = await _result(query(prompt=prompt, options=options))
        assert done.structured_output is not None, done  # noqa: S101 - a turn that failed is not to be measured


async def _result(messages: AsyncIterator[Any]) -> ResultMessage:
    """Read a turn to its end."""
    results = [message async for message in messages if isinstance(message, ResultMessage)]
    assert [(one.subtype, one.is_error) for one in results] == [("success", False)], results  # noqa: S101
    return results[0]


# Claude through its program.


def _claude_argv(*more: str) -> list[str]:
    tools = ",".join(_CLAUDE_TOOLS)
    mode = ["--permission-mode", _CLAUDE_MODE, "--setting-sources", ""]
    return [str(bundled_program()), "--print", "--tools", tools, "--allowedTools", tools, *mode, *more]


async def claude_stream(folder: Path) -> None:
    """One ``claude --print`` that takes three prompts from a stream."""
    argv = _claude_argv("--input-format=stream-json", "--output-format=stream-json", "--verbose")
    async with _process(argv, folder, _claude_environment(folder)) as (process, lines):
        for prompt in [TASK, *(_as_text(prompt, schema) for prompt, schema in _schemas())]:
            message = {"role": "user", "content": prompt}
            await _write(process, {"type": "user", "message": message, "parent_tool_use_id": None})
            result = await lines.until(type="result")
            assert result["subtype"] == "success", result  # noqa: S101


async def claude_prints(folder: Path) -> None:
    """Three ``claude --print`` processes, each of which resumes the one before."""
    session = str(uuid.uuid4())
    environment = _claude_environment(folder)
    await _claude_print(folder, environment, TASK, "--session-id", session)
    for prompt, schema in _schemas():
        more = ["--resume", session, "--json-schema", json.dumps(schema)]
        result = await _claude_print(folder, environment, prompt, *more)
        assert result.get("structured_output") is not None, result  # noqa: S101


async def _claude_print(folder: Path, env: Mapping[str, str], prompt: str, *more: str) -> dict[str, Any]:
    said = await _run(_claude_argv("--output-format=json", *more), folder, env, prompt)
    result: dict[str, Any] = json.loads(said)
    assert result["subtype"] == "success", result  # noqa: S101
    return result


# Codex.


async def codex_server(folder: Path) -> None:
    """One ``codex app-server`` with three turns."""
    async with _codex(folder) as call:
        thread = await call("thread/start", _thread(folder))
        for turn in _codex_turns(thread["thread"]["id"]):
            await call("turn/start", turn)


async def codex_servers(folder: Path) -> None:
    """Three ``codex app-server`` processes, each of which resumes the thread of the one before."""
    async with _codex(folder) as call:
        thread = (await call("thread/start", _thread(folder)))["thread"]["id"]
        first, *others = _codex_turns(thread)
        await call("turn/start", first)
    for turn in others:
        async with _codex(folder) as call:
            await call("thread/resume", {**_thread(folder), "threadId": thread})
            await call("turn/start", turn)


def _thread(folder: Path) -> dict[str, Any]:
    rights = {"approvalPolicy": "never", "sandbox": "workspace-write"}
    return {"cwd": str(folder / "workspace"), "model": CODEX_MODEL, **rights}


def _codex_turns(thread: str) -> list[dict[str, Any]]:
    asked = [(TASK, None), *((prompt, strict_schema(schema)) for prompt, schema in _schemas())]
    return [
        {"threadId": thread, "input": [{"type": "text", "text": prompt}], "outputSchema": schema}
        for prompt, schema in asked
    ]


_Call = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def _codex(folder: Path) -> AsyncIterator[_Call]:
    """Hold an app-server; what is called is answered, a turn once it is over."""
    home = folder / "home" / "codex"
    home.mkdir(parents=True, exist_ok=True)
    url = json.dumps(os.environ["OPENAI_BASE_URL"])
    provider = f'{{name="local",base_url={url},env_key="OPENAI_API_KEY",wire_api="responses"}}'
    settings = {
        "model_provider": '"local"',
        "model_providers.local": provider,
        "analytics.enabled": "false",
        "check_for_update_on_startup": "false",
        "web_search": '"disabled"',
        **{f"features.{name}": "false" for name in _CODEX_OFF},
    }
    given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    argv = [str(find_codex()), "app-server", *given]
    ids = count(1)
    async with _process(argv, folder, _environment(folder, CODEX_HOME=str(home))) as (process, lines):

        async def call(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            number = next(ids)
            await _write(process, {"id": number, "method": method, "params": params})
            answer = await lines.until(id=number)
            assert "error" not in answer, answer  # noqa: S101
            if method == "turn/start":
                ended = await lines.until(method="turn/completed")
                assert ended["params"]["turn"]["status"] == "completed", ended  # noqa: S101
            result: dict[str, Any] = answer["result"]
            return result

        await call("initialize", {"clientInfo": {"name": "bench", "title": "bench", "version": "1"}})
        await _write(process, {"method": "initialized"})
        yield call


# Gemini CLI.


async def gemini_prints(folder: Path) -> None:
    """Three ``gemini`` processes, each of which resumes the one before.

    Between them the results of calls that the program would send twice are taken out, and the lock it leaves behind is
    removed: without the one its provider refuses, without the other it waits for ten seconds.
    """
    dot = folder / "home" / ".gemini"
    dot.mkdir(parents=True, exist_ok=True)
    (dot / "settings.json").write_text(json.dumps(_GEMINI_SETTINGS))
    quiet = {"GEMINI_CLI_NO_RELAUNCH": "1", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    env = _environment(folder, GEMINI_CLI_HOME=str(folder / "home"), **quiet)
    program = find_program(GEMINI)
    assert isinstance(program, Program), program  # noqa: S101
    session = str(uuid.uuid4())
    argv = [*program.argv(), "--model", GEMINI_MODEL, "--approval-mode", "yolo", "-o", "stream-json"]
    await _gemini(argv, folder, env, TASK, "--session-id", session)
    for prompt, schema in _schemas():
        for chats in dot.glob("tmp/*/chats"):
            make_resumable(chats, session)
        await _gemini(argv, folder, env, _as_text(prompt, schema), "--resume", session)


async def _gemini(argv: Sequence[str], folder: Path, env: Mapping[str, str], prompt: str, *more: str) -> None:
    shutil.rmtree(folder / "home" / ".gemini" / "projects.json.lock", ignore_errors=True)
    said = await _run([*argv, *more], folder, env, prompt)
    assert b'"status":"success"' in said.splitlines()[-1], said  # noqa: S101


# Processes.


async def _run(argv: Sequence[str], folder: Path, env: Mapping[str, str], prompt: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder / "workspace", env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    said, complained = await process.communicate(prompt.encode())
    assert process.returncode == 0, (said, complained)  # noqa: S101
    return said


@asynccontextmanager
async def _process(
    argv: Sequence[str], folder: Path, env: Mapping[str, str]
) -> AsyncIterator[tuple[Process, _Lines]]:
    """Hold a process that speaks JSON lines; its input is closed at the end, which ends it."""
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder / "workspace", env=env, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LINE
    )
    try:
        yield process, _Lines(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


class _Lines:
    """What a process says."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def until(self, **wanted: object) -> dict[str, Any]:
        """Return the next line in which these fields have these values; raises AssertionError if none comes."""
        stdout = self._process.stdout
        while stdout is not None and (line := await stdout.readline()):
            found: dict[str, Any] = json.loads(line)
            if all(found.get(name) == value for name, value in wanted.items()):
                return found
        raise AssertionError(f"the program ended before it said {wanted}")


async def _write(process: Process, message: Mapping[str, Any]) -> None:
    if process.stdin is not None:
        process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()
