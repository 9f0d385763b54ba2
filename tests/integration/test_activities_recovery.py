"""Kills at the points where it matters, and what recovery makes of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from activities_kit import RUN, SCENARIO, Driver, commits, make_worker, run_until_killed, until
from flow_kit import git, make_repository
from git_kit import dying_git
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from schemas.calls import CANCELLED, AttemptKey, Recover, WorkOut
from schemas.facts import StepFacts
from schemas.handoff import PartialHandoff
from system.leftovers import end_leftovers, leftovers
from system.processes import shutdown

HANGING = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: edit, path: half.txt, content: "half\\n"}
          - {do: tokens, prompt: 7}
          - {do: hang}
    resumed:
      work:
        - {do: edit, path: made.txt, content: "made\\n"}
"""
HALF = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: edit, path: half.txt, content: "half\\n"}
          - {do: tokens, prompt: 7}
          - {do: crash_worker}
    resumed:
      work:
        - {do: edit, path: made.txt, content: "made\\n"}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repo")
    return tmp_path


async def recovered(
    root: Path,
    phase: str,
    *,
    data: str = "data",
    worker_id: str = "w1",
    failure: str = "time-out (heartbeat)",
) -> Driver:
    driver = Driver(make_worker(root, data=data, worker_id=worker_id), root / "repo")
    await driver.resolve()
    lost = Recover.model_validate({"key": driver.key(), "phase": phase, "failure": failure})
    await driver.acquire(lost)
    return driver


@pytest.mark.parametrize("point", ["work.intent", "work.committed", "work.bundled", "work.logged"])
async def test_a_finished_turn_is_completed_once_wherever_its_worker_died(root: Path, point: str) -> None:
    run_until_killed(root, point)

    driver = await recovered(root, "work")

    assert driver.acquired is not None
    work = driver.acquired.finished_work
    assert work is not None
    assert work.ended == "finished"
    assert work.usage.total == 110
    assert work.tool_calls == 2
    assert work.changes.created == 2
    assert work.commit_after != work.commit_before
    assert commits(driver) == ["small/implement #1", "first"]
    assert driver.acquired.lease.epoch == 2
    assert not driver.acquired.rebuilt
    again = await driver.work()
    assert again == work
    assert commits(driver) == ["small/implement #1", "first"]


@pytest.mark.parametrize("point", ["acquire.cloned", "acquire.leased", "acquire.based"])
async def test_an_acquisition_cut_off_anywhere_is_simply_repeated(root: Path, point: str) -> None:
    run_until_killed(root, point)
    driver = Driver(make_worker(root), root / "repo")

    acquired = await driver.acquire()

    assert acquired.lease.epoch == 1
    assert acquired.base_gates["implement"][0].fact.measured
    assert (await driver.work()).ended == "finished"
    assert commits(driver) == ["small/implement #1", "first"]


@pytest.mark.parametrize(("point", "phase"), [("measure.gates", "measure"), ("finalize.draft", "finalize")])
async def test_a_phase_without_a_stored_result_is_done_again_in_the_next_attempt(
    root: Path, point: str, phase: str
) -> None:
    run_until_killed(root, point)

    driver = await recovered(root, phase)

    acquired = driver.acquired
    assert acquired is not None
    assert (acquired.finished_measure, acquired.finished_finalize) == (None, None)
    again = driver.key(attempt=2)
    if phase == "measure":
        assert (await driver.measure(again)).gates[0].fact.passed
    finalize = await driver.finalize(again, work_attempt=1)
    assert finalize.session_mode == "resumed"
    assert finalize.headline == "It is made."


async def test_a_stored_result_is_what_recovery_returns(root: Path) -> None:
    run_until_killed(root, "work.result")

    driver = await recovered(root, "work")

    assert driver.acquired is not None
    assert driver.acquired.finished_work is not None
    assert driver.acquired.finished_work.ended == "finished"
    assert commits(driver) == ["small/implement #1", "first"]


@pytest.mark.parametrize(
    ("point", "phase"),
    [("measure.done", "measure"), ("finalize.done", "finalize")],
)
async def test_results_of_later_phases_are_found_too(root: Path, point: str, phase: str) -> None:
    run_until_killed(root, point)

    driver = await recovered(root, phase)

    assert driver.acquired is not None
    found = {
        "measure": driver.acquired.finished_measure,
        "finalize": driver.acquired.finished_finalize,
    }
    assert found[phase] is not None
    assert [name for name, result in found.items() if result is not None] == [phase]


