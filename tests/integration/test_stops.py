"""The end of a run by people: abort, cancel, terminate, reset; and what is left of it."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from conftest import Rig, eventually, stepwise
from flow_kit import (
    OK,
    envelope_of,
    event_types,
    failure,
    files_at,
    git,
    hold,
    kinds,
    partial_of,
    script,
    turn,
    write,
)
from run_kit import TWO_STEPS, approved, ended, payload, signal, start, update, waiting, working
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from schemas.handoff import PartialHandoff


async def test_abort_ends_an_agent_at_work_and_keeps_what_it_did(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "abort", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep, OK)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    assert psutil.pid_exists(pid)
    verdict = await update(desk, "abort", "abort", {"reason": "wrong branch", "by": "ann"})
    assert verdict["verdict"] == "accepted"
    result = await ended(desk, "abort", "stopped")
    assert result.summary == "aborted by ann: wrong branch"
    assert not psutil.pid_exists(pid)
    described = await desk.client.get_workflow_handle("abort").describe()
    assert described.status == WorkflowExecutionStatus.COMPLETED
    (receipt,) = desk.receipts(result.run_id)
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert receipt.stop is not None
    assert (receipt.stop.reason, receipt.stop.method, receipt.stop.requested_by) == (
        "abort",
        "cooperative",
        "ann",
    )
    assert [(one.measured, one.passed) for one in receipt.gates] == [(False, None)]
    assert envelope_of(desk, receipt).status == "PARTIAL"
    partial = partial_of(desk, receipt)
    assert partial.done == ["created half"]
    assert partial.savepoint is not None
    assert result.git is not None
    assert files_at(result.git) == ["README.md"]
    assert git(result.git.workspace, "show", f"{partial.savepoint.commit}:half") == "x"
    assert kinds(desk, result.run_id)[-1] == "run_completed"


async def test_abort_while_waiting_ends_the_run(desk: Rig, repo: Path) -> None:
    start(desk, "abort-wait", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "abort-wait", "approval")
    await signal(desk, "abort-wait", "abort")
    result = await ended(desk, "abort-wait", "stopped")
    assert result.summary == "aborted"
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "ok"], "what was finished stays on the branch"


async def test_a_pause_sent_with_the_start_holds_before_the_first_work(desk: Rig, repo: Path) -> None:
    done = desk.temporal(
        *("workflow", "signal-with-start", "--signal-name", "pause", "--signal-input", '{"reason":"wait"}'),
        *("--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", "early-pause", "--input"),
        json.dumps({"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}),
    )
    assert done.returncode == 0, done.stderr
    status = await waiting(desk, "early-pause", "pause")
    assert status["waiting"]["reason"] == "wait"
    assert desk.receipts(status["run_id"]) == []
    await signal(desk, "early-pause", "resume")
    await ended(desk, "early-pause", "verified")


async def test_an_abort_sent_with_the_start_ends_before_any_work(desk: Rig, repo: Path) -> None:
    done = desk.temporal(
        *("workflow", "signal-with-start", "--signal-name", "abort", "--signal-input", "{}"),
        *("--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", "early-abort", "--input"),
        json.dumps({"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}),
    )
    assert done.returncode == 0, done.stderr
    result = await desk.result("early-abort")
    assert result.outcome == "stopped"
    assert desk.receipts(result.run_id) == []
    described = await desk.client.get_workflow_handle("early-abort").describe()
    assert described.status == WorkflowExecutionStatus.COMPLETED
    listed = stepwise("runs", "--outcome", "stopped", "--json", env=desk.env())
    (row,) = [one for one in json.loads(listed.stdout) if one["run_id"] == result.run_id]
    assert (row["state"], row["repo"]) == ("stopped", str(repo))
    shown = stepwise("show", "early-abort", env=desk.env())
    assert shown.returncode == 2
    assert f"stepwise tail {result.run_id}" in shown.stderr


async def test_a_cancelled_workflow_is_cleaned_up_like_an_aborted_one(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "cancel", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    run_id = await desk.run_id("cancel")
    assert desk.temporal("workflow", "cancel", "--workflow-id", "cancel").returncode == 0
    handle = desk.client.get_workflow_handle("cancel")
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError)
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert not psutil.pid_exists(pid)
    (receipt,) = desk.receipts(run_id)
    assert receipt.execution_status == "interrupted"
    assert partial_of(desk, receipt).done == ["created half"]
    assert payload(desk.journal(run_id)[-1])["outcome"] == "cancelled"
    record = json.loads(desk.evidence.read_key(f"runs/{run_id}/run.json"))
    assert (record["outcome"], record["released"]) == ("cancelled", True)


async def test_a_workflow_cancelled_while_it_waits_ends_cancelled(desk: Rig, repo: Path) -> None:
    start(desk, "cancel-wait", repo, approved("before"), script(only=turn(OK)))
    status = await waiting(desk, "cancel-wait", "approval")
    await desk.client.get_workflow_handle("cancel-wait").cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await desk.client.get_workflow_handle("cancel-wait").result()
    assert isinstance(raised.value.cause, CancelledError)
    assert payload(desk.journal(status["run_id"])[-1])["outcome"] == "cancelled"


async def test_a_terminated_workflow_loses_its_agent_and_the_partial_is_stored(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "terminate", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    run_id = await desk.run_id("terminate")
    done = desk.temporal("workflow", "terminate", "--workflow-id", "terminate", "--reason", "test")
    assert done.returncode == 0, done.stderr
    eventually(lambda: not psutil.pid_exists(pid))
    key = f"runs/{run_id}/small/only/1/1/handoff_partial.json"
    eventually(lambda: desk.evidence.blobs.exists(key))
    partial = PartialHandoff.model_validate_json(desk.evidence.read_key(key))
    # A server that pushes cancellations does not say that the workflow is gone; one that does not, does.
    assert partial.reason in {"interrupt", "server_lost"}
    assert partial.done == ["created half"]
    assert desk.receipts(run_id) == []


@pytest.mark.parametrize("when", ["at work", "waiting"])
@pytest.mark.parametrize("to", ["first", "last"])
async def test_a_reset_is_refused_with_the_way_out(
    desk: Rig, repo: Path, tmp_path: Path, when: str, to: str
) -> None:
    name = f"reset-{to}-{when.rsplit(maxsplit=1)[-1]}"
    if when == "waiting":
        start(desk, name, repo, approved("after"), script(only=turn(OK)))
        status = await waiting(desk, name, "approval")
    else:
        start(desk, name, repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
        status = await working(desk, name)
    before = desk.receipts(status["run_id"])
    kind = "FirstWorkflowTask" if to == "first" else "LastWorkflowTask"
    done = desk.temporal("workflow", "reset", "--workflow-id", name, "--type", kind, "--reason", "test")
    assert done.returncode == 0, done.stderr
    error = await failure(desk, name)
    assert error.type == "ResetNotSupported"
    assert "a run cannot be reset" in error.message
    assert f"stepwise fork {status['run_id']} --from STEP" in error.message
    assert "WORKFLOW_TASK_FAILED" not in (await event_types(desk, name))[-4:]
    assert desk.receipts(status["run_id"]) == before
    after = await desk.status(name)
    assert (after["waiting"], after["needs_human"], after["legal"]) == (None, False, [])
    assert await desk.client.get_workflow_handle(name).query("pending") == []
    (tmp_path / "go").touch()


async def test_a_message_to_a_run_that_has_ended_is_a_clear_error(desk: Rig, repo: Path) -> None:
    start(desk, "over", repo, TWO_STEPS, script(only=turn(OK)))
    await ended(desk, "over", "verified")
    sent = desk.temporal("workflow", "signal", "--workflow-id", "over", "--name", "pause")
    assert sent.returncode == 1
    assert "already completed" in sent.stderr
    sent = desk.temporal("workflow", "update", "execute", "--workflow-id", "over", "--name", "pause")
    assert sent.returncode == 1
    assert "already completed" in sent.stderr
    status = await desk.status("over")
    assert (status["state"], status["outcome"], status["legal"]) == ("done", "verified", [])
