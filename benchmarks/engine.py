"""Measures the engine against a bare workflow, side by side on the same tuned dev server.

``python -m benchmarks.engine`` prints the tables and writes them into docs/performance.md. Each measurement runs
in a process and on a server of its own. All that is compared takes turns, since a machine is not equally fast all the
time; of each, the measurement with the median rate counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, Worker

from benchmarks.bare import Bare, Dispatch, noop
from benchmarks.measuring import Row, measure
from benchmarks.page import ROOT, machine, publish
from cli.replay import replay_history
from schemas.converter import build_data_converter
from system.devserver import DevServer
from system.settings import load
from worker import build_engine, running
from workflows.flow import Flow
from workflows.runner import build_runner
from workflows.unknown import UnknownType

STEPS: Final = {1: 60, 20: 15, 100: 10}
REPLAY_STEPS: Final = 120
ROUNDS: Final = 3
WHAT: Final = ("eager", "pinned", "pinned+local", "stepwise", "stepwise-fsync")
GOAL_RATE: Final = 0.5
GOAL_ACTIVITIES: Final = 3
GOAL_BYTES: Final = 12_288
GOAL_REPLAY: Final = 0.8
HEAD: Final = (
    "| what | dispatch | flows | steps/s | of bare eager | step p50 / p99 ms | activities + local + other |"
    " events | history bytes | worker MB |"
)


def _rss_mb() -> int:
    return round(psutil.Process().memory_info().rss / 1_000_000)


async def bare(server: DevServer, flows: int, dispatch: Dispatch) -> Row:
    """Measure the bare workflow."""
    client = await Client.connect(server.address)
    async with (
        Worker(client, task_queue="bare", workflows=[Bare], activities=[noop]),
        Worker(client, task_queue="bare-pinned", activities=[noop], max_concurrent_activities=1_000),
    ):
        handles = await asyncio.gather(
            *(
                client.start_workflow(
                    "Bare", args=[STEPS[flows], dispatch, "bare-pinned"], id=f"bare-{n}", task_queue="bare"
                )
                for n in range(flows)
            )
        )
        await asyncio.gather(*(handle.result() for handle in handles))
        rss = _rss_mb()
        histories = [await handle.fetch_history() for handle in handles]
    return measure(
        "bare, 3 activities",
        dispatch,
        histories,
        first_type="noop",
        last_type="noop",
        per_step=3 if dispatch != "pinned+local" else 2,
        rss_mb=rss,
    )


def noop_flow(steps: int) -> dict[str, Any]:
    """Return a flow of linear steps with nothing to do; it waits for an approval before the first."""
    lines = ["id: noop", "version: 1", "title: nothing, many times", "steps:"]
    for n in range(steps):
        route = "{kind: terminal}" if n == steps - 1 else f"{{kind: linear, next: s{n + 1}}}"
        approval = "    approval: before\n" if n == 0 else ""
        lines.append(
            f"  - id: s{n}\n    agent: implementer\n    objective: nothing\n{approval}    routing: {route}"
        )
    return {"name": "noop.yaml", "text": "\n".join(lines) + "\n"}


async def stepwise(
    server: DevServer, flows: int, folder: Path, steps: int, *, fsync: bool = False
) -> tuple[Row, list[WorkflowHistory]]:
    """Measure Stepwise: every step is worked, finalized, routed and recorded; the agent does nothing."""
    repo = folder / "repo"
    made = [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(repo)]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    env = {
        "PATH": os.environ["PATH"],
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "STEPWISE_DATA_DIR": str(folder / "worker"),
        "STEPWISE_MAX_RUNS": "1000",
        "STEPWISE_MAX_AGENTS": "200",
        "STEPWISE_FSYNC": "true" if fsync else "false",
    }
    client = await Client.connect(server.address, data_converter=build_data_converter())
    given = {"spec": noop_flow(steps), "repo": str(repo), "task": "nothing", "scenario": "noop"}
    async with running(build_engine(load(env), client, "bench", env)):
        handles = await asyncio.gather(
            *(
                client.start_workflow("Flow", given, id=f"flow-{n}", task_queue="stepwise")
                for n in range(flows)
            )
        )
        # One after another: a hundred queries at once would still be answered when the clock starts.
        for handle in handles:
            await _until_waiting(handle)
        await asyncio.gather(*(handle.signal("approve") for handle in handles))
        for handle in handles:
            await handle.result()
        rss = _rss_mb()
        histories = [await handle.fetch_history() for handle in handles]
    name = "Stepwise, fsync" if fsync else "Stepwise"
    row = measure(name, "2 pinned", histories, first_type="work", last_type="record", per_step=1, rss_mb=rss)
    return row, histories


async def _until_waiting(handle: Any) -> None:
    while True:
        status = await handle.query("status")
        if status and status.get("waiting"):
            return
        await asyncio.sleep(0.1)


async def replay(server: DevServer, folder: Path) -> dict[str, float]:
    """Measure ``stepwise replay`` against the SDK's bare replayer on one history; events per second, best of 3."""
    _, histories = await stepwise(server, 1, folder, REPLAY_STEPS)
    history = histories[0]
    rates: dict[str, list[float]] = {"bare": [], "stepwise": []}
    for _ in range(3):
        began = time.perf_counter()
        replayer = Replayer(
            workflows=[Flow, UnknownType],
            data_converter=build_data_converter(),
            workflow_runner=build_runner(),
        )
        done = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        rates["bare"].append(len(history.events) / (time.perf_counter() - began))
        began = time.perf_counter()
        report = await replay_history(history)
        rates["stepwise"].append(len(history.events) / (time.perf_counter() - began))
        if done.replay_failure is not None or report.failure is not None:
            raise SystemExit(f"replay failed: {done.replay_failure or report.failure}")
    best = {name: round(max(values)) for name, values in rates.items()}
    return {"events": len(history.events), **best, "ratio": round(best["stepwise"] / best["bare"], 2)}


