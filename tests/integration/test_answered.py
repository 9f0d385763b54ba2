"""What a person may answer to a question or a call, when, and that it counts once."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
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
)
from run_kit import READ_ONLY, Played, ended, refused, resume, said, signal, start, update, waiting

SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


def ask(question: str = "Red or blue?", *options: str, **more: Any) -> dict[str, Any]:
    """Return the action that asks, and keeps the answer in a file."""
    return {"do": "ask", "question": question, "options": list(options), "save_to": "answer.txt", **more}


def call(mark: str = "x") -> dict[str, Any]:
    """Return a command that policy asks about; it leaves a mark."""
    argv = ["sh", "-c", f"echo {mark} >> marks"]
    return {"do": "run", "argv": argv, "ask": True, "reason": "it leaves a mark"}


COLOUR = ask("Red or blue?", "red", "blue", header="Colour")


async def let_go(rig: Rig, name: str, kind: str) -> dict[str, Any]:
    """Wait until a run waits for an answer, and no agent does."""
    return await rig.until(
        name,
        lambda now: (now.get("waiting") or {}).get("kind") == kind and "interrupt" not in now["legal"],
    )


def marks(result: Played) -> str:
    """Return the marks that were left in the run's clone."""
    assert result.git is not None
    path = Path(result.git.workspace) / "marks"
    return path.read_text() if path.exists() else ""


# Questions.


@pytest.mark.parametrize("held", [True, False], ids=["held", "let go"])
@pytest.mark.parametrize(
    ("action", "payload", "kept"),
    [
        (COLOUR, {"answers": {"Colour": "2"}}, "blue"),
        (COLOUR, {}, "red"),
        (ask("Why?"), {"answers": {"Why?": "Because it's $HOME."}}, "Because it's $HOME."),
        (ask("Why?"), {}, "Use your best judgement."),
        (ask("Which?", "a", "b", "c", multi_select=True), {"answers": {"1": ["a", "3"]}}, "a, c"),
    ],
)
async def test_an_answer_in_any_form_reaches_the_agent_once(
    desk: Rig, hasty: Rig, repo: Path, held: bool, action: Any, payload: dict[str, Any], kept: str
) -> None:
    rig = desk if held else hasty
    name = f"form-{held}-{kept[:6].strip(' ,.')}-{len(payload)}".lower().replace(" ", "-")
    start(rig, name, repo, SPEC, script(only=turn(action, OK)))
    await (waiting(rig, name, "answer") if held else let_go(rig, name, "answer"))
    await update(rig, name, "answer", {**payload, "by": "ann"})
    result = await ended(rig, name, "verified")
    assert file_at(result.git, "answer.txt") == kept
    assert [one.attempt for one in result.receipts if one.step_id == "only"] == ([1] if held else [1, 2])
    assert [
        (one["name"], one["verdict"], one["by"]) for one in said(rig, result.run_id, "human_message")
    ] == [("answer", "accepted", "ann")]


@pytest.mark.parametrize("held", [True, False], ids=["held", "let go"])
async def test_what_does_not_fit_the_question_is_refused_with_what_does(
    desk: Rig, hasty: Rig, repo: Path, held: bool
) -> None:
    rig, name = (desk, "unfit-held") if held else (hasty, "unfit")
    start(rig, name, repo, SPEC, script(only=turn(COLOUR, OK)))
    await (waiting(rig, name, "answer") if held else let_go(rig, name, "answer"))
    assert "'green' is no option of 'Red or blue?'; options: red, blue" in await refused(
        rig, name, "answer", {"answers": {"1": "green"}}
    )
    assert "no question '2'; asked: 1 (Red or blue?)" in await refused(
        rig, name, "answer", {"answers": {"2": "red"}}
    )
    (item,) = await rig.client.get_workflow_handle(name).query("pending")
    assert (item["kind"], item["live"], item["question"]["items"][0]["options"]) == (
        "answer",
        held,
        ["red", "blue"],
    )
    assert item["question"]["question_id"] == item["id"]
    assert f"waiting: '{item['id']}'" in await refused(
        rig, name, "answer", {"question_id": "other", "answers": {"1": "red"}}
    )
    assert "a run waiting for answer cannot simply continue; use answer" in await refused(rig, name, "resume")
    assert "approve is not legal while the run is waiting for answer" in await refused(rig, name, "approve")
    await signal(rig, name, "answer", {"answers": {"1": "green"}})
    status = await rig.until(name, lambda now: now["last_refused"] is not None)
    assert "no option" in status["last_refused"]["reason"]
    assert status["waiting"]["kind"] == "answer"
    await update(rig, name, "answer", {"question_id": item["id"], "answers": {"1": "blue"}})
    result = await ended(rig, name, "verified")
    assert file_at(result.git, "answer.txt") == "blue"


