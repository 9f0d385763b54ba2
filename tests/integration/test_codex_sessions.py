"""Sessions of Codex: what they are told, what they load, how they are gone on with, what they count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from codex_kit import DRAFT, KEY, one_turn, session_of, spec_in, transport_for
from home_kit import begun_at_home
from model_servers.openai import OpenAIServer
from model_servers.script import Ask, Call, HandIn, Run, Tokens, Turn, Write, in_order, turn

from schemas.common import Usage
from schemas.events import TransportEvent
from schemas.handoff import HandoffDraft
from schemas.questions import Answer, Question
from schemas.routing import RoutingSignal
from schemas.settings import WorkerSettings
from system import processes
from transports import registry
from transports.codex import CodexTransport
from transports.port import TransportError, WorkRequest

SIGNAL: dict[str, Any] = {
    "decision": "advance",
    "next_step_id": None,
    "route": None,
    "reason": "it is done",
    "confidence": 1,
    "needs_human": False,
    "factors_considered": [],
    "risks_identified": [],
}


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def used_in(events: list[TransportEvent]) -> Usage:
    total = Usage()
    for event in events:
        if event.kind == "usage":
            total = total.plus(event.usage)
    return total


async def test_one_session_serves_work_finalize_and_route(tmp_path: Path) -> None:
    script = in_order(
        turn("I write.", Write("a.txt", "x\n")), turn("Done."), turn(HandIn(DRAFT)), turn(HandIn(SIGNAL))
    )
    with OpenAIServer(script) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            assert (await session.work(WorkRequest("Do it."), events.append)).end == "completed"
            draft = await session.structured("Sum up.", HandoffDraft, events.append, timeout_s=30)
            signal = await session.structured("Where to?", RoutingSignal, events.append, timeout_s=30)
    assert (draft.value, signal.value) == (dict(DRAFT), SIGNAL)
    assert [seen.schema is not None for seen in server.seen] == [False, False, True, True]
    assert len({seen.headers["thread-id"] for seen in server.seen}) == 1
    assert server.seen[-1].calls[0].tool == "apply_patch"


async def test_the_agent_is_told_its_system_text_beside_its_own(tmp_path: Path) -> None:
    with OpenAIServer(in_order()) as server:
        await one_turn(server, spec_in(tmp_path, system="Be brief.\n\nWork in steps."))
    (seen,) = server.seen
    assert seen.system.startswith("You are Codex")
    assert "Be brief.\n\nWork in steps." in seen.system
    assert seen.asked == "Do it."
    assert seen.model == "gpt-5.5"


async def test_a_resumed_session_is_told_the_system_text_of_now_and_counts_only_what_is_new(
    tmp_path: Path,
) -> None:
    first = turn("One.", tokens=Tokens(input=1000, cached=200, output=30))
    second = turn("Two.", tokens=Tokens(input=7, cached=2000, output=3))
    with OpenAIServer(in_order(first, first, second, second)) as server:
        transport, spec = transport_for(server), spec_in(tmp_path, system="Old words.")
        async with session_of(transport, spec) as (session, events):
            for _ in range(2):
                await session.work(WorkRequest("Do it."), events.append)
            left = session.session_id
        assert used_in(events) == Usage(prompt=2000, completion=60, cache_read=400)
        resumed = replace(spec, system="New words.", resume=left)
        async with session_of(transport, resumed) as (session, events):
            modes = [session.mode]
            for _ in range(2):
                await session.work(WorkRequest("Go on."), events.append)
                modes.append(session.mode)
        assert modes == ["resumed", "resumed", "hot"]
        assert used_in(events) == Usage(prompt=14, completion=6, cache_read=4000)
    system = server.seen[-1].system
    assert system.index("Old words.") < system.index("New words.")
    assert [text for role, text in server.seen[-1].texts if role == "assistant"] == ["One.", "One.", "Two."]


@pytest.mark.parametrize("resume", ["unknown", "../../etc/passwd", "01a220c1-d992-74d0-8114-6de9f6c1ac8b"])
async def test_a_session_nobody_knows_is_refused_as_such(resume: str, tmp_path: Path) -> None:
    with OpenAIServer(in_order()) as server:
        with pytest.raises(TransportError) as raised:
            await transport_for(server).open_session(spec_in(tmp_path, resume=resume), lambda _: None)
        assert raised.value.resume_refused
        assert raised.value.error.code == "unknown_session"


@pytest.mark.parametrize(
    ("trusted", "deterministic", "loaded"), [(False, False, False), (True, False, True), (True, True, False)]
)
async def test_instructions_of_a_repository_are_loaded_only_when_it_is_trusted(
    trusted: bool, deterministic: bool, loaded: bool, tmp_path: Path
) -> None:
    spec = spec_in(tmp_path, trusted=trusted, deterministic=deterministic)
    skill = spec.workspace / ".agents" / "skills" / "dance"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: dance\ndescription: REPOSITORY-SKILL\n---\nDance.\n")
    (spec.workspace / "AGENTS.md").write_text("REPOSITORY-INSTRUCTIONS\n")
    settings = spec.workspace / ".codex"
    settings.mkdir()
    (settings / "config.toml").write_text('developer_instructions = "REPOSITORY-SETTINGS"\nmodel = "gpt-4"\n')
    (settings / "rules").mkdir()
    (settings / "rules" / "all.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
    outside = Run("touch /etc/stepwise-was-here")
    with OpenAIServer(in_order(turn(outside))) as server:
        turned = await one_turn(server, spec)
    request = json.dumps(server.seen[0].raw)
    assert ("REPOSITORY-INSTRUCTIONS" in request) == loaded
    assert "REPOSITORY-SKILL" not in request
    assert "REPOSITORY-SETTINGS" not in request
    assert server.seen[0].model == "gpt-5.5"
    # Its rules would let a command pass that nobody was asked about.
    assert [call.blocked for call in turned.calls] == [True]


async def test_instructions_behind_a_link_are_not_loaded(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, trusted=True)
    (tmp_path / "elsewhere").write_text("ELSEWHERE\n")
    (spec.workspace / "AGENTS.md").symlink_to(tmp_path / "elsewhere")
    with OpenAIServer(in_order()) as server:
        await one_turn(server, spec)
    assert "ELSEWHERE" not in json.dumps(server.seen[0].raw)


async def test_files_of_the_user_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "users-home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "AGENTS.md").write_text("USERS-INSTRUCTIONS\n")
    (home / ".codex" / "config.toml").write_text('developer_instructions = "USERS-SETTINGS"\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CODEX_HOME", str(home / ".codex"))
    with OpenAIServer(in_order()) as server:
        await one_turn(server, spec_in(tmp_path, trusted=True))
    assert "USERS-" not in json.dumps(server.seen[0].raw)


async def test_several_questions_are_asked_at_once_and_each_gets_its_answer(tmp_path: Path) -> None:
    options = [{"label": label, "description": label} for label in ("Yes", "No")]
    questions = [
        {"id": f"q{number}", "header": "Header", "question": f"Question {number}?", "options": options}
        for number in (1, 2)
    ]
    asked: list[Question] = []

    async def answer(question: Question) -> Answer:
        asked.append(question)
        return Answer(answers={"Question 1?": "No", "Question 2?": ["Yes", "my own words"]}, source="test")

    with OpenAIServer(in_order(turn(Call("request_user_input", {"questions": questions})))) as server:
        turned = await one_turn(server, spec_in(tmp_path, on_question=answer))
    assert [(item.question, item.header, item.options) for item in asked[0].items] == [
        ("Question 1?", "Header", ["Yes", "No"]),
        ("Question 2?", "Header", ["Yes", "No"]),
    ]
    (call,) = server.seen[-1].calls
    assert json.loads(call.result or "") == {
        "answers": {"q1": {"answers": ["No"]}, "q2": {"answers": ["Yes", "my own words"]}}
    }
    assert turned.outcome.end == "completed"
    assert not turned.calls


async def test_ten_questions_in_a_row_are_answered_and_the_context_is_kept(tmp_path: Path) -> None:
    replies = [turn(Ask(f"Question {number}?", ("Yes", "No"))) for number in range(10)]

    async def answer(question: Question) -> Answer:
        return Answer(answers={question.items[0].question: "Yes"}, source="test")

    with OpenAIServer(in_order(*replies)) as server:
        turned = await one_turn(server, spec_in(tmp_path, on_question=answer))
    assert turned.outcome.end == "completed"
    assert len([event for event in turned.events if event.kind == "question"]) == 10
    assert len(server.seen[-1].calls) == 10


async def test_without_a_model_the_program_takes_its_own(tmp_path: Path) -> None:
    with OpenAIServer(in_order(turn(Write("a.txt", "x\n")))) as server:
        turned = await one_turn(server, spec_in(tmp_path, model=None))
    opened = next(event for event in turned.events if event.kind == "session_opened")
    assert opened.model == server.seen[0].model
    assert [call.success for call in turned.calls] == [True]


async def test_a_prompt_is_taken_as_it_is(tmp_path: Path) -> None:
    prompt = '/compact @file $skill "\\u0000" \U0001f600\n' + "x" * 100_000
    with OpenAIServer(in_order()) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            outcome = await session.work(WorkRequest(prompt), events.append)
    assert outcome.end == "completed"
    assert server.seen[0].asked == prompt


async def test_without_a_key_it_says_which_variable_to_set(tmp_path: Path) -> None:
    transport = CodexTransport(environment={})
    with pytest.raises(TransportError, match="OPENAI_API_KEY") as raised:
        await transport.open_session(spec_in(tmp_path), lambda _: None)
    assert not raised.value.error.retryable
    assert not raised.value.resume_refused


async def test_without_the_program_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.codex_program.find_program", lambda: None)
    transport = registry.open("codex")
    assert not transport.is_available().ok
    assert "pip install" in transport.is_available().install_hint
    with pytest.raises(TransportError, match="pip install"):
        await CodexTransport(environment={"OPENAI_API_KEY": KEY}).open_session(
            spec_in(tmp_path), lambda _: None
        )


def test_where_it_is_installed_it_is_available() -> None:
    assert registry.open("codex").is_available().ok


async def test_a_worker_that_keeps_its_runs_where_the_sandbox_cannot_guard_them_does_not_offer_it(
    tmp_path: Path,
) -> None:
    link = tmp_path / "data"
    link.symlink_to("/dev/shm")
    for place in (Path("/dev/shm/stepwise"), link / "runs", tmp_path / "data [1]"):
        said = registry.open("codex", settings=WorkerSettings(data_dir=place)).is_available()
        assert not said.ok
        assert "set STEPWISE_DATA_DIR" in said.reason
        transport = CodexTransport(environment={"OPENAI_API_KEY": KEY}, kept=place)
        with pytest.raises(TransportError, match="STEPWISE_DATA_DIR"):
            await transport.open_session(spec_in(tmp_path), lambda _: None)


@pytest.mark.parametrize(
    ("trial", "told", "error"),
    [
        (
            "echo 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n",
            "new namespace",
            ("sandbox_unavailable", False),
        ),
        ("kill -9 $PPID\nsleep 1000\n", "guard was killed", ("E_SPAWN", True)),
    ],
    ids=["refused", "guard killed"],
)
async def test_where_commands_cannot_be_sandboxed_or_that_is_not_known_no_session_is_opened(
    tmp_path: Path, trial: str, told: str, error: tuple[str, bool]
) -> None:
    program = tmp_path / "codex"
    program.write_text(f"#!/bin/sh\n{trial}")
    program.chmod(0o755)
    transport = CodexTransport([str(program)], {"OPENAI_API_KEY": KEY})
    with pytest.raises(TransportError, match=told) as raised:
        await transport.open_session(spec_in(tmp_path), lambda _: None)
    assert (raised.value.error.code, raised.value.error.retryable) == error


async def test_answers_without_end_are_counted_against_the_tokens(tmp_path: Path) -> None:
    def mind(_: object) -> Turn:
        return turn(Run("true"), tokens=Tokens(input=400, output=100))

    with OpenAIServer(mind) as server:
        turned = await one_turn(server, spec_in(tmp_path), max_tokens=1200)
    assert (turned.outcome.end, turned.outcome.stop_reason) == ("budget", "tokens")
    assert used_in(turned.events).total in {1500, 2000}


async def test_words_that_the_model_has_not_heard_when_its_turn_is_interrupted_are_said_to_be_unheard(
    tmp_path: Path,
) -> None:
    go = tmp_path / "workspace" / "go"
    held = Run("touch go.begun; until [ -e go ]; do sleep 0.02; done")
    with OpenAIServer(in_order(turn("I wait.", held), turn("Done."))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            work = asyncio.create_task(session.work(WorkRequest("Do it."), events.append))
            await begun_at_home(go)
            assert await session.steer("Mind the gap.")
            await session.interrupt(20)
            outcome = await work
            assert outcome.error is not None
            assert (outcome.error.code, list(outcome.unheard)) == ("interrupted", ["Mind the gap."])
            again = await session.work(WorkRequest("Go on."), events.append)
            assert (again.end, list(again.unheard)) == ("completed", [])
    assert not any("Mind the gap." in text for seen in server.seen for _, text in seen.texts)


async def test_words_that_the_model_has_heard_are_not_said_to_be_unheard(tmp_path: Path) -> None:
    go = tmp_path / "workspace" / "go"
    held = Run("touch go.begun; until [ -e go ]; do sleep 0.02; done")
    with OpenAIServer(in_order(turn("I wait.", held), turn("Done."))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            work = asyncio.create_task(session.work(WorkRequest("Do it."), events.append))
            await begun_at_home(go)
            assert await session.steer("Mind the gap.")
            assert await session.steer("And the step.")
            go.touch()
            outcome = await work
    assert (outcome.end, list(outcome.unheard)) == ("completed", [])
    heard = [text for _, text in server.seen[-1].texts]
    assert ("Mind the gap." in heard, "And the step." in heard) == (True, True)
