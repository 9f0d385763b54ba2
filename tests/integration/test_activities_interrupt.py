"""An interrupt at any moment of a work phase: it ends, in bounded time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from pathlib import Path
from pipes import hear, tell
from typing import Any

import psutil
import pytest
from activities_kit import FLOW, RUN, Driver, acquired, nothing_outlives_a_test, partial_of, until
from flow_kit import git
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities import sessions as sessions_module
from schemas.calls import WorkOut
from schemas.events import TextEvent
from schemas.handoff import StopMethod
from system.leftovers import leftovers
from transports.port import Emit, SessionSpec, StepSession, StopReport, WorkOutcome, WorkRequest
from transports.stub import StubTransport
from transports.stub_session import StubSession

HALF = "{do: edit, path: half.txt, content: half}"
STALL = "{do: stall, seconds: 3600}"
HANG = "{do: hang}"
PATIENT = FLOW.replace("grace_s: 0.1", "grace_s: 600")


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


async def begun(driver: Driver, text: str = "half.txt") -> None:
    """Return once the agent has done so much."""
    spool = driver.ctx.spool
    await until(lambda: any(text in path.read_text() for path in spool.rglob("events.jsonl")))


async def interrupted(driver: Driver, attempt: int, *, hangs: bool) -> WorkOut:
    """Run an attempt and interrupt it in the middle of its work."""
    environment = ActivityEnvironment()
    key = driver.key(attempt=attempt)
    work = asyncio.ensure_future(driver.work(key, environment, fresh=True))
    await begun(driver)
    if hangs:
        await until(lambda: bool(leftovers(RUN)))
    environment.cancel()
    return await work


def descriptors() -> dict[str, str]:
    """Return what this process has open, but for the descriptor that looks."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[link.name] = str(link.readlink())
    return found


def litter(driver: Driver) -> list[str]:
    """Return temporary files, locks and logs that nobody needs any more."""
    folder = driver.ctx.folder(RUN)
    found = [*folder.scratch.rglob("*"), *driver.ctx.spool.rglob("*"), *folder.private.glob("*/tmp")]
    found += [*folder.path.rglob("*.lock"), *(folder.workspace / ".git").glob("*index?*")]
    return sorted(str(path) for path in found)


@pytest.mark.parametrize("hangs", [False, True], ids=["obeys", "hangs"])
async def test_ten_interrupts_leave_no_process_no_descriptor_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    driver = await acquired(tmp_path, HALF, HANG if hangs else STALL)
    method = "killed" if hangs else "cooperative"

    async def once(attempt: int) -> None:
        out = await interrupted(driver, attempt, hangs=hangs)
        assert (out.ended, out.stop_method) == ("interrupted", method)
        assert partial_of(driver, out).done == ["created half.txt"]

    # The first one starts what a worker starts once.
    await once(1)
    open_before, children = descriptors(), set(psutil.Process().children(recursive=True))
    littered, tasks = litter(driver), asyncio.all_tasks()
    for attempt in range(2, 12):
        await once(attempt)

    assert len(descriptors()) == len(open_before), (open_before, descriptors())
    # The guard of the last one has reported, and may be about to end.
    await until(lambda: set(psutil.Process().children(recursive=True)) <= children)
    assert list(temporary.iterdir()) == []
    assert litter(driver) == littered
    assert not driver.ctx.slots.locked()
    assert not driver.ctx.sessions.holds(RUN)
    assert RUN not in driver.ctx.running
    assert asyncio.all_tasks() == tasks


class Slow(StubTransport):
    """Opens no session before it may."""

    def __init__(self, *, heeds: bool = True) -> None:
        super().__init__()
        self._heeds = heeds
        self.opening = asyncio.Event()
        self.may_open = asyncio.Event()
        self.opened: list[StubSession] = []

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        self.opening.set()
        try:
            await self.may_open.wait()
        except asyncio.CancelledError:
            if self._heeds:
                raise
        session = await super().open_session(spec, emit)
        self.opened.append(session)
        return session


