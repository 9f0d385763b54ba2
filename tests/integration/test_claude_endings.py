"""How turns of Claude Code end, whichever way it is driven: by an interrupt, a refusal of the provider, a broken stream, the death of the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from pipes import hear
from typing import Any

import psutil
import pytest
import pytest_asyncio
from claude_kit import NAMES, make_spec, point_at
from conftest import eventually
from model_servers.anthropic import AnthropicServer
from model_servers.script import Garbage, Mind, Refuse, Reply, Run, Say, Seen, Turn, Write, in_order, turn

from schemas.events import ToolEnded
from system import processes
from system.leftovers import leftovers
from transports import registry
from transports.claude_session import ClaudeSession
from transports.conformance_bench import Heard, is_sign_of_work
from transports.port import SessionSpec, Transport, TransportError, WorkOutcome, WorkRequest


@pytest.fixture(params=NAMES)
def transport(request: pytest.FixtureRequest) -> Transport:
    return registry.open(request.param)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the worker a key; who plays the program looks at none."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-a-real-key")


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@contextlib.asynccontextmanager
async def session_of(
    mind: Mind, spec: SessionSpec, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ClaudeSession, Heard, AnthropicServer]]:
    heard = Heard()
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await transport.open_session(spec, heard.emit)
        assert isinstance(session, ClaudeSession)
        try:
            yield session, heard, server
        finally:
            await session.aclose()
    assert await asyncio.to_thread(leftovers, spec.run_id) == []


def ended_as(outcome: WorkOutcome) -> tuple[str, str | None]:
    return outcome.end, outcome.error.code if outcome.error else None


async def test_an_interrupt_right_at_the_start_is_not_lost(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Turn(tuple(Say(f"piece {n}") for n in range(100)), pace_s=0.1)
    reply: Reply = slow
    async with session_of(lambda _: reply, make_spec(tmp_path), transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        for _ in range(2):
            work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
            await asyncio.sleep(0)
            report = await session.interrupt(20)
            assert report.method == "cooperative"
            assert ended_as(await work) == ("failed", "interrupted")
        reply = turn("Well.")
        assert (await session.work(WorkRequest("go on"), heard.emit)).end == "completed"


async def test_an_interrupt_is_heard_behind_more_messages_than_the_sdk_keeps(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"piece {number}" for number in range(60)]
    # Each of them is a message of its own, and four of the stream: nobody may wait until somebody reads them.
    many = Turn(tuple(map(Say, words)), hang_after=3 * len(words))
    async with session_of(lambda _: many, make_spec(tmp_path), transport, monkeypatch) as (session, heard, _):
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(lambda event: event.kind == "text" and event.text == words[-2])
        assert (await session.interrupt(20)).method == "cooperative"
        assert ended_as(await work) == ("failed", "interrupted")


async def test_an_interrupt_ends_a_command_and_all_it_started(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Run("trap '' TERM; echo on > started; cat fifo")
    spec = make_spec(tmp_path)
    for name in ("fifo", "started"):
        os.mkfifo(spec.workspace / name)
    async with session_of(in_order(turn(command), turn("Well.")), spec, transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await hear(spec.workspace / "started")
        report = await session.interrupt(20)
        assert report.method == "cooperative"
        assert ended_as(await work) == ("failed", "interrupted")
        assert [e.call.success for e in heard.events if isinstance(e, ToolEnded)] == [False]
        assert (await session.work(WorkRequest("go on"), heard.emit)).end == "completed"


async def test_what_a_command_left_running_ends_with_the_session(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Run("setsid nohup tail -f /dev/null > /dev/null 2>&1 & echo $! > pid")
    spec = make_spec(tmp_path)
    async with session_of(in_order(turn(command), turn("Well.")), spec, transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "completed"
    assert not psutil.pid_exists(int((spec.workspace / "pid").read_text()))


ANSWERS: list[tuple[Reply, str, str, bool]] = [
    (Refuse(429, retry_after=3600), "rate_limited", "rate_limited", True),
    (turn("hello", cut_after=3), "failed", "provider_unreachable", True),
    (Refuse(401), "failed", "auth_failed", False),
    (Refuse(403), "failed", "auth_failed", False),
    (Refuse(400), "failed", "bad_request", False),
    (Refuse(404), "failed", "model_not_found", False),
    (Refuse(413), "failed", "request_too_large", False),
    (Refuse(500), "failed", "provider_error", True),
    (Refuse(529), "failed", "provider_overloaded", True),
    (Garbage(b"<html>no</html>"), "failed", "provider_unreachable", True),
    # The program has it go on three times, and then gives up.
    (turn("I begin, and", end="no_room"), "failed", "output_limit", True),
]


@pytest.mark.parametrize(
    ("name", "reply", "end", "code", "retryable"),
    [(NAMES[0], *answer) for answer in ANSWERS] + [(NAMES[1], *answer) for answer in ANSWERS[:2]],
    ids=lambda value: str(value)[:40],
)
async def test_what_the_provider_answers_is_classified_and_the_session_goes_on(
    name: str,
    reply: Reply,
    end: str,
    code: str,
    retryable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = registry.open(name)
    broken = True

    def mind(_: Seen) -> Reply:
        return reply if broken else turn("Well.")

    async with session_of(mind, make_spec(tmp_path), transport, monkeypatch) as (session, heard, server):
        outcome = await session.work(WorkRequest("go"), heard.emit)
        assert ended_as(outcome) == (end, code)
        assert outcome.error is not None
        assert outcome.error.retryable is retryable
        assert len(server.seen) <= 7
        assert ("rate_limited" in [event.kind for event in heard.events]) is (end == "rate_limited")
        assert ("ANTHROPIC_API_KEY" in outcome.error.message) is (code == "auth_failed")
        broken = False
        assert (await session.work(WorkRequest("again"), heard.emit)).end == "completed"
        assert session.resumable


async def test_a_program_that_dies_is_a_crash_and_its_session_is_resumed_with_each_result_once(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path)
    os.mkfifo(spec.workspace / "fifo")
    mind = in_order(turn(Write("a.txt", "x")), turn(Run("cat fifo")), turn("Well."))
    async with session_of(mind, spec, transport, monkeypatch) as (session, heard, _):
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(lambda event: event.kind == "tool_started" and "fifo" in event.input)
        # The program writes its own transcript a little later; it is what is resumed.
        await asyncio.to_thread(
            eventually, lambda: any("a.txt" in at.read_text() for at in tmp_path.rglob("*.jsonl"))
        )
        os.kill(session.pid, signal.SIGKILL)
        assert ended_as(await work) == ("failed", "agent_crashed")
        assert session.resumable
        again = await session.work(WorkRequest("more"), heard.emit)
        assert ended_as(again) == ("failed", "agent_crashed")
        left = session.session_id
    async with session_of(
        lambda _: turn("Well."), make_spec(tmp_path, resume=left), transport, monkeypatch
    ) as (
        session,
        heard,
        server,
    ):
        assert session.mode == "resumed"
        assert (await session.work(WorkRequest("go on"), heard.emit)).end == "completed"
        assert "a.txt" in str(server.seen[0].calls[0].arguments)


async def test_a_line_that_is_too_long_ends_the_turn(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.claude_wire.MAX_LINE", 300_000)
    async with session_of(lambda _: turn("x" * 400_000), make_spec(tmp_path), transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        outcome = await session.work(WorkRequest("go"), heard.emit)
        assert ended_as(outcome) == ("failed", "line_too_long")


async def test_a_huge_answer_is_read_whole(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_of(lambda _: turn("x" * 3_000_000), make_spec(tmp_path), transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "completed"
        assert [len(event.text) for event in heard.events if event.kind == "text"] == [3_000_000]


async def test_a_second_cancel_leaves_nothing_behind(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path)
    async with session_of(lambda _: turn("On.", "on", hang_after=4), spec, transport, monkeypatch) as (
        session,
        heard,
        _,
    ):
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(is_sign_of_work)
        for _ in range(3):
            work.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await asyncio.to_thread(leftovers, spec.run_id) == []


async def test_a_budget_of_tokens_ends_the_turn(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mind(seen: Seen) -> Reply:
        return turn(Run(f"echo {len(seen.calls)}"))

    async with session_of(mind, make_spec(tmp_path), transport, monkeypatch) as (session, heard, _):
        outcome = await session.work(WorkRequest("go", max_tokens=250), heard.emit)
        assert (outcome.end, outcome.stop_reason) == ("budget", "tokens")


async def test_a_budget_of_seconds_ends_the_turn(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_of(
        lambda _: turn("On.", "on", hang_after=4), make_spec(tmp_path), transport, monkeypatch
    ) as (
        session,
        heard,
        _,
    ):
        outcome = await session.work(WorkRequest("go", max_seconds=0.5), heard.emit)
        assert (outcome.end, outcome.stop_reason) == ("budget", "seconds")


async def test_a_program_that_ends_at_once_is_told_with_its_words(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "claude"
    program.write_text("#!/bin/sh\necho I cannot >&2; exit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr("transports.claude_opening.find_program", lambda: program)
    with pytest.raises(TransportError) as raised:
        await transport.open_session(make_spec(tmp_path), Heard().emit)
    assert raised.value.error.code == "agent_crashed"
    assert "exit code 3" in raised.value.error.message
    assert raised.value.error.details["stderr"] == "I cannot"


_SPEAKER = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    if said["type"] == "user":
        print(ODD, flush=True)
    elif said["type"] == "control_request":
        answer = {"subtype": "success", "request_id": said["request_id"], "response": KNOWN}
        print(json.dumps({"type": "control_response", "response": answer}), flush=True)
"""


