"""Taking hold of a run: what is refused, who is admitted, what a repeat does, what set-up and gates leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from activities_kit import FLOW, RUN, Driver, make_worker, nothing_outlives_a_test, until
from flow_kit import git, make_repository
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from schemas.errors import OWN_ERROR_TYPES
from system.leftovers import leftovers
from system.processes import Finished, SpawnFailed, run

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


def driver_for(root: Path, flow: str = FLOW, **settings: Any) -> Driver:
    return Driver(make_worker(root, **settings), root / "repo", flow)


def missing(_repo: Path) -> None:
    """Leave the repository out."""


def no_repository(repo: Path) -> None:
    repo.mkdir()


def unborn(repo: Path) -> None:
    repo.mkdir()
    git(repo, "init", "-q")


def dirty(repo: Path) -> None:
    make_repository(repo)
    (repo / "README.md").write_text("changed\n")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (missing, "is not there on host"),
        (no_repository, "is not a git repository"),
        (unborn, "has no commit"),
        (dirty, "uncommitted changes"),
    ],
)
async def test_a_repository_that_cannot_be_used_is_refused_and_leaves_nothing(
    tmp_path: Path, make: object, words: str
) -> None:
    assert callable(make)
    make(tmp_path / "repo")
    driver = driver_for(tmp_path)
    await driver.resolve()

    with pytest.raises(ApplicationError) as refused:
        await driver.acquire()

    assert refused.value.type == "RepositoryRefused"
    assert refused.value.type in OWN_ERROR_TYPES
    assert refused.value.non_retryable
    assert words in refused.value.message
    assert driver.ctx.evidence.blobs.keys("runs/") == []
    assert not driver.ctx.folder(RUN).path.exists()


async def test_a_base_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    driver = driver_for(tmp_path)

    with pytest.raises(ApplicationError, match="no-such-branch"):
        await driver.acquire(base="no-such-branch")

    assert not driver.ctx.folder(RUN).path.exists()


async def test_a_repeat_finds_what_is_done(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    driver = driver_for(tmp_path)
    first = await driver.acquire()
    (driver.ctx.folder(RUN).workspace / "live.txt").write_text("kept")
    driver.seq = 0

    second = await driver.acquire()

    assert second == first
    assert (driver.ctx.folder(RUN).workspace / "live.txt").exists()


async def test_another_worker_takes_a_run_whose_first_holder_is_gone(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    first = await driver_for(tmp_path).acquire()
    second = await Driver(make_worker(tmp_path, data="other", worker_id="w2"), tmp_path / "repo").acquire()

    assert (first.lease.worker_id, first.lease.epoch) == ("w1", 1)
    assert (second.lease.worker_id, second.lease.epoch) == ("w2", 2)
    assert second.base_commit == first.base_commit
    assert second.base_gates == first.base_gates


async def test_a_full_worker_says_when_to_ask_again_and_admits_when_there_is_room(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    first = driver_for(tmp_path, max_runs=1)
    await first.acquire()
    second = Driver(first.ctx, first.repo, run_id="other-0123456789ab")

    with pytest.raises(ApplicationError) as full:
        await second.acquire()

    assert full.value.type == "WorkerFull"
    assert not full.value.non_retryable
    assert full.value.next_retry_delay is not None
    assert full.value.next_retry_delay.total_seconds() == 5
    assert not second.ctx.folder(second.run_id).path.exists()
    await first.release()
    second.seq = 0
    assert (await second.acquire()).lease.epoch == 1


async def test_of_two_that_ask_at_once_one_is_admitted(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    first = driver_for(tmp_path, max_runs=1)
    second = Driver(first.ctx, first.repo, run_id="other-0123456789ab")

    results = await asyncio.gather(first.acquire(), second.acquire(), return_exceptions=True)

    assert sorted(type(result).__name__ for result in results) == ["AcquireOut", "ApplicationError"]


SETUP = """\
id: small
version: 1
title: With set-up
setup:
  - [sh, -c, "mkdir -p node_modules; echo x >> node_modules/count; echo junk > left.txt"]