@pytest.mark.parametrize("heeds", [True, False])
async def test_an_interrupt_before_the_session_is_open_opens_none(tmp_path: Path, *, heeds: bool) -> None:
    driver = await acquired(tmp_path, HALF)
    transport = Slow(heeds=heeds)
    driver.ctx.transports = {"stub": transport}
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment))
    await transport.opening.wait()
    environment.cancel()

    out = await work

    assert (out.ended, out.session, out.savepoint) == ("interrupted", None, None)
    assert partial_of(driver, out).reason == "interrupt"
    assert not driver.ctx.sessions.holds(RUN)
    assert all(session._closed for session in transport.opened)
    assert not (driver.ctx.folder(RUN).workspace / "half.txt").exists()


@pytest.mark.parametrize("point", ["work.started", "opening"])
async def test_an_interrupt_between_the_opening_and_the_turn_ends_the_turn(
    tmp_path: Path, point: str
) -> None:
    driver = await acquired(tmp_path, STALL)
    environment = ActivityEnvironment()

    def cancel(reached: str) -> None:
        if reached == point:
            environment.cancel()

    class Telling(StubTransport):
        async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
            session = await super().open_session(spec, emit)
            cancel("opening")
            return session

    driver.ctx.crash_at = cancel
    driver.ctx.transports = {"stub": Telling()}

    out = await driver.work(environment=environment)

    assert out.ended == "interrupted"
    assert not driver.ctx.sessions.holds(RUN)


async def test_an_attempt_that_is_to_stop_before_it_begins_opens_nothing(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF)
    environment = ActivityEnvironment()

    async def held() -> None:
        work = asyncio.ensure_future(driver.work(environment=environment))
        # It waits for the run's lock, which this has.
        await until(lambda: RUN in driver.ctx.running)
        environment.cancel()
        await until(lambda: any(stop.reason for stop in driver.ctx.running._live.get(RUN, {})))
        works.append(work)

    works: list[asyncio.Future[WorkOut]] = []
    await driver.ctx.running.exclusive(RUN, held)

    out = await works[0]

    assert (out.ended, out.session) == ("interrupted", None)


class Exact(StubTransport):
    """Its agent is interrupted in the very moment in which it is done."""

    def __init__(self, environment: ActivityEnvironment) -> None:
        super().__init__()
        self._environment = environment

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        environment = self._environment

        class Done(StubSession):
            async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
                outcome = await super().work(request, emit)
                environment.cancel()
                return outcome

        session = Done.__new__(Done)
        session.__dict__.update((await super().open_session(spec, emit)).__dict__)
        return session


async def test_what_an_agent_finished_counts_though_it_is_interrupted_in_the_same_moment(
    tmp_path: Path,
) -> None:
    driver = await acquired(tmp_path, HALF)
    environment = ActivityEnvironment()
    driver.ctx.transports = {"stub": Exact(environment)}

    out = await driver.work(environment=environment)

    assert (out.ended, out.stop_method) == ("finished", None)
    assert out.commit_after != out.commit_before


@pytest.mark.parametrize("point", ["work.intent", "work.committed", "work.bundled", "work.logged"])
async def test_an_interrupt_after_the_turn_lets_its_result_be_stored(tmp_path: Path, point: str) -> None:
    driver = await acquired(tmp_path, HALF)
    environment = ActivityEnvironment()

    def cancel(reached: str) -> None:
        if reached == point:
            environment.cancel()

    driver.ctx.crash_at = cancel

    out = await driver.work(environment=environment)

    assert out.ended == "finished"
    workspace = driver.ctx.folder(RUN).workspace
    assert git(workspace, "log", "--format=%s", f"stepwise/{RUN}").splitlines() == [
        "small/implement #1",
        "first",
    ]
    assert await driver.work() == out


async def test_an_agent_in_the_middle_of_a_write_finishes_it_and_then_stops(tmp_path: Path) -> None:
    up, go = tmp_path / "up", tmp_path / "go"
    os.mkfifo(up)
    os.mkfifo(go)
    write = f"echo > {up}; read word < {go}; echo whole > whole.txt"
    driver = await acquired(
        tmp_path, f"{{do: run, argv: [sh, -c, '{write}'], finish: true}}", HALF, flow=PATIENT
    )
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment))
    await hear(up)
    environment.cancel()
    await until(lambda: any(stop.reason for stop in driver.ctx.running._live.get(RUN, {})))
    await tell(go, "go\n")

    out = await work

    assert (out.ended, out.stop_method) == ("interrupted", "agent_finished_write")
    partial = partial_of(driver, out)
    assert partial.stop_method == "agent_finished_write"
    assert partial.done == ["created whole.txt"]


