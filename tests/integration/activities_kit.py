"""What tests of activities share: a repository, a worker without a server, and calls with little to write."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flow_kit import git, make_repository
from looking import pauses
from temporalio.testing import ActivityEnvironment

from activities.context import WorkerContext, crash_point
from activities.register import build_activities
from schemas.calls import (
    AcquireIn,
    AcquireOut,
    AttemptKey,
    FinalizeOut,
    MeasureIn,
    MeasureOut,
    RecordIn,
    RecordOut,
    Recover,
    ReleaseIn,
    ReleaseOut,
    ResolveIn,
    ResolveOut,
    SessionPhaseIn,
    WorkIn,
    WorkOut,
)
from schemas.events import RunEvent
from schemas.facts import StepFacts
from schemas.handoff import PartialHandoff
from schemas.receipt import GENESIS
from schemas.run import FlowInput, InlineFile, InlineSpec
from schemas.settings import WorkerSettings
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from system.leftovers import leftovers
from system.processes import shutdown
from transports.port import Transport
from transports.registry import open_transports

ROOT = Path(__file__).resolve().parents[2]
# Of this process and its children alone: leftovers of a run are looked for on the whole machine.
RUN = os.environ.setdefault("ACTIVITIES_KIT_RUN", f"run-{os.getpid():012x}")
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)

FLOW = """\
id: small
version: 1
title: A small flow
steps:
  - id: implement
    agent: worker
    objective: "Do ${task}."
    outputs: [notes.md]
    interrupt: {grace_s: 0.1}
    gates:
      - {name: there, argv: [test, -f, made.txt]}
    routing: {kind: linear, next: finish}
  - id: finish
    agent: worker
    policy: read-only
    objective: Close.
    inputs: [implement]
    routing: {kind: terminal}
"""
PERSONA = """\
---
name: worker
description: Does what it is told.
---
You do what you are told.
"""
SCENARIO = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: say, text: working}
          - {do: edit, path: made.txt, content: "made\\n"}
          - {do: edit, path: notes.md, content: "notes\\n"}
          - {do: tokens, prompt: 100, completion: 10}
        finalize:
          value: {status: VERIFIED, summary: It is made.}
"""


def make_worker(
    root: Path,
    *,
    data: str = "data",
    worker_id: str = "w1",
    crash_at: Callable[[str], None] = lambda _: None,
    transports: Mapping[str, Transport] | None = None,
    **settings: Any,
) -> WorkerContext:
    """Make a worker whose store is shared by every worker under ``root``."""
    store = f"file://{root / 'store'}"
    chosen = WorkerSettings(
        data_dir=root / data,
        store=store,
        fsync=False,
        heartbeat_every_s=0.05,
        stub_may_crash_worker=True,
        **{"transports": ["stub"], **settings},
    )
    blobs = open_blobs(store, fsync=False, shared=True, temporal_is_loopback=True)
    return WorkerContext(
        settings=chosen,
        worker_id=worker_id,
        evidence=Evidence(blobs, Redactor()),
        transports=open_transports(chosen) if transports is None else transports,
        crash_at=crash_at,
        host="test-host",
    )