"""


async def test_set_up_runs_once_and_its_files_are_no_work(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    flow = SETUP + FLOW.partition("title: A small flow\n")[2]
    driver = driver_for(tmp_path, flow)
    await driver.acquire()
    driver.seq = 0
    acquired = await driver.acquire()

    workspace = driver.ctx.folder(RUN).workspace
    assert (workspace / "node_modules" / "count").read_text() == "x\n"
    assert not (workspace / "left.txt").exists()
    work = await driver.work()
    assert work.changes.created == 2
    assert acquired.base_tree == git(workspace, "rev-parse", f"{acquired.base_commit}^{{tree}}")


async def test_a_set_up_that_fails_ends_the_run_with_its_output_and_gives_the_place_back(
    tmp_path: Path,
) -> None:
    make_repository(tmp_path / "repo")
    failing = SETUP.replace("mkdir -p node_modules", "echo no such package >&2; exit 3")
    driver = driver_for(tmp_path, failing + FLOW.partition("title: A small flow\n")[2])

    with pytest.raises(ApplicationError) as failed:
        await driver.acquire()

    assert failed.value.type == "SetupFailed"
    assert failed.value.non_retryable
    assert "exit code 3" in failed.value.message
    assert "no such package" in failed.value.message
    assert not driver.ctx.folder(RUN).path.exists()
    record = driver.ctx.runs.get(RUN)
    assert record is not None
    assert record.released
    assert record.outcome == "failed"


async def test_a_set_up_whose_guard_is_killed_is_tried_again(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    once = f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; kill -9 $PPID; sleep 1000; }}"
    driver = driver_for(
        tmp_path, SETUP.replace("mkdir -p", f"{once}; mkdir -p") + FLOW.partition("title: A small flow\n")[2]
    )

    with pytest.raises(ApplicationError, match="guard was killed") as failed:
        await driver.acquire()

    assert (failed.value.type, failed.value.non_retryable) == ("E_SPAWN", False)
    driver.seq = 0
    await driver.acquire()
    assert (driver.ctx.folder(RUN).workspace / "node_modules" / "count").read_text() == "x\n"


async def test_a_machine_without_a_process_for_git_or_a_set_up_refuses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repository(tmp_path / "repo")
    flow = SETUP + FLOW.partition("title: A small flow\n")[2]
    begun, failing = 0, 0

    async def scarce(*given: Any, **named: Any) -> Finished:
        nonlocal begun
        begun += 1
        if begun == failing:
            raise SpawnFailed("E_SPAWN", given[0][0], "no process is left")
        return await run(*given, **named)

    for module in ("system.git", "activities.setup"):
        monkeypatch.setattr(f"{module}.run", scarce)
    while begun >= failing:
        begun, failing = 0, failing + 4
        driver = driver_for(tmp_path / str(failing), flow)
        driver.repo = tmp_path / "repo"
        try:
            await driver.acquire()
        except ApplicationError as error:
            assert (error.type, error.non_retryable) == ("E_SPAWN", False), failing  # noqa: PT017 - not every time
            driver.seq = 0
            await driver.acquire()
        assert driver.acquired is not None
        assert driver.acquired.base_gates["implement"][0].fact.measured
    assert failing > 5


async def test_a_gate_before_the_run_that_was_not_measured_is_asked_again(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    once = f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; kill -9 $PPID; sleep 1000; }}"
    flow = FLOW.replace("argv: [test, -f, made.txt]", f"argv: [sh, -c, '{once}']")
    driver = driver_for(tmp_path, flow)

    measured = []
    for _ in range(2):
        driver.seq = 0
        measured.append((await driver.acquire()).base_gates["implement"][0].fact.measured)

    assert measured == [False, True]


async def test_gates_before_the_run_are_measured_once_per_command_and_leave_nothing(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    count = tmp_path / "count"
    command = f"[sh, -c, 'echo x >> {count}; echo y > made.txt; exit 1']"
    twice = f"""\
      - {{name: one, argv: {command}}}
      - {{name: two, argv: {command}}}
      - {{name: later, argv: ['false'], before: false}}
"""
    driver = driver_for(tmp_path, FLOW.replace("      - {name: there, argv: [test, -f, made.txt]}\n", twice))

    acquired = await driver.acquire()

    assert count.read_text() == "x\n"
    assert [run.fact.name for run in acquired.base_gates["implement"]] == ["one", "two"]
    assert not any(run.fact.passed for run in acquired.base_gates["implement"])
    assert not (driver.ctx.folder(RUN).workspace / "made.txt").exists()
    stored = driver.ctx.evidence.blobs.keys(f"runs/{RUN}/base/gates-")
    assert [key.rpartition("/")[2] for key in stored] == [
        "gates-implement-one.json",
        "gates-implement-two.json",
    ]


async def test_a_cancelled_acquisition_gives_its_place_back_and_can_be_asked_for_again(
    tmp_path: Path,
) -> None:
    make_repository(tmp_path / "repo")
    go = tmp_path / "go"
    waiting = SETUP.replace("mkdir -p node_modules", f"until test -e {go}; do sleep 0.02; done")
    driver = driver_for(tmp_path, waiting + FLOW.partition("title: A small flow\n")[2])
    environment = ActivityEnvironment()
    driver.environment = environment
    task = asyncio.ensure_future(driver.acquire())
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert not driver.ctx.folder(RUN).path.exists()
    assert driver.ctx.admitted == set()
    go.touch()
    driver.environment, driver.seq = ActivityEnvironment(), 0
    acquired = await driver.acquire()
    record = driver.ctx.runs.get(RUN)
    assert record is not None
    assert not record.released
    assert acquired.base_gates["implement"][0].fact.measured


async def test_heartbeats_go_on_while_the_workspace_is_made(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    go = tmp_path / "go"
    waiting = SETUP.replace("mkdir -p node_modules", f"until test -e {go}; do sleep 0.02; done")
    driver = driver_for(tmp_path, waiting + FLOW.partition("title: A small flow\n")[2])
    await driver.resolve()
    said: list[str] = []

    def heard(*details: str) -> None:
        said.append(details[0])
        if said.count("set-up: sh") == 3:
            go.touch()

    driver.environment.on_heartbeat = heard

    await driver.acquire()

    assert go.exists()


async def test_without_a_server_there_are_no_search_attributes(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")

    assert (await driver_for(tmp_path).acquire()).search_attributes is False
