"""Takes steps of one agent one after another in this process, and says after each what it still holds, as JSON lines.

Usage: leak_steps.py TRANSPORT RUNS FOLDER. The environment says where the agent's model is, and has a TMPDIR of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

sys.path[:0] = [str(Path(__file__).resolve().parents[up]) for up in (1, 2)]

import psutil  # noqa: E402 - as all below
from pydantic import BaseModel  # noqa: E402
from step_kit import hot_step, make_spec  # noqa: E402

from benchmarks.held import below, children, descriptors  # noqa: E402
from system import processes  # noqa: E402
from system.leftovers import leftovers  # noqa: E402
from transports import registry  # noqa: E402
from transports.port import SessionSpec, Transport  # noqa: E402

RUN: Final = f"leaks-{os.getpid()}"
"""The run whose steps they are."""

_SETTLE_S: Final = 10.0
_LOOK_S: Final = 0.01
_POOL: Final = "asyncio_"
# What names the files of one session: ids, moments and process ids.
_NAMED: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{6,}\b|\d+")
_OF_SQLITE: Final = ("-shm", "-wal")


class Held(BaseModel):
    """What the process holds after a run.

    ``processes`` are all below it but the launcher, and all of the run; ``descriptors`` and ``threads`` say of what kind
    each is; ``tasks`` counts those of the event loop beside its main one; ``temporary`` is what is in TMPDIR and HOME;
    ``state`` counts the files of the run's state by their names, in which what is of one session alone is an N.
    """

    processes: list[str]
    descriptors: list[str]
    threads: list[str]
    tasks: int
    temporary: list[str]
    state: dict[str, int]
    rss_kb: int
    seconds: float


def _state(folder: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        # Those of SQLite come and go.
        if not path.is_dir() and not path.name.endswith(_OF_SQLITE):
            name = _NAMED.sub("N", str(path.relative_to(folder)))
            found[name] = found.get(name, 0) + 1
    return found


async def _held(spec: SessionSpec, seconds: float) -> Held:
    until = time.monotonic() + _SETTLE_S
    # Nobody tells when a guard that has reported is gone.
    own = psutil.Process()
    while children(own) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    gc.collect()
    return Held(
        processes=[*children(own), *(f"{pid} of the run" for pid in leftovers(RUN))],
        descriptors=sorted(descriptors(own.pid)),
        # The event loop's pool grows to its bound and stays.
        threads=sorted(one.name for one in threading.enumerate() if not one.name.startswith(_POOL)),
        tasks=len(asyncio.all_tasks()) - 1,
        temporary=[*below(Path(tempfile.gettempdir())), *below(Path.home())],
        state=_state(spec.state),
        rss_kb=own.memory_info().rss // 1024,
        seconds=round(seconds, 3),
    )


async def _run(transport: Transport, spec: SessionSpec) -> Held:
    begun = time.monotonic()
    await hot_step(transport, spec)
    return await _held(spec, time.monotonic() - begun)


async def take(name: str, runs: int, folder: Path) -> None:
    """Take the steps."""
    transport = registry.open(name)
    for number in range(1, runs + 1):
        held = await _run(transport, make_spec(folder / str(number), RUN, state=folder / "state"))
        sys.stdout.write(held.model_dump_json() + "\n")
        sys.stdout.flush()
    await processes.shutdown()


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