@dataclass
class Driver:
    """Runs the activities of one worker in the order a workflow would."""

    ctx: WorkerContext
    repo: Path
    flow: str = FLOW
    scenario: str = SCENARIO
    run_id: str = RUN
    environment: ActivityEnvironment = field(default_factory=ActivityEnvironment)
    resolved: ResolveOut | None = None
    acquired: AcquireOut | None = None
    head: str = GENESIS
    seq: int = 0

    def __post_init__(self) -> None:
        registered = build_activities(self.ctx)
        everything = [*registered.shared, *registered.pinned, *registered.control]
        self.activities = {_name(one): one for one in everything}

    async def call(self, name: str, argument: Any, environment: ActivityEnvironment | None = None) -> Any:
        """Run one activity by its name."""
        return await (environment or self.environment).run(self.activities[name], argument)

    def input(self, **changes: Any) -> FlowInput:
        """Return the input of a run of the small flow."""
        fields: dict[str, Any] = {
            "spec": InlineSpec(name="small.yaml", text=self.flow, files={"agents/worker.md": PERSONA}),
            "task": "the thing",
            "repo": str(self.repo),
            "scenario": InlineFile(name="s.yaml", text=self.scenario),
        }
        return FlowInput(**{**fields, **changes})

    async def resolve(self, **changes: Any) -> ResolveOut:
        """Resolve the flow."""
        call = ResolveIn(run_id=self.run_id, input=self.input(**changes))
        self.resolved = await self.call("resolve_flow", call)
        return self.resolved

    async def acquire(self, recover: Recover | None = None, **changes: Any) -> AcquireOut:
        """Acquire the workspace, resolving first if that was not done."""
        resolved = self.resolved or await self.resolve()
        fields: dict[str, Any] = {
            "run_id": self.run_id,
            "workflow_id": "wf",
            "execution_run_id": "0" * 36,
            "flow_key": resolved.spec.id,
            "bundle": resolved.bundle,
            "repo": str(self.repo),
            "recover": recover,
            "journal": self.events("run_created"),
        }
        self.acquired = await self.call("acquire_workspace", AcquireIn(**{**fields, **changes}))
        return self.acquired

    def key(self, step: str = "implement", *, visit: int = 1, attempt: int = 1) -> AttemptKey:
        """Return an attempt's key."""
        return AttemptKey(run_id=self.run_id, flow_key="small", step_id=step, visit=visit, attempt=attempt)

    def events(self, *kinds: str) -> list[RunEvent]:
        """Return the next events of the run's journal."""
        made = []
        for kind in kinds:
            self.seq += 1
            made.append(
                RunEvent.model_validate(
                    {
                        "run_id": self.run_id,
                        "seq": self.seq,
                        "event_id": f"{self.run_id}.{self.seq}",
                        "ts": NOON,
                        "kind": kind,
                    }
                )
            )
        return made

    def phase(self, key: AttemptKey) -> dict[str, Any]:
        """Return what every pinned phase is given."""
        assert self.acquired is not None
        assert self.resolved is not None
        return {
            "key": key,
            "iteration": 1,
            "lease": self.acquired.lease,
            "bundle": self.resolved.bundle,
            "workflow_id": "wf",
        }

    def work_in(self, key: AttemptKey | None = None, **changes: Any) -> WorkIn:
        """Return the argument of a work phase."""
        return WorkIn(**{**self.phase(key or self.key()), "transports": ["stub"], **changes})

    async def work(
        self,
        key: AttemptKey | None = None,
        environment: ActivityEnvironment | None = None,
        **changes: Any,
    ) -> WorkOut:
        """Run a work phase."""
        out: WorkOut = await self.call("work", self.work_in(key, **changes), environment)
        return out

    async def measure(
        self,
        key: AttemptKey | None = None,
        environment: ActivityEnvironment | None = None,
        gates: Sequence[str] | None = None,
    ) -> MeasureOut:
        """Run a measure phase."""
        call = MeasureIn(**self.phase(key or self.key()), gates=None if gates is None else list(gates))
        out: MeasureOut = await self.call("measure", call, environment)
        return out

    async def finalize(
        self, key: AttemptKey | None = None, environment: ActivityEnvironment | None = None, **changes: Any
    ) -> FinalizeOut:
        """Run a finalize phase."""
        at = key or self.key()
        fields = {**self.phase(at), "work_attempt": at.attempt, **changes}
        out: FinalizeOut = await self.call("finalize", SessionPhaseIn(**fields), environment)
        return out

    def record_in(self, facts: StepFacts, key: AttemptKey | None = None, **changes: Any) -> RecordIn:
        """Return the argument of a record call."""
        assert self.acquired is not None
        assert self.resolved is not None
        at = key or self.key()
        fields: dict[str, Any] = {
            "key": at,
            "iteration": 1,
            "lease": self.acquired.lease,
            "bundle": self.resolved.bundle,
            "branch": self.acquired.branch,
            "execution_status": "succeeded",
            "facts": facts,
            "base_gates": self.acquired.base_gates.get(at.step_id, []),
            "started_at": NOON,
            "completed_at": NOON,
            "previous_sha256": self.head,
            "journal": self.events("step_ended"),
        }
        return RecordIn(**{**fields, **changes})

    async def record(self, facts: StepFacts, key: AttemptKey | None = None, **changes: Any) -> RecordOut:
        """Record an attempt and go on in the chain."""
        out: RecordOut = await self.call("record", self.record_in(facts, key, **changes))
        self.head = out.receipt.sha256
        return out

    async def release(self, **changes: Any) -> ReleaseOut:
        """Release the workspace."""
        assert self.acquired is not None
        fields: dict[str, Any] = {
            "run_id": self.run_id,
            "workflow_id": "wf",
            "lease": self.acquired.lease,
            "outcome": "verified",
            "receipts_head": self.head,
        }
        out: ReleaseOut = await self.call("release_workspace", ReleaseIn(**{**fields, **changes}))
        return out


def _name(function: Any) -> str:
    from temporalio.activity import _Definition

    definition = _Definition.must_from_callable(function)
    assert definition.name is not None
    return definition.name


async def acquired(root: Path, *actions: str, flow: str = FLOW, **settings: Any) -> Driver:
    """Return a driver whose agent does these actions in its turn, with the workspace acquired."""
    listed = "".join(f"          - {action}\n" for action in actions)
    scenario = (
        f"version: 1\nsteps:\n  implement:\n    turns:\n      - work:\n{listed}" if listed else SCENARIO
    )
    driver = Driver(make_worker(root, **settings), make_repository(root / "repo"), flow, scenario)
    await driver.acquire()
    return driver


def partial_of(driver: Driver, out: Any) -> PartialHandoff:
    """Return the partial handoff that a stopped attempt left."""
    assert out.partial is not None
    return PartialHandoff.model_validate_json(driver.ctx.evidence.read(out.partial))


def commits(driver: Driver) -> list[str]:
    """Return the subjects of the run's commits, the newest first."""
    return git(driver.ctx.folder(RUN).workspace, "log", "--format=%s", f"stepwise/{RUN}").splitlines()


@pytest.fixture(autouse=True)
async def nothing_outlives_a_test() -> AsyncIterator[None]:
    """Assert, behind each test of a module that imports this, that no process of the run is left."""
    yield
    await shutdown()
    assert leftovers(RUN) == []


async def until(what: Callable[[], bool]) -> None:
    """Wait until ``what`` is true."""
    for pause in pauses():
        if what():
            return
        await asyncio.sleep(pause)


async def _until_killed(root: Path, point: str, scenario: str) -> None:
    driver = Driver(make_worker(root, crash_at=crash_point(point)), root / "repo", scenario=scenario)
    await driver.acquire()
    work = await driver.work()
    measure = await driver.measure()
    finalize = await driver.finalize()
    await driver.record(
        StepFacts(status="VERIFIED"),
        work=work,
        work_attempt=1,
        measure=measure,
        measure_attempt=1,
        finalize=finalize,
        finalize_attempt=1,
    )


def run_until_killed(root: Path, point: str, scenario: str = SCENARIO) -> None:
    """Run the phases of one step in a process of its own, which kills itself at ``point``."""
    command = [sys.executable, __file__, str(root), point, scenario]
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "integration")))
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


if __name__ == "__main__":
    asyncio.run(_until_killed(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
