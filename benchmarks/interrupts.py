"""Measures an interrupt: from the signal's sending until the last process of the agent is gone, 50 times over.

``python -m benchmarks.interrupts`` prints the table and writes it into docs/performance.md. One worker process does
all runs, one after another; what it holds then (processes, file descriptors, temporary files) is compared with what
it held after the first one, and its data folder may have nothing but what a run that has ended leaves there. The
server is the tuned dev server, which pushes cancellations; then one that does not, where a worker hears of an interrupt
by its next heartbeat. Exit code 1: a goal was missed, or something was left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil
from temporalio.client import Client, WorkflowHandle

from benchmarks.held import Held, gained, held
from benchmarks.measuring import quantile
from benchmarks.page import ROOT, machine, publish
from schemas.converter import build_data_converter
from system.devserver import DevServer

RUNS: Final = 50
WITHOUT_PUSH: Final = {
    "frontend.WorkerCommandsEnabled": False,
    "system.enableCancelActivityWorkerCommand": False,
}
QUEUE: Final = "interrupts"
GRACE_S: Final = 0.5
NOTHING: Final = "nothing"
GOAL_COOPERATIVE_MS: Final = 500.0
GOAL_IGNORING_MS: Final = (GRACE_S + 1) * 1_000
AGENTS: Final = {
    "cooperative": {"do": "run", "argv": ["sleep", "86399"], "timeout": 86_400},
    "ignores everything": {"do": "hang"},
}


@dataclass
class Measured:
    """The times of one kind of agent in milliseconds, which rung ended it, what was held before and after."""

    agent: str
    is_pushed: bool
    times: list[float] = field(default_factory=list)
    methods: dict[str, int] = field(default_factory=dict)
    before: Held | None = None
    after: Held | None = None

    @property
    def goal_ms(self) -> float:
        """The bound of the 99th percentile."""
        return GOAL_COOPERATIVE_MS if self.agent == "cooperative" else GOAL_IGNORING_MS

    @property
    def p99_ms(self) -> float:
        """The 99th percentile."""
        return quantile(self.times, 0.99)

    @property
    def is_good(self) -> bool:
        """Whether the goal is met and nothing is left behind."""
        return self.p99_ms < self.goal_ms and left(self) == NOTHING


def _flow(agent: str) -> dict[str, Any]:
    spec = {
        "id": "interrupted",
        "version": 1,
        "title": "one step",
        "steps": [
            {
                "id": "work",
                "agent": "implementer",
                "objective": "work",
                "interrupt": {"grace_s": GRACE_S},
                "routing": {"kind": "terminal"},
            }
        ],
    }
    play = {"version": 1, "steps": {"work": {"turns": [{"work": [AGENTS[agent]]}]}}}
    return {
        "spec": {"name": "interrupted.yaml", "text": json.dumps(spec)},
        "scenario": {"name": "agent.yaml", "text": json.dumps(play)},
        "task": "t",
    }


def _agent_of(worker: psutil.Process) -> list[psutil.Process]:
    """Return the processes an agent runs: what the worker's launcher has started, not the launcher."""
    found = []
    for child in worker.children(recursive=True):
        try:
            line = child.cmdline()
        except psutil.Error:
            continue
        if "86399" in line or any("signal.pause()" in part for part in line):
            found.append(child)
    return found


