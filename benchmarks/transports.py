"""Measures what a step needs through each transport, and what its program needs for the same without Stepwise.

``python -m benchmarks.transports`` prints the tables and writes them into docs/performance.md. The models are scripted,
on loopback, and answer at once: what is measured is programs and Stepwise, never a model. All ways of one transport take
turns, so that what else the machine does meets each of them alike. What a transport needs once in a worker's life (an
import, a look at the sandbox) and once in a run's (its state) has happened before the first measured run.
Exit code 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from benchmarks.page import ROOT, machine, publish

sys.path.insert(0, str(ROOT / "tests"))

from agents_kit import AGENTS, agents
from step_kit import ASKED, WRITTEN, cold_step, hot_step, make_spec, mind

from benchmarks import alone
from system import processes
from transports import registry
from transports.port import SessionSpec, Transport

RUNS: Final = 5
PHASES: Final = 1 + len(ASKED)
GOAL_HOT: Final = 0.6
GOAL_ADDED_MS: Final = 100.0
NAMES: Final = (*AGENTS, "stub")
ALONE: Final[Mapping[str, tuple[alone.Way | None, alone.Way | None]]] = {
    "claude-sdk": (alone.claude_client, alone.claude_queries),
    "claude-cli": (alone.claude_stream, alone.claude_prints),
    "codex": (alone.codex_server, alone.codex_servers),
    "gemini-cli": (None, alone.gemini_prints),
    "stub": (None, None),
}
"""The program of each transport driven alone: in one process, and in three."""

_LOOK_S: Final = 0.02
_HEAD: Final = (
    "transport",
    "hot ms",
    "cold ms",
    "hot / cold",
    "alone, hot ms",
    "alone, cold ms",
    "added a phase, hot ms",
    "added a phase, cold ms",
    "MB",
    "alone MB",
)


@dataclass
class Way:
    """One way to take a step: its times in milliseconds, and the most memory in MB that its processes had."""

    take: Callable[[], Awaitable[None]]
    times: list[float] = field(default_factory=list)
    memory: float = 0.0

    @property
    def ms(self) -> float:
        """The median."""
        return statistics.median(self.times)


@dataclass
class Measured:
    """A transport: one session for all three phases and a session for each; its program alone, where it has one."""

    name: str
    hot: Way
    cold: Way
    alone_hot: Way | None
    alone_cold: Way | None

    @property
    def ways(self) -> list[Way]:
        """All of them."""
        return [way for way in (self.hot, self.cold, self.alone_hot, self.alone_cold) if way is not None]

    @property
    def added_hot(self) -> float | None:
        """What we add to each phase in one session; a program that takes one prompt needs three processes for it."""
        return _added(self.hot, self.alone_hot or self.alone_cold)

    @property
    def added_cold(self) -> float | None:
        """What we add to each phase in three sessions."""
        return _added(self.cold, self.alone_cold)


def _added(ours: Way, program: Way | None) -> float | None:
    return None if program is None else (ours.ms - program.ms) / PHASES


def _ways(transport: Transport, folder: Path) -> Measured:
    """Return the ways of a transport; each has a folder whose contents stay, but for workspaces and private folders."""
    numbers = itertools.count(1)

    async def ours(step: Callable[[Transport, SessionSpec], Awaitable[None]], own: Path) -> None:
        run_id = f"{transport.name}-{next(numbers)}"
        await step(transport, make_spec(own / run_id, run_id, state=own / "state"))

    async def theirs(way: alone.Way, own: Path) -> None:
        number = own / str(next(numbers))
        (number / "workspace").mkdir(parents=True)
        (own / "home").mkdir(exist_ok=True)
        (number / "home").symlink_to(own / "home")
        await way(number)
        assert (number / "workspace" / WRITTEN).is_file()  # noqa: S101 - no work is not to be measured

    one, three = ALONE[transport.name]
    return Measured(
        transport.name,
        hot=Way(partial(ours, hot_step, folder / "hot")),
        cold=Way(partial(ours, cold_step, folder / "cold")),
        alone_hot=None if one is None else Way(partial(theirs, one, folder / "one")),
        alone_cold=None if three is None else Way(partial(theirs, three, folder / "three")),
    )


async def _measure(name: str, runs: int, folder: Path) -> Measured:
    measured = _ways(registry.open(name), folder)
    for way in measured.ways:
        await way.take()
    for _ in range(runs):
        for way in measured.ways:
            begun = time.perf_counter()
            await way.take()
            way.times.append((time.perf_counter() - begun) * 1_000)
    for way in measured.ways:
        # On a run of its own: looking takes time.
        with _watched() as most:
            await way.take()
        way.memory = max(most)
    await processes.shutdown()
    return measured


@contextmanager
def _watched() -> Iterator[Sequence[float]]:
    """Look at the memory of all processes below this one while the block runs, in MB."""
    found = [0.0]
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            found.append(sum(map(_memory, psutil.Process().children(recursive=True))) / 2**20)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def measure(names: Sequence[str], runs: int) -> list[Measured]:
    """Measure these transports, one after the other, each with a model of its own."""
    found = []
    for name in names:
        with (
            tempfile.TemporaryDirectory(prefix="stepwise-transports-") as folder,
            agents({name: mind} if name in AGENTS else {}) as environment,
        ):
            os.environ.update(environment)
            found.append(asyncio.run(_measure(name, runs, Path(folder))))
    return found


def tables(found: Sequence[Measured], runs: int) -> str:
    """Return the tables as Markdown."""
    lines = [
        f"Machine: {machine()}. Median of {runs} runs.",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{'---|' * len(_HEAD)}",
    ]
    for one in found:
        program = one.alone_hot or one.alone_cold
        cells = [
            one.name,
            f"{one.hot.ms:.0f}",
            f"{one.cold.ms:.0f}",
            f"{one.hot.ms / one.cold.ms:.2f}",
            _number(one.alone_hot.ms if one.alone_hot else None),
            _number(one.alone_cold.ms if one.alone_cold else None),
            _number(one.added_hot),
            _number(one.added_cold),
            f"{one.hot.memory:.0f}",
            _number(program.memory if program else None),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| goal | measured | met |", "|---|---|---|"]
    lines += [f"| {goal} | {measured} | {_met(met)} |" for goal, measured, met in goals(found)]
    return "\n".join(lines)


def goals(found: Sequence[Measured]) -> Iterator[tuple[str, str, bool]]:
    """Yield each goal, what was measured, and whether it is met."""
    for one in found:
        if one.name == "claude-sdk" and one.alone_cold is not None:
            share = one.hot.ms / one.alone_cold.ms
            goal = f"claude-sdk hot ≤ {GOAL_HOT:g} of three chained `query()` calls"
            yield goal, f"{share:.2f}", share <= GOAL_HOT
    for one in found:
        for how, added in (("hot", one.added_hot), ("cold", one.added_cold)):
            if added is not None:
                goal = f"{one.name} {how} adds ≤ {GOAL_ADDED_MS:.0f} ms a phase"
                yield goal, f"{added:.0f} ms", added <= GOAL_ADDED_MS


def _met(met: bool) -> str:
    return "yes" if met else "**no**"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def main() -> None:
    """Measure, print the tables, write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("names", nargs="*", help="which transports; by default all that are installed")
    given = parser.parse_args()
    installed = [name for name in given.names or NAMES if registry.open(name).is_available().ok]
    found = measure(installed, given.runs)
    publish(tables(found, given.runs), "transports", write=not given.no_write)
    if not all(met for _, _, met in goals(found)):
        sys.exit(1)


if __name__ == "__main__":
    main()