async def test_every_command_that_pending_names_for_a_question_works_as_typed(desk: Rig, repo: Path) -> None:
    nasty = ['it\'s "$HOME"', "`touch pwned`", "$(touch pwned); --name abort"]
    start(desk, "typed", repo, SPEC, script(only=turn(ask("Which of `these`?", *nasty), OK)))
    await waiting(desk, "typed", "answer")
    (item,) = await desk.client.get_workflow_handle("typed").query("pending")
    program, *argv = shlex.split(item["legal"][0]["command"])
    assert program == "temporal"
    done = desk.temporal(*argv, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["verdict"] == "accepted"
    result = await ended(desk, "typed", "verified")
    assert file_at(result.git, "answer.txt") == nasty[0]


async def test_a_second_answer_finds_nothing_that_waits(desk: Rig, repo: Path) -> None:
    start(desk, "second", repo, SPEC, script(only=turn(COLOUR, {"do": "wait_for_steer"}, OK)))
    await waiting(desk, "second", "answer")
    answers = [{"answers": {"1": colour}} for colour in ("red", "blue", "red")]
    found = await asyncio.gather(
        *(update(desk, "second", "answer", payload) for payload in answers), return_exceptions=True
    )
    verdicts = [one["verdict"] for one in found if isinstance(one, dict)]
    assert verdicts == ["accepted"], found
    first = answers[[isinstance(one, dict) for one in found].index(True)]["answers"]["1"]
    await desk.until("second", lambda now: now["state"] == "running")
    assert (await update(desk, "second", "steer", {"text": "go"}))["verdict"] == "accepted"
    result = await ended(desk, "second", "verified")
    assert file_at(result.git, "answer.txt") == first
    messages = [(one["name"], one["verdict"]) for one in said(desk, result.run_id, "human_message")]
    assert messages == [("answer", "accepted"), ("steer", "accepted")]


async def test_an_answer_that_comes_as_the_session_is_let_go_is_never_lost(hasty: Rig, repo: Path) -> None:
    async def race(number: int) -> None:
        name = f"race-{number}"
        start(hasty, name, repo, SPEC, script(only=turn(COLOUR, OK)))
        await hasty.until(name, lambda now: (now.get("waiting") or {}).get("kind") == "answer")
        await asyncio.sleep(0.02 * number)
        verdict = await update(hasty, name, "answer", {"answers": {"1": "blue"}})
        assert verdict["verdict"] in {"accepted", "queued"}
        result = await ended(hasty, name, "verified")
        assert file_at(result.git, "answer.txt") == "blue"
        assert len(said(hasty, result.run_id, "human_message")) == 1

    await asyncio.gather(*(race(number) for number in range(8)))


# Calls that policy asks about.


async def test_a_consent_counts_for_one_call_and_no_other_like_it(desk: Rig, hasty: Rig, repo: Path) -> None:
    """Also where the first was given to a session at work, and the second is asked after that was let go."""
    for rig, name in ((desk, "once-held"), (hasty, "once")):
        start(rig, name, repo, SPEC, script(only=turn(call(), call(), OK)))
        status = await waiting(rig, name, "approval")
        assert status["waiting"]["reason"].endswith("(it leaves a mark)")
        (item,) = await rig.client.get_workflow_handle(name).query("pending")
        await update(rig, name, "approve", {"call_id": item["id"]})
        first = item["id"]

        async def is_another(rig: Rig = rig, name: str = name, first: str = first) -> bool:
            found = await rig.client.get_workflow_handle(name).query("pending")
            return bool(found) and found[0]["id"] != first

        while not await is_another():  # noqa: ASYNC110 - a query asks
            await asyncio.sleep(0.02)
        assert f"no call {first!r} waits" in await refused(rig, name, "approve", {"call_id": first})
        await update(rig, name, "reject", {"reason": "once is enough"})
        result = await ended(rig, name, "verified")
        assert marks(result) == "x\n"
        last = [one for one in result.receipts if one.step_id == "only"][-1]
        assert last.tool_calls.blocked == 1
        assert "denied: once is enough" in transcript_of(rig, last)


async def test_a_consent_that_the_agent_had_is_not_kept_for_another_call_like_it(
    desk: Rig, repo: Path
) -> None:
    start(desk, "had", repo, SPEC, script(only=turn(call(), call(), OK)))
    await waiting(desk, "had", "approval")
    handle = desk.client.get_workflow_handle("had")
    (first,) = await handle.query("pending")
    verdict = await update(desk, "had", "approve")
    assert verdict["message"] == "the agent has it"
    while [one["id"] for one in await handle.query("pending")] in ([], [first["id"]]):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await update(desk, "had", "interrupt")
    await waiting(desk, "had", "human")
    await resume(desk, "had")
    await waiting(desk, "had", "approval")
    await update(desk, "had", "reject")
    result = await ended(desk, "had", "verified")
    assert marks(result) == "x\n"


async def test_a_consent_for_the_run_counts_for_every_call_like_it_in_every_step(
    hasty: Rig, repo: Path
) -> None:
    spec = flow(step("only", linear("more"), gates=[gate("there")]), step("more", linear("end")), step("end"))
    play = script(only=turn(call(), call(), OK), more=turn(call(), call("y")))
    start(hasty, "for-the-run", repo, spec, play)
    await let_go(hasty, "for-the-run", "approval")
    await update(hasty, "for-the-run", "approve", {"remember": "run"})
    status = await hasty.until(
        "for-the-run", lambda now: now["step"] == "more" and now["waiting"] is not None
    )
    assert "echo y" in status["waiting"]["reason"], "another call is asked about"
    await update(hasty, "for-the-run", "approve")
    result = await ended(hasty, "for-the-run", "verified")
    assert marks(result) == "x\nx\nx\ny\n"


async def test_a_call_that_was_let_go_stands_in_the_partial_handoff(hasty: Rig, repo: Path) -> None:
    start(hasty, "left", repo, SPEC, script(only=turn(call(), OK)))
    status = await let_go(hasty, "left", "approval")
    (receipt,) = hasty.receipts(status["run_id"])
    assert receipt.stop is not None
    assert receipt.stop.reason == "approval"
    partial = partial_of(hasty, receipt)
    assert partial.open_call is not None
    assert partial.open_call.reason == "it leaves a mark"
    view = await hasty.client.get_workflow_handle("left").query("partial_handoff")
    assert view["call"]["signature"] == partial.open_call.signature
    await resume(hasty, "left", action="skip")
    result = await ended(hasty, "left", "nothing_to_do")
    assert marks(result) == "", "a call nobody allowed was not made"
