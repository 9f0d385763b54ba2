"""A whole run and a person: what is said reaches the agent at work, or the one that goes on with its session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, eventually
from flow_kit import (
    OK,
    file_at,
    flow,
    gate,
    linear,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from looking import pauses
from run_kit import READ_ONLY, Played, ended, resume, said, start, update, waiting, working

ASK = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}
CALL = {"do": "run", "argv": ["touch", "touched"], "ask": True, "reason": "it touches a file"}
SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


def attempts(result: Played) -> list[tuple[int, str, str | None]]:
    return [
        (one.attempt, one.execution_status, one.session) for one in result.receipts if one.step_id == "only"
    ]


async def test_an_answer_reaches_the_agent_that_asked_in_the_same_attempt(desk: Rig, repo: Path) -> None:
    start(desk, "live-answer", repo, SPEC, script(only=turn(ASK, OK)))
    status = await waiting(desk, "live-answer", "answer")
    assert status["waiting"]["reason"] == "Red or blue?"

    verdict = await update(desk, "live-answer", "answer", {"answers": {"1": "blue"}, "by": "ann"})

    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the agent has it")
    result = await ended(desk, "live-answer", "verified")
    assert attempts(result) == [(1, "succeeded", "cold")]
    assert file_at(result.git, "answer.txt") == "blue"


async def test_an_answer_that_comes_after_the_session_was_let_go_reaches_the_next_one(
    hasty: Rig, repo: Path
) -> None:
    start(hasty, "late-answer", repo, SPEC, script(only=turn(ASK, OK)))
    await hasty.until("late-answer", lambda now: now["waiting"] is not None and now.get("phase") != "work")

    await update(hasty, "late-answer", "answer", {"answers": {"1": "blue"}})

    result = await ended(hasty, "late-answer", "verified")
    assert attempts(result) == [(1, "interrupted", "cold"), (2, "succeeded", "resumed")]
    assert file_at(result.git, "answer.txt") == "blue"
    partial = partial_of(hasty, result.receipts[0])
    assert partial.reason == "question"
    assert partial.open_question is not None
    assert "Answer: blue" in transcript_of(hasty, result.receipts[1])


WHY = {"do": "ask", "question": "Why?", "save_to": "why.txt"}
LINK = {"do": "run", "argv": ["touch", "linked"], "ask": True}


async def test_of_what_an_agent_asks_at_once_each_is_answered_by_its_id(desk: Rig, repo: Path) -> None:
    together = {"do": "together", "actions": [ASK, CALL, WHY, LINK]}
    start(desk, "several", repo, SPEC, script(only=turn(together, OK)))
    colour, touch, why, link = await asked_at_once(desk, "several", 4)
    for one in (colour, touch, why, link):
        assert one["legal"], f"{one['kind']} {one['id']} has what answers it"

    answers = [
        ("answer", {"question_id": why["id"], "answers": {"1": "so"}}),
        ("reject", {"call_id": link["id"], "reason": "leave it"}),
        ("answer", {"question_id": colour["id"], "answers": {"1": "blue"}}),
        ("approve", {"call_id": touch["id"]}),
    ]
    for message, payload in answers:
        verdict = await update(desk, "several", message, payload)
        assert (verdict["verdict"], verdict["message"]) == ("accepted", "the agent has it")

    result = await ended(desk, "several", "verified")
    assert attempts(result) == [(1, "succeeded", "cold")]
    assert (file_at(result.git, "answer.txt"), file_at(result.git, "why.txt")) == ("blue", "so")
    assert result.git is not None
    left = {name: (Path(result.git.workspace) / name).exists() for name in ("touched", "linked")}
    assert left == {"touched": True, "linked": False}


async def asked_at_once(rig: Rig, name: str, count: int) -> list[dict[str, Any]]:
    handle = rig.client.get_workflow_handle(name)
    await waiting(rig, name, "answer")
    for pause in pauses():
        items: list[dict[str, Any]] = await handle.query("pending")
        if len(items) == count:
            break
        await asyncio.sleep(pause)
    return sorted(items, key=lambda one: str(one["id"]))


async def test_a_pause_that_was_asked_for_is_withdrawn_while_the_agent_waits(desk: Rig, repo: Path) -> None:
    hold = {"do": "wait_for_file", "path": str(desk.folder / "go")}
    start(desk, "withdraw", repo, SPEC, script(only=turn(hold, ASK, OK)))
    await working(desk, "withdraw")
    await update(desk, "withdraw", "pause", {"reason": "lunch"})
    (desk.folder / "go").touch()
    status = await waiting(desk, "withdraw", "answer")
    assert status["pause_requested"]

    verdict = await update(desk, "withdraw", "resume")

    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the pause is withdrawn")
    await update(desk, "withdraw", "answer", {"answers": {"1": "red"}})
    result = await ended(desk, "withdraw", "verified")
    assert attempts(result) == [(1, "succeeded", "cold")]


@pytest.mark.parametrize("when", ["live", "late"])
async def test_a_pause_that_was_asked_for_is_withdrawn_by_what_a_person_orders_since(
    desk: Rig, hasty: Rig, repo: Path, when: str
) -> None:
    rig, name = (desk, "order-live") if when == "live" else (hasty, "order-late")
    held = {"do": "wait_for_file", "path": str(rig.folder / f"go-{when}")}
    start(rig, name, repo, SPEC, script(only=turn(held, ASK, OK)))
    await working(rig, name)
    await update(rig, name, "pause", {"reason": "lunch"})
    (rig.folder / f"go-{when}").touch()
    await waiting(rig, name, "answer")
    if when == "late":
        await rig.until(name, lambda now: now["waiting"] is not None and now.get("phase") != "work")
    await update(rig, name, "resume", {"action": "skip"})
    result = await ended(rig, name)
    assert [one["waiting_for"] for one in said(rig, result.run_id, "waiting")] in ([], ["answer"])


@pytest.mark.parametrize(
    ("message", "payload", "touched"),
    [("approve", {}, True), ("reject", {"reason": "leave it"}, False)],
)
@pytest.mark.parametrize("when", ["live", "late"])
async def test_a_call_is_made_only_with_a_persons_consent(
    desk: Rig, hasty: Rig, repo: Path, when: str, message: str, payload: dict[str, Any], *, touched: bool
) -> None:
    rig = desk if when == "live" else hasty
    name = f"{when}-{message}"
    start(rig, name, repo, SPEC, script(only=turn(CALL, OK)))
    await waiting(rig, name, "approval")
    if when == "late":
        await rig.until(name, lambda now: now["waiting"] is not None and now.get("phase") != "work")

    await update(rig, name, message, payload)

    result = await ended(rig, name, "verified")
    last = [one for one in result.receipts if one.step_id == "only"][-1]
    assert (last.attempt, last.tool_calls.blocked) == (1 if when == "live" else 2, 0 if touched else 1)
    assert result.git is not None
    assert (Path(result.git.workspace) / "touched").exists() == touched
    if not touched:
        assert "denied_by_human: denied: leave it" in transcript_of(rig, last)


async def test_words_reach_the_agent_at_work(desk: Rig, repo: Path) -> None:
    listen = {"do": "wait_for_steer", "save_to": "heard.txt"}
    start(desk, "steer", repo, SPEC, script(only=turn({"do": "say", "text": "listening"}, listen, OK)))
    run_id = (await working(desk, "steer"))["run_id"]
    spool = desk.folder / "disk" / "spool"
    eventually(
        lambda: any("listening" in path.read_text() for path in spool.glob(f"{run_id}.*/events.jsonl"))
    )

    verdict = await update(desk, "steer", "steer", {"text": "mind the gap"})

    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the agent has it")
    result = await ended(desk, "steer", "verified")
    assert file_at(result.git, "heard.txt") == "mind the gap"


async def test_an_interrupt_ends_the_wait_and_the_question_is_asked_again(desk: Rig, repo: Path) -> None:
    start(desk, "interrupt-ask", repo, SPEC, script(only=turn(write("half", "x"), ASK, OK)))
    await waiting(desk, "interrupt-ask", "answer")

    await update(desk, "interrupt-ask", "interrupt", {"by": "ann", "reason": "a moment"})

    await waiting(desk, "interrupt-ask", "human")
    await resume(desk, "interrupt-ask")
    await waiting(desk, "interrupt-ask", "answer")
    await update(desk, "interrupt-ask", "answer", {"answers": {"1": "red"}})
    result = await ended(desk, "interrupt-ask", "verified")
    assert attempts(result) == [(1, "interrupted", "cold"), (2, "succeeded", "resumed")]
    stop = result.receipts[0].stop
    assert stop is not None
    assert (stop.reason, stop.method, stop.requested_by) == ("interrupt", "cooperative", "ann")
    assert partial_of(desk, result.receipts[0]).done == ["created half"]
    assert file_at(result.git, "answer.txt") == "red"


async def test_a_step_that_answers_by_default_goes_on_in_the_same_attempt(desk: Rig, repo: Path) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("there")], questions={"unanswered": "default"}),
        step("end", **READ_ONLY),
    )
    start(desk, "by-default", repo, spec, script(only=turn(ASK, OK)))
    result = await ended(desk, "by-default", "verified")
    assert attempts(result) == [(1, "succeeded", "cold")]
    assert file_at(result.git, "answer.txt") == "red"
