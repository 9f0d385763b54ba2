"""``stepwise dev``: a tuned Temporal server and a worker in one terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from temporalio.client import Client

from cli.checks_server import polling
from cli.session import WORKFLOW_TYPE, say, settings, temporal_flags
from policy.plain import typed
from schemas.errors import StepwiseError
from schemas.settings import WorkerSettings
from system.devserver import DevServer
from system.processes import guarded_argv
from system.settings import Loaded, resolved

EXAMPLE_TASK: Final = "what is to be done"
EXAMPLE_INPUT: Final = (
    f'{{"flow": "fix", "repo": "/path/to/repository", "task": "{EXAMPLE_TASK}", "scenario": "demo"}}'
)
IN_MEMORY: Final = ":memory:"

WORKER: Final = Path(__file__).resolve().parent.parent / "worker.py"
_POLL_S: Final = 0.1
_END_SLACK_S: Final = 15.0


def dev(
    *,
    db: Annotated[
        str, typer.Option(help="File the server keeps runs in; ':memory:' keeps nothing.", metavar="PATH")
    ] = "",
    port: Annotated[int, typer.Option(help="Port of the server; 0: any free one.")] = 7233,
    ui_port: Annotated[int, typer.Option(help="Port of the Temporal UI; 0: any free one.")] = 8233,
    ui: Annotated[bool, typer.Option(help="Serve the Temporal UI.")] = True,
) -> None:
    """Run a Temporal server and a worker here until Ctrl-C.

    Without --db, runs are kept in temporal.sqlite in the data folder. The worker's settings are those
    `stepwise config` shows; its connection is always this server.
    """
    loaded = settings()
    effective = resolved(loaded.settings)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _interrupted_by(signal.SIGTERM, signal.SIGHUP),
        DevServer.start(_db(db, effective), port=port or None, ui=ui, ui_port=ui_port or None) as server,
    ):
        _announce(server, effective)
        with worker_process(_worker_env(server, loaded), drain_s=effective.drain_s) as worker:
            asyncio.run(await_polling(server, effective.task_queue, worker))
            say("worker           ready; Ctrl-C stops both")
            sys.stdout.flush()
            worker.wait()
            raise _ended(worker)


def _db(named: str, effective: WorkerSettings) -> Path | None:
    if named == IN_MEMORY:
        return None
    return Path(named).absolute() if named else effective.data_dir / "temporal.sqlite"


def example_start(queue: str) -> list[str]:
    """Return the words that start a run on this queue; the server's address is not among them."""
    start = ["temporal", "workflow", "start", "--type", WORKFLOW_TYPE, "--task-queue", queue]
    start += ["--workflow-id", "my-run", "--fail-existing", "--static-summary", EXAMPLE_TASK]
    return [*start, "--input", EXAMPLE_INPUT]


def _announce(server: DevServer, effective: WorkerSettings) -> None:
    start = example_start(effective.task_queue)
    say(f"temporal server  {server.address}")
    say(f"temporal ui      {server.ui_url or 'off'}")
    say(f"task queue       {effective.task_queue}")
    say(f"evidence store   {effective.store}")
    say(f"start a run      {typed([*start, *temporal_flags(server.address, server.namespace)])}")
    sys.stdout.flush()


@contextlib.contextmanager
def worker_process(env: Mapping[str, str], *, drain_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker as a child with this whole environment; it drains when the block ends.

    It is ended when it has not drained in time, and when this process is killed.
    """
    worker = subprocess.Popen(
        guarded_argv([sys.executable, str(WORKER)], grace_s=drain_s + _END_SLACK_S / 2),
        stdin=subprocess.DEVNULL,
        env=dict(env),
        process_group=0,  # Ctrl-C is for us: we tell the worker, then the server
    )
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(drain_s + _END_SLACK_S)
        finally:
            worker.kill()
            worker.wait()


async def await_polling(server: DevServer, queue: str, worker: subprocess.Popen[bytes]) -> None:
    """Return when a worker polls the queue. Raises StepwiseError E_WORKER when ``worker`` ends instead."""
    client = await Client.connect(server.address, namespace=server.namespace)
    while not await polling(client, server.namespace, queue):
        if worker.poll() is not None:
            raise _ended(worker)
        await asyncio.sleep(_POLL_S)


def _worker_env(server: DevServer, loaded: Loaded) -> Mapping[str, str]:
    """Return our environment with the connection replaced, and logs for people unless somebody chose."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    env |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
    env["TEMPORAL_CONFIG_FILE"] = os.devnull  # a profile's TLS or key would not fit this server
    if loaded.origins["log_format"] == "default":
        env["STEPWISE_LOG_FORMAT"] = "text"
    if loaded.origins["fsync"] == "default":
        # As the server beside it does: what was written survives a killed process, not a lost machine.
        env["STEPWISE_FSYNC"] = "false"
    return env


def _ended(worker: subprocess.Popen[bytes]) -> StepwiseError:
    return StepwiseError(
        "E_WORKER",
        f"the worker ended with exit code {worker.returncode}",
        mend="its last lines say why; `stepwise doctor` looks at what it needs",
    )


@contextlib.contextmanager
def _interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Let these signals do what Ctrl-C does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
