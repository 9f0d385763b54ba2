"""Claude Code at work, whichever way it is driven: what it may do, what is seen of it, what it is told and cannot see."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from pipes import tell

import psutil
import pytest
import pytest_asyncio
from claude_kit import DRAFT, KEY, NAMES, make_spec, point_at
from harmless import FORK_BOMB, Harmless
from model_servers.anthropic import AnthropicServer
from model_servers.script import Ask, Call, HandIn, Mind, Reply, Run, Seen, Tokens, Write, in_order, turn

from schemas.common import Usage
from schemas.handoff import HandoffDraft
from schemas.questions import Answer, Question
from schemas.routing import RoutingSignal
from schemas.tools import NormalizedToolCall
from system import processes
from transports import registry
from transports.conformance_bench import Heard
from transports.port import SessionSpec, Transport, WorkOutcome, WorkRequest

ROUTE = {"decision": "advance", "reason": "done", "confidence": 0.9}


@pytest.fixture(params=NAMES)
def transport(request: pytest.FixtureRequest) -> Transport:
    return registry.open(request.param)


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def calls_of(heard: Heard) -> list[NormalizedToolCall]:
    return [event.call for event in heard.events if event.kind == "tool_ended"]


def used(heard: Heard) -> Usage:
    total = Usage()
    for event in heard.events:
        if event.kind == "usage":
            total = total.plus(event.usage)
    return total


def files_with(words: str, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    assert files
    return [path for path in files if words in path.read_text(errors="replace")]


async def one_turn(
    mind: Mind, spec: SessionSpec, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> tuple[WorkOutcome, Heard, AnthropicServer]:
    heard = Heard()
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(spec, heard.emit)
        try:
            outcome = await session.work(WorkRequest("go on"), heard.emit)
        finally:
            await session.aclose()
    return outcome, heard, server


async def test_a_whole_step_is_one_session_with_one_list_of_tools(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mind = in_order(
        turn("I write.", Write("a.txt", "one\n"), Run("cat a.txt")),
        turn("Written."),
        turn(HandIn(DRAFT)),
        turn(HandIn(ROUTE)),
    )
    heard = Heard()
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "completed"
        draft = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=30)
        signal = await session.structured("Where to?", RoutingSignal, heard.emit, timeout_s=30)
        await session.aclose()
    assert (draft.value, draft.reprompts) == (DRAFT, 0)
    assert signal.value is not None
    assert signal.value["decision"] == "advance"
    assert session.mode == "hot"
    assert [call.success for call in calls_of(heard)] == [True, True]
    assert "one" in (calls_of(heard)[1].output or "")
    # The cache of the provider holds the tools first: one changed tool loses all that follows.
    assert len({json.dumps(seen.raw["tools"]) for seen in server.seen}) == 1
    assert len(server.seen) == 4


async def test_the_system_prompt_is_the_preset_and_ours_and_is_new_for_a_resumed_session(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path, system="PERSONA-ONE")
    with AnthropicServer(in_order(turn("First."), turn("Second."))) as server:
        point_at(server, monkeypatch)
        heard = Heard()
        session = await transport.open_session(spec, heard.emit)
        await session.work(WorkRequest("one"), heard.emit)
        await session.aclose()
        left = session.session_id
        again = make_spec(tmp_path, system="PERSONA-TWO", resume=left, private=tmp_path / "private" / "other")
        session = await transport.open_session(again, heard.emit)
        await session.work(WorkRequest("two"), heard.emit)
        await session.aclose()
    first, second = server.seen
    assert first.system.endswith("PERSONA-ONE")
    assert len(first.system) > 2_000
    assert second.system.endswith("PERSONA-TWO")
    assert "PERSONA-ONE" not in second.system
    assert ("assistant", "First.") in second.texts


async def test_usage_is_counted_once_over_turns_and_resumptions(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: Seen) -> Reply:
        return turn("So.", tokens=Tokens(input=1_000, cached=50, output=20))

    parts = []
    with AnthropicServer(answer) as server:
        point_at(server, monkeypatch)
        resume = None
        for _ in range(2):
            heard = Heard()
            session = await transport.open_session(make_spec(tmp_path, resume=resume), heard.emit)
            await session.work(WorkRequest("one"), heard.emit)
            await session.work(WorkRequest("two"), heard.emit)
            await session.aclose()
            resume = session.session_id
            parts.append(used(heard))
    for part in parts:
        assert (part.prompt, part.cache_read, part.completion) == (2_000, 100, 40)
    assert parts[0].cost_usd == pytest.approx(parts[1].cost_usd)
    assert parts[0].cost_usd


async def test_usage_is_counted_once_where_the_program_was_killed_before_it_noted_it(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: Seen) -> Reply:
        return turn("So.", tokens=Tokens(input=1_000, output=20))

    parts = []
    with AnthropicServer(answer) as server:
        point_at(server, monkeypatch)
        resume = None
        for prompts in (["one"], ["two", "three"], ["four"]):
            heard = Heard()
            session = await transport.open_session(make_spec(tmp_path, resume=resume), heard.emit)
            for prompt in prompts:
                await session.work(WorkRequest(prompt), heard.emit)
            if len(prompts) > 1:
                _kill_programs()
            await session.aclose()
            resume = session.session_id
            parts.append(used(heard))
    assert [(part.prompt, part.completion) for part in parts] == [(1_000, 20), (2_000, 40), (1_000, 20)]
    assert parts[2].cost_usd == pytest.approx(parts[0].cost_usd)


def _kill_the_first(_: Path, sessions: list[str]) -> None:
    if not sessions:
        _kill_programs()


def _tear_each(folder: Path, sessions: list[str]) -> None:
    if sessions:
        _tear_a_note(folder, sessions[-1])


@pytest.mark.parametrize("spoil", [_kill_the_first, _tear_each], ids=["killed", "torn"])
async def test_the_cost_of_a_session_is_counted_whatever_became_of_its_last_note(
    transport: Transport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path, list[str]], None],
) -> None:
    def answer(_: Seen) -> Reply:
        return turn("So.", tokens=Tokens(input=1_000, output=20))

    parts, sessions = list[Usage](), list[str]()
    with AnthropicServer(answer) as server:
        point_at(server, monkeypatch)
        for _ in range(3):
            heard = Heard()
            resume = sessions[-1] if sessions else None
            if resume is not None:
                spoil(tmp_path, sessions)
            session = await transport.open_session(make_spec(tmp_path, resume=resume), heard.emit)
            await session.work(WorkRequest("one"), heard.emit)
            if resume is None:
                spoil(tmp_path, sessions)
            await session.aclose()
            assert session.session_id is not None
            sessions.append(session.session_id)
            parts.append(used(heard))
    assert [(part.prompt, part.completion) for part in parts] == [(1_000, 20)] * 3
    assert parts[0].cost_usd
    assert [part.cost_usd for part in parts] == pytest.approx([parts[0].cost_usd] * 3)


def _tear_a_note(folder: Path, session_id: str) -> None:
    """Leave in a session's file what is left of a note whose writer is killed."""
    (file,) = folder.rglob(f"projects/*/{session_id}.jsonl")
    with file.open("ab") as kept:
        kept.write(b'{"type":"cost-state","sessionId":"\n')


