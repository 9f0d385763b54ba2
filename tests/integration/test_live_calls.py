"""A session at work makes a call that policy asks about: allowed, denied, decided before, or left for later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from activities_kit import RUN, acquired, nothing_outlives_a_test, partial_of, until
from live_kit import Run, listening, transcript_of
from temporalio.testing import ActivityEnvironment

from schemas.questions import CallDecision, call_signature
from schemas.tools import NormalizedToolCall
from system.devserver import DevServer

TOUCH = "{do: run, argv: [touch, touched], ask: true, reason: it touches a file}"
AGAIN = "{do: run, argv: [touch, touched], ask: true}"
END = "{do: edit, path: end.txt, content: end}"
SIGNATURE = call_signature("stub.run", ["touch", "touched"])


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


@pytest.fixture
async def run(tmp_path: Path, server: DevServer) -> AsyncIterator[Run]:
    """A run whose agent makes the same call twice, and then writes a file."""
    async with listening(await acquired(tmp_path, TOUCH, AGAIN, END), server) as made:
        yield made


def is_touched(run: Run) -> bool:
    return (run.driver.ctx.folder(RUN).workspace / "touched").exists()


async def test_a_call_that_is_allowed_is_made_and_one_like_it_is_asked_about_again(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    first = await run.asked()
    assert first.call is not None
    assert (first.call.signature, first.call.reason) == (SIGNATURE, "it touches a file")
    assert not is_touched(run)
    assert (await run.decide(first, allow=True)).live
    second = await run.asked(2)
    assert is_touched(run)
    assert second.id != first.id

    assert (await run.decide(second, allow=True)).live

    out = await work
    assert (out.ended, out.tool_calls, out.tools_blocked) == ("finished", 3, 0)
    assert await run.settled() == [first.id, second.id]


async def test_a_call_that_is_allowed_for_the_run_is_not_asked_about_again(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    assert (await run.decide(await run.asked(), allow=True, remember="run")).live

    out = await work

    assert (out.ended, out.tool_calls) == ("finished", 3)
    assert len(await run.settled()) == 1


async def test_a_call_that_is_denied_is_blocked_and_the_agent_goes_on(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    await run.decide(await run.asked(), allow=False, reason="not here")
    await run.decide(await run.asked(2), allow=False)

    out = await work

    assert (out.ended, out.tools_blocked) == ("finished", 2)
    assert not is_touched(run)
    assert (run.driver.ctx.folder(RUN).workspace / "end.txt").exists()
    assert "denied_by_human: denied: not here" in transcript_of(run.driver)


@pytest.mark.parametrize("allow", [True, False])
async def test_what_was_decided_before_is_used_without_asking(run: Run, *, allow: bool) -> None:
    known = CallDecision(signature=SIGNATURE, allow=allow, reason="known", remember="run")

    out = await run.work(decisions=[known])

    assert (out.ended, out.tools_blocked) == ("finished", 0 if allow else 2)
    assert is_touched(run) == allow
    assert await run.settled() == []


async def test_a_call_nobody_decides_in_time_ends_the_turn_and_the_next_attempt_has_the_decision(
    tmp_path: Path, server: DevServer
) -> None:
    driver = await acquired(tmp_path, TOUCH, END, hold_s=0.1)
    async with listening(driver, server) as run:
        out = await run.work()
        assert (out.ended, out.reason) == ("approval", "approval")
        assert out.call is not None
        assert out.call.signature == SIGNATURE
        assert partial_of(driver, out).open_call == out.call
        assert not is_touched(run)
        assert not (await run.decide(await run.asked(), allow=True)).live
        decision = CallDecision(signature=SIGNATURE, allow=True)

        again = await run.work(
            driver.key(attempt=2), session=out.session, partial=out.partial, decisions=[decision]
        )

    assert (again.ended, again.session_mode) == ("finished", "resumed")
    assert is_touched(run)
    transcript = transcript_of(driver, 2)
    assert "You had wanted to call stub.run" in transcript
    assert "Answer: yes, make the call" in transcript


async def test_a_stop_ends_the_wait_and_the_call_is_not_made(run: Run) -> None:
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(run.work(environment=environment))
    asked = await run.asked()
    environment.cancel()

    out = await work

    assert (out.ended, out.stop_method) == ("interrupted", "cooperative")
    assert out.call is None
    assert await run.settled() == [asked.id]
    assert not is_touched(run)


async def test_a_call_is_shown_in_the_partial_handoff_as_a_tool_call_only_once_it_was_decided(
    run: Run,
) -> None:
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(run.work(environment=environment))
    await run.decide(await run.asked(), allow=False, reason="no")
    await run.asked(2)
    environment.cancel()

    partial = partial_of(run.driver, await work)

    calls: list[NormalizedToolCall] = partial.last_tool_calls
    assert [(call.blocked, call.success) for call in calls] == [(True, False)]


async def test_a_decision_for_another_call_changes_nothing(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    asked = await run.asked()
    assert asked.call is not None
    wrong = CallDecision(signature="0" * 64, allow=True)

    assert not (await run.deliver(call_id=asked.call.call_id, decision=wrong)).live
    assert not (await run.deliver(call_id="no-such-call", decision=wrong)).live
    assert not (await run.deliver(decision=wrong)).live

    assert not is_touched(run)
    known = CallDecision(signature=SIGNATURE, allow=True, remember="run")
    assert (await run.deliver(call_id=asked.call.call_id, decision=known)).live
    assert (await work).ended == "finished"
    await until(lambda: is_touched(run))