@pytest.mark.parametrize("point", ["record.envelope", "record.receipt", "record.done"])
async def test_a_record_that_was_cut_off_is_repeated_byte_for_byte(root: Path, point: str) -> None:
    run_until_killed(root, point)
    driver = await recovered(root, "record")
    key = driver.key()
    store = driver.ctx.evidence.blobs
    written = {
        name: store.read(f"{key.path}/{name}.json")
        for name in ("envelope", "receipt")
        if store.exists(f"{key.path}/{name}.json")
    }
    work = await driver.work()
    measure, finalize = await driver.measure(), await driver.finalize()
    driver.seq = 1

    recorded = await driver.record(
        StepFacts(status="VERIFIED"),
        work=work,
        work_attempt=1,
        measure=measure,
        measure_attempt=1,
        finalize=finalize,
        finalize_attempt=1,
    )

    assert written
    for name, data in written.items():
        assert store.read(f"{key.path}/{name}.json") == data
    assert driver.ctx.receipts.verify_run(RUN, recorded.receipt.sha256).ok
    assert [event.seq for event in driver.ctx.journal.read(RUN)] == [1, 2]


async def test_a_worker_killed_in_the_middle_of_a_turn_leaves_a_partial_to_go_on_from(root: Path) -> None:
    run_until_killed(root, "", HALF)

    driver = await recovered(root, "work")

    acquired = driver.acquired
    assert acquired is not None
    assert acquired.finished_work is None
    assert acquired.partial is not None
    lost = acquired.partial_work
    assert lost is not None
    assert lost.ended == "crash"
    assert lost.usage.total == 7
    assert lost.tool_calls == 1
    assert lost.changes.created == 1
    assert lost.session is not None
    assert lost.session.resumable
    partial = PartialHandoff.model_validate_json(driver.ctx.evidence.read(acquired.partial))
    assert partial.reason == "crash"
    assert partial.done == ["created half.txt"]
    assert partial.savepoint is not None
    assert partial.savepoint.bundle is not None
    assert partial.transcript is not None
    assert commits(driver) == ["first"]

    driver.scenario = HALF
    second = await driver.work(driver.key(attempt=2), partial=acquired.partial, session=lost.session)

    assert second.session_mode == "resumed"
    assert second.ended == "finished"
    assert second.changes.created == 2
    assert commits(driver) == ["small/implement #1", "first"]


async def test_what_an_agent_committed_itself_before_the_crash_is_counted_as_its_work(root: Path) -> None:
    own = """\
          - {do: run, argv: [git, add, .]}
          - {do: run, argv: [git, -c, user.name=A, -c, user.email=a@b, commit, -q, -m, own]}
"""
    run_until_killed(root, "", HALF.replace("          - {do: tokens", own + "          - {do: tokens"))

    acquired = (await recovered(root, "work")).acquired

    assert acquired is not None
    assert acquired.partial_work is not None
    assert acquired.partial_work.changes.created == 1
    assert acquired.partial_work.commit_before == acquired.base_commit
    assert acquired.partial_work.savepoint is not None


@pytest.mark.parametrize(
    ("failure", "ended"), [("time-out (heartbeat)", "crash"), (CANCELLED, "interrupted")]
)
async def test_recovery_repeated_returns_the_same_end_and_the_same_partial(
    root: Path, failure: str, ended: str
) -> None:
    run_until_killed(root, "", HALF)
    first = (await recovered(root, "work", failure=failure)).acquired
    second = (await recovered(root, "work", failure=failure)).acquired

    assert first is not None
    assert second is not None
    assert second.lease.epoch == first.lease.epoch + 1
    # What was stored as interrupted is a result; the run does the same with either.
    works = [one.partial_work or one.finished_work for one in (first, second)]
    assert works[0] == works[1]
    assert works[0] is not None
    assert (works[0].ended, works[0].partial) == (ended, first.partial)


async def test_an_attempt_that_never_began_leaves_nothing(root: Path) -> None:
    driver = Driver(make_worker(root), root / "repo")
    await driver.acquire()
    await driver.work()

    acquired = await driver.acquire(Recover(key=driver.key("finish"), phase="work", failure="schedule"))

    assert acquired.partial is None
    assert acquired.partial_work is None
    assert acquired.finished_work is None


@pytest.mark.parametrize("phase", ["work", "measure"])
async def test_an_empty_disk_is_rebuilt_without_the_repository(root: Path, phase: str) -> None:
    run_until_killed(root, "measure.done")
    shutil.rmtree(root / "repo")

    driver = await recovered(root, phase, data="other", worker_id="w2")

    acquired = driver.acquired
    assert acquired is not None
    assert acquired.rebuilt
    assert acquired.lease.worker_id == "w2"
    assert acquired.lease.epoch == 2
    workspace = driver.ctx.folder(RUN).workspace
    assert (workspace / "made.txt").read_text() == "made\n"
    assert commits(driver) == ["small/implement #1", "first"]
    assert git(workspace, "status", "--porcelain") == ""
    finalize = await driver.finalize()
    assert finalize.session_mode == "cold"
    assert finalize.draft is not None