def _kill_programs() -> None:
    """Kill the one program that runs, before it notes what it has counted."""
    (program,) = [one for one in psutil.Process().children(recursive=True) if one.name() == "claude"]
    program.kill()


DENIED = [
    (NAMES, Run("rm -rf /"), "E_"),
    (NAMES[:1], Run("git push --force"), "E_"),
    (NAMES[:1], Run("git reset --hard"), "E_"),
    (NAMES[:1], Run("chmod -R 777 ."), "E_"),
    (NAMES[:1], Run(FORK_BOMB), "E_"),
    (NAMES, Write("../outside", "x"), "E_PATH_"),
    (NAMES, Write(".git/config", "x"), "E_PATH_PROTECTED"),
    (NAMES, Write(".claude/settings.json", "{}"), "E_PATH_PROTECTED"),
    (NAMES, Write("link/inside", "x"), "E_PATH_ABSOLUTE"),
    (NAMES[:1], Call("Write", {"file_path": "/tmp/stepwise-outside", "content": "x"}), "E_PATH_ABSOLUTE"),
    (NAMES[:1], Call("Read", {"file_path": "/etc/hostname"}), "E_PATH_ABSOLUTE"),
    (NAMES[:1], Call("Grep", {"pattern": "root", "path": "/etc"}), "E_PATH_ABSOLUTE"),
    (NAMES[:1], Call("Glob", {"pattern": "/etc/*"}), "E_PATH_OUTSIDE"),
    (NAMES[1:], Call("mcp__stepwise__write_file", {"path": "/tmp/x", "content": "x"}), "E_PATH_ABSOLUTE"),
    (NAMES[1:], Call("mcp__stepwise__read_file", {"path": "/etc/hostname"}), "E_PATH_ABSOLUTE"),
    (NAMES[1:], Call("mcp__stepwise__read_file", {}), "E_PATH_INVALID"),
    (NAMES[1:], Call("mcp__stepwise__list", {"path": ".git"}), "E_PATH_PROTECTED"),
]


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [(name, part, code) for names, part, code in DENIED for name in names],
    ids=str,
)
async def test_what_policy_denies_has_no_effect_and_is_reported_with_the_reason(
    name: str, part: Run | Write | Call, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = Harmless(tmp_path)
    spec = make_spec(tmp_path)
    spec = replace(spec, environment={**spec.environment, "PATH": harmless.path})
    (spec.workspace / "link").symlink_to(tmp_path)
    mind = in_order(turn(part), turn("Well."))
    outcome, heard, server = await one_turn(mind, spec, registry.open(name), monkeypatch)
    assert outcome.end == "completed"
    assert not [made for made in harmless.called() if made.endswith((" /", " ."))]
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "inside").exists()
    assert [call.failed for call in server.seen[-1].calls] == [True]
    (call,) = calls_of(heard)
    assert call.blocked
    assert not call.success
    assert (call.blocked_reason or "").startswith(code)


