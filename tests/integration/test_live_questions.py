"""A session at work asks and is held for the answer: how the run learns of it, and how each wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from activities_kit import FLOW, RUN, acquired, nothing_outlives_a_test, partial_of, until
from live_kit import Run, file_of, listening, transcript_of
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from schemas.common import Budget
from schemas.questions import Given
from system.devserver import DevServer

ASK = "{do: ask, question: 'Which one?', options: [left, right], save_to: answer.txt}"
END = "{do: edit, path: end.txt, content: end}"


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


@pytest.fixture
async def run(tmp_path: Path, server: DevServer) -> AsyncIterator[Run]:
    """A run whose agent asks, and then writes a file."""
    async with listening(await acquired(tmp_path, ASK, END), server) as made:
        yield made


async def test_an_answer_reaches_the_session_that_asked_and_its_turn_goes_on(run: Run) -> None:
    said: list[str] = []
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: said.extend(details)
    work = asyncio.ensure_future(run.work(environment=environment))
    asked = await run.asked()
    assert asked.key == run.driver.key()
    assert asked.question is not None
    assert asked.question.items[0].options == ["left", "right"]
    assert asked.deadline is not None
    await until(lambda: "waiting for a person" in said)

    assert (await run.answer(asked, first="right")).live

    out = await work
    assert out.ended == "finished"
    assert file_of(run.driver, "answer.txt") == "right"
    assert out.waited_ms > 0
    assert await run.settled() == [asked.id]
    assert run.driver.ctx.sessions.desk(run.driver.key()) is None


async def test_the_same_answer_twice_is_taken_twice_and_counts_once(run: Run) -> None:
    work = asyncio.ensure_future(run.work())
    asked = await run.asked()

    first, second = await asyncio.gather(run.answer(asked, first="left"), run.answer(asked, first="left"))

    assert (first.live, second.live) == (True, True)
    assert (await work).ended == "finished"
    assert file_of(run.driver, "answer.txt") == "left"
    assert await run.settled() == [asked.id]


async def test_a_question_nobody_answers_in_time_ends_the_turn_and_the_next_attempt_takes_the_answer(
    tmp_path: Path, server: DevServer
) -> None:
    driver = await acquired(tmp_path, "{do: edit, path: half.txt, content: half}", ASK, END, hold_s=0.1)
    async with listening(driver, server) as run:
        out = await run.work()
        asked = await run.asked()

        assert out.ended == "question"
        assert out.reason == "question"
        assert out.question is not None
        assert out.question.question_id == asked.id
        partial = partial_of(driver, out)
        assert partial.open_question == out.question
        assert partial.done == ["created half.txt"]
        assert partial.stop_method is None
        assert await run.settled() == [asked.id]
        late = await run.answer(asked, first="left")
        assert not late.live
        assert late.detail == "no agent is at work on this attempt"

        given = Given(question=out.question, answers={"Which one?": "left"}, by="ann")
        again = await run.work(driver.key(attempt=2), session=out.session, partial=out.partial, given=given)

    assert again.ended == "finished"
    assert again.session_mode == "resumed"
    assert file_of(driver, "answer.txt") == "left"
    transcript = transcript_of(driver, 2)
    assert "# What you asked, and the answer" in transcript
    assert "Answer: left" in transcript


async def test_neither_silence_nor_time_out_nor_budget_runs_while_a_person_is_waited_for(
    tmp_path: Path, server: DevServer
) -> None:
    flow = FLOW.replace("    outputs:", "    timeouts: {no_output: 1, work: 1}\n    outputs:")
    driver = await acquired(tmp_path, ASK, flow=flow, hold_s=1.5)
    async with listening(driver, server) as run:
        out = await run.work(budget=Budget(seconds=1))

    assert out.ended == "question", "each of the three would have ended it sooner"
    assert out.waited_ms > 1_000


@pytest.mark.parametrize(
    ("policy", "ended", "answer"), [("default", "finished", "left"), ("fail", "question", None)]
)
async def test_where_the_step_says_so_nobody_is_asked(
    tmp_path: Path, policy: str, ended: str, answer: str | None
) -> None:
    flow = FLOW.replace("    outputs:", f"    questions: {{unanswered: {policy}}}\n    outputs:")
    driver = await acquired(tmp_path, ASK, END, flow=flow)

    out = await driver.work()

    assert out.ended == ended
    assert (driver.ctx.folder(RUN).workspace / "end.txt").exists() == (ended == "finished")
    if answer is None:
        assert out.stop_reason == "the flow answers no questions"
    else:
        assert file_of(driver, "answer.txt") == answer


async def test_a_run_that_cannot_be_told_gets_the_question_with_the_end_of_the_turn(run: Run) -> None:
    out = await run.driver.work(workflow_id="no-such-run")

    assert out.ended == "question"
    assert out.stop_reason == "the run could not be told"
    assert partial_of(run.driver, out).open_question == out.question


@pytest.mark.parametrize(
    ("details", "ended"),
    [
        (ActivityCancellationDetails(cancel_requested=True), "interrupted"),
        (ActivityCancellationDetails(worker_shutdown=True), "worker_shutdown"),
        (ActivityCancellationDetails(not_found=True), "server_lost"),
    ],
)
async def test_a_stop_ends_the_wait_and_the_question_is_asked_again(
    run: Run, details: ActivityCancellationDetails, ended: str
) -> None:
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(run.work(environment=environment))
    asked = await run.asked()
    environment.cancel(details)

    out = await work

    assert out.ended == ended
    assert out.stop_method == "cooperative"
    assert out.question is None
    assert await run.settled() == [asked.id]
    assert not (await run.answer(asked, first="left")).live
    key = run.driver.key(attempt=2)
    again = asyncio.ensure_future(run.work(key, session=out.session, partial=out.partial))
    asked = await run.asked(2)
    assert asked.key == key
    assert asked.question is not None
    given = Given(question=asked.question, answers={"Which one?": "right"})
    assert (await run.deliver(key=key, given=given)).live
    assert (await again).ended == "finished"
    assert file_of(run.driver, "answer.txt") == "right"


async def test_an_answer_that_comes_with_the_stop_loses_nothing(run: Run) -> None:
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(run.work(environment=environment))
    asked = await run.asked()
    answering = asyncio.ensure_future(run.answer(asked, first="left"))
    environment.cancel()
    taken = (await answering).live

    out = await work

    assert out.ended in ({"interrupted", "finished"} if taken else {"interrupted"})
    assert await run.settled() == [asked.id]


async def test_what_people_are_shown_holds_no_secret(tmp_path: Path, server: DevServer) -> None:
    hidden = "s3cr3t-" + "x" * 20
    ask = f"{{do: ask, question: 'Is {hidden} right?', options: ['yes'], save_to: answer.txt}}"
    driver = await acquired(tmp_path, ask)
    driver.ctx.evidence.redactor.add(hidden)
    async with listening(driver, server) as run:
        work = asyncio.ensure_future(run.work())
        asked = await run.asked()
        assert hidden not in asked.model_dump_json()
        assert (await run.answer(asked, first="yes")).live
        assert (await work).ended == "finished"
    assert file_of(driver, "answer.txt") == "yes"
