"""The activity ``deliver``: what reaches a session at work, what does not, and why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from activities_kit import RUN, Driver, acquired, nothing_outlives_a_test, until
from live_kit import Run, file_of, listening, transcript_of
from temporalio.testing import ActivityEnvironment

from activities import deliver as module
from activities.asking import Desk
from schemas.calls import DeliverOut, Lease
from schemas.questions import Given, Question, QuestionItem
from system.devserver import DevServer
from transports.port import Emit, SessionSpec
from transports.stub import StubTransport
from transports.stub_session import StubSession

LISTEN = "{do: wait_for_steer, save_to: heard.txt}"


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


@pytest.fixture
async def run(tmp_path: Path, server: DevServer) -> AsyncIterator[Run]:
    """A run whose agent writes down what it is told."""
    async with listening(await acquired(tmp_path, "{do: say, text: listening}", LISTEN), server) as made:
        yield made


async def at_work(driver: Driver) -> None:
    """Return once the agent is at work."""
    spool = driver.ctx.spool
    await until(lambda: any("listening" in path.read_text() for path in spool.rglob("transcript.jsonl")))


async def test_words_reach_the_agent_at_work(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    await at_work(run.driver)

    assert await run.deliver(id="word-1", steer="to the left") == DeliverOut(live=True)

    out = await work
    assert (out.ended, out.had) == ("finished", ["word-1"])
    assert file_of(run.driver, "heard.txt") == "to the left"
    assert "to the left" in transcript_of(run.driver)


async def test_words_that_are_delivered_twice_are_said_once(tmp_path: Path, server: DevServer) -> None:
    driver = await acquired(tmp_path, "{do: say, text: listening}", LISTEN, LISTEN)
    async with listening(driver, server) as run:
        work = asyncio.ensure_future(run.work())
        await at_work(driver)
        for _ in range(2):
            assert (await run.deliver(steer="left", delivery="one")).live
        assert not work.done()
        assert (await run.deliver(steer="left", delivery="two")).live
        assert (await work).ended == "finished"
    assert transcript_of(driver).count('"left"') == 2


async def test_nothing_is_delivered_where_no_agent_is_at_work(run: Run) -> None:
    nobody = DeliverOut(live=False, detail="no agent is at work on this attempt")

    assert await run.deliver(steer="too early") == nobody
    work = asyncio.ensure_future(run.work())
    await at_work(run.driver)
    assert await run.deliver(key=run.driver.key(attempt=2), steer="to another attempt") == nobody
    assert (await run.deliver(steer="now")).live
    await work
    assert run.driver.ctx.sessions.holds(RUN), "the session is kept for the next phase"
    assert await run.deliver(steer="too late") == nobody


async def test_a_delivery_under_a_lease_that_is_lost_reaches_nobody(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    await at_work(run.driver)
    stale = Lease(worker_id="w0", epoch=0)

    refused = await run.deliver(lease=stale, steer="from the past")
    unknown = await run.deliver(key=run.driver.key().model_copy(update={"run_id": "none"}), steer="?")

    assert not refused.live
    assert "is held by w1" in refused.detail
    assert not unknown.live
    assert "knows no run" in unknown.detail
    assert (await run.deliver(steer="now")).live
    await work


async def test_a_delivery_of_nothing_and_an_answer_to_nothing_are_said_to_be_so(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    await at_work(run.driver)
    question = Question(question_id="never-asked", items=[QuestionItem(question="Which?")])

    assert await run.deliver() == DeliverOut(live=False, detail="there is nothing to deliver")
    assert await run.deliver(given=Given(question=question, answers={})) == DeliverOut(
        live=False, detail="nothing waits under never-asked"
    )
    assert (await run.deliver(steer="now")).live
    await work


class DeafSession(StubSession):
    """Takes no words, or never says whether it did."""

    hangs = False

    async def steer(self, text: str) -> bool:
        if self.hangs:
            self.hangs = False
            await asyncio.Event().wait()
        return await super().steer(text) and text == "now"


class Deaf(StubTransport):
    """A stub whose sessions are deaf; it opens them once it may."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self._hangs = hangs
        self.opening = asyncio.Event()
        self.may_open = asyncio.Event()

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        self.opening.set()
        await self.may_open.wait()
        session = DeafSession.__new__(DeafSession)
        session.__dict__.update((await super().open_session(spec, emit)).__dict__)
        session.hangs = self._hangs
        return session


@pytest.mark.parametrize(
    ("hangs", "detail"),
    [
        (False, "the agent cannot be told anything while it works"),
        (True, "it was not taken within 0.1 seconds"),
    ],
)
async def test_a_session_that_does_not_take_words_is_not_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, detail: str, *, hangs: bool
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.1)
    transport = Deaf(hangs=hangs)
    run.driver.ctx.transports = {"stub": transport}
    work = asyncio.ensure_future(run.work())
    await transport.opening.wait()
    assert await run.deliver(steer="too early") == DeliverOut(
        live=False, detail="the agent's turn has not begun yet"
    )
    transport.may_open.set()
    await at_work(run.driver)

    assert await run.deliver(steer="hello?") == DeliverOut(live=False, unsure=hangs, detail=detail)

    if hangs:
        assert (await run.deliver(id="word-2", steer="now")).live
    out = await work
    assert (out.ended, out.had) == ("finished", ["word-2"] if hangs else [])


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a delivery waits for an agent's turn."""
    waiting, begun = asyncio.Event(), Desk.begun

    async def seen(self: Desk) -> None:
        waiting.set()
        await begun(self)

    monkeypatch.setattr(Desk, "begun", seen)
    return waiting


async def test_words_wait_for_the_turn_of_an_agent_whose_session_is_being_opened(
    run: Run, waits: asyncio.Event
) -> None:
    transport = Deaf(hangs=False)
    run.driver.ctx.transports = {"stub": transport}
    work = asyncio.ensure_future(run.work())
    await transport.opening.wait()
    said = asyncio.ensure_future(run.deliver(id="word-1", steer="now"))
    await waits.wait()
    transport.may_open.set()

    assert await said == DeliverOut(live=True)
    assert (await work).had == ["word-1"]


async def test_words_that_wait_for_a_turn_which_never_comes_reach_nobody(
    run: Run, waits: asyncio.Event
) -> None:
    transport, environment = Deaf(hangs=False), ActivityEnvironment()
    run.driver.ctx.transports = {"stub": transport}
    work = asyncio.ensure_future(run.work(environment=environment))
    await transport.opening.wait()
    said = asyncio.ensure_future(run.deliver(id="word-1", steer="now"))
    await waits.wait()
    environment.cancel()

    assert await said == DeliverOut(live=False, detail="no agent is at work on this attempt")
    assert ((await work).ended, (await work).had) == ("interrupted", [])
