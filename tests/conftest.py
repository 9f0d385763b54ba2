"""What the tests share: a real Temporal server, real workers in processes of their own, a real repository."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chance import take_examples
from forking import Forks, die_with_the_test
from looking import pauses
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from thorough import is_thorough, unused

from schemas.converter import build_data_converter
from schemas.events import RunEvent
from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from store.blobs import open_blobs
from store.evidence import Evidence
from store.journal import Journal
from store.receipts import Receipts
from store.redaction import Redactor
from system.devserver import DevServer, temporal_binary
from workflows.start import run_id as run_id_of

# What they assert is to be shown as in a test.
pytest.register_assert_rewrite("activities_kit", "chaos_kit", "run_kit")

ROOT = Path(__file__).resolve().parent.parent
UNITTEST = ["python3", "-m", "unittest", "-q"]
FAST = {
    "STEPWISE_HEARTBEAT_S": "2",
    "STEPWISE_SCHEDULE_TO_START_S": "4",
    "STEPWISE_RECOVER_OLD_WORKER_S": "1",
    "STEPWISE_STICKY_S": "1",
    "STEPWISE_DRAIN_S": "5",
    "STEPWISE_TRANSPORTS": "stub",
    "STEPWISE_FSYNC": "false",
    "STEPWISE_LOG_FORMAT": "text",
    "STEPWISE_LOG_LEVEL": "WARNING",
}


def pytest_configure() -> None:
    """Choose the examples; let Ctrl-C be heard by what tests start, also where the run was started to ignore it."""
    take_examples()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is left to ``make thorough``."""
    for item in items:
        if is_thorough(item.nodeid):
            item.add_marker(pytest.mark.thorough)
    if config.args == config.getini("testpaths") and not config.getoption("lf"):
        stale = unused(item.nodeid for item in items)
        if stale:
            raise pytest.UsageError(f"tests/thorough.py names no test with: {', '.join(stale)}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A Temporal dev server for the whole session of this test process."""
    with DevServer.start(db=tmp_path_factory.mktemp("temporal") / "temporal.sqlite", ui=False) as started:
        yield started


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[DevServer]:
    """A Temporal dev server that the test may kill."""
    with DevServer.start(db=tmp_path / "own-temporal.sqlite", ui=False) as started:
        yield started


@pytest.fixture
def demo_repo(tmp_path: Path) -> Path:
    """A small git repository with a bug and failing tests."""
    path = tmp_path / "calc-repo"
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(path)], check=True, capture_output=True
    )
    return path


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one file, for a whole module: no test may change it."""
    from flow_kit import make_repository

    return make_repository(tmp_path_factory.mktemp("repos") / "repo")


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's empty home and working folder, where no variable sets anything: commands see their defaults."""
    for name in [name for name in os.environ if name.startswith(("STEPWISE_", "TEMPORAL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def eventually(what: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """Return the first true value of ``what``; fails when none comes within the bound."""
    deadline = time.monotonic() + within_s
    for pause in pauses():
        value = what()
        if value:
            return value
        if time.monotonic() > deadline:
            message = f"did not happen within {within_s:g} s: {what}"
            raise AssertionError(message)
        time.sleep(pause)
    return None


@cache
def _forks() -> Forks:
    forks = Forks()
    atexit.register(forks.close)
    return forks


def stepwise(*argv: str, env: Mapping[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command ``stepwise`` in a process of its own, to its end."""
    if any(name.startswith("COVERAGE_") for name in os.environ):
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *argv],
            cwd=cwd, env=dict(env), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    return _forks().command(argv, env, cwd)


@dataclass
class Rig:
    """A Temporal server, a store, and workers that can be killed: what a person has at hand."""

    server: DevServer
    folder: Path
    client: Client
    task_queue: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: set[str] = field(default_factory=set)

    @property
    def store(self) -> Path:
        """The evidence store all workers of the rig share."""
        return self.folder / "store"

    def env(self, disk: str = "disk", **more: str) -> dict[str, str]:
        """Return the environment of a worker on the given disk."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STEPWISE_", "TEMPORAL_", "COV_", "OTEL_"))
        }
        return {
            **kept,
            **FAST,
            "TEMPORAL_ADDRESS": self.server.address,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "STEPWISE_TASK_QUEUE": self.task_queue,
            "STEPWISE_DATA_DIR": str(self.folder / disk),
            "STEPWISE_STORE": self.store.as_uri(),
            "STEPWISE_STUB_MAY_CRASH_WORKER": "true",
            **more,
        }

    def worker(self, disk: str = "disk", **more: str) -> subprocess.Popen[bytes]:
        """Start a worker; settings are given as STEPWISE_… variables."""
        if not any(name.startswith("COVERAGE_") for name in os.environ):
            forked = _forks().worker(self.env(disk, **more), self.folder, self.folder / "workers.log")
            self.processes.append(forked)
            return forked
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "traced_worker.py")],
                env=self.env(disk, **more),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_the_test,  # noqa: PLW1509 - a killed test run leaves no worker behind
            )
        self.processes.append(process)
        return process

    def log(self) -> str:
        """Return what the workers wrote."""
        path = self.folder / "workers.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def temporal(self, *argv: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the Temporal CLI against the rig's server."""
        return subprocess.run(
            [str(temporal_binary()), *argv, "--address", self.server.address],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, workflow_id: str, flow_input: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """Start a flow as a person does: with the Temporal CLI.

        What a fixture left running under this id is over: it is set up again where tests are given to another process.
        Two tests of one rig with the same id would be a mistake.
        """
        assert workflow_id not in self.started, f"{workflow_id} was started before"
        self.started.add(workflow_id)
        done = self.temporal(
            "workflow", "start", "--type", "Flow", "--task-timeout", "3s", "--task-queue", self.task_queue, "--workflow-id", workflow_id,
            "--id-conflict-policy", "TerminateExisting", "--static-summary", "a test", "--input", json.dumps(flow_input),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    async def result(self, workflow_id: str, *, within_s: float = 90.0) -> FlowResult:
        """Return the run's result, also from the error of a run that failed."""
        handle = self.client.get_workflow_handle(workflow_id)
        try:
            async with asyncio.timeout(within_s):
                return FlowResult.model_validate(await handle.result())
        except WorkflowFailureError as error:
            cause = error.cause
            assert isinstance(cause, ApplicationError), repr(cause)
            assert cause.details, f"{cause.type}: {cause.message}"
            return FlowResult.model_validate(cause.details[0])
        except TimeoutError:
            status = await handle.query("status")
            raise AssertionError(
                f"no result of {workflow_id}; status {status}; log:\n{self.log()[-6000:]}"
            ) from None

    async def run_id(self, workflow_id: str) -> str:
        """Return the run id of a workflow."""
        described = await self.client.get_workflow_handle(workflow_id).describe()
        first = (await self.client.get_workflow_handle(workflow_id).fetch_history()).events[0]
        attributes = first.workflow_execution_started_event_attributes
        return run_id_of(workflow_id, attributes.first_execution_run_id or described.run_id)

    async def status(self, workflow_id: str) -> dict[str, Any]:
        """Return the answer of the query ``status``."""
        answer: dict[str, Any] = await self.client.get_workflow_handle(workflow_id).query("status")
        return answer or {}

    async def until(
        self, workflow_id: str, holds: Callable[[dict[str, Any]], bool], *, within_s: float = 60.0
    ) -> dict[str, Any]:
        """Return the first status for which ``holds`` is true."""
        deadline = time.monotonic() + within_s
        for pause in pauses():
            status = await self.status(workflow_id)
            if holds(status):
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"status stayed {status}; log:\n{self.log()[-6000:]}")
            await asyncio.sleep(pause)
        return status

    @property
    def evidence(self) -> Evidence:
        """The store, opened for reading."""
        blobs = open_blobs(self.store.as_uri(), fsync=False, shared=True, temporal_is_loopback=True)
        return Evidence(blobs, Redactor(()))

    def journal(self, run_id: str) -> list[RunEvent]:
        """Return the run's journal."""
        return Journal(self.evidence).read(run_id)

    def receipts(self, run_id: str) -> list[StepReceipt]:
        """Return the run's receipts in the order they were made."""
        blobs = self.evidence.blobs
        keys = [key for key in blobs.keys(f"runs/{run_id}/") if key.endswith("/receipt.json")]
        found = [StepReceipt.model_validate_json(blobs.read(key)) for key in keys]
        return sorted(found, key=lambda one: (one.completed_at, one.started_at))

    def check_evidence(self, result: FlowResult) -> None:
        """Assert what holds after every run: a journal without gaps, a whole chain, each commit once."""
        journal = Journal(self.evidence)
        assert journal.gaps(result.run_id) == []
        events = journal.read(result.run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        report = Receipts(self.evidence).verify_run(result.run_id, result.receipts_head)
        assert report.ok, report
        if result.git is not None and result.git.workspace:
            log = subprocess.run(
                ["git", "-C", result.git.workspace, "log", "--format=%(trailers:key=Stepwise-Visit,valueonly)%x00",
                 f"{result.git.base}..{result.git.branch}"],
                capture_output=True, text=True, check=True,
            ).stdout  # fmt: skip
            visits = [line.strip() for line in log.split("\0") if line.strip()]
            assert len(visits) == len(set(visits)), visits

    def kill_all(self) -> None:
        """End every worker that still runs."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


async def _rig(server: DevServer, tmp_path: Path, name: str) -> Rig:
    client = await Client.connect(server.address, data_converter=build_data_converter())
    folder = tmp_path / "rig"
    folder.mkdir()
    return Rig(server=server, folder=folder, client=client, task_queue=f"q-{name}")


@pytest.fixture
async def rig(server: DevServer, tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on the session's server, with a task queue of its own."""
    made = await _rig(server, tmp_path, f"{tmp_path.name}-{os.getpid()}")
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def desk(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig with one worker that all tests of a module share: for tests that neither kill nor configure it."""
    made = asyncio.run(_rig(server, tmp_path_factory.mktemp("desk"), f"desk-{os.urandom(4).hex()}"))
    made.worker()
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def hasty(desk: Rig) -> Iterator[Rig]:
    """A desk beside ``desk`` whose worker holds a session that asks for a moment only."""
    folder = desk.folder / "hasty"
    folder.mkdir()
    made = replace(desk, folder=folder, task_queue=f"{desk.task_queue}-hasty", processes=[])
    made.worker(STEPWISE_HOLD_S="0.05")
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture
async def own_rig(own_server: DevServer, tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on a server that the test may kill."""
    made = await _rig(own_server, tmp_path, tmp_path.name)
    try:
        yield made
    finally:
        made.kill_all()
