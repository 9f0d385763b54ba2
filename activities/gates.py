"""One gate: its command run by the engine, and what came of it. Nothing that could not be measured is a pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activities.reports import Report, read_report
from activities.running import Stop
from schemas.facts import GateFact
from schemas.flow import Gate
from system.processes import LOST, Finished, ProcessError, SpawnFailed, how_ended, run
from system.untrusted import own_folder, remove_tree

MAX_GATE_OUTPUT: Final = 500_000
"""How many bytes of each of a gate's two streams are kept: the head and the tail."""
REPORT: Final = "{report}"


@dataclass(frozen=True)
class Measured:
    """A gate's fact, what its command printed, how long it ran in milliseconds."""

    fact: GateFact
    output: str
    elapsed_ms: int


@dataclass(frozen=True)
class Place:
    """Where gates run: the working folder, their environment, and a folder for their reports."""

    workspace: Path
    environment: Mapping[str, str]
    reports: Path


async def run_gate(gate: Gate, place: Place, *, timeout_s: float, stop: Stop) -> Measured:
    """Run one gate to its end; a stop ends its process tree and leaves it unmeasured."""
    own_folder(place.reports)
    report_path = place.reports / f"{gate.name.replace('/', '-')}.report"
    remove_tree(report_path)
    argv = [word.replace(REPORT, str(report_path)) for word in gate.argv]
    begun = time.monotonic()
    command = asyncio.ensure_future(
        run(
            argv,
            cwd=place.workspace,
            env=place.environment,
            timeout_s=timeout_s,
            max_output=MAX_GATE_OUTPUT,
        )
    )
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({command, stopped}, return_when=asyncio.FIRST_COMPLETED)
        was_stopped = not command.done()
    finally:
        stopped.cancel()
        command.cancel()
        await asyncio.wait({command})
    if was_stopped:
        return Measured(unmeasured(gate, f"stopped: {stop.reason}"), "", _since(begun))
    try:
        finished = command.result()
    except ProcessError as error:
        if isinstance(error, SpawnFailed) and not error.retryable:
            reason = f"program not found: {argv[0]}" if error.code == "E_PROGRAM_NOT_FOUND" else str(error)
            return Measured(_failed(gate, reason), f"{reason}\n", _since(begun))
        # The machine gives no process, or no guard for one: nothing is known about the tree.
        return Measured(unmeasured(gate, str(error)), f"{error}\n", _since(begun))
    if finished.stopped_by == "lost":
        # Somebody killed its guard, and with it the gate: that is no word on what it was to look at.
        return Measured(unmeasured(gate, LOST), _text(argv, finished), finished.duration_ms)
    report = (
        Report()
        if gate.parse == "exit_code"
        else await asyncio.to_thread(read_report, report_path, gate.parse)
    )
    return Measured(_fact(gate, finished, report, timeout_s), _text(argv, finished), finished.duration_ms)


def unmeasured(gate: Gate, reason: str) -> GateFact:
    """Return the fact of a gate that was not run."""
    return GateFact(name=gate.name, required=gate.required, measured=False, reason=reason)


def _failed(gate: Gate, reason: str) -> GateFact:
    return GateFact(name=gate.name, required=gate.required, passed=False, reason=reason)


def _fact(gate: Gate, finished: Finished, report: Report, timeout_s: float) -> GateFact:
    if finished.timed_out:
        reason: str | None = f"timed out after {timeout_s:g} s"
    elif finished.signal is not None:
        reason = f"ended by signal {finished.signal}"
    elif finished.exit_code != 0:
        reason = f"exit code {finished.exit_code}"
        if report.counts is not None and report.fault is not None:
            reason = report.fault
    else:
        reason = report.fault
    return GateFact(
        name=gate.name,
        required=gate.required,
        passed=finished.ok and report.fault is None,
        exit_code=finished.exit_code,
        counts=report.counts,
        percent=report.percent,
        reason=reason,
    )


def _text(argv: list[str], finished: Finished) -> str:
    parts = [f"$ {' '.join(argv)}", finished.stdout.decode("utf-8", "replace").rstrip()]
    if finished.stderr:
        parts += ["--- stderr ---", finished.stderr.decode("utf-8", "replace").rstrip()]
    how = "timed out" if finished.timed_out else how_ended(finished.exit_code, finished.signal)
    parts.append(f"--- {how}, {finished.duration_ms} ms ---")
    return "\n".join(parts) + "\n"


def _since(begun: float) -> int:
    return int((time.monotonic() - begun) * 1000)
