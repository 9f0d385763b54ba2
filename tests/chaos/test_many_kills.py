"""kill -9 of workers and server at random moments, again and again, while ten flows work: nothing is lost or done twice.

The flows work as long as somebody is killed: their loop ends with the file ``go``, which comes after the last kill.
What they do leaves signs; nobody is killed before there are some that came after the kill before.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from chaos_kit import happens
from conftest import Rig
from flow_kit import flow, gate, git, hold, linear, loop, script, step, turn, write
from looking import ends
from temporalio.client import WorkflowHistory

from schemas.calls import FINALIZE, MEASURE, WORK
from schemas.run import FlowResult
from system.leftovers import leftovers

pytestmark = pytest.mark.chaos

KILLS: Final = int(os.environ.get("STEPWISE_KILLS") or 8)
SEED: Final = int(os.environ.get("STEPWISE_SOAK_SEED") or 7)
FLOWS: Final = 10
MAX_ROUNDS: Final = 20
HELD_FROM: Final = 17
"""Rounds from here on wait for the end of the kills: a flow may not go through all that its loop has before."""
PHASES: Final = {WORK.name: "work", MEASURE.name: "measure", FINALIZE.name: "finalize"}
NO_SERVER: Final = 2
"""Exit code of a worker that finds no server when it begins; whoever runs it starts it again."""
SIGNS: Final = 4
"""As many pieces of work begin between two kills."""
SIGNED_PAUSE: Final = 'echo >> "$1"; sleep "$0"'
EASILY_LOST: Final[dict[str, Any]] = {"retries": {"infrastructure": 50}}


@dataclass(frozen=True)
class Play:
    """What a flow does: at which pace, and beside which files of all flows."""

    go: Path
    signs: Path
    pace_s: float

    @property
    def pause(self) -> list[str]:
        """A command that leaves a sign and lasts."""
        return ["sh", "-c", SIGNED_PAUSE, f"{self.pace_s:.2f}", str(self.signs)]

    def steps(self) -> dict[str, Any]:
        """Return a flow whose second step loops until its gate sees that nobody is killed any more."""
        shell, option, script_of, *words = self.pause
        rounds = gate("rounds", shell, option, f'{script_of}; test -f "$2"', *words, str(self.go))
        return flow(
            step("plan", linear("build"), gates=[gate("planned", "test", "-f", "plan")], **EASILY_LOST),
            step("build", loop("build", "close", max_iterations=MAX_ROUNDS), gates=[rounds], **EASILY_LOST),
            step("close", gates=[gate("closed", "test", "-f", "closed")], **EASILY_LOST),
        )

    def agents(self) -> dict[str, Any]:
        """Return what the agents do: something in each phase, which takes as long in each."""
        talk = [{"do": "tokens", "prompt": 10, "completion": 1}, {"do": "calls", "count": 5, "bytes": 50}]
        pause = {"do": "run", "argv": self.pause}
        build = []
        for number in range(MAX_ROUNDS):
            wait = [hold(self.go)] if number >= HELD_FROM else []
            at_work = turn(*talk, write(f"round-{number}", "done\n"), *wait, pause)
            at_work["finalize"]["actions"] = [{"do": "stall", "seconds": self.pace_s}]
            build.append(at_work)
        return script(
            plan=turn(*talk, write("plan", "plan\n"), pause),
            build=build,
            close=turn(*talk, write("closed", "yes\n"), status="VERIFIED"),
        )


@dataclass(frozen=True)
class Kill:
    """When somebody was killed, and the queue of those phases that a killed worker had; None: all of them."""

    at: datetime
    queue: str | None


class Machines:
    """Two workers and a server, of which one after another is killed and comes back."""

    def __init__(self, rig: Rig, signs: Path) -> None:
        self.rig = rig
        self.signs = signs
        self.disks = ["one", "two"]
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self._kept: set[asyncio.Task[None]] = set()
        for which in range(len(self.disks)):
            self._start(which)
        self.killed: Counter[str] = Counter()
        self.kills: list[Kill] = []

    async def kill(self, rng: Random) -> None:
        """Kill somebody at a random moment; a worker comes back on its disk, or now and then on an empty one."""
        enough = self._signs() + SIGNS
        await happens(lambda: self._signs() >= enough or not self.rig.server.running, self.rig)
        assert self.rig.server.running, f"the server ended by itself: {self.rig.server.last_words()}"
        await asyncio.sleep(rng.uniform(0, 0.4))
        if rng.random() < 0.2:
            self.killed["server"] += 1
            self.kills.append(Kill(datetime.now(UTC), None))
            await asyncio.to_thread(self.rig.server.kill)
            await asyncio.sleep(rng.uniform(0, 1))
            await asyncio.to_thread(self.rig.server.restart)
            return
        which = rng.randrange(len(self.workers))
        self.kills.append(Kill(datetime.now(UTC), self._queue(self.disks[which])))
        victim = self.workers[which]
        victim.kill()
        await ends(victim)
        is_lost = rng.random() < 0.25
        self.killed["worker and its disk" if is_lost else "worker"] += 1
        if self.workers[which] is victim:
            if is_lost:
                self.disks[which] = f"{self.disks[which]}-anew"
            self._start(which)

    def _start(self, which: int) -> None:
        self.workers[which] = worker = self.rig.worker(self.disks[which])
        self._kept.add(asyncio.create_task(self._keep(which, worker)))

    async def _keep(self, which: int, worker: subprocess.Popen[bytes]) -> None:
        """Start a worker again that found no server."""
        if await ends(worker) == NO_SERVER and self.workers[which] is worker:
            self._start(which)

    def _signs(self) -> int:
        return self.signs.stat().st_size

    def _queue(self, disk: str) -> str:
        """Return what the queue of a worker's own phases ends with; that of one which was never up is nobody's."""
        path = self.rig.folder / disk / "worker_id"
        return path.read_text().strip() if path.exists() else "nobody"

    def let_go(self) -> None:
        """Start none again from now on."""
        for task in self._kept:
            task.cancel()


@pytest.mark.timeout(420)
async def test_many_kills_over_ten_flows_lose_nothing_and_do_nothing_twice(
    own_rig: Rig, demo_repo: Path
) -> None:
    rig, go, signs = own_rig, own_rig.folder / "go", own_rig.folder / "signs"
    signs.touch()
    rng = Random(SEED)  # noqa: S311 - moments, not secrets
    machines = Machines(rig, signs)
    names = [f"killed-{number}" for number in range(FLOWS)]
    for name in names:
        play = Play(go, signs, pace_s=rng.uniform(0.2, 0.5))
        given = {"spec": play.steps(), "scenario": play.agents(), "repo": str(demo_repo), "task": "t"}
        await rig.client.start_workflow(
            "Flow", given, id=name, task_queue=rig.task_queue, task_timeout=timedelta(seconds=3)
        )
    for name in names:
        await rig.until(name, lambda now: now.get("phase") is not None)
    for _ in range(KILLS):
        await machines.kill(rng)
    go.touch()
    results = [await rig.result(name, within_s=300) for name in names]
    machines.let_go()
    for result in results:
        assert result.outcome == "verified", (SEED, machines.killed, result, rig.log()[-6_000:])
        check(rig, demo_repo, result)
    histories = [await rig.client.get_workflow_handle(name).fetch_history() for name in names]
    check_kills(machines.kills, [phases_of(history) for history in histories])


@dataclass(frozen=True)
class Open:
    """A phase as the server saw it: from its being asked for to the end it came to, or was taken to have come to."""

    phase: str
    queue: str
    begun: datetime
    ended: datetime


def phases_of(history: WorkflowHistory) -> list[Open]:
    """Return the phases of a run that has ended."""
    ends = {}
    for event in history.events:
        attributes = getattr(event, event.WhichOneof("attributes") or "", None)
        asked = getattr(attributes, "scheduled_event_id", 0)
        if asked:
            # The last that is said of it is its end.
            ends[asked] = event.event_time.ToDatetime(UTC)
    found = []
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            asked_for = event.activity_task_scheduled_event_attributes
            phase = PHASES.get(asked_for.activity_type.name)
            if phase is not None:
                begun = event.event_time.ToDatetime(UTC)
                found.append(Open(phase, asked_for.task_queue.name, begun, ends[event.event_id]))
    return found


def check_kills(kills: list[Kill], runs: list[list[Open]]) -> None:
    """Assert that the kills fell on flows at work: not all in one phase, and each phase was cut off somewhere."""
    alike, hit = [], Counter[str]()
    for kill in kills:
        now = [[one for one in run if one.begun <= kill.at < one.ended] for run in runs]
        where = Counter(run[0].phase if run else "between phases" for run in now)
        if len(where) == 1:
            alike.append(where)
        hit.update(
            one.phase for run in now for one in run if kill.queue is None or one.queue.endswith(kill.queue)
        )
    assert len(alike) <= len(kills) // 3, f"every flow was in the same phase: {alike}"
    assert hit.keys() == set(PHASES.values()), f"what was killed was in {hit}"


def check(rig: Rig, repo: Path, result: FlowResult) -> None:
    """Assert that a run left what an undisturbed one leaves, whatever it took."""
    rig.check_evidence(result)
    receipts = rig.receipts(result.run_id)
    assert sum(one.token_counts.total for one in receipts) == result.usage.total
    finished = [one for one in receipts if one.execution_status == "succeeded" and one.step_id != "_final"]
    rounds = [one for one in finished if one.step_id == "build"]
    visits = [("plan", 1), *(("build", number + 1) for number in range(len(rounds))), ("close", 1)]
    assert [(one.step_id, one.visit) for one in finished] == visits, "each visit succeeded once, in its order"
    assert [one.gates[0].passed for one in rounds] == [False] * (len(rounds) - 1) + [True], (
        "the loop went on until its gate passed, and no further"
    )
    assert result.git is not None
    clone = rig.folder / f"fetched-{result.run_id}"
    git(rig.folder, "clone", "--quiet", str(repo), str(clone))
    git(clone, *result.git.fetch.split()[1:])
    git(clone, "checkout", "--quiet", result.git.branch)
    assert git(clone, "rev-parse", "HEAD") == result.git.head
    log = git(clone, "log", "--reverse", "--format=%s", f"{result.git.base}..HEAD").splitlines()
    assert log == [f"small/{name} #{visit}" for name, visit in visits], (
        "each commit of the engine is there once"
    )
    made = ["plan", "closed", *(f"round-{number}" for number in range(len(rounds)))]
    assert sorted(made) == sorted(
        path.name for path in clone.iterdir() if path.name in made or path.match("round-*")
    )
    assert leftovers(result.run_id) == []


def test_kills_that_fell_on_flows_which_all_wait_in_one_phase_would_be_found() -> None:
    def one(phase: str, begun: int, ended: int) -> Open:
        return Open(
            phase, "q-one", *(datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC) for second in (begun, ended))
        )

    kills = [Kill(datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC), "one") for second in (1, 11, 21)]
    at_work = [one("work", 0, 10), one("measure", 10, 20), one("finalize", 20, 30)]
    check_kills(kills, [at_work, [one("work", 0, 30)]])
    with pytest.raises(AssertionError, match="every flow was in the same phase"):
        check_kills(kills, [at_work, at_work])
    with pytest.raises(AssertionError, match="what was killed was in"):
        check_kills(kills, [at_work[:2], [one("work", 0, 30)]])
