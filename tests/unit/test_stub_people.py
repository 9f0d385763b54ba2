"""The stub among people: questions, commands that policy asks about, and words said to it while it works."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from pipes import hear, tell
from types import SimpleNamespace

import pytest
import pytest_asyncio
from stub_kit import EDIT, PYTHON, Stage, code_of, staged

from schemas.questions import (
    Answer,
    CallDecision,
    CallRequest,
    Given,
    Question,
    QuestionItem,
    call_signature,
)
from transports.port import Park, WorkOutcome, WorkRequest


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


async def test_a_question_that_is_answered_goes_into_the_transcript_and_the_file(stage: Stage) -> None:
    async def answer(question: Question) -> Answer:
        assert question.items[0].options == ["red", "blue"]
        return Answer(answers={"Which?": ["red", "blue"]}, source="test")

    ask = {"do": "ask", "question": "Which?", "options": ["red", "blue"], "save_to": "answer.txt"}
    assert (await stage.play(ask, EDIT, on_question=answer)).end == "completed"
    assert stage.texts() == ["red, blue"]
    assert stage.file("answer.txt") == "red, blue"
    assert stage.file("a.txt") == "one\n"


async def park(_: Question) -> Park:
    return Park("nobody is there")


ASK = {"do": "ask", "question": "Which?", "options": ["red", "blue"], "save_to": "answer.txt"}


def given_to(outcome: WorkOutcome, answer: str | list[str] = "blue") -> Given:
    assert outcome.end == "question"
    assert outcome.question is not None
    return Given(question=outcome.question, answers={"Which?": answer})


@pytest.mark.parametrize("on_question", [park, None])
async def test_a_parked_question_is_answered_by_what_is_given_to_the_resumed_session(
    stage: Stage, on_question: Callable[[Question], Awaitable[Answer | Park]] | None
) -> None:
    turn = {"work": [ASK, EDIT]}
    parked = await stage.open(stage.spec(turn, on_question=on_question))
    outcome = await parked.work(WorkRequest("go"), stage.emit)
    given = given_to(outcome, ["red", "blue"])
    assert not (stage.workspace / "a.txt").exists()
    await parked.aclose()
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=parked.session_id))
    assert (await resumed.work(WorkRequest("on", given=given), stage.emit)).end == "completed"
    assert stage.file("answer.txt") == "red, blue"
    assert stage.file("a.txt") == "one\n"
    assert sum(event.kind == "question" for event in stage.events) == 1


async def test_a_parked_question_that_nobody_answered_is_asked_again(stage: Stage) -> None:
    turn = {"work": [ASK, EDIT]}
    parked = await stage.open(stage.spec(turn))
    first = await parked.work(WorkRequest("go"), stage.emit)
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=parked.session_id))
    second = await resumed.work(WorkRequest("blue, perhaps"), stage.emit)
    assert (first.end, second.end) == ("question", "question")
    assert first.question is not None
    assert second.question is not None
    assert first.question.question_id == second.question.question_id
    assert not (stage.workspace / "answer.txt").exists()


async def test_a_question_is_recognised_by_its_id_where_its_text_was_changed_on_the_way(stage: Stage) -> None:
    turn = {"work": [ASK, EDIT]}
    parked = await stage.open(stage.spec(turn))
    outcome = await parked.work(WorkRequest("go"), stage.emit)
    assert outcome.question is not None
    shown = outcome.question.model_copy(update={"items": [QuestionItem(question="[redacted]")]})
    given = Given(question=shown, answers={"[redacted]": "blue"})
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=parked.session_id))
    assert (await resumed.work(WorkRequest("on", given=given), stage.emit)).end == "completed"
    assert stage.file("answer.txt") == "blue"


async def test_the_turn_of_a_resumed_attempt_begins_with_the_answer(stage: Stage) -> None:
    turn, again = {"work": [ASK]}, {"work": [EDIT]}
    parked = await stage.open(stage.spec(turn, resumed=again))
    given = given_to(await parked.work(WorkRequest("go"), stage.emit))
    resumed = await stage.open(stage.spec(turn, resumed=again, attempt=2, resume=parked.session_id))
    assert (await resumed.work(WorkRequest("on", given=given), stage.emit)).end == "completed"
    assert (stage.file("answer.txt"), stage.file("a.txt")) == ("blue", "one\n")


async def test_a_new_session_takes_the_answer_it_is_given_to_the_same_question_once(stage: Stage) -> None:
    first = await stage.open(stage.spec({"work": [ASK]}))
    given = given_to(await first.work(WorkRequest("go"), stage.emit))
    second = await stage.open(stage.spec({"work": [ASK, EDIT, ASK]}, attempt=2))
    assert (await second.work(WorkRequest("go", given=given), stage.emit)).end == "question"
    assert (stage.file("answer.txt"), stage.file("a.txt")) == ("blue", "one\n")


async def test_a_question_that_an_interrupt_cut_short_is_asked_again(stage: Stage) -> None:
    asked = asyncio.Event()

    async def never(_: Question) -> Answer | Park:
        asked.set()
        await asyncio.Event().wait()
        return Park("never")

    turn = {"work": [ASK, EDIT]}
    session = await stage.open(stage.spec(turn, on_question=never))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await asked.wait()
    assert (await session.interrupt(30)).method == "cooperative"
    assert code_of(await work) == "interrupted"
    again = await stage.open(stage.spec(turn, attempt=2, resume=session.session_id))
    assert (await again.work(WorkRequest("on"), stage.emit)).end == "question"


async def test_a_question_that_ends_with_its_turn_is_no_parked_one(stage: Stage) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def until_over(_: Question) -> Answer | Park:
        asked.set()
        await over.wait()
        return Park("the turn is to end")

    session = await stage.open(stage.spec({"work": [ASK]}, on_question=until_over))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await asked.wait()
    stopping = asyncio.create_task(session.interrupt(30))
    await asyncio.sleep(0)
    over.set()
    assert code_of(await work) == "interrupted"
    assert (await stopping).method == "cooperative"


async def test_waiting_for_people_uses_no_seconds_of_the_budget(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now

    async def answer(_: Question) -> Answer:
        clock.now += 1_000
        return Answer(answers={"Which?": "blue"}, source="test")

    for module in ("stub_actions", "stub_session"):
        monkeypatch.setattr(f"transports.{module}.time", clock)
    session = await stage.open(stage.spec({"work": [ASK, EDIT]}, on_question=answer))
    assert (await session.work(WorkRequest("go", max_seconds=50), stage.emit)).end == "completed"


TOUCH = {
    "do": "run",
    "argv": [*PYTHON, "open('touched', 'w')"],
    "ask": True,
    "reason": "it touches a file",
}


async def test_a_command_that_policy_asks_about_runs_once_it_is_allowed(stage: Stage) -> None:
    asked: list[CallRequest] = []

    async def allow(request: CallRequest) -> CallDecision:
        assert stage.calls() == []
        asked.append(request)
        return CallDecision(signature=request.signature, allow=True)

    assert (await stage.play(TOUCH, EDIT, on_call=allow)).end == "completed"
    (request,) = asked
    assert (request.tool_name, request.reason) == ("stub.run", "it touches a file")
    assert json.loads(request.input) == TOUCH["argv"]
    assert request.signature == call_signature("stub.run", TOUCH["argv"])
    assert (stage.workspace / "touched").exists()
    assert [call.success for call in stage.calls()] == [True, True]


@pytest.mark.parametrize(("by", "code"), [("ann", "denied_by_human"), ("deadline", "denied_by_deadline")])
async def test_a_denied_command_is_a_blocked_call_and_the_turn_goes_on(
    stage: Stage, by: str, code: str
) -> None:
    async def deny(request: CallRequest) -> CallDecision:
        return CallDecision(signature=request.signature, allow=False, reason="not on a Friday", by=by)

    assert (await stage.play(TOUCH, EDIT, on_call=deny)).end == "completed"
    blocked, edit = stage.calls()
    assert (blocked.blocked, blocked.success) == (True, False)
    assert blocked.blocked_reason == f"{code}: denied: not on a Friday"
    assert edit.success
    assert not (stage.workspace / "touched").exists()


@pytest.mark.parametrize("asking", [True, False])
async def test_a_command_nobody_decides_ends_the_turn_and_is_asked_about_again(
    stage: Stage, *, asking: bool
) -> None:
    async def park(_: CallRequest) -> Park:
        return Park("nobody is there")

    async def allow(request: CallRequest) -> CallDecision:
        return CallDecision(signature=request.signature, allow=True)

    turn = {"work": [TOUCH, EDIT]}
    session = await stage.open(stage.spec(turn, on_call=park if asking else None))
    outcome = await session.work(WorkRequest("go"), stage.emit)
    assert outcome.end == "approval"
    assert outcome.call is not None
    assert outcome.call.signature == call_signature("stub.run", TOUCH["argv"])
    assert stage.calls() == []
    again = await stage.open(stage.spec(turn, attempt=2, resume=session.session_id, on_call=allow))
    assert (await again.work(WorkRequest("on"), stage.emit)).end == "completed"
    assert (stage.workspace / "touched").exists()


async def test_nobody_is_asked_about_what_a_read_only_session_may_not_do(stage: Stage) -> None:
    async def never(_: CallRequest) -> Park:
        pytest.fail("it asked")

    assert (await stage.play(TOUCH, read_only=True, on_call=never)).end == "completed"
    (call,) = stage.calls()
    assert str(call.blocked_reason).startswith("read_only: ")


async def test_a_command_that_is_to_finish_does_so_before_an_interrupted_turn_ends(stage: Stage) -> None:
    up, go = stage.signal_file(), stage.folder / "go"
    os.mkfifo(go)
    write = f"open({str(up)!r}, 'w').close(); open({str(go)!r}).read(); open('whole.txt', 'w').write('whole')"
    run = {"do": "run", "argv": [*PYTHON, write], "finish": True}
    session = await stage.open(stage.spec({"work": [run, EDIT]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await hear(up)
    stopping = asyncio.create_task(session.interrupt(30))
    await asyncio.sleep(0)
    assert not work.done()
    await tell(go, "go")
    assert (await stopping).method == "cooperative"
    assert code_of(await work) == "interrupted"
    assert stage.file("whole.txt") == "whole"
    assert [call.success for call in stage.calls()] == [True]
    again = await session.work(WorkRequest("on"), stage.emit)
    assert again.end == "completed"
    assert len(stage.calls()) == 2


async def test_an_agent_that_waits_for_words_goes_on_with_the_first_it_has_not_heard(stage: Stage) -> None:
    listen = {"do": "wait_for_steer", "save_to": "first.txt"}
    again = {"do": "wait_for_steer", "save_to": "second.txt"}
    session = await stage.open(stage.spec({"work": [EDIT, listen, again]}))
    assert not await session.steer("too early")
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_ended")
    assert await session.steer("left")
    assert await session.steer("right")
    assert (await work).end == "completed"
    assert (stage.file("first.txt"), stage.file("second.txt")) == ("left", "right")
    assert stage.texts() == ["left", "right"]
    assert not await session.steer("too late")


async def test_an_agent_that_is_told_to_stop_takes_no_more_words(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT, {"do": "wait_for_steer"}]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_ended")
    stopping = asyncio.create_task(session.interrupt(30))
    await asyncio.sleep(0)
    assert not await session.steer("one more thing")
    assert (await stopping).method == "cooperative"
    assert code_of(await work) == "interrupted"


async def test_who_kills_an_interrupted_turn_is_not_taken_for_its_own_end(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [{"do": "hang"}]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_started")
    stopping = asyncio.create_task(session.interrupt(600))
    await asyncio.sleep(0)
    await session.aclose()
    assert (await stopping).method == "killed"
    assert code_of(await work) == "interrupted"
