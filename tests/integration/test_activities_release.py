"""What is recorded of attempts and runs, what the end of a run leaves, and what a worker sweeps away."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from activities_kit import FLOW, RUN, Driver, make_worker, nothing_outlives_a_test, until
from flow_kit import git, make_repository
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.context import now
from activities.startup import sweep
from schemas.calls import FlushIn, Recover
from schemas.facts import StepFacts
from schemas.handoff import HandoffEnvelope
from schemas.receipt import StepReceipt
from schemas.run_record import RunRecord
from system.devserver import DevServer
from system.leftovers import leftovers
from system.processes import run

HANGING = (
    "version: 1\nsteps:\n  implement: {turns: [{work: [{do: edit, path: half, content: x}, {do: hang}]}]}\n"
)


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


@pytest.fixture
async def driver(tmp_path: Path) -> Driver:
    made = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"))
    await made.acquire()
    return made


async def test_a_stopped_attempt_is_recorded_as_partial_with_its_gates_unmeasured(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"), FLOW, HANGING)
    await driver.acquire()
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel()
    work = await task

    recorded = await driver.record(
        StepFacts(status="PARTIAL"),
        execution_status="interrupted",
        work=work,
        work_attempt=1,
        requested_by="ann",
    )

    receipt = StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))
    assert receipt.execution_status == "interrupted"
    assert receipt.stop is not None
    assert (receipt.stop.reason, receipt.stop.requested_by) == ("interrupt", "ann")
    assert receipt.handoff_partial == work.partial
    gate = receipt.gates[0]
    assert (gate.measured, gate.passed, gate.reason) == (False, None, "the attempt ended as interrupted")
    assert gate.before is not None
    envelope = HandoffEnvelope.model_validate_json(driver.ctx.evidence.read(recorded.envelope))
    assert (envelope.status, envelope.source) == ("PARTIAL", "engine")
    assert envelope.file_changes.created == ["half"]
    assert driver.ctx.receipts.verify_run(RUN, recorded.receipt.sha256).ok


async def test_a_receipt_says_which_earlier_attempt_its_phases_come_from(driver: Driver) -> None:
    work, measure = await driver.work(), await driver.measure(driver.key(attempt=2))
    finalize = await driver.finalize(driver.key(attempt=2), work_attempt=1)

    recorded = await driver.record(
        StepFacts(status="VERIFIED"),
        driver.key(attempt=2),
        work=work,
        work_attempt=1,
        measure=measure,
        measure_attempt=2,
        finalize=finalize,
        finalize_attempt=2,
    )

    receipt = StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))
    assert receipt.from_attempt == 1
    assert receipt.transcript is not None
    assert receipt.tool_calls.count == 2


async def test_the_last_measurement_has_a_receipt_though_it_is_no_step(driver: Driver) -> None:
    key = driver.key("_final")
    measure = await driver.measure(key, gates=["implement/there"])

    recorded = await driver.record(StepFacts(status="UNVERIFIED"), key, measure=measure, measure_attempt=1)

    receipt = StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))
    assert receipt.gates[0].name == "implement/there"
    assert receipt.gates[0].passed is False


async def test_journal_events_flushed_twice_are_stored_once(driver: Driver) -> None:
    call = FlushIn(run_id=RUN, journal=driver.events("waiting", "resumed"))

    first, second = await driver.call("flush_journal", call), await driver.call("flush_journal", call)

    assert first == second
    assert first.last_seq == 3
    assert [event.seq for event in driver.ctx.journal.read(RUN)] == [1, 2, 3]


async def test_a_released_run_can_be_fetched_and_released_again(driver: Driver) -> None:
    await driver.work()

    first, second = await driver.release(), await driver.release()

    assert first == second
    assert first.git is not None
    assert first.git.host == "test-host"
    subprocess.run(shlex.split(first.git.fetch), cwd=driver.repo, check=True, capture_output=True)
    assert git(driver.repo, "rev-parse", f"stepwise/{RUN}") == first.git.head
    folder = driver.ctx.folder(RUN)
    assert folder.workspace.is_dir()
    assert not folder.private.exists()
    record = driver.ctx.runs.get(RUN)
    assert record is not None
    assert (record.released, record.outcome) == (True, "verified")
    assert record.ended_at is not None


async def test_a_run_whose_clone_is_elsewhere_is_fetched_from_its_bundle(
    tmp_path: Path, driver: Driver
) -> None:
    await driver.work()
    other = Driver(
        make_worker(tmp_path, data="other", worker_id="w2"),
        driver.repo,
        resolved=driver.resolved,
        acquired=driver.acquired,
    )

    released = await other.release()

    assert released.git is not None
    subprocess.run(shlex.split(released.git.fetch), cwd=driver.repo, check=True, capture_output=True)
    assert git(driver.repo, "show", f"stepwise/{RUN}:made.txt") == "made"
    assert git(driver.repo, "rev-parse", f"stepwise/{RUN}^{{tree}}") == released.git.tree
    await sweep(driver.ctx)
    held = driver.ctx.folder(RUN).held()
    assert held is not None
    assert held.released_at is not None


async def test_a_run_whose_branch_an_agent_deleted_is_fetched_from_its_bundle(driver: Driver) -> None:
    await driver.work()
    workspace = driver.ctx.folder(RUN).workspace
    git(workspace, "update-ref", "-d", f"refs/heads/stepwise/{RUN}")

    released = await driver.release()

    assert released.git is not None
    subprocess.run(shlex.split(released.git.fetch), cwd=driver.repo, check=True, capture_output=True)
    assert git(driver.repo, "show", f"stepwise/{RUN}:made.txt") == "made"
    record = driver.ctx.runs.get(RUN)
    assert record is not None
    assert released.git.head == record.head


async def test_releasing_ends_what_the_run_left_running(driver: Driver) -> None:
    environment = driver.ctx.folder(RUN).environment(driver.ctx.folder(RUN).private / "x", ())
    orphan = asyncio.ensure_future(
        run(["sleep", "1000"], cwd=driver.repo, env=environment, timeout_s=1_000, grace_s=0)
    )
    await until(lambda: bool(leftovers(RUN)))

    await driver.release()

    assert leftovers(RUN) == []
    assert not (await orphan).ok


async def test_a_copy_of_a_run_that_another_worker_holds_is_dropped(tmp_path: Path, driver: Driver) -> None:
    assert await sweep(driver.ctx, starting=True) == []
    other = Driver(make_worker(tmp_path, data="other", worker_id="w2"), driver.repo)
    await other.acquire(Recover(key=driver.key(), phase="measure"))

    assert await sweep(driver.ctx) == [RUN]
    assert not driver.ctx.folder(RUN).path.exists()
    assert other.ctx.folder(RUN).workspace.is_dir()
    assert await sweep(other.ctx, starting=True) == []


async def test_an_agent_in_a_stale_copy_is_ended_before_the_copy_goes(tmp_path: Path) -> None:
    driver = Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"), FLOW, HANGING)
    await driver.acquire()
    task = asyncio.ensure_future(driver.work())
    await until(lambda: bool(leftovers(RUN)))
    # The other worker is on another machine: it cannot end this one's processes.
    driver.ctx.runs.take_lease(RUN, "w2", _as_it_is, force_new_epoch=True)

    assert await sweep(driver.ctx) == [RUN]

    with pytest.raises(Exception, match="is held by w2"):
        await task
    assert not driver.ctx.folder(RUN).path.exists()


async def test_a_finished_run_is_pruned_after_its_time(driver: Driver) -> None:
    await driver.release()
    assert await sweep(driver.ctx) == []
    folder = driver.ctx.folder(RUN)
    held = folder.held()
    assert held is not None
    kept_for = timedelta(seconds=driver.ctx.settings.keep_workspaces_s + 1)
    folder.hold(held.model_copy(update={"released_at": now() - kept_for}))

    assert await sweep(driver.ctx) == [RUN]
    assert not folder.path.exists()


@pytest.mark.parametrize("has_one_of_its_name", [False, True])
async def test_a_server_that_never_had_the_run_does_not_end_it(
    driver: Driver, server: DevServer, has_one_of_its_name: bool
) -> None:
    client = await Client.connect(server.address)
    folder = driver.ctx.folder(RUN)
    held = folder.held()
    assert held is not None
    if has_one_of_its_name:
        await client.start_workflow("Flow", id=held.workflow_id, task_queue="nobody")
    (folder.path / "private").mkdir(exist_ok=True)

    assert await sweep(dataclasses.replace(driver.ctx, client=client), starting=True) == []

    kept = folder.held()
    assert kept is not None
    assert kept.released_at is None
    assert (folder.path / "private").is_dir()


async def test_a_folder_nobody_holds_is_what_a_killed_acquisition_left(driver: Driver) -> None:
    stray = driver.ctx.runs_dir / "stray-0123456789ab"
    (stray / "ws").mkdir(parents=True)

    assert await sweep(driver.ctx, starting=True) == ["stray-0123456789ab"]
    assert driver.ctx.folder(RUN).workspace.is_dir()


def _as_it_is(record: RunRecord | None) -> RunRecord:
    assert record is not None
    return record
