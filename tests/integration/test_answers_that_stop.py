"""Agents that cannot be asked for hand-off or route: what is waited for, what is tried again, what ends the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import OK, envelope_of, flow, gate, git, linear, loop, script, step, turn
from interrupt_kit import begun, interrupted, phases_of, until_there
from run_kit import READ_ONLY, Played, ended, played, resume, said, start, update, waiting

from cli.replay import replay_history

PHASES = ("finalize", "route")
CHOSEN = {"kind": "branch", "decided_by": "agent", "default": "end", "when": []}
SPEC = flow(step("only", CHOSEN, gates=[gate("there")]), step("end", **READ_ONLY))
FOR_EVER = {"do": "rate_limit", "seconds": 3_600}
MOMENT = {"do": "rate_limit", "seconds": 0.3}
USE = {"do": "tokens", "prompt": 4, "completion": 1}
FAIL = {"do": "fail", "code": "provider_overloaded", "message": "too many ask"}


def before(phase: str, *actions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the script of an agent that does its work, and these actions before it answers in one phase."""
    made = turn({"do": "tokens", "prompt": 100}, OK, status="VERIFIED")
    made["route"] = {"value": {"decision": "advance", "next_step_id": "end"}}
    made[phase] = {**made[phase], "actions": list(actions)}
    return script(only=made)


async def replays(rig: Rig, name: str) -> None:
    """Assert that a run's history replays."""
    report = await replay_history(await rig.client.get_workflow_handle(name).fetch_history())
    assert (report.failure, report.divergence) == (None, None)


def sound(result: Played) -> None:
    """Assert that the work was done once, and that every token counts once."""
    assert result.git is not None
    assert git(result.git.workspace, "log", "--format=%s").splitlines() == ["small/only #1", "first"]
    assert sum(one.token_counts.total for one in result.receipts) == result.usage.total


@pytest.mark.parametrize("phase", PHASES)
async def test_a_rate_limit_is_waited_for_and_the_phase_is_tried_again(
    desk: Rig, repo: Path, phase: str
) -> None:
    name = f"rate-{phase}"
    result = await played(desk, name, repo, SPEC, before(phase, USE, MOMENT, USE))
    assert result.outcome == "verified"
    limited, again, _ = result.receipts
    assert (limited.execution_status, limited.verification_status) == ("interrupted", "PARTIAL")
    assert limited.stop is not None
    assert limited.stop.reason == "rate_limit"
    assert [(one.name, one.measured, one.passed) for one in limited.gates] == [("there", True, True)]
    assert limited.phases[-1].phase == phase
    assert limited.phases[-1].error is not None
    assert limited.phases[-1].error.code == "rate_limited"
    assert (again.attempt, again.from_attempt, again.verification_status) == (2, 1, "VERIFIED")
    assert again.claimed["status"] == "VERIFIED"
    assert again.phases[-1].error is None
    wanted = ["work", "measure", "finalize", "route"]
    assert phases_of(desk, result.run_id, 1)[: wanted.index(phase) + 1] == wanted[: wanted.index(phase) + 1]
    assert phases_of(desk, result.run_id, 2) == wanted[wanted.index(phase) :]
    assert [one["waiting_for"] for one in said(desk, result.run_id, "waiting")] == ["rate_limit"]
    told = [one for one in said(desk, result.run_id, "phase_ended") if one["phase"] == phase]
    assert (told[0]["ended"], told[0]["error"]) == ("rate_limited", "rate_limited")
    assert (limited.token_counts.total, again.token_counts.total) == (105, 5)
    sound(result)
    await replays(desk, name)


async def test_the_envelope_of_a_limited_hand_off_says_why_it_is_the_engines(desk: Rig, repo: Path) -> None:
    result = await played(desk, "envelope", repo, SPEC, before("finalize", MOMENT))
    envelope = envelope_of(desk, result.receipts[0])
    assert (envelope.source, envelope.status) == ("engine", "PARTIAL")
    assert envelope.reason is not None
    assert envelope.reason.startswith("no valid draft: rate_limited")


@pytest.mark.parametrize("phase", PHASES)
async def test_a_wait_for_a_limit_shows_and_can_be_cut_short(desk: Rig, repo: Path, phase: str) -> None:
    name = f"now-{phase}"
    start(desk, name, repo, SPEC, before(phase, FOR_EVER))
    status = await waiting(desk, name, "rate_limit")
    assert status["waiting"]["deadline"] is not None
    assert status["needs_human"] is False
    what = {"finalize": "hand-off", "route": "route"}[phase]
    assert status["waiting"]["reason"].endswith(f"; then the agent is asked again for its {what}")
    assert status["legal"] == ["interrupt", "resume", "abort"]
    handle = desk.client.get_workflow_handle(name)
    details = (await handle.query("__temporal_workflow_metadata")).current_details
    assert "waiting for the rate limit to end" in details
    assert f"asked again for its {what}" in details
    await resume(desk, name, action="continue")
    result = await ended(desk, name, "verified")
    (asked,) = [one for one in result.receipts[1].phases if one.phase == phase]
    assert asked.session == "resumed", "it was closed, and is resumed by its id"
    sound(result)


