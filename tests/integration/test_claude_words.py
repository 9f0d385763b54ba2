"""Words said to a Claude that is to end its turn: they begin nothing any more, and are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from claude_kit import NAMES, make_spec, point_at
from model_servers.anthropic import AnthropicServer
from model_servers.script import Ask, Reply, Run, Seen, turn

from schemas.questions import Question
from system import processes
from transports import registry
from transports.claude_session import ClaudeSession
from transports.conformance_bench import Heard
from transports.port import Emit, Park, SessionSpec, Transport, WorkOutcome, WorkRequest

WORDS = "mind the gap"


@pytest.fixture(params=NAMES)
def transport(request: pytest.FixtureRequest) -> Transport:
    return registry.open(request.param)


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def busy(seen: Seen) -> Reply:
    """Run a command without end, but in the turn that asks for more."""
    return turn("Well.") if "more" in seen.asked else turn(Run("tail -f /dev/null"))


async def opened(transport: Transport, spec: SessionSpec, emit: Emit) -> ClaudeSession:
    session = await transport.open_session(spec, emit)
    assert isinstance(session, ClaudeSession)
    return session


def heard_words(seen: Seen) -> bool:
    return any(WORDS in text for role, text in seen.texts if role == "user")


async def told_at_work(session: ClaudeSession, heard: Heard) -> asyncio.Task[WorkOutcome]:
    """Begin a turn, and say the words while a command runs; return the turn."""
    work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
    await heard.until(lambda event: event.kind == "tool_started")
    assert await session.steer(WORDS)
    return work


@pytest.mark.parametrize("closed", [False, True], ids=["hot", "resumed"])
async def test_words_that_a_stop_came_before_are_heard_when_the_session_goes_on(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, closed: bool
) -> None:
    heard, spec = Heard(), make_spec(tmp_path)
    with AnthropicServer(busy) as server:
        point_at(server, monkeypatch)
        session = await opened(transport, spec, heard.emit)
        work = await told_at_work(session, heard)
        assert (await session.interrupt(20)).method == "cooperative"
        await work
        if closed:
            await session.aclose()
            session = await opened(transport, replace(spec, resume=session.session_id), heard.emit)
        assert (await session.work(WorkRequest("more"), heard.emit)).end == "completed"
        await session.aclose()
    assert [heard_words(seen) for seen in server.seen] == [False, True]


async def test_words_on_their_way_when_the_order_comes_are_said_before_it(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    with AnthropicServer(busy) as server:
        point_at(server, monkeypatch)
        session = await opened(transport, make_spec(tmp_path), heard.emit)
        work = asyncio.create_task(session.work(WorkRequest("go"), heard.emit))
        await heard.until(lambda event: event.kind == "tool_started")
        saying = [asyncio.create_task(session.steer(f"{WORDS} {number}")) for number in range(3)]
        await asyncio.sleep(0)
        assert (await session.interrupt(20)).method == "cooperative"
        took = await asyncio.gather(*saying)
        assert took[0]
        await work
        assert (await session.work(WorkRequest("more"), heard.emit)).end == "completed"
        await session.aclose()
    assert len(server.seen) == 2
    said = [f"{WORDS} {number}" for number, taken in enumerate(took) if taken]
    assert all(any(text in words for _, words in server.seen[-1].texts) for text in said)


async def test_a_turn_that_is_parked_does_not_go_on_with_words_that_wait(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mind(seen: Seen) -> Reply:
        return turn("Well.") if "more" in seen.asked else turn(Ask("Which?", ("one", "two")))

    heard = Heard()
    taken: list[bool] = []

    async def park(_: Question) -> Park:
        taken.append(await box[0].steer(WORDS))
        return Park("nobody is there")

    box: list[ClaudeSession] = []
    with AnthropicServer(mind) as server:
        point_at(server, monkeypatch)
        session = await opened(transport, make_spec(tmp_path, on_question=park), heard.emit)
        box.append(session)
        assert (await session.work(WorkRequest("go"), heard.emit)).end == "question"
        assert taken == [True]
        assert not await session.steer("too late")
        assert (await session.work(WorkRequest("more"), heard.emit)).end == "completed"
        await session.aclose()
    assert [heard_words(seen) for seen in server.seen] == [False, True]


async def test_words_that_wait_in_an_agent_that_is_killed_are_said_to_be_unheard(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, spec = Heard(), make_spec(tmp_path)
    with AnthropicServer(busy) as server:
        point_at(server, monkeypatch)
        session = await opened(transport, spec, heard.emit)
        work = await told_at_work(session, heard)
        assert (await session.interrupt(0)).method == "killed"
        assert list((await work).unheard) == [WORDS]
        await session.aclose()
    assert not any(heard_words(seen) for seen in server.seen)