def _held(worker: psutil.Process, server: DevServer, folder: Path) -> Held:
    data = folder / "worker"
    return held(worker, server=server.address, data=data, store=data / "store", empty=[folder / "tmp"])


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _one(
    client: Client, worker: psutil.Process, measured: Measured, number: int, repo: Path, queue: str
) -> None:
    name = f"{measured.agent.split()[0]}-{number}"
    handle: WorkflowHandle[Any, Any] = await client.start_workflow(
        "Flow", {**_flow(measured.agent), "repo": str(repo)}, id=name, task_queue=queue
    )
    # Nobody tells when a process of another process begins or ends.
    while not (found := _agent_of(worker)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    began = time.perf_counter()
    await handle.signal("interrupt")
    while any(map(_lives, found)):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    measured.times.append((time.perf_counter() - began) * 1_000)
    while not (await handle.query("status")).get("waiting"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    partial = await handle.query("partial_handoff")
    method = str(partial["stop_method"])
    measured.methods[method] = measured.methods.get(method, 0) + 1
    await handle.signal("abort")
    await handle.result()


async def _measure(
    runs: int, folder: Path, server: DevServer, process: subprocess.Popen[bytes], *, is_pushed: bool
) -> list[Measured]:
    client = await Client.connect(server.address, data_converter=build_data_converter())
    worker = psutil.Process(process.pid)
    found = []
    for agent in AGENTS:
        measured = Measured(agent, is_pushed)
        # The first run fills caches and starts the launcher; it is not counted.
        await _one(client, worker, Measured(agent, is_pushed), 0, folder / "repo", QUEUE)
        measured.before = _held(worker, server, folder)
        for number in range(1, runs + 1):
            await _one(client, worker, measured, number, folder / "repo", QUEUE)
        measured.after = _held(worker, server, folder)
        found.append(measured)
    return found


def measure(runs: int, folder: Path, *, is_pushed: bool) -> list[Measured]:
    """Return the times of ``runs`` interrupts of each kind of agent, on a server and a worker of their own."""
    (folder / "tmp").mkdir(parents=True)
    made = [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(folder / "repo")]
    subprocess.run(made, check=True, capture_output=True)
    config = {} if is_pushed else WITHOUT_PUSH
    with DevServer.start(db=folder / "temporal.sqlite", ui=False, dynamic_config=config) as server:
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(folder / "tmp"),
            "TEMPORAL_ADDRESS": server.address,
            "TEMPORAL_CONFIG_FILE": os.devnull,
            "STEPWISE_DATA_DIR": str(folder / "worker"),
            "STEPWISE_MAX_RUNS": "1000",
            "STEPWISE_TASK_QUEUE": QUEUE,
            "STEPWISE_LOG_LEVEL": "ERROR",
        }
        process = subprocess.Popen([sys.executable, str(ROOT / "worker.py")], cwd=ROOT, env=env)
        try:
            return asyncio.run(_measure(runs, folder, server, process, is_pushed=is_pushed))
        finally:
            process.terminate()
            process.wait(60)


def table(found: list[Measured]) -> str:
    """Return the table as Markdown."""
    lines = [
        f"Machine: {machine()}. {len(found[0].times)} interrupts each, grace {GRACE_S:g} s.",
        "",
        "| agent | p50 ms | p99 ms | goal p99 ms | met | ended by | left behind |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        methods = ", ".join(f"{name} {count}" for name, count in sorted(one.methods.items()))
        met = "yes" if one.p99_ms < one.goal_ms else "**no**"
        name = one.agent if one.is_pushed else f"{one.agent}, not pushed"
        lines.append(
            f"| {name} | {statistics.median(one.times):.0f} | {one.p99_ms:.0f} | {one.goal_ms:.0f} | {met} |"
            f" {methods} | {left(one)} |"
        )
    return "\n".join(lines)


def left(one: Measured) -> str:
    """Return what the worker holds more than before, in words."""
    before, after = one.before, one.after
    if before is None or after is None:
        return "not looked at"
    # Some of these may never be there, and threads of pools come as they are needed.
    more = gained(replace(before, processes=(), data=(), threads=after.threads), after)
    return ", ".join(more) or NOTHING


def main() -> None:
    """Measure, print the table, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepwise-interrupts-") as name:
        found = [
            *measure(arguments.runs, Path(name) / "pushed", is_pushed=True),
            *measure(arguments.runs, Path(name) / "not-pushed", is_pushed=False),
        ]
    publish(table(found), "interrupts", write=not arguments.no_write)
    sys.stdout.flush()
    # The SDK's threads may abort a plain exit.
    os._exit(0 if all(one.is_good for one in found) else 1)


if __name__ == "__main__":
    main()
