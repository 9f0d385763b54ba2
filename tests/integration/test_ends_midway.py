"""A run that ends in the midst of something: what was done has its record, and the end is the one that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Rig
from flow_kit import OK, envelope_of, flow, gate, git, hold, kinds, linear, script, step, turn, write
from run_kit import READ_ONLY, TWO_STEPS, ended, said, signal, start, waiting, working
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import CancelledError

from schemas.run_record import RunRecord


async def cancelled(rig: Rig, name: str) -> None:
    """Wait for a run's end as cancelled."""
    with pytest.raises(WorkflowFailureError) as raised:
        await rig.client.get_workflow_handle(name).result()
    assert isinstance(raised.value.cause, CancelledError)
    described = await rig.client.get_workflow_handle(name).describe()
    assert described.status == WorkflowExecutionStatus.CANCELED


def record(rig: Rig, run_id: str) -> RunRecord:
    """Return what the store says of a run."""
    found = rig.evidence.get_model(f"runs/{run_id}/run.json", RunRecord)
    assert found is not None
    return found


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_an_attempt_that_is_ended_between_two_phases_has_receipt_and_envelope(
    desk: Rig, repo: Path, tmp_path: Path, how: str
) -> None:
    name = f"between-{how}"
    start(desk, name, repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, name)
    await signal(desk, name, "pause")
    await desk.until(name, lambda now: now["pause_requested"])
    (tmp_path / "go").touch()
    status = await waiting(desk, name, "pause")
    if how == "abort":
        await signal(desk, name, "abort", {"by": "ann"})
        await ended(desk, name, "stopped")
    else:
        await desk.client.get_workflow_handle(name).cancel()
        await cancelled(desk, name)
    (receipt,) = desk.receipts(status["run_id"])
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert [gate.measured for gate in receipt.gates] == [False]
    assert receipt.git is not None
    assert receipt.git.commit_after == record(desk, status["run_id"]).head, (
        "its work was finished and is there"
    )
    assert envelope_of(desk, receipt).status == "PARTIAL"
    assert kinds(desk, status["run_id"])[-1] == "run_completed"


@pytest.mark.chaos
async def test_an_abort_while_a_lost_worker_is_replaced_ends_the_run_as_stopped(
    rig: Rig, repo: Path, tmp_path: Path
) -> None:
    first = rig.worker()
    start(rig, "replaced", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "never"), OK)))
    run_id = (await working(rig, "replaced"))["run_id"]
    first.kill()
    first.wait()
    second = rig.worker("another", STEPWISE_CRASH_AT="acquire.leased")
    # It takes the lease and dies: the run does not know of it.
    second.wait(60)
    await signal(rig, "replaced", "abort")
    rig.worker("third")
    result = await rig.result("replaced")
    assert result.outcome == "stopped"
    assert [one.verification_status for one in rig.receipts(run_id)] == ["PARTIAL"]
    found = record(rig, run_id)
    assert (found.outcome, found.released) == ("stopped", True)


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["work.committed", "work.bundled", "work.result"])
async def test_a_commit_of_an_attempt_that_is_given_up_while_it_is_looked_for_has_a_receipt_or_is_not_on_the_branch(
    rig: Rig, repo: Path, point: str
) -> None:
    first = rig.worker(STEPWISE_CRASH_AT=point)
    start(rig, "given-up", repo, TWO_STEPS, script(only=turn(write("new.txt", "x"), OK)))
    first.wait(60)
    await signal(rig, "given-up", "abort")
    rig.worker()
    result = await ended(rig, "given-up", "stopped")
    assert result.git is not None
    clone = Path(result.git.workspace)
    commits = git(clone, "log", "--format=%H", f"{result.git.base}..{result.git.branch}").split()
    named = [one.git.commit_after for one in rig.receipts(result.run_id) if one.git]
    kept = git(clone, "for-each-ref", "--format=%(refname)", "refs/stepwise").split()
    if point == "work.committed":
        assert (commits, named) == ([], [])
        assert [ref.rpartition("/")[2] for ref in kept] == ["unrecorded"]
        assert git(clone, "show", f"{kept[0]}:new.txt") == "x"
    else:
        assert (commits, named, kept) == ([result.git.head], [result.git.head], [])


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["acquire.leased", "acquire.based"])
async def test_an_abort_after_the_first_worker_died_on_its_way_into_the_workspace(
    rig: Rig, repo: Path, point: str
) -> None:
    first = rig.worker(STEPWISE_CRASH_AT=point)
    start(rig, "early", repo, TWO_STEPS, "noop")
    first.wait(60)
    await signal(rig, "early", "abort", {"by": "ann"})
    rig.worker("another")
    result = await rig.result("early")
    assert (result.outcome, result.git) == ("stopped", None)
    found = record(rig, result.run_id)
    assert (found.outcome, found.released) == ("stopped", True)
    assert kinds(rig, result.run_id)[-1] == "run_completed"


async def test_an_agent_that_always_fails_is_not_tried_for_ever_though_silence_goes_on_by_itself(
    desk: Rig, repo: Path
) -> None:
    human = {"deadline": 1, "on_silence": "default"}
    failing = step("only", linear("end"), gates=[gate("there")], human=human, retries={"agent": 0})
    always = turn(*[{"do": "fail"}] * 10)
    start(desk, "silence", repo, flow(failing, step("end", **READ_ONLY)), script(only=always))
    result = await ended(desk, "silence", "needs_human")
    assert [one["action"] for one in said(desk, result.run_id, "resumed")] == ["timer"] * 5
    assert len(result.receipts) == 6


async def test_a_run_cancelled_in_the_flow_that_follows_its_failure_is_cancelled(
    rig: Rig, repo: Path, tmp_path: Path
) -> None:
    flows = tmp_path / "flows"
    flows.mkdir()
    tidy = flow(step("tidy", approval="before"), name="tidy")
    (flows / tidy["name"]).write_text(tidy["text"])
    rig.worker(STEPWISE_FLOW_PATHS=str(flows))
    failing = flow(step("only", gates=[gate("there")]), on_failure={"flow": "tidy"})
    start(rig, "followed", repo, failing, script(only=turn()))
    status = await waiting(rig, "followed", "approval")
    assert status["flow"] == "tidy"
    await rig.client.get_workflow_handle("followed").cancel()
    await cancelled(rig, "followed")
    assert record(rig, status["run_id"]).outcome == "cancelled"
