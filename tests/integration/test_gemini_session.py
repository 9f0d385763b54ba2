"""Sessions of a real Gemini CLI: what is carried from process to process, how turns end, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from clock import Clock
from gemini_kit import DRAFT, GeminiBench, calls_of, end_program, is_asked_for_json, needs_gemini, serving
from model_servers.script import (
    Garbage,
    HandIn,
    Refuse,
    Reply,
    Run,
    Seen,
    Think,
    Tokens,
    Turn,
    Write,
    in_order,
    turn,
)

from policy.commands import Verdict
from schemas.common import Usage
from schemas.events import TransportEvent
from schemas.handoff import HandoffDraft
from schemas.questions import CallDecision, CallRequest
from system import processes
from transports.conformance_bench import Heard, nothing_left, opened, require_interrupted, working
from transports.credentials import KEYS
from transports.gemini_cli import GeminiCliTransport
from transports.port import Park, WorkOutcome, WorkRequest

pytestmark = needs_gemini
STUBBORN = "trap '' TERM INT HUP; echo $$ > pid; while :; do sleep 1; done"


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def allow(command: str, *, workspace: str) -> Verdict:
    del command, workspace
    return Verdict("allow")


def ask(command: str, *, workspace: str) -> Verdict:
    del command, workspace
    return Verdict("ask", "asked", "a person decides")


def used(events: list[TransportEvent]) -> Usage:
    total = Usage()
    for event in events:
        if event.kind == "usage":
            total = total.plus(event.usage)
    return total


async def work(bench: GeminiBench, prompt: str = "Do it.", **more: Any) -> tuple[WorkOutcome, Heard]:
    async with opened(bench, bench.spec("idle", **more)) as (session, heard):
        return await session.work(WorkRequest(prompt), heard.emit), heard


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the worker a key; who plays the model or the program looks at none."""
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-real-key")


@pytest.mark.parametrize("name", KEYS["google"])
async def test_each_name_of_the_key_lets_it_reach_its_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_order(turn("Done.")), monkeypatch) as server:
        for other in KEYS["google"]:
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, "key-of-the-worker")
        outcome, _ = await work(GeminiBench(tmp_path))

    assert outcome.end == "completed", outcome.error
    assert {one.headers["x-goog-api-key"] for one in server.seen} == {"key-of-the-worker"}


async def test_its_commands_see_the_address_of_its_model_and_never_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GeminiBench(tmp_path)
    with serving(in_order(turn(Run("env > seen.txt")), turn("Done.")), monkeypatch) as server:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        await work(bench)

    seen = (bench.spec("idle").workspace / "seen.txt").read_text()
    assert f"GOOGLE_GEMINI_BASE_URL={server.url}" in seen
    assert {"HTTP_PROXY=http://127.0.0.1:9", "HTTPS_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1"} < set(
        seen.splitlines()
    )
    assert "secret-of-the-worker" not in seen


async def test_a_session_goes_on_over_four_processes_and_counts_each_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mind(seen: Seen) -> Reply:
        tokens = Tokens(input=100 + len(seen.calls), cached=40, output=7)
        if is_asked_for_json(seen):
            bad = "not accepted" not in seen.asked
            return turn("prose" if bad else HandIn(DRAFT), tokens=tokens)
        number = seen.asked.removeprefix("turn ")
        if f"{number}.txt" in str(seen.calls):
            return turn(f"done {number}", tokens=tokens)
        return turn(Write(f"{number}.txt", "a"), Run(f"cat {number}.txt; exit {number}"), tokens=tokens)

    bench = GeminiBench(tmp_path)
    with serving(mind, monkeypatch) as server:
        async with opened(bench, bench.spec("idle")) as (session, heard):
            before = session.resumable
            for number in (1, 2):
                assert (await session.work(WorkRequest(f"turn {number}"), heard.emit)).end == "completed"
            session_id = session.session_id
            assert (before, session.resumable) == (False, True)
        async with opened(bench, bench.spec("idle", step="other", resume=session_id)) as (session, later):
            assert session.mode == "resumed"
            outcome = await session.work(WorkRequest("turn 3"), later.emit)
            assert outcome.end == "completed", outcome
            result = await session.structured("Sum up.", HandoffDraft, later.emit, timeout_s=60)
        assert (result.error, result.reprompts) == (None, 1)
        last = server.seen[-1]
    assert [text for role, text in last.texts if role == "assistant"] == [
        "done 1",
        "done 2",
        "done 3",
        "prose",
    ]
    assert [call.tool for call in last.calls] == ["write_file", "run_shell_command"] * 3
    ended = calls_of([*heard.events, *later.events])
    assert [call.success for call in ended] == [True, False] * 3
    assert [call.output for call in ended[1::2]] == [f"exit code {number}\na" for number in (1, 2, 3)]
    said = [Usage(prompt=60 + len(seen.calls), cache_read=40, completion=7) for seen in server.seen]
    total = Usage()
    for usage in said:
        total = total.plus(usage)
    assert used([*heard.events, *later.events]) == total