async def test_an_agent_whose_write_does_not_end_within_the_grace_is_killed(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, "{do: run, argv: [sleep, '3600'], timeout: 3600, finish: true}")
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel()

    out = await work

    assert (out.ended, out.stop_method) == ("interrupted", "killed")
    assert leftovers(RUN) == []


async def test_a_worker_that_is_to_end_does_not_wait_for_a_long_grace(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, HANG, flow=PATIENT, drain_s=0.2)
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    held = driver.ctx.sessions.held(driver.key())
    assert held is not None
    session = held.session
    assert isinstance(session, StubSession)
    await until(session._stop.is_set)
    assert not work.done()

    environment.worker_shutdown()
    out = await work

    assert (out.ended, out.stop_method) == ("interrupted", "killed")
    assert partial_of(driver, out).savepoint is not None


async def test_interrupts_during_the_grace_change_nothing(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, HANG)
    work = asyncio.ensure_future(driver.work())
    await until(lambda: bool(leftovers(RUN)))
    inner = next(iter(driver.environment._activities)).task
    assert inner is not None
    while not work.done():
        inner.cancel()
        await asyncio.sleep(0.01)

    out = await work

    assert (out.ended, out.stop_method) == ("interrupted", "killed")
    assert partial_of(driver, out).done == ["created half.txt"]


class Deaf(StubSession):
    """Its agent hears nothing, and leaves a process behind that writes on."""

    wild: subprocess.Popen[bytes]

    def start(self) -> None:
        spec = self._actor._spec
        self.wild = subprocess.Popen(["sleep", "3600"], cwd=spec.workspace, env=dict(spec.environment))

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        emit(TextEvent(text="I am deaf"))
        self.start()
        await asyncio.Event().wait()
        raise AssertionError(request)

    async def interrupt(self, grace_s: float) -> StopReport:
        await asyncio.Event().wait()
        raise AssertionError(grace_s)

    async def aclose(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("shut_down", [False, True])
async def test_an_agent_that_hears_nothing_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shut_down: bool
) -> None:
    monkeypatch.setattr(sessions_module, "_LADDER_SLACK_S", 0.05)
    sessions: list[Deaf] = []

    class Opening(StubTransport):
        async def open_session(self, spec: SessionSpec, emit: Emit) -> StepSession:  # type: ignore[override]
            session = Deaf.__new__(Deaf)
            session.__dict__.update((await super().open_session(spec, emit)).__dict__)
            sessions.append(session)
            return session

    driver = await acquired(tmp_path, HALF, flow=PATIENT if shut_down else FLOW, drain_s=0.2)
    driver.ctx.transports = {"stub": Opening()}
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: bool(leftovers(RUN)))
    environment.cancel()
    if shut_down:
        environment.worker_shutdown()

    out = await work

    method: StopMethod | None = out.stop_method
    assert (out.ended, method) == ("interrupted", "killed")
    assert leftovers(RUN) == []
    sessions[0].wild.wait()


async def test_a_fresh_attempt_begins_at_the_last_commit_and_the_savepoint_stays(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, STALL)
    first = await interrupted(driver, 1, hangs=False)
    workspace = driver.ctx.folder(RUN).workspace
    assert (workspace / "half.txt").exists()
    seen: list[bool] = []

    class Looking(StubTransport):
        async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
            seen.append((spec.workspace / "half.txt").exists())
            return await super().open_session(spec, emit)

    driver.ctx.transports = {"stub": Looking()}
    for attempt, fresh in ((2, False), (3, True)):
        environment = ActivityEnvironment()
        changes: dict[str, Any] = {"fresh": fresh, "partial": first.partial}
        work = asyncio.ensure_future(driver.work(driver.key(attempt=attempt), environment, **changes))
        await begun(driver)
        environment.cancel()
        await work

    assert seen == [True, False]
    assert first.savepoint is not None
    assert git(workspace, "show", f"{first.savepoint.ref}:half.txt") == "half"
