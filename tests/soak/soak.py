"""The long form: plays batches until there are enough runs, says what came of them, and how to repeat each failure.

Usage: soak.py [--runs N] [--jobs N] [--seed S] [--kind calm|storm|patient] [--batch N] [--size N] [--folder PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[up]) for up in (1, 2)]

from soak_batch import Report, play  # noqa: E402 - found beside this file
from soak_plans import KINDS, Kind, make_batch  # noqa: E402
from temporalio.runtime import Runtime, TelemetryConfig  # noqa: E402

ORDER: tuple[Kind, ...] = ("storm", "calm", "storm", "patient")
SIZE = 8


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=int(os.environ.get("STEPWISE_SOAK") or 500))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STEPWISE_SOAK_SEED") or time.time()))
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--batch", type=int, help="play this one alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="batches at the same time")
    parser.add_argument("--size", type=int, default=SIZE, help="runs in a batch")
    parser.add_argument("--folder", type=Path, help="where to play, and to leave what failed")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _soak(given: argparse.Namespace, folder: Path) -> Report:
    total = Report()
    numbers = iter([given.batch] if given.batch is not None else range(given.runs))

    async def play_on() -> None:
        while total.runs < given.runs and (number := next(numbers, None)) is not None:
            total.plus(await _batch(given, number, folder / f"batch-{number}"))

    await asyncio.gather(*(play_on() for _ in range(max(1, given.jobs))))
    return total


async def _batch(given: argparse.Namespace, number: int, place: Path) -> Report:
    kind = given.kind or ORDER[number % len(ORDER)]
    batch = make_batch(given.seed, number, kind, given.size)
    try:
        report = await play(batch, place)
    except Exception:  # noqa: BLE001 - what keeps one batch from being played must not end the soak
        report = Report(failures=[traceback.format_exc()], repeat=[batch.named])
    failed = len(report.failures)
    _say(f"batch {number} {kind}: {report.runs} runs in {report.seconds:.0f} s, {failed} failures")
    for failure in report.failures:
        _say(f"FAILED {failure}")
    for failure in report.discarded:
        _say(f"discarded, and played again: {failure}")
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    return report


def main() -> int:
    """Soak; 0 if nothing failed."""
    given = _arguments()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    # What a client says of a server that was killed is no news.
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))
    _say(f"seed {given.seed}, in {folder}")
    total = asyncio.run(_soak(given, folder))
    for line in total.lines():
        _say(line)
    if given.folder is None and not total.failures:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A plain exit aborts now and then while the SDK's threads end.
    os._exit(code)
