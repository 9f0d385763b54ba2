"""kill -9 of workers and server at random moments, again and again, while ten flows run: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from chaos_kit import happens
from conftest import Rig
from flow_kit import flow, gate, git, hold, linear, loop, script, step, turn, write

pytestmark = pytest.mark.chaos

KILLS: Final = int(os.environ.get("STEPWISE_KILLS") or 8)
SEED: Final = int(os.environ.get("STEPWISE_SOAK_SEED") or 7)
FLOWS: Final = 10
ROUNDS: Final = 4
EASILY_LOST: Final[dict[str, Any]] = {"retries": {"infrastructure": 50}}


def append(path: str, text: str) -> dict[str, Any]:
    """Return the action that adds to a file: done twice, it shows."""
    return {"do": "edit", "path": path, "append": text}


def counted() -> dict[str, Any]:
    """Return a flow of three steps: the second one loops until its gate has seen every round."""
    rounds = gate("rounds", "sh", "-c", f"test $(wc -l < rounds) -eq {ROUNDS}")
    return flow(
        step("plan", linear("build"), gates=[gate("planned", "grep", "-qx", "plan", "plan")], **EASILY_LOST),
        step("build", loop("build", "close", max_iterations=ROUNDS), gates=[rounds], **EASILY_LOST),
        step("close", gates=[gate("closed", "test", "-f", "closed")], **EASILY_LOST),
    )


def agents(go: Path) -> dict[str, Any]:
    """Return what the agents do; the last one waits until nobody is killed any more."""
    talk = [{"do": "tokens", "prompt": 10, "completion": 1}, {"do": "calls", "count": 5, "bytes": 50}]
    return script(
        plan=turn(*talk, append("plan", "plan\n"), {"do": "stall", "seconds": 0.2}),
        build=[
            turn(*talk, append("rounds", f"{number}\n"), {"do": "run", "argv": ["sleep", "0.1"]})
            for number in range(ROUNDS)
        ],
        close=turn(*talk, hold(go), write("closed", "yes\n"), status="VERIFIED"),
    )


class Killed:
    """Two workers and a server, of which one at a time is killed and comes back."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.disks = ["one", "two"]
        self.workers = [rig.worker(disk) for disk in self.disks]
        self.did: Counter[str] = Counter()

    async def kill(self, rng: Random) -> None:
        """Kill somebody, and bring them back: a worker on its own disk, or now and then on an empty one."""
        await asyncio.sleep(rng.uniform(0.2, 2.5))
        if rng.random() < 0.2:
            self.did["server"] += 1
            await asyncio.to_thread(self.rig.server.kill)
            await asyncio.sleep(rng.uniform(0, 1))
            await asyncio.to_thread(self.rig.server.restart)
            return
        which = rng.randrange(2)
        self.workers[which].kill()
        await asyncio.to_thread(self.workers[which].wait)
        if rng.random() < 0.25:
            self.disks[which] = f"{self.disks[which]}-anew"
            self.did["worker and its disk"] += 1
        else:
            self.did["worker"] += 1
        self.workers[which] = self.rig.worker(self.disks[which])

    async def keep(self) -> None:
        """Start workers again that found no server when they began."""
        while True:
            for which, worker in enumerate(self.workers):
                if worker.poll() == 2:
                    self.workers[which] = self.rig.worker(self.disks[which])
            await asyncio.sleep(0.1)


@pytest.mark.timeout(420)
async def test_many_kills_over_ten_flows_lose_nothing_and_do_nothing_twice(
    own_rig: Rig, demo_repo: Path
) -> None:
    rig, go = own_rig, own_rig.folder / "go"
    killed = Killed(rig)
    names = [f"killed-{number}" for number in range(FLOWS)]
    for name in names:
        rig.start(
            name, {"spec": counted(), "repo": str(demo_repo), "task": "t", "scenario": agents(go)}
        )
    keeping = asyncio.create_task(killed.keep())
    rng = Random(SEED)  # noqa: S311 - moments, not secrets
    for _ in range(KILLS):
        await killed.kill(rng)
    go.touch()
    results = [await rig.result(name, within_s=300) for name in names]
    keeping.cancel()
    assert sum(killed.did.values()) == KILLS
    for result in results:
        assert result.outcome == "verified", (SEED, killed.did, result, rig.log()[-6_000:])
        rig.check_evidence(result)
        assert result.git is not None
        clone = rig.folder / f"fetched-{result.run_id}"
        git(rig.folder, "clone", "--quiet", str(demo_repo), str(clone))
        git(clone, *result.git.fetch.split()[1:])
        git(clone, "checkout", "--quiet", result.git.branch)
