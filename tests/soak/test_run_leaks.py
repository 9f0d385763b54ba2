"""However many runs a worker takes, it holds no more than after its first: ``STEPWISE_LEAK_RUNS`` of each agent."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import pytest
from agents_kit import AGENTS, agents
from conftest import Rig
from flow_kit import flow, gate, make_repository, script, step, turn, write
from looking import pauses
from model_servers.script import Reply, Run, Seen, Write
from run_kit import READ_ONLY, Played, ended, start
from step_kit import SIGNAL, doing

from benchmarks.held import Held, gained, held
from system.leftovers import leftovers
from transports import registry

RUNS: Final = int(os.environ.get("STEPWISE_LEAK_RUNS") or 3)
"""How many runs each agent takes."""
WARM: Final = 20
"""After so many runs caches are full, and the collector and the allocator have their pace."""
GROWTH_KB: Final = 512
"""What each further run may add to the memory: both let some megabytes of what is free lie about."""
SETTLE_S: Final = 20.0
POOLED: Final = min(32, (os.cpu_count() or 1) + 4)
"""So many threads the event loop's pool has in the end; it grows to that whenever more is to be done at once."""
_RUN_S: Final = 120
_MADE: Final = ("made.txt", "here\n")
_SEEN: Final = "cat made.txt"
_OBJECTIVE: Final = "Make the file and look at it."

FLOW: Final = flow(
    step(
        "make",
        {"kind": "branch", "decided_by": "agent", "default": "end", "when": []},
        objective=_OBJECTIVE,
        gates=[gate("made", *_SEEN.split())],
    ),
    step("end", **READ_ONLY),
)
"""One step that works, whose agent says where to go, and the end."""
_DOES: Final = doing(Write(*_MADE), Run(_SEEN))
_DOES_NOTHING: Final = doing()
PLAY: Final = script(
    make={
        **turn(write(*_MADE), {"do": "run", "argv": _SEEN.split()}),
        "route": {"value": SIGNAL},
    }
)


def mind(seen: Seen) -> Reply:
    """Do the work of the one step that has any; hand in what is asked for."""
    works = any(_OBJECTIVE in text for role, text in seen.texts if role == "user")
    return (_DOES if works else _DOES_NOTHING)(seen)


class Watched:
    """A worker whose folders are all its own, and what it holds between its runs."""

    def __init__(self, rig: Rig, env: dict[str, str]) -> None:
        self._rig = rig
        self._own = {"TMPDIR": rig.folder / "tmp", "HOME": rig.folder / "home"}
        for made in self._own.values():
            made.mkdir()
        worker = rig.worker(**env, **{name: str(path) for name, path in self._own.items()})
        self._process = psutil.Process(worker.pid)

    async def after(self, run_id: str, first: Held | None) -> Held:
        """Return what is held after a run, once that is no more than it may be; else what is held when time is up.

        Nobody tells from outside when the last of a run is gone.
        """
        until = time.monotonic() + SETTLE_S
        for pause in pauses():
            now = self._look(run_id)
            if not left(now, first) or time.monotonic() > until:
                break
            await asyncio.sleep(pause)
        return now

    def _look(self, run_id: str) -> Held:
        folder = self._rig.folder
        now = held(
            self._process,
            server=self._rig.server.address,
            data=folder / "disk",
            store=self._rig.store,
            empty=self._own.values(),
        )
        of_run = (f"{pid} of the run" for pid in leftovers(run_id))
        return replace(now, processes=(*now.processes, *of_run))


def left(now: Held, first: Held | None) -> list[str]:
    """Return what is held that may not be: more descriptors than at first, more threads than pools have, and all else."""
    may = first or now
    more = gained(replace(may, processes=(), temporary=(), data=()), now)
    threads = [one for one in more if one.startswith("threads")]
    return more if len(threads) > POOLED else [one for one in more if one not in threads]


@pytest.mark.chaos
@pytest.mark.timeout(max(300, RUNS * _RUN_S))
@pytest.mark.parametrize("name", [*AGENTS, "stub"])
async def test_runs_leave_nothing_behind(rig: Rig, tmp_path: Path, name: str) -> None:
    available = registry.open(name).is_available()
    if not available.ok:
        pytest.skip(f"{available.reason}: {available.install_hint}")
    repo = make_repository(tmp_path / "repo")
    helds: list[Held] = []
    seconds: list[float] = []
    with agents({name: mind} if name in AGENTS else {}) as env:
        watched = Watched(rig, env)
        for number in range(RUNS):
            begun = time.monotonic()
            result = await take_run(rig, f"{name}-{number}", repo, name)
            seconds.append(time.monotonic() - begun)
            helds.append(await watched.after(result.run_id, helds[0] if helds else None))
            assert left(helds[-1], helds[0]) == [], f"after {number + 1} runs"
    if len(helds) > WARM:
        # Fewer runs say nothing of memory.
        grown = helds[-1].rss_kb - helds[WARM - 1].rss_kb
        assert grown < GROWTH_KB * (len(helds) - WARM), [one.rss_kb for one in helds]
    sys.stdout.write(_told(name, helds, seconds))


async def take_run(rig: Rig, workflow_id: str, repo: Path, name: str) -> Played:
    """Take a run; fails where it was not what is to be measured."""
    own = {"transport": name, "play": None} if name in AGENTS else {"play": PLAY}
    start(rig, workflow_id, repo, FLOW, **own)
    result = await ended(rig, workflow_id, "verified", within_s=_RUN_S)
    assert [(one.step_id, one.transport, one.tool_calls.count) for one in result.receipts] == [
        ("make", name, 2),
        ("end", name, 0),
    ]
    assert [one.phase for one in result.receipts[0].phases] == ["work", "finalize", "route"]
    return result


def _told(name: str, helds: list[Held], seconds: list[float]) -> str:
    """Return the numbers in one line, for who runs the long form."""
    memory = f"{helds[WARM - 1 if len(helds) > WARM else 0].rss_kb} to {helds[-1].rss_kb} kB"
    more = f"{len(helds[-1].descriptors)} descriptors, {len(helds[-1].threads)} threads"
    return f"{name}: {len(helds)} runs of {median(seconds):.2f} s, memory {memory}, {more}\n"
