"""Approval gates: nothing goes on without a yes, and a no reaches the agent."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import Rig, stepwise
from flow_kit import OK, flow, linear, script, step, transcript_of, turn
from run_kit import READ_ONLY, approved, ended, refused, said, signal, start, update, waiting


async def test_approval_before_a_step_waits_before_anything_is_done(desk: Rig, repo: Path) -> None:
    start(desk, "before", repo, approved("before"), script(only=turn(OK)))
    status = await waiting(desk, "before", "approval")
    assert status["waiting"]["reason"] == "may only start?"
    assert status["waiting"]["about"] == ["it is to: Do only."]
    assert status["legal"] == ["resume", "approve", "reject", "abort"]
    assert status["next_command"].endswith("--name approve")
    assert desk.receipts(status["run_id"]) == []
    assert "cannot simply continue" in await refused(desk, "before", "resume")
    await update(desk, "before", "approve", {"by": "ann"})
    result = await ended(desk, "before", "verified")
    assert [(one["name"], one.get("by")) for one in said(desk, result.run_id, "human_message")] == [
        ("approve", "ann")
    ]


async def test_a_step_that_may_not_start_waits_for_a_human(desk: Rig, repo: Path) -> None:
    start(desk, "before-no", repo, approved("before"), script(only=turn(OK)))
    await waiting(desk, "before-no", "approval")
    await update(desk, "before-no", "reject", {"reason": "not today", "by": "ann"})
    status = await waiting(desk, "before-no", "human")
    assert status["waiting"]["reason"] == "only was rejected by ann: not today"
    await update(desk, "before-no", "resume", {"action": "skip"})
    result = await ended(desk, "before-no", "nothing_to_do")
    assert [one.step_id for one in desk.receipts(result.run_id)] == ["end"]


async def test_approval_after_a_step_comes_when_its_receipt_is_written(desk: Rig, repo: Path) -> None:
    start(desk, "after", repo, approved("after"), script(only=turn(OK)))
    status = await waiting(desk, "after", "approval")
    assert status["waiting"]["reason"] == "is the result of only right?"
    receipt = desk.receipts(status["run_id"])[0]
    assert receipt.verification_status == "VERIFIED"
    (item,) = await desk.client.get_workflow_handle("after").query("pending")
    assert item["about"][:3] == ["the agent says: stub did 1 actions", "files: 1 created", "gates: there ✓"]
    assert item["about"] == status["waiting"]["about"]
    named = item["about"][3].removeprefix("the hand-off is ").removesuffix(" in the store")
    assert desk.evidence.blobs.read(named)
    show, diff = item["look"]
    assert show == f"stepwise show {status['run_id']}"
    shown = subprocess.run(shlex.split(diff), check=True, capture_output=True, text=True).stdout
    assert "+yes" in shown
    await signal(desk, "after", "approve")
    result = await ended(desk, "after", "verified")
    assert len(desk.receipts(result.run_id)) == 2


async def test_a_rejected_result_is_done_again_with_the_reason(desk: Rig, repo: Path) -> None:
    start(desk, "after-no", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "after-no", "approval")
    await update(desk, "after-no", "reject", {"reason": "Use a longer word.", "by": "ann"})
    await desk.until("after-no", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "after-no", "approve")
    result = await ended(desk, "after-no", "verified")
    first, second, _ = desk.receipts(result.run_id)
    assert (first.attempt, second.attempt, second.session) == (1, 2, "cold")
    shown = json.loads(stepwise("show", "after-no", "--json", env=desk.env("disk")).stdout)["events"]
    order = [(one["kind"], one["attempt"]) for one in shown if one["kind"] in {"step_ended", "receipt"}]
    ended_once = ("step_ended", None)
    assert order[:4] == [ended_once, ("receipt", 1), ended_once, ("receipt", 2)]
    assert "Use a longer word." in transcript_of(desk, second)
    assert [(one.step_id, one.decision, one.source, one.explanation) for one in result.decisions][1] == (
        "only",
        "loop",
        "human",
        "ann ordered reject after step only.",
    )


def is_asked(attempt: int) -> Callable[[dict[str, Any]], bool]:
    """Return what holds while an attempt waits for approval."""
    return lambda now: now["attempt"] == attempt and (now["waiting"] or {}).get("kind") == "approval"


async def test_the_sixth_rejection_is_a_humans_to_settle(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end"), approval="after"), step("end", **READ_ONLY))
    start(desk, "rejected", repo, spec, script(only=turn()))
    for number in range(1, 7):
        await desk.until("rejected", is_asked(number))
        await update(desk, "rejected", "reject", {"reason": f"no {number}"})
    status = await waiting(desk, "rejected", "human")
    assert status["waiting"]["reason"] == "rejected 6 times"
    await update(desk, "rejected", "resume", {"action": "skip"})
    result = await ended(desk, "rejected", "nothing_to_do")
    attempts = [one for one in desk.receipts(result.run_id) if one.step_id == "only"]
    assert [one.attempt for one in attempts] == [1, 2, 3, 4, 5, 6]
    assert "no 5" in transcript_of(desk, attempts[5])


async def test_a_plan_is_sent_back_and_then_carried_out(desk: Rig, demo_repo: Path) -> None:
    sent = {"flow": "plan-then-implement", "repo": str(demo_repo), "task": "t"}
    play = {"scenario": "plan-then-implement", "params": {"test": ["python3", "-m", "unittest", "-q"]}}
    desk.start("plan", {**sent, **play})
    await waiting(desk, "plan", "approval")
    await update(desk, "plan", "reject", {"reason": "Too long."})
    await desk.until("plan", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "plan", "approve")
    result = await ended(desk, "plan", "verified")
    receipts = desk.receipts(result.run_id)
    assert [one.step_id for one in receipts] == ["plan", "plan", "implement", "implement", "finish"]
    assert "A plan in two steps" in transcript_of(desk, receipts[2])
