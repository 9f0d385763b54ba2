"""How turns of Codex end: errors of the provider, interrupts, bounds, and programs that lie, break or say too much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from clock import Clock
from codex_kit import DRAFT, KEY, hanging_command, hangs, one_turn, run_of, session_of, spec_in, transport_for
from home_kit import begun_at_home
from model_servers.openai import OpenAIServer
from model_servers.script import (
    Ask,
    Call,
    Garbage,
    HandIn,
    Refuse,
    Reply,
    Run,
    Say,
    Seen,
    Turn,
    Write,
    in_order,
    turn,
)

from schemas.events import TransportEvent
from schemas.handoff import HandoffDraft
from schemas.questions import Answer, Question
from system import processes
from system.leftovers import leftovers
from transports.codex import CodexTransport
from transports.codex_program import find_program
from transports.conformance_bench import Heard
from transports.port import Park, TransportError, WorkRequest

LIMITED = Garbage(
    b'data: {"type":"response.failed","response":{"id":"r","error":{"code":"rate_limit_exceeded",'
    b'"message":"Rate limit reached. Please try again in 90s."}}}\n\n'
)
SILENT = Turn((), hang_after=0)
_SESSION = re.compile(r"session ID (\d+)")


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left(tmp_path: Path) -> AsyncIterator[None]:
    yield
    left = await asyncio.to_thread(leftovers, run_of(tmp_path))
    await processes.shutdown()
    assert not left


def always(reply: Reply) -> Callable[[Seen], Reply]:
    return lambda _: reply


@pytest.mark.parametrize(
    ("reply", "code", "retryable", "requests"),
    [
        (Refuse(400), "bad_request", False, 1),
        (Refuse(401), "bad_api_key", False, 2),
        (Refuse(404), "unknown_model", False, 2),
        (Refuse(500), "provider_error", True, 4),
        (Refuse(529), "provider_error", True, 4),
        (turn(Say("Half an answer", pieces=5), cut_after=4), "stream_cut", True, 2),
        (Garbage(b"none of it"), "stream_cut", True, 2),
        (turn("I begin, and", end="no_room"), "answer_incomplete", True, 1),
        (turn("I begin, and", end="refused"), "refused_by_provider", False, 2),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_the_provider_refuses_fails_the_turn_after_few_tries(
    reply: Reply, code: str, retryable: bool, requests: int, tmp_path: Path
) -> None:
    with OpenAIServer(always(reply)) as server:
        turned = await one_turn(server, spec_in(tmp_path))
        assert len(server.seen) <= requests
    assert turned.outcome.end == "failed"
    assert turned.outcome.error is not None
    assert (turned.code, turned.outcome.error.retryable) == (code, retryable)
    assert [event.kind for event in turned.events[-2:]] == ["error", "turn_ended"]


@pytest.mark.parametrize(
    ("reply", "seconds"), [(LIMITED, 90), (Refuse(429, retry_after=600), None), (Refuse(429), None)]
)
@pytest.mark.timeout(60)
async def test_a_rate_limit_ends_the_turn_at_once_and_the_session_can_go_on(
    reply: Reply, seconds: int | None, tmp_path: Path
) -> None:
    with OpenAIServer(always(reply)) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            outcome = await session.work(WorkRequest("Do it."), events.append)
            assert outcome.end == "rate_limited"
            assert (outcome.retry_at is not None) == (seconds is not None)
            assert [event.kind for event in events[-2:]] == ["rate_limited", "turn_ended"]
            server.mind = in_order(turn("Here."))
            assert (await session.work(WorkRequest("Go on."), events.append)).end == "completed"


async def test_a_provider_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with OpenAIServer(in_order()) as server:
        transport = transport_for(server)
    async with session_of(transport, spec_in(tmp_path)) as (session, events):
        outcome = await session.work(WorkRequest("Do it."), events.append)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("provider_unreachable", True)


async def test_a_huge_answer_is_heard_and_one_without_words_completes(tmp_path: Path) -> None:
    with OpenAIServer(in_order(turn("x" * 3_000_000), turn())) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            assert (await session.work(WorkRequest("Talk."), events.append)).end == "completed"
            assert (await session.work(WorkRequest("Be silent."), events.append)).end == "completed"
    assert sum(len(event.text) for event in events if event.kind == "text") == 3_000_000


async def test_an_answer_that_broke_off_and_came_again_is_heard_once(tmp_path: Path) -> None:
    broken = turn(Say("Here I am.", pieces=2), cut_after=3)
    with OpenAIServer(in_order(broken, turn("Here I am."))) as server:
        turned = await one_turn(server, spec_in(tmp_path))
    assert turned.outcome.end == "completed"
    assert [event.text for event in turned.events if event.kind == "text"] == ["Here I am."]


async def test_a_command_that_runs_on_is_looked_after_until_it_ends(tmp_path: Path) -> None:
    slow = Call("exec_command", {"cmd": "echo begun; sleep 0.6; echo ended", "yield_time_ms": 250})

    def mind(seen: Seen) -> Reply:
        if not seen.calls:
            return turn(slow)
        running = _SESSION.search(seen.calls[0].result or "")
        if len(seen.calls) == 1 and running is not None:
            return turn(Call("write_stdin", {"session_id": int(running[1]), "yield_time_ms": 5000}))
        return turn("Done.")

    with OpenAIServer(mind) as server:
        turned = await one_turn(server, spec_in(tmp_path))
    assert turned.outcome.end == "completed", turned.outcome
    calls = {call.tool_name: call for call in turned.calls}
    assert calls["exec_command"].success
    assert calls["exec_command"].output == "begun\nended\n"
    assert calls["write_stdin"].success
    assert len(server.seen) == 3


async def test_sessions_leave_no_descriptors_and_no_tasks(tmp_path: Path) -> None:
    with OpenAIServer(always(turn("Done."))) as server:
        await one_turn(server, spec_in(tmp_path))
        me = psutil.Process()
        open_before, tasks_before = me.num_fds(), len(asyncio.all_tasks())
        for _ in range(3):
            await one_turn(server, spec_in(tmp_path))
        # A pipe of the event loop closes in its next round.
        await asyncio.sleep(0)
        assert me.num_fds() <= open_before + 1
        assert len(asyncio.all_tasks()) == tasks_before


async def test_half_an_answer_is_heard_when_it_is_interrupted(tmp_path: Path) -> None:
    with OpenAIServer(in_order(turn(Say("Half an answer", pieces=2), hang_after=3))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            work = asyncio.create_task(session.work(WorkRequest("Talk."), events.append))
            await _hears(server, session)
            report = await session.interrupt(20)
            outcome = await work
    assert report.method == "cooperative"
    assert outcome.error is not None
    assert outcome.error.code == "interrupted"
    assert "".join(event.text for event in events if event.kind == "text") == "Half an"


async def _hears(server: OpenAIServer, session: object) -> None:
    """Wait until the session has heard the beginning of an answer."""
    while not (server.seen and getattr(session, "_turn")._said):  # noqa: ASYNC110, B009 - nobody tells
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("pause_s", [0, 0.005, 0.02, 0.05, 0.1])
async def test_an_interrupt_is_never_lost(pause_s: float, tmp_path: Path) -> None:
    with OpenAIServer(always(SILENT)) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            work = asyncio.create_task(session.work(WorkRequest("Do it."), events.append))
            await asyncio.sleep(pause_s)
            report = await session.interrupt(20)
            outcome = await work
            assert report.method == "cooperative"
            assert outcome.error is not None
            assert outcome.error.code == "interrupted"
            server.mind = in_order(turn("Here."))
            assert (await session.work(WorkRequest("Go on."), events.append)).end == "completed"


async def test_a_command_that_is_interrupted_is_one_call_with_one_end(tmp_path: Path) -> None:
    slow = Call("exec_command", {"cmd": "touch go.begun; sleep 60", "yield_time_ms": 30_000})
    with OpenAIServer(in_order(turn(slow))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            work = asyncio.create_task(session.work(WorkRequest("Do it."), events.append))
            await begun_at_home(tmp_path / "workspace" / "go")
            assert (await session.interrupt(20)).method == "cooperative"
            await work
    kinds = [event.kind for event in events if event.kind in {"tool_started", "tool_ended"}]
    assert kinds == ["tool_started", "tool_ended"]


async def test_a_command_that_ignores_signals_ends_with_its_turn(tmp_path: Path) -> None:
    program = (
        "import signal,time\nfor each in (1, 2, 15): signal.signal(each, signal.SIG_IGN)\ntime.sleep(600)\n"
    )
    first = turn(
        Write("deaf.py", program), Call("exec_command", {"cmd": "python3 deaf.py", "yield_time_ms": 250})
    )
    with OpenAIServer(in_order(first, turn("It runs."), SILENT)) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            outcome = await session.work(WorkRequest("Do it."), events.append)
            assert outcome.end == "completed"
            assert not _running("deaf.py")
    deaf = [event.call for event in events if event.kind == "tool_ended"][1]
    assert not deaf.success


def _running(word: str) -> list[str]:
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if word in words]


async def test_a_command_has_no_more_time_than_the_step_allows(tmp_path: Path) -> None:
    slow = Call("exec_command", {"cmd": "echo begun; sleep 600", "yield_time_ms": 30_000})
    with OpenAIServer(in_order(turn(slow), turn("It took too long."))) as server:
        turned = await one_turn(server, spec_in(tmp_path, command_timeout_s=0.5))
    (call,) = turned.calls
    assert turned.outcome.end == "completed"
    assert not call.success
    assert "more than 0.5 seconds" in (call.output or "")


async def test_time_that_people_take_is_not_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in ("codex_course", "pauses"):
        monkeypatch.setattr(f"transports.{module}.time", clock)

    async def answer(question: Question) -> Answer:
        clock.later_s += 3_600
        return Answer(answers={question.items[0].question: "Yes"}, source="test")

    spec = spec_in(tmp_path, on_question=answer)
    with OpenAIServer(in_order(turn(Ask("May I?", ("Yes", "No"))), turn("Thanks."), SILENT)) as server:
        async with session_of(transport_for(server), spec) as (session, events):
            outcome = await session.work(WorkRequest("Do it.", max_seconds=60), events.append)
            assert outcome.end == "completed"
            outcome = await session.work(WorkRequest("Go on.", max_seconds=0.5), events.append)
            assert (outcome.end, outcome.stop_reason) == ("budget", "seconds")


async def test_a_parked_question_leaves_a_session_that_goes_on(tmp_path: Path) -> None:
    async def park(_: Question) -> Park:
        return Park("nobody is there")

    with OpenAIServer(in_order(turn(Ask("May I?", ("Yes", "No"))), turn("Thanks."))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path, on_question=park)) as (
            session,
            events,
        ):
            outcome = await session.work(WorkRequest("Do it."), events.append)
            assert (outcome.end, outcome.stop_reason) == ("question", "nobody is there")
            assert (await session.work(WorkRequest("Yes."), events.append)).end == "completed"


async def test_an_answer_that_takes_too_long_is_given_up_and_the_session_lives(tmp_path: Path) -> None:
    with OpenAIServer(in_order(SILENT, turn(HandIn(DRAFT)))) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            result = await session.structured("Sum up.", HandoffDraft, events.append, timeout_s=1)
            assert result.error is not None
            assert result.error.code == "structured_timeout"
            assert [event.error for event in events if event.kind == "error"] == [result.error]
            assert [event.kind for event in events[-2:]] == ["error", "turn_ended"]
            result = await session.structured("Sum up.", HandoffDraft, events.append, timeout_s=30)
            assert result.value == dict(DRAFT)


async def test_an_interrupt_ends_a_structured_turn_too(tmp_path: Path) -> None:
    with OpenAIServer(always(SILENT)) as server:
        async with session_of(transport_for(server), spec_in(tmp_path)) as (session, events):
            asking = asyncio.create_task(
                session.structured("Sum up.", HandoffDraft, events.append, timeout_s=60)
            )
            await _asked(server)
            assert (await session.interrupt(20)).method == "cooperative"
            result = await asking
    assert result.error is not None
    assert result.error.code == "interrupted"


async def _asked(server: OpenAIServer) -> None:
    while not server.seen:  # noqa: ASYNC110 - the server runs in threads of its own
        await asyncio.sleep(0.01)


async def test_a_second_cancellation_leaves_nothing(tmp_path: Path) -> None:
    with OpenAIServer(in_order(turn(Run("sleep 600")))) as server:
        heard = Heard()
        session = await transport_for(server, hanging_command(tmp_path)).open_session(
            spec_in(tmp_path), heard.emit
        )
        work = asyncio.create_task(session.work(WorkRequest("Do it."), heard.emit))
        while not hangs(tmp_path).exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.sleep(0)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        await session.aclose()


async def test_a_session_that_was_killed_in_a_call_is_gone_on_with(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    calls = turn(Write("a.txt", "x\n"), Run("sleep 600"))
    with OpenAIServer(in_order(calls, turn("Here I am."))) as server:
        transport = transport_for(server)
        heard = Heard()
        session = await transport.open_session(spec, heard.emit)
        work = asyncio.create_task(session.work(WorkRequest("Do it."), heard.emit))
        await heard.until(lambda event: event.kind == "tool_started" and event.input == "sleep 600")
        await heard.until(lambda event: event.kind == "tool_ended")
        for pid in leftovers(spec.run_id):
            if psutil.Process(pid).name() == "codex":
                os.kill(pid, signal.SIGKILL)
        outcome = await work
        await session.aclose()
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retryable) == ("agent_crashed", True)
        async with session_of(transport, replace(spec, resume=session.session_id)) as (resumed, events):
            assert (await resumed.work(WorkRequest("Go on."), events.append)).end == "completed"
    tools = {call.tool: call.result for call in server.seen[-1].calls}
    assert "Success" in (tools["apply_patch"] or "")
    assert "aborted" in (tools["exec_command"] or "")


async def test_a_server_that_ends_while_people_are_asked_ends_the_turn(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def never(_: Question) -> Answer:
        for pid in leftovers(run_of(tmp_path)):
            if psutil.Process(pid).name() == "codex":
                os.kill(pid, signal.SIGKILL)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    with OpenAIServer(in_order(turn(Ask("May I?", ("Yes", "No"))))) as server:
        turned = await one_turn(server, spec_in(tmp_path, on_question=never))
    assert turned.code == "agent_crashed"
    assert cancelled.is_set()


RAN = {
    "type": "commandExecution",
    "id": "1",
    "command": "/bin/sh -c rm",
    "status": "completed",
    "exitCode": 0,
}
UNASKED = json.dumps({"method": "item/completed", "params": {"item": RAN}}).encode() + b"\n"
LYING = """
import json, os, subprocess, sys
if sys.argv[1] != "app-server":
    os.execv(REAL, [REAL, *sys.argv[1:]])