async def test_a_policy_that_fails_is_a_denial(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("policy is broken")

    monkeypatch.setattr("transports.claude_opening.judge_tool", broken)
    spec = make_spec(tmp_path)
    _, heard, _ = await one_turn(
        in_order(turn(Write("a.txt", "x")), turn("Well.")), spec, transport, monkeypatch
    )
    assert not (spec.workspace / "a.txt").exists()
    assert (calls_of(heard)[0].blocked_reason or "").startswith("policy_error")


async def test_a_hook_that_fails_is_a_denial(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the hook is broken")

    monkeypatch.setattr("transports.claude_gate.Gate.hook", broken)
    spec = make_spec(tmp_path)
    mind = in_order(turn(Write("a.txt", "x")), turn("Well."))
    _, heard, server = await one_turn(mind, spec, transport, monkeypatch)
    assert not (spec.workspace / "a.txt").exists()
    assert not calls_of(heard)[0].success
    assert server.seen[-1].calls[0].failed


async def test_a_subagent_is_seen_and_held_to_the_same_policy(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"description": "look", "prompt": "You are the helper.", "subagent_type": "general-purpose"}

    def mind(seen: Seen) -> Reply:
        if any("You are the helper." in text for role, text in seen.texts if role == "user"):
            if not seen.calls:
                return turn(Run("rm -rf /"), Write("helper.txt", "x"))
            return turn("I could not.")
        return turn("Well.") if seen.calls else turn(Call("Agent", task))

    harmless = Harmless(tmp_path)
    spec = make_spec(tmp_path)
    spec = replace(spec, environment={**spec.environment, "PATH": harmless.path})
    outcome, heard, _ = await one_turn(mind, spec, transport, monkeypatch)
    assert "rm -rf /" not in harmless.called()
    assert outcome.end == "completed"
    ran, written, agent = sorted(
        calls_of(heard), key=lambda call: ("rm" not in call.input, call.agent_id is None)
    )
    assert ran.blocked
    assert not written.blocked
    assert ran.agent_id == written.agent_id == agent.call_id
    assert (spec.workspace / "helper.txt").exists()
    kinds = [event.kind for event in heard.events]
    assert kinds.count("subagent_started") == kinds.count("subagent_ended") == 1
    assert used(heard).prompt == 400


async def test_commands_see_no_key_and_nothing_of_the_workers_environment(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMETHING_OF_THE_WORKER", "private-thing")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    spec = make_spec(tmp_path)
    _, heard, server = await one_turn(in_order(turn(Run("env")), turn("Well.")), spec, transport, monkeypatch)
    seen = server.seen[-1].calls[0].result or ""
    assert "STEPWISE_RUN=" in seen
    assert KEY not in seen
    assert "FILE_DESCRIPTOR" not in seen
    assert "private-thing" not in seen
    assert "MESSAGING_TOKEN" not in seen
    assert "ANTHROPIC_BASE_URL" not in seen
    assert "PROXY" not in seen
    assert json.loads(calls_of(heard)[0].input)["command"] == "env"
    assert server.seen[0].headers["x-api-key"] == KEY


async def test_a_command_begins_in_the_workspace_wherever_the_one_before_it_went(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path)
    replies = in_order(turn(Run("mkdir sub && cd sub && pwd")), turn(Run("pwd")), turn("Well."))
    _, _, server = await one_turn(replies, spec, transport, monkeypatch)
    went, stands = [str(call.result).split()[0] for call in server.seen[-1].calls]
    assert went == f"{stands}/sub"


async def test_the_key_is_neither_in_an_environment_nor_in_a_file(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"key-{uuid.uuid4()}"
    heard = Heard()
    look = Run(f"cat /proc/[0-9]*/environ 2> /dev/null | grep -c -a {key}; echo looked")
    with AnthropicServer(in_order(turn(look), turn("Well."))) as server:
        point_at(server, monkeypatch)
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        await session.work(WorkRequest("go"), heard.emit)
        await session.aclose()
    assert server.seen[0].headers["x-api-key"] == key
    assert (server.seen[-1].calls[0].result or "").split()[-2:] == ["0", "looked"]
    # The conversation has it, since the command does; nothing else may.
    assert files_with(key, tmp_path) == []


@pytest.mark.parametrize(
    ("trusted", "deterministic", "loaded"), [(False, False, False), (True, False, True), (True, True, False)]
)
async def test_a_repositorys_own_settings_are_loaded_only_where_it_is_trusted(
    trusted: bool,
    deterministic: bool,
    loaded: bool,
    transport: Transport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_spec(tmp_path, trusted=trusted, deterministic=deterministic)
    own = spec.workspace / ".claude"
    own.mkdir()
    (spec.workspace / "CLAUDE.md").write_text("HOUSE-RULES")
    hook = {"type": "command", "command": f"touch {tmp_path}/hooked"}
    (own / "settings.json").write_text(json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}))
    server_config = {"command": "/bin/sh", "args": ["-c", f"touch {tmp_path}/served; cat"]}
    (spec.workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server_config}}))
    _, _, server = await one_turn(in_order(turn("Well.")), spec, transport, monkeypatch)
    assert ("HOUSE-RULES" in json.dumps(server.seen[0].raw)) is loaded
    assert (tmp_path / "hooked").exists() is loaded
    if not loaded:
        assert not (tmp_path / "served").exists()