def speaker(folder: Path, monkeypatch: pytest.MonkeyPatch, *, odd: str, known: dict[str, Any]) -> None:
    """Put a program in the place of Claude Code that shakes hands with what it knows, and answers a prompt with a line."""
    program = folder / "claude"
    program.write_text(f"#!{sys.executable}\nODD, KNOWN = {odd!r}, {known!r}\n{_SPEAKER}")
    program.chmod(0o700)
    monkeypatch.setattr("transports.claude_opening.find_program", lambda: program)


@pytest.mark.parametrize("known", [{}, {"hook_on_failure_supported": True, "hooks_applied": False}])
async def test_a_program_that_would_let_a_call_pass_whose_hook_fails_is_not_used(
    known: dict[str, Any], transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker(tmp_path, monkeypatch, odd="", known=known)
    with pytest.raises(TransportError, match="hook"):
        await transport.open_session(make_spec(tmp_path), Heard().emit)


@pytest.mark.parametrize(
    "odd",
    [
        '{"type": ["result"]}',
        '{"type": "control_response", "response": "said"}',
        '{"type": "control_request", "request_id": "1", "request": 5}',
        '{"type": "result", "user_message_uuids": 5}',
        '{"type": "result", "user_message_uuids": [{}]}',
    ],
)
async def test_a_frame_of_no_known_shape_ends_the_turn(
    odd: str, transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker(tmp_path, monkeypatch, odd=odd, known={"hook_on_failure_supported": True})
    session = await transport.open_session(make_spec(tmp_path), Heard().emit)
    try:
        outcome = await session.work(WorkRequest("go"), Heard().emit)
    finally:
        await session.aclose()
    assert ended_as(outcome) == ("failed", "agent_protocol")


async def test_sessions_leave_no_descriptor_and_no_process_behind(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, here = Heard(), psutil.Process()

    async def one() -> None:
        session = await transport.open_session(make_spec(tmp_path), heard.emit)
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "completed"
        await session.aclose()

    with AnthropicServer(lambda _: turn("Well.")) as server:
        point_at(server, monkeypatch)
        await one()
        before = here.num_fds()
        for _ in range(4):
            await one()
        # The model's server is in this process too, and notices a moment later that its client is gone.
        await asyncio.to_thread(eventually, lambda: here.num_fds() <= before)
    assert len(asyncio.all_tasks()) == 1


async def test_a_program_that_is_killed_leaves_no_socket_where_its_own_folder_has_too_long_a_path(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tmp_path, private=tmp_path / ("long-" * 20) / "private")
    async with session_of(in_order(), spec, transport, monkeypatch) as (session, heard, _):
        await session.work(WorkRequest("Do it."), heard.emit)
        socket, pid = Path(f"/tmp/cc-socks-{os.getuid()}/{session.pid}.sock"), session.pid
        assert await asyncio.to_thread(socket.exists)
        os.kill(pid, signal.SIGKILL)
    assert not await asyncio.to_thread(socket.exists)