async def test_the_system_text_of_a_resumed_session_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GeminiBench(tmp_path)
    with serving(in_order(turn("one"), turn("two")), monkeypatch) as server:
        async with opened(bench, bench.spec("idle", system="FIRST persona")) as (session, heard):
            await session.work(WorkRequest("go"), heard.emit)
            left = session.session_id
        await work(bench, system="SECOND persona mails @here and x@y", resume=left)
    assert "FIRST persona" in server.seen[0].system
    assert "FIRST persona" not in json.dumps(server.seen[1].raw)
    assert r"SECOND persona mails \@here and x@y" in server.seen[1].system


@pytest.mark.parametrize("prompt", ["/rewind", "see @secret.txt", "a" * 200_000])
async def test_a_prompt_arrives_as_text(prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "secret.txt").write_text("MARK-SECRET")
    with serving(in_order(turn("Done.")), monkeypatch) as server:
        outcome, heard = await work(GeminiBench(tmp_path), prompt)
    assert outcome.end == "completed"
    assert server.seen[0].asked.strip() == prompt.replace("@", r"\@")
    assert "MARK-SECRET" not in json.dumps(server.seen[0].raw)
    assert calls_of(heard.events) == []


@pytest.mark.parametrize(
    ("reply", "end", "code"),
    [
        (Refuse(400), "failed", "bad_request"),
        (Refuse(404), "failed", "model_not_found"),
        (Refuse(429), "rate_limited", None),
        (Refuse(429, retry_after=70), "rate_limited", None),
        (Refuse(503), "failed", "server_error"),
        (Garbage(b"<html>no</html>"), "failed", "protocol_error"),
        (turn(), "failed", "empty_response"),
        (turn("I begin, and", end="no_room"), "failed", "answer_incomplete"),
        (turn("I begin, and", end="refused"), "failed", "refused_by_provider"),
        (turn(end="no_room"), "failed", "answer_incomplete"),
        (turn(end="refused"), "failed", "refused_by_provider"),
        (turn(Think("hm")), "failed", "empty_response"),
    ],
    ids=str,
)
async def test_what_a_server_answers_is_classified(
    reply: Reply, end: str, code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda _: reply, monkeypatch) as server:
        outcome, heard = await work(GeminiBench(tmp_path))
    assert (outcome.end, outcome.error and outcome.error.code) == (end, code)
    assert heard.events[-1].kind == "turn_ended"
    assert len(server.seen) == 1
    assert (outcome.retry_at is not None) is (isinstance(reply, Refuse) and reply.retry_after is not None)


async def test_without_a_server_the_turn_fails_with_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_order(), monkeypatch):
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9")
        outcome, _ = await work(GeminiBench(tmp_path))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("connection_lost", True)


async def test_a_lock_that_a_killed_program_left_is_gone_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GeminiBench(tmp_path)
    lock = bench.spec("idle").private / "gemini-cli" / ".gemini" / "projects.json.lock"
    lock.mkdir(parents=True)
    left = lock / "by-another"
    left.touch()
    found: list[bool] = []

    def mind(_: Seen) -> Reply:
        found.append(left.exists())
        return turn("Done.")

    with serving(mind, monkeypatch):
        outcome, _heard = await work(bench)
    assert (outcome.end, found) == ("completed", [False])


async def test_tokens_and_seconds_are_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GeminiBench(tmp_path)
    with serving(lambda seen: turn(Write(f"{len(seen.calls)}.txt", "a")), monkeypatch) as server:
        async with opened(bench, bench.spec("idle")) as (session, heard):
            outcome = await session.work(WorkRequest("go", max_tokens=250), heard.emit)
    assert (outcome.end, outcome.stop_reason) == ("budget", "tokens")
    assert 3 <= len(server.seen) < 8
    with serving(lambda _: Turn((), hang_after=0), monkeypatch):
        async with opened(bench, bench.spec("idle")) as (session, heard):
            outcome = await session.work(WorkRequest("go", max_seconds=0.5), heard.emit)
    assert (outcome.end, outcome.stop_reason) == ("budget", "seconds")
    await nothing_left(bench)


async def stubborn(heard: Heard, folder: Path) -> int:
    """Wait for the command that ignores signals, and return its process."""
    await heard.until(lambda event: event.kind == "tool_started")
    path = folder / "workspace" / "pid"
    while not (path.exists() and path.read_text().strip()):  # noqa: ASYNC110 - nobody tells when a command began
        await asyncio.sleep(0.02)
    return int(path.read_text())


def lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize("how", ["interrupt", "cancel", "cancel twice", "close", "kill"])
async def test_a_command_that_ignores_signals_ends_with_its_turn(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.gemini_policy.judge", allow)
    bench = GeminiBench(tmp_path)
    with serving(lambda seen: turn(Run(STUBBORN)) if seen.asked == "go on" else turn("Done."), monkeypatch):
        async with opened(bench, bench.spec("idle")) as (session, heard), working(session, heard) as task:
            pid = await stubborn(heard, tmp_path)
            if how == "interrupt":
                await session.interrupt(30)
                require_interrupted(await task)
            elif how == "close":
                await session.aclose()
                assert (await task).end == "failed"
            elif how == "kill":
                end_program(bench.run_id)
                outcome = await task
                assert outcome.error is not None
                assert (outcome.error.code, outcome.error.retryable) == ("agent_crashed", True)
            else:
                task.cancel()
                if how == "cancel twice":
                    await asyncio.sleep(0)
                    task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not lives(pid)
            await nothing_left(bench)
            ended = calls_of(heard.events)
            assert [(call.success, call.output) for call in ended] == [(False, "ended with its turn")]
            left = session.session_id
        # The conversation is one that a server takes, whatever was cut short.
        outcome, _ = await work(bench, resume=left)
    assert outcome.end == "completed"


async def test_a_turn_that_waits_for_a_person_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(_: CallRequest) -> CallDecision | Park:
        asked.set()
        await asyncio.Event().wait()
        return Park("never")

    monkeypatch.setattr("transports.gemini_policy.judge", ask)
    bench = GeminiBench(tmp_path)
    with serving(in_order(turn(Run("touch ran"))), monkeypatch):
        spec = bench.spec("idle", on_call=never)
        async with opened(bench, spec) as (session, heard), working(session, heard) as task:
            await asked.wait()
            report = await session.interrupt(30)
            assert report.method == "cooperative"
            require_interrupted(await task)
    assert not (tmp_path / "workspace" / "ran").exists()


async def test_a_silent_command_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(in_order(turn(Run("echo begun; sleep 600"))), monkeypatch):
        outcome, heard = await work(GeminiBench(tmp_path), command_timeout_s=1)
    assert outcome.end == "completed"
    assert [call.success for call in calls_of(heard.events)] == [False]


async def test_a_program_that_does_not_end_with_its_turn_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.gemini_turn.END_GRACE_S", 0.1)
    path = tmp_path / "gemini"
    path.write_text("#!/bin/sh\ntrap '' INT TERM\nwhile :; do sleep 600; done\n")
    path.chmod(0o755)
    bench = GeminiBench(tmp_path, transport=GeminiCliTransport(program=path))
    async with opened(bench, bench.spec("idle")) as (session, heard):
        outcome = await session.work(WorkRequest("go", max_seconds=0.1), heard.emit)
    assert (outcome.end, outcome.stop_reason) == ("budget", "seconds")
    await nothing_left(bench)


async def test_time_that_people_take_is_not_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in ("gemini_turn", "pauses"):
        monkeypatch.setattr(f"transports.{module}.time", clock)

    async def slowly(request: CallRequest) -> CallDecision | Park:
        clock.later_s += 3_600
        return CallDecision(signature=request.signature, allow=True)

    monkeypatch.setattr("transports.gemini_policy.judge", ask)
    bench = GeminiBench(tmp_path)
    with serving(in_order(turn(Run("touch ran"))), monkeypatch):
        async with opened(bench, bench.spec("idle", on_call=slowly)) as (session, heard):
            outcome = await session.work(WorkRequest("go", max_seconds=60), heard.emit)
    assert outcome.end == "completed"
    assert (tmp_path / "workspace" / "ran").exists()


async def test_a_program_that_lies_or_says_nothing_is_a_failure(tmp_path: Path) -> None:
    def program(text: str) -> GeminiBench:
        path = tmp_path / "gemini"
        path.write_text(f"#!/bin/sh\ncat >/dev/null\n{text}\n")
        path.chmod(0o755)
        return GeminiBench(tmp_path, transport=GeminiCliTransport(program=path))

    lies: list[tuple[str, str]] = [
        ("exit 0", "agent_crashed"),
        ("echo garbage; echo '[1]'; exit 0", "agent_crashed"),
        ("kill -9 $$", "agent_crashed"),
        ("""echo '{"type":"result","status":"error"}'""", "agent_failed"),
        ("""echo '{"type":"tool_result","tool_id":"unknown","status":"success"}'; exit 1""", "agent_crashed"),
        ("""echo '{"type":"result","status":"success"}'""", "agent_failed"),
    ]
    for text, code in lies:
        outcome, heard = await work(program(text))
        assert outcome.error is not None
        assert outcome.error.code == code, text
        assert [event.kind for event in heard.events] == ["session_opened", "error", "turn_ended"]
    said = """echo '{"type":"message","role":"assistant","content":"Done."}'"""
    ok = f"""{said}; echo '{{"type":"result","status":"success"}}'; exit 7"""
    assert (await work(program(ok)))[0].end == "completed"


async def test_sessions_of_one_run_work_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GeminiBench(tmp_path)

    async def step(name: str) -> str:
        async with opened(bench, bench.spec("idle", step=name)) as (session, heard):
            return (await session.work(WorkRequest("go"), heard.emit)).end

    with serving(lambda _: turn("Done."), monkeypatch):
        assert set(await asyncio.gather(step("one"), step("two"))) == {"completed"}