LIE = {lie!r}
real = subprocess.Popen([REAL, *sys.argv[1:]], stdin=subprocess.PIPE)
for line in sys.stdin.buffer:
    if b'"turn/start"' in line:
        os.write(1, LIE)
    real.stdin.write(line)
    real.stdin.flush()
"""


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (b"thread 'main' panicked\n", "agent_protocol"),
        (b"[1, 2]\n", "agent_protocol"),
        (b'{"method": "item/started", "params": {}}\n', "agent_protocol"),
        (b'{"id": 77, "result": {}}\n', None),
        (b'{"method": "something/new", "params": {}}\n', None),
        (b'{"id": "x", "method": "something/new", "params": {}}\n', None),
        (b'{"id": "x", "method": "item/commandExecution/requestApproval", "params": {}}\n', None),
        (UNASKED, "policy_bypassed"),
    ],
)
async def test_a_program_that_lies_ends_the_turn_or_is_not_believed(
    lie: bytes, code: str | None, tmp_path: Path
) -> None:
    program = tmp_path / "lying.py"
    program.write_text(f"REAL = {str(find_program())!r}\n{LYING.format(lie=lie)}")
    with OpenAIServer(in_order(turn("Here."))) as server:
        transport = transport_for(server, [sys.executable, "-I", "-S", str(program)])
        async with session_of(transport, spec_in(tmp_path)) as (session, events):
            outcome = await session.work(WorkRequest("Do it."), events.append)
    assert (outcome.error.code if outcome.error else None) == code
    assert not any(event.kind == "tool_ended" and event.call.success and code is None for event in events)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 3", "agent_crashed"),
        ("echo not json; sleep 600", "agent_protocol"),
        (
            """read line; echo '{"id": 1, "error": {"code": 1, "message": "no"}}'; sleep 600""",
            "agent_refused",
        ),
        (
            """read line; echo '{"id": 1, "result": {}}'; read line; read line; echo '{"id": 2, "result": {}}'; sleep 600""",
            "agent_protocol",
        ),
    ],
)
async def test_a_program_that_does_not_open_a_session_is_an_error_with_a_code(
    script: str, code: str, tmp_path: Path
) -> None:
    program = tmp_path / "broken"
    program.write_text(f'#!/bin/sh\n[ "$1" = sandbox ] && exit 0\n{script}\n')
    program.chmod(0o755)
    events: list[TransportEvent] = []
    with pytest.raises(TransportError) as raised:
        await CodexTransport([str(program)], {"OPENAI_API_KEY": KEY}).open_session(
            spec_in(tmp_path), events.append
        )
    assert raised.value.error.code == code
    assert not raised.value.resume_refused
    assert not events