@pytest.mark.parametrize(
    ("action", "then"), [("continue", ["finalize", "route"]), ("retry", ["work", "measure", "finalize"])]
)
async def test_an_interrupt_while_a_limit_is_waited_for_waits_for_a_person_instead(
    desk: Rig, repo: Path, action: str, then: list[str]
) -> None:
    name = f"interrupted-{action}"
    start(desk, name, repo, SPEC, before("finalize", FOR_EVER))
    await waiting(desk, name, "rate_limit")
    verdict = await update(desk, name, "interrupt", {"by": "ann"})
    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the run waits for a resume")
    status = await interrupted(desk, name)
    assert (status["needs_human"], status["waiting"]["reason"]) == (True, "interrupted by ann")
    await resume(desk, name, action=action)
    if action == "retry":
        # The step is begun anew, and its agent is limited anew.
        await waiting(desk, name, "rate_limit")
        await resume(desk, name)
    result = await ended(desk, name, "verified")
    assert phases_of(desk, result.run_id, 2) == then


async def test_an_abort_while_a_limit_is_waited_for_ends_the_run_with_its_evidence(
    desk: Rig, repo: Path
) -> None:
    start(desk, "aborted", repo, SPEC, before("finalize", FOR_EVER))
    await waiting(desk, "aborted", "rate_limit")
    await update(desk, "aborted", "abort", {"by": "ann"})
    result = await ended(desk, "aborted", "stopped")
    (only,) = result.receipts
    assert only.git is not None
    assert only.git.commit_after != only.git.commit_before, "the work stands"


async def test_a_limit_is_waited_for_although_the_worker_is_lost_meanwhile(rig: Rig, repo: Path) -> None:
    first = rig.worker()
    start(rig, "lost", repo, SPEC, before("finalize", FOR_EVER))
    await waiting(rig, "lost", "rate_limit")
    first.kill()
    first.wait()
    rig.worker()
    await resume(rig, "lost", action="continue")
    result = await ended(rig, "lost", "verified")
    assert [one.session for one in result.receipts[-2].phases] == ["cold", "resumed", "hot"]
    sound(result)


@pytest.mark.parametrize("phase", PHASES)
async def test_an_error_that_no_retry_can_mend_ends_the_run_at_once_and_says_what_to_set(
    desk: Rig, repo: Path, phase: str
) -> None:
    refused = {"do": "fail", "code": "auth_failed", "message": "set SOME_KEY", "retryable": False}
    result = await played(desk, f"auth-{phase}", repo, SPEC, before(phase, refused))
    assert result.outcome == "failed"
    assert result.error is not None
    assert (result.error.code, result.summary) == ("auth_failed", "only: set SOME_KEY")
    (only,) = result.receipts
    assert only.execution_status == "failed"
    assert only.phases[-1].error == result.error
    sound(result)


@pytest.mark.parametrize("phase", PHASES)
async def test_what_may_pass_is_tried_again_as_often_as_the_step_allows_and_then_a_person_is_asked(
    desk: Rig, repo: Path, phase: str
) -> None:
    name = f"again-{phase}"
    start(desk, name, repo, SPEC, before(phase, FAIL, FAIL, FAIL))
    status = await waiting(desk, name, "human")
    assert (status["attempt"], status["waiting"]["reason"]) == (2, "only: too many ask")
    await resume(desk, name)
    await desk.until(name, lambda now: now["attempt"] == 3 and now["waiting"] is not None)
    await resume(desk, name)
    result = await ended(desk, name, "verified")
    assert [one.execution_status for one in result.receipts[:4]] == [
        "failed",
        "failed",
        "failed",
        "succeeded",
    ]
    assert {one.stop.reason for one in result.receipts[:3] if one.stop} == {"agent_failed"}
    sound(result)


async def test_an_agent_that_never_answers_is_said_in_the_journal_and_goes_on(desk: Rig, repo: Path) -> None:
    made = turn(OK)
    made["finalize"] = {"raw": ["no"] * 5}
    spec = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))
    result = await played(desk, "never", repo, spec, script(only=made))
    assert result.outcome == "verified"
    (told,) = [one for one in said(desk, result.run_id, "phase_ended") if one.get("error")]
    assert (told["phase"], told["ended"], told["error"]) == (
        "finalize",
        "finished",
        "structured_output_invalid",
    )
    (_, finalize) = result.receipts[0].phases
    assert finalize.error is not None
    assert finalize.error.code == "structured_output_invalid"


async def test_a_budget_that_is_used_up_by_a_hand_off_keeps_it_and_holds_the_next_work(
    desk: Rig, repo: Path
) -> None:
    looped = loop("only", "end", max_iterations=3, on_exhausted="advance")
    spec = flow(step("only", looped, gates=[gate("there")]), step("end", **READ_ONLY))
    costly = turn(status="PARTIAL")
    costly["finalize"]["actions"] = [{"do": "tokens", "prompt": 110}]
    play = script(only=[costly, turn(OK)])
    start(desk, "costly", repo, spec, play, budget={"tokens": 100})
    status = await waiting(desk, "costly", "budget")
    assert status["waiting"]["reason"].startswith("the budget of 100 tokens is used up (110 used)")
    first = desk.receipts(status["run_id"])[0]
    assert (first.execution_status, first.claimed["status"]) == ("succeeded", "PARTIAL")
    await update(desk, "costly", "extend_budget")
    result = await ended(desk, "costly", "verified")
    assert sum(one.token_counts.total for one in result.receipts) == result.usage.total == 110


async def test_a_hand_off_counts_also_where_its_attempt_is_stopped_before_the_route(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    start(desk, "counts", repo, SPEC, before("finalize", USE, {"do": "run", "argv": until_there(go)}))
    begun(go)
    await update(desk, "counts", "interrupt")
    go.touch()
    await interrupted(desk, "counts")
    await resume(desk, "counts", action="retry")
    result = await ended(desk, "counts")
    stopped = result.receipts[0]
    assert (stopped.execution_status, stopped.token_counts.total) == ("interrupted", 105)
    assert sum(one.token_counts.total for one in result.receipts) == result.usage.total
    await replays(desk, "counts")