async def test_an_empty_disk_gets_the_last_savepoint_of_a_stopped_attempt(root: Path) -> None:
    first = Driver(make_worker(root), root / "repo", scenario=HANGING)
    await first.acquire()
    stopped = await interrupted_in_turn(first)
    assert stopped.savepoint is not None

    second = Driver(make_worker(root, data="other", worker_id="w2"), root / "repo", scenario=HANGING)
    await second.resolve()
    lost = Recover(key=second.key(attempt=2), phase="work", failure="time-out (heartbeat)")
    acquired = await second.acquire(lost)

    assert acquired.rebuilt
    assert (second.ctx.folder(RUN).workspace / "half.txt").read_text() == "half\n"
    assert acquired.partial_work is not None
    assert acquired.partial_work.changes.created == 1
    out = await interrupted_in_turn(
        second, second.key(attempt=3), partial=acquired.partial, session=stopped.session
    )
    assert out.session_mode == "cold"


async def test_what_a_later_attempt_undid_does_not_come_back_on_an_empty_disk(root: Path) -> None:
    undone = HANGING.replace('path: made.txt, content: "made\\n"', "path: half.txt, delete: true")
    first = Driver(make_worker(root), root / "repo", scenario=undone)
    await first.acquire()
    stopped = await interrupted_in_turn(first)
    assert stopped.savepoint is not None
    resumed = await first.work(first.key(attempt=2), partial=stopped.partial, session=stopped.session)
    assert (resumed.ended, resumed.changes.created) == ("finished", 0)
    assert (await first.work(first.key("finish"))).ended == "finished"

    second = Driver(make_worker(root, data="other", worker_id="w2"), root / "repo", scenario=undone)
    await second.resolve()
    acquired = await second.acquire(
        Recover(key=second.key("finish", attempt=2), phase="work", failure="lost")
    )

    assert acquired.rebuilt
    assert not (second.ctx.folder(RUN).workspace / "half.txt").exists()


async def interrupted_in_turn(driver: Driver, key: AttemptKey | None = None, **changes: Any) -> WorkOut:
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.work(key, environment, **changes))
    await hanging(driver)
    environment.cancel()
    return await task


async def hanging(driver: Driver) -> None:
    await until(lambda: bool(leftovers(driver.run_id)))


async def test_an_attempt_alive_in_this_process_is_ended_and_saved_before_recovery_goes_on(
    root: Path,
) -> None:
    driver = Driver(make_worker(root), root / "repo", scenario=HANGING)
    await driver.acquire()
    task = asyncio.ensure_future(driver.work())
    await hanging(driver)

    acquired = await driver.acquire(Recover(key=driver.key(), phase="work", failure="time-out (heartbeat)"))

    out = await task
    assert out.ended == "server_lost"
    assert acquired.partial == out.partial
    assert acquired.partial_work is not None
    assert acquired.partial_work.ended == "server_lost"
    assert leftovers(RUN) == []


async def test_a_worker_that_lost_its_lease_writes_nothing(root: Path) -> None:
    old = Driver(make_worker(root), root / "repo")
    await old.acquire()
    new = await recovered(root, "measure", data="other", worker_id="w2")

    with pytest.raises(ApplicationError) as refused:
        await old.work()

    assert refused.value.type == "LeaseLost"
    assert refused.value.non_retryable
    assert not old.ctx.evidence.blobs.keys(f"{old.key().path}/work.json")
    assert (await new.work()).ended == "finished"


async def test_a_lease_lost_during_the_turn_keeps_the_commit_out_of_the_record(root: Path) -> None:
    scenario = SCENARIO.replace("{do: say, text: working}", f"{{do: wait_for_file, path: {root / 'go'}}}")
    old = Driver(make_worker(root), root / "repo", scenario=scenario)
    await old.acquire()
    task = asyncio.ensure_future(old.work())
    await until(lambda: old.ctx.sessions.holds(RUN))
    await recovered(root, "measure", data="other", worker_id="w2")
    (root / "go").touch()

    with pytest.raises(ApplicationError) as refused:
        await task

    assert refused.value.type == "LeaseLost"
    assert not old.ctx.evidence.blobs.keys(old.key().path)
    record = old.ctx.runs.get(RUN)
    assert record is not None
    assert record.newest is None


async def test_a_damaged_clone_is_made_again(root: Path) -> None:
    driver = Driver(make_worker(root), root / "repo")
    await driver.acquire()
    await driver.work()
    shutil.rmtree(driver.ctx.folder(RUN).workspace / ".git" / "objects")

    acquired = await driver.acquire(Recover(key=driver.key(), phase="measure", failure="E_GIT_DAMAGED"))

    assert acquired.rebuilt
    assert (await driver.measure()).gates[0].fact.passed


async def test_a_git_that_is_killed_while_a_clone_is_looked_at_costs_nothing_that_is_in_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until_killed(root, "", HALF)
    with monkeypatch.context() as patched:
        dying_git(root, patched, "write-tree")
        with pytest.raises(ApplicationError, match="signal 9") as caught:
            await recovered(root, "work")
        assert not caught.value.non_retryable

    acquired = (await recovered(root, "work")).acquired

    assert acquired is not None
    assert not acquired.rebuilt
    assert acquired.partial_work is not None
    assert acquired.partial_work.changes.created == 1


@pytest.fixture(autouse=True)
async def nothing_outlives_a_test() -> AsyncIterator[None]:
    yield
    await shutdown()
    assert await end_leftovers(RUN, 0) == []
