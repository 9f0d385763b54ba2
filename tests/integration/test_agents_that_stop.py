"""Agents that fail, fall silent, ask, or are told to wait: what is kept, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import (
    OK,
    envelope_of,
    files_at,
    flow,
    gate,
    git,
    kinds,
    linear,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from run_kit import READ_ONLY, ended, played, resume, start, update, waiting


@pytest.mark.parametrize("crash", [{"do": "fail", "code": "overloaded"}, {"do": "crash_child"}])
async def test_an_agent_that_failed_is_tried_again_from_what_it_left(
    desk: Rig, repo: Path, crash: dict[str, Any]
) -> None:
    name = f"fails-{crash['do'].replace('_', '-')}"
    play = script(only={"turns": [turn(write("first", "x"), crash)], "resumed": turn(OK)})
    result = await played(desk, name, repo, flow(step("only", gates=[gate("there")])), play)
    assert result.outcome == "verified"
    failed, again = result.receipts
    assert (failed.execution_status, failed.verification_status) == ("failed", "PARTIAL")
    assert [(one.measured, one.passed) for one in failed.gates] == [(False, None)]
    assert failed.gates[0].reason == "the attempt ended as agent_failed"
    assert envelope_of(desk, failed).source == "engine"
    partial = partial_of(desk, failed)
    assert (partial.reason, partial.done) == ("agent_failed", ["created first"])
    assert partial.savepoint is not None
    assert again.session == "resumed"
    assert "Done: created first" in transcript_of(desk, again)
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "first", "ok"]
    assert git(result.git.workspace, "log", "--format=%s").splitlines() == ["small/only #1", "first"]


async def test_an_agent_that_keeps_failing_is_a_humans_and_skip_leaves_its_edits_out(
    desk: Rig, repo: Path
) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("there")], retries={"agent": 1}), step("end", **READ_ONLY)
    )
    failing = turn(write("half", "x"), {"do": "fail", "message": "no more"})
    start(desk, "keeps-failing", repo, spec, script(only={"turns": [failing], "resumed": failing}))
    status = await waiting(desk, "keeps-failing", "human")
    assert status["waiting"]["reason"] == "only: no more"
    assert status["attempt"] == 2
    await resume(desk, "keeps-failing", action="skip")
    result = await ended(desk, "keeps-failing")
    assert result.outcome == "nothing_to_do"
    assert [(one.step_id, one.attempt, one.execution_status) for one in result.receipts] == [
        ("only", 1, "failed"),
        ("only", 2, "failed"),
        ("end", 1, "succeeded"),
    ]


async def test_an_error_that_no_retry_can_mend_ends_the_run_at_once(desk: Rig, repo: Path) -> None:
    play = script(only=turn({"do": "fail", "code": "auth", "message": "set SOME_KEY", "retryable": False}))
    result = await played(desk, "fatal", repo, flow(step("only")), play)
    assert result.outcome == "failed"
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("auth", "set SOME_KEY")
    assert "set SOME_KEY" in result.summary
    assert len(result.receipts) == 1


async def test_a_rate_limit_is_a_durable_timer_that_shows(desk: Rig, repo: Path) -> None:
    limit = {"do": "rate_limit", "seconds": 0.3}
    play = script(only=turn(limit, OK))
    result = await played(desk, "rate", repo, flow(step("only", gates=[gate("there")])), play)
    assert result.outcome == "verified"
    limited, again = result.receipts
    assert limited.execution_status == "interrupted"
    assert partial_of(desk, limited).reason == "rate_limit"
    assert again.session == "resumed"
    waits = [event for event in desk.journal(result.run_id) if event.kind == "waiting"]
    assert [event.model_extra["waiting_for"] for event in waits if event.model_extra] == ["rate_limit"]


async def test_a_rate_limit_can_be_tried_before_its_time(desk: Rig, repo: Path) -> None:
    play = script(only=turn({"do": "rate_limit", "seconds": 3_600}, OK))
    start(desk, "rate-now", repo, flow(step("only", gates=[gate("there")])), play)
    status = await waiting(desk, "rate-now", "rate_limit")
    assert status["waiting"]["deadline"] is not None
    assert status["needs_human"] is False
    assert "abort" in status["legal"]
    assert "resume" in status["legal"]
    await resume(desk, "rate-now", action="continue")
    assert (await ended(desk, "rate-now")).outcome == "verified"


async def test_a_retry_stops_the_agent_that_asks_and_tells_the_next_attempt_what_was_said(
    desk: Rig, repo: Path
) -> None:
    ask = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, "question", repo, spec, script(only=turn(ask)))
    status = await waiting(desk, "question", "answer")
    assert status["waiting"]["reason"] == "Red or blue?"
    assert status["phase"] == "work", "its session is held for the answer"
    verdict = await update(
        desk, "question", "resume", {"action": "retry", "note": "Blue, please.", "by": "ann"}
    )
    assert verdict["message"] == "the agent is stopped first"
    await desk.until("question", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await resume(desk, "question", action="skip")
    result = await ended(desk, "question")
    stopped, again, _ = result.receipts
    assert partial_of(desk, stopped).reason == "interrupt"
    assert stopped.stop is not None
    assert (stopped.stop.method, stopped.stop.requested_by) == ("cooperative", "ann")
    assert again.session == "cold"
    assert "Blue, please." in transcript_of(desk, again)


async def test_a_question_in_a_flow_that_answers_none_fails_the_run(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", gates=[gate("there")], questions={"unanswered": "fail"}))
    ask = {"do": "ask", "question": "Red or blue?"}
    result = await played(desk, "question-fail", repo, spec, script(only=turn(ask, OK)))
    assert result.outcome == "failed"
    asked = partial_of(desk, result.receipts[0])
    assert asked.reason == "question"
    assert asked.open_question is not None
    assert asked.open_question.items[0].question == "Red or blue?"


@pytest.mark.parametrize(
    ("action", "method"), [({"do": "stall", "seconds": 3_600}, "cooperative"), ({"do": "hang"}, "killed")]
)
async def test_a_silent_agent_is_ended_and_tried_again(
    desk: Rig, repo: Path, action: dict[str, Any], method: str
) -> None:
    spec = flow(step("only", gates=[gate("there")], timeouts={"no_output": 1}, interrupt={"grace_s": 0.2}))
    play = script(only={"turns": [turn(write("first", "x"), action)], "resumed": turn(OK)})
    result = await played(desk, f"silent-{action['do']}", repo, spec, play)
    assert result.outcome == "verified"
    silent = result.receipts[0]
    assert silent.execution_status == "timeout"
    assert silent.stop is not None
    assert silent.stop.reason == "timeout"
    assert silent.stop.method == method
    assert partial_of(desk, silent).done == ["created first"]
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "first", "ok"]


async def test_work_that_takes_too_long_is_ended_and_counts_as_a_failure(desk: Rig, repo: Path) -> None:
    spec = flow(
        step("only", linear("end"), timeouts={"work": 1}, retries={"agent": 0}, interrupt={"grace_s": 0.2}),
        step("end", **READ_ONLY),
    )
    start(desk, "too-long", repo, spec, script(only=turn({"do": "stall", "seconds": 3_600})))
    status = await waiting(desk, "too-long", "human")
    assert "did not finish in time" in status["waiting"]["reason"]
    await resume(desk, "too-long", action="abort", by="ann", note="enough")
    result = await ended(desk, "too-long")
    assert (result.outcome, result.summary) == ("stopped", "aborted by ann: enough")


@pytest.mark.parametrize("whose", ["step", "run"])
async def test_a_used_up_budget_of_tokens_asks_before_more_is_spent(
    desk: Rig, repo: Path, whose: str
) -> None:
    budget = {"tokens": 100}
    spec = flow(step("only", gates=[gate("there")], **({"budget": budget} if whose == "step" else {})))
    use = {"do": "tokens", "prompt": 90, "completion": 20}
    more = {"budget": budget} if whose == "run" else {}
    name = f"budget-{whose}"
    start(desk, name, repo, spec, script(only={"turns": [turn(use, OK)], "resumed": turn(OK)}), **more)
    status = await waiting(desk, name, "budget")
    assert status["usage"]["prompt"] + status["usage"]["completion"] == 110
    assert "budget" in status["waiting"]["reason"] or "token" in status["waiting"]["reason"]
    refused = desk.temporal(
        "workflow", "update", "execute", "--workflow-id", name, "--name", "resume", "--input", "{}"
    )
    assert refused.returncode == 1
    assert "a run waiting for budget cannot simply continue" in refused.stderr
    await resume(desk, name, action="abort")
    result = await ended(desk, name)
    assert result.outcome == "stopped"
    assert result.receipts[0].token_counts.total == 110
    assert partial_of(desk, result.receipts[0]).reason == "budget"
    assert result.usage.total == 110


async def test_setup_that_fails_fails_the_run_with_a_result(desk: Rig, repo: Path) -> None:
    spec = flow(step("only"), setup=[["sh", "-c", "echo no such luck; exit 3"]])
    desk.start("setup", {"spec": spec, "repo": str(repo), "task": "t", "scenario": "noop"})
    result = await desk.result("setup")
    assert result.outcome == "failed"
    assert result.error is not None
    assert result.error.code == "SetupFailed"
    assert "exit code 3\nno such luck" in result.error.message
    assert kinds(desk, result.run_id) == ["run_created", "run_completed"]


async def test_setup_runs_before_the_first_step_and_leaves_no_trace_on_the_branch(
    desk: Rig, repo: Path
) -> None:
    spec = flow(
        step("only", gates=[gate("there")]),
        setup=[["sh", "-c", "echo built > built.txt"], ["test", "-f", "built.txt"]],
    )
    result = await played(desk, "setup-ok", repo, spec, script(only=turn(OK)))
    assert result.outcome == "verified"
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "ok"]