def one(what: str, flows: int, folder: Path) -> None:
    """Run one measurement in this process, in a folder that is left as it is, and print it as JSON."""
    with DevServer.start(db=folder / "temporal.sqlite", ui=False) as server:
        if what == "replay":
            result: dict[str, Any] = asyncio.run(replay(server, folder))
        elif what.startswith("stepwise"):
            fsync = what.endswith("fsync")
            result = asyncio.run(stepwise(server, flows, folder, STEPS[flows], fsync=fsync))[0].as_dict()
        else:
            dispatch: Dispatch = (
                "eager" if what == "eager" else "pinned" if what == "pinned" else "pinned+local"
            )
            result = asyncio.run(bare(server, flows, dispatch)).as_dict()
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    # The SDK's threads may abort a plain exit.
    os._exit(0)


def _child(what: str, flows: int, kept: Path) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix=f"{what}-{flows}-", dir=kept)
    argv = [
        sys.executable,
        "-m",
        "benchmarks.engine",
        "--one",
        what,
        "--flows",
        str(flows),
        "--folder",
        folder,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{what} with {flows} flows failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(f"{what} {flows}: {found}\n")
    return found


def _side_by_side(flows: int, rounds: int, kept: Path) -> list[dict[str, Any]]:
    """Measure all with this many flows, in turns; return of each the measurement with the median rate."""
    turns = [[_child(what, flows, kept) for what in WHAT] for _ in range(rounds)]
    return [
        sorted(measured, key=lambda row: float(row["steps_per_s"]))[rounds // 2]
        for measured in zip(*turns, strict=True)
    ]


def table(rows: list[dict[str, Any]], replayed: dict[str, Any], rounds: int) -> str:
    """Return the tables as Markdown."""
    lines = [
        f"Machine: {machine()}. Rounds: {rounds}.",
        "",
        HEAD,
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    eager = {row["flows"]: row["steps_per_s"] for row in rows if row["dispatch"] == "eager"}
    for row in rows:
        share = row["steps_per_s"] / eager[row["flows"]]
        lines.append(
            f"| {row['name']} | {row['dispatch']} | {row['flows']} | {row['steps_per_s']} | {share:.2f} |"
            f" {row['p50_ms']} / {row['p99_ms']} | {row['activities']:g} + {row['local']:g} + {row['other']:g} |"
            f" {row['events']:g} | {row['bytes']:,} | {row['rss_mb']} |"
        )
    lines += ["", "| goal | measured | met |", "|---|---|---|"]
    for row in (row for row in rows if row["name"] == "Stepwise" and row["flows"] > 1):
        share = row["steps_per_s"] / eager[row["flows"]]
        lines.append(
            f"| ≥ {GOAL_RATE} of bare eager at {row['flows']} flows | {share:.2f} | {_met(share >= GOAL_RATE)} |"
        )
    for row in (row for row in rows if row["name"].endswith("fsync") and row["flows"] > 1):
        share = row["steps_per_s"] / eager[row["flows"]]
        lines.append(f"| none: the same with fsync, at {row['flows']} flows | {share:.2f} | |")
    most = max(row["activities"] for row in rows if row["name"].startswith("Stepwise"))
    lines.append(
        f"| ≤ 3 pinned activities and 1 local one a step | {most:g} | {_met(most <= GOAL_ACTIVITIES)} |"
    )
    worst = max(row["bytes"] for row in rows if row["name"].startswith("Stepwise"))
    lines.append(f"| ≤ 12 KB of history a step | {worst:,} bytes | {_met(worst <= GOAL_BYTES)} |")
    lines.append(
        f"| replay ≥ {GOAL_REPLAY} of the SDK's replayer | {replayed['stepwise']:,} of {replayed['bare']:,} events/s"
        f" ({replayed['ratio']}) | {_met(replayed['ratio'] >= GOAL_REPLAY)} |"
    )
    return "\n".join(lines)


def _met(holds: bool) -> str:
    return "yes" if holds else "**no**"


def main() -> None:
    """Run every measurement, print the tables, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=[*WHAT, "replay"])
    parser.add_argument("--flows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--folder", type=Path, help="where one measurement works (with --one)")
    arguments = parser.parse_args()
    if arguments.one:
        one(
            arguments.one,
            arguments.flows,
            arguments.folder or Path(tempfile.mkdtemp(prefix="stepwise-bench-")),
        )
    # All folders are removed at the end: ext4 is slow to make files for minutes where many were removed.
    with tempfile.TemporaryDirectory(prefix="stepwise-bench-") as name:
        kept = Path(name)
        rows = [row for flows in STEPS for row in _side_by_side(flows, arguments.rounds, kept)]
        replayed = _child("replay", 1, kept)
    publish(table(rows, replayed, arguments.rounds), "measured", write=not arguments.no_write)


if __name__ == "__main__":
    main()
