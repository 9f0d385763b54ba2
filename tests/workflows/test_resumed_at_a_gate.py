"""Who is asked for a yes, or for an answer, may order something else instead."""

from __future__ import annotations

from pathlib import Path

from conftest import Rig
from flow_kit import OK, flow, linear, script, step, transcript_of, turn
from run_kit import READ_ONLY, approved, ended, start, update, waiting

ASKS = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}


async def test_who_may_approve_a_beginning_may_as_well_begin_with_words_to_the_agent(
    desk: Rig, repo: Path
) -> None:
    start(desk, "begin", repo, approved("before"), script(only=turn(OK)))
    await waiting(desk, "begin", "approval")
    await update(desk, "begin", "resume", {"action": "retry", "note": "Mind the tests."})
    result = await ended(desk, "begin", "verified")
    only, _ = desk.receipts(result.run_id)
    assert (only.step_id, only.attempt) == ("only", 1)
    assert "Mind the tests." in transcript_of(desk, only)


async def test_who_may_approve_a_result_may_have_the_step_begun_again(desk: Rig, repo: Path) -> None:
    start(desk, "anew", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "anew", "approval")
    await update(desk, "anew", "resume", {"action": "retry", "note": "Once more.", "by": "ann"})
    await desk.until("anew", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "anew", "approve")
    result = await ended(desk, "anew", "verified")
    first, second, _ = desk.receipts(result.run_id)
    assert (first.step_id, first.attempt, second.step_id, second.attempt) == ("only", 1, "only", 2)
    assert "Once more." in transcript_of(desk, second)
    assert [(one.decision, one.source) for one in result.decisions[:2]] == [
        ("advance", "fast_path"),
        ("loop", "human"),
    ]


async def test_who_may_approve_a_result_may_leave_the_step_out_of_it(desk: Rig, repo: Path) -> None:
    start(desk, "left-out", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "left-out", "approval")
    await update(desk, "left-out", "resume", {"action": "skip"})
    result = await ended(desk, "left-out", "unverified")
    assert result.summary == "skipped: only"
    assert [one.step_id for one in desk.receipts(result.run_id)] == ["only", "end"]


async def test_who_is_asked_may_leave_the_step_instead_of_an_answer(hasty: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(hasty, "unanswered", repo, spec, script(only=turn(ASKS)))
    await hasty.until(
        "unanswered",
        lambda now: (now["waiting"] or {}).get("kind") == "answer" and "interrupt" not in now["legal"],
    )
    await update(hasty, "unanswered", "resume", {"action": "skip"})
    result = await ended(hasty, "unanswered", "nothing_to_do")
    assert [one.step_id for one in result.receipts] == ["only", "end"]
    first = result.decisions[0]
    assert (first.step_id, first.decision, first.source) == ("only", "skip", "human")