async def test_what_is_said_while_it_works_reaches_the_agent_in_the_same_turn(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "workspace" / "fifo"
    spec = make_spec(tmp_path)
    os.mkfifo(fifo)
    heard = Heard()
    with AnthropicServer(in_order(turn(Run("cat fifo")), turn("Heard."), turn("Anything else."))) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(spec, heard.emit)
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(lambda event: event.kind == "tool_started")
        assert await session.steer("mind the gap")
        await tell(fifo, "on\n")
        assert (await work).end == "completed"
        await session.aclose()
    assert any("mind the gap" in text for _, text in server.seen[1].texts)


async def test_what_was_said_to_an_agent_that_is_stopped_begins_nothing_after_that(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mind(seen: Seen) -> Reply:
        return turn("Well.") if "more" in seen.asked else turn(Run("tail -f /dev/null"))

    heard = Heard()
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(lambda event: event.kind == "tool_started")
        assert await session.steer("mind the gap")
        assert (await session.interrupt(20)).method == "cooperative"
        outcome = await work
        assert outcome.error is not None
        assert outcome.error.code == "interrupted"
        before = len(server.seen)
        assert (await session.work(WorkRequest("more"), heard.emit)).end == "completed"
        await session.aclose()
    assert len(server.seen) == before + 1
    assert "more" in server.seen[-1].asked


async def test_every_question_is_asked_and_its_answers_reach_the_agent(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []

    async def answer(question: Question) -> Answer:
        asked.append(question)
        item = question.items[0]
        words = ["one", "two"] if item.multi_select else f"words of my own {len(asked)}"
        return Answer(answers={item.question: words}, source="test")

    spec = make_spec(tmp_path, on_question=answer)
    turns = [turn(Ask(f"Which {n}?", ("one", "two"), multi_select=n == 0)) for n in range(10)]
    outcome, heard, server = await one_turn(in_order(*turns, turn("Well.")), spec, transport, monkeypatch)
    assert outcome.end == "completed"
    assert [question.items[0].question for question in asked] == [f"Which {n}?" for n in range(10)]
    results = [call.result or "" for call in server.seen[-1].calls]
    assert "one, two" in results[0]
    assert all(f"words of my own {n + 1}" in results[n] for n in range(1, 10))
    assert [event.kind for event in heard.events].count("question") == 10


async def test_a_value_that_is_refused_is_asked_for_again_in_the_same_turn_and_only_reading_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mind = in_order(
        turn(Write("a.txt", "x")),
        turn(HandIn({**DRAFT, "confidence": "high"})),
        turn(HandIn(DRAFT)),
    )
    heard = Heard()
    spec = make_spec(tmp_path)
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await registry.open("claude-sdk").open_session(spec, heard.emit)
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=30)
        await session.aclose()
    assert (result.value, result.reprompts) == (DRAFT, 1)
    assert not (spec.workspace / "a.txt").exists()
    assert (calls_of(heard)[0].blocked_reason or "").startswith("read_only")
    assert "confidence" in (server.seen[-1].calls[-1].result or "")


async def test_an_answer_that_does_not_come_in_time_leaves_a_session_that_can_be_used(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    with AnthropicServer(in_order(turn("So", "on", hang_after=4), turn("Well."))) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=1)
        assert result.error is not None
        assert result.error.code == "structured_timeout"
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "completed"
        await session.aclose()


async def test_a_tool_for_answers_is_denied_while_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mind = in_order(turn(Call("mcp__stepwise__finalize", DRAFT)), turn("Well."))
    _, heard, server = await one_turn(mind, make_spec(tmp_path), registry.open("claude-sdk"), monkeypatch)
    assert calls_of(heard) == []
    assert server.seen[-1].calls[0].failed


@pytest.mark.parametrize("name", NAMES)
async def test_its_tools_are_a_closed_list(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, server = await one_turn(
        in_order(turn("Well.")), make_spec(tmp_path), registry.open(name), monkeypatch
    )
    ours = (
        ("finalize", "route")
        if name == "claude-sdk"
        else ("list", "read_file", "write_file", "edit_file", "run_command")
    )
    own = ("Bash", "Edit", "Glob", "Grep", "Read", "Write") if name == "claude-sdk" else ()
    expected = {"Agent", "AskUserQuestion", *own, *(f"mcp__stepwise__{tool}" for tool in ours)}
    assert set(server.seen[0].tools) == expected


async def test_a_prompt_is_taken_word_for_word(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private.txt").write_text("PRIVATE-WORDS")
    prompt = f"/compact and @{tmp_path}/private.txt"
    heard = Heard()
    with AnthropicServer(in_order(turn("Well."))) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        await session.work(WorkRequest(prompt), heard.emit)
        await session.aclose()
    assert server.seen[0].asked == prompt
    assert "PRIVATE-WORDS" not in json.dumps(server.seen[0].raw)
