"""``stepwise dev``: both processes come up, and both end, whoever ends them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from temporalio.client import Client

ROOT = Path(__file__).resolve().parents[2]

WORKER = """\
import asyncio, os, signal
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

@workflow.defn
class Nothing:
    @workflow.run
    async def run(self) -> None: pass

async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("worker", os.getpid(), os.environ["STEPWISE_LOG_FORMAT"], os.environ.get("TEMPORAL_API_KEY"), flush=True)
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"], namespace=os.environ["TEMPORAL_NAMESPACE"])
    async with Worker(client, task_queue="stepwise", workflows=[Nothing]):
        await stop.wait()
    print("worker drained", flush=True)

if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
"""

# The product's worker is tested elsewhere; here a small one stands in for it.
PROGRAM = """\
import sys
from pathlib import Path
from cli import dev, main
dev.WORKER = Path(sys.argv[1])
sys.exit(main.run(["dev", "--port", "0", "--ui-port", "0", *sys.argv[2:]]))
"""


class Dev:
    """A running ``stepwise dev`` and what it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, start: str) -> str:
        """Return the rest of the first line that begins so; fails at the end of the output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(start):
                return line.removeprefix(start).strip()
        pytest.fail(f"no line begins with {start!r}: {self.lines}")

    def rest(self) -> str:
        """Return what is printed up to the end."""
        assert self.process.stdout is not None
        return self.process.stdout.read()


@contextmanager
def _dev(tmp_path: Path, worker: str = WORKER, *arguments: str, **env: str) -> Iterator[Dev]:
    script = tmp_path / "stand_in.py"
    script.write_text(worker)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("STEPWISE_", "TEMPORAL_"))
    }
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "STEPWISE_DRAIN_S": "5", **env},
        start_new_session=True,
    ) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


def _descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_says_where_everything_is_and_ctrl_c_ends_all_of_it_with_exit_code_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    with _dev(tmp_path) as dev:
        address = dev.until("temporal server")
        ui = dev.until("temporal ui")
        assert dev.until("task queue") == "stepwise"
        start = dev.until("start a run")
        dev.until("worker           ready")
        children = _descendants(dev.process)

        # A terminal sends the signal to the whole foreground group.
        os.killpg(dev.process.pid, number)
        rest = dev.rest()

        assert dev.process.wait(60) == 0
        assert "worker drained" in rest
        assert ui.startswith("http://127.0.0.1:")
        assert start.endswith(f"--address {address}")
        assert "temporal workflow start --type Flow --task-queue stepwise" in start
        assert len(children) >= 4
        assert not [child for child in children if child.is_running()]


def test_the_worker_gets_this_server_and_nothing_of_another(tmp_path: Path) -> None:
    other = {"TEMPORAL_ADDRESS": "far.example:7233", "TEMPORAL_API_KEY": "k3y"}
    with _dev(tmp_path, WORKER, "--no-ui", **other) as dev:
        assert dev.until("temporal ui") == "off"
        worker = dev.until("worker ")
        dev.until("worker           ready")
        dev.process.send_signal(signal.SIGINT)

        assert dev.process.wait(60) == 0
        assert worker.split()[1:] == ["text", "None"]


def test_when_it_is_killed_nothing_stays_behind(tmp_path: Path) -> None:
    with _dev(tmp_path) as dev:
        dev.until("worker           ready")
        waiting = [os.pidfd_open(child.pid) for child in _descendants(dev.process)]

        dev.process.kill()

        for descriptor in waiting:
            readable, _, _ = select.select([descriptor], [], [], 60)
            os.close(descriptor)
            assert readable


def test_a_worker_that_ends_by_itself_ends_it_with_an_error(tmp_path: Path) -> None:
    with _dev(tmp_path, "import sys; sys.exit('no key')") as dev:
        rest = dev.rest()

        assert dev.process.wait(60) == 2
        assert "no key" in rest
        assert "stepwise: the worker ended with exit code 1 -> " in rest


def test_runs_are_kept_in_the_data_folder_from_one_time_to_the_next(tmp_path: Path) -> None:
    async def start(address: str) -> None:
        client = await Client.connect(address)
        await client.start_workflow("Any", id="kept", task_queue="nobody")

    async def status(address: str) -> str:
        described = await (await Client.connect(address)).get_workflow_handle("kept").describe()
        assert described.status is not None
        return described.status.name

    for turn in range(2):
        with _dev(tmp_path, WORKER, "--no-ui") as dev:
            address = dev.until("temporal server")
            dev.until("worker           ready")
            if turn == 0:
                asyncio.run(start(address))
            else:
                assert asyncio.run(status(address)) == "RUNNING"
            dev.process.send_signal(signal.SIGINT)
            assert dev.process.wait(60) == 0

    assert (tmp_path / ".local/state/stepwise/temporal.sqlite").exists()


def test_a_port_that_is_taken_is_an_error_with_the_option_to_change(tmp_path: Path) -> None:
    with _dev(tmp_path, WORKER, "--no-ui") as dev:
        port = dev.until("temporal server").rpartition(":")[2]
        dev.until("worker           ready")
        with _dev(tmp_path, WORKER, "--no-ui", "--db", ":memory:", "--port", port) as second:
            rest = second.rest()

            assert second.process.wait(60) == 2
            assert "address already in use" in rest
            assert "--port" in rest
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(60) == 0
