"""kill -9 of workers and server at random moments, again and again, while ten flows run: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from conftest import Rig
from flow_kit import flow, gate, git, hold, linear, loop, script, step, turn, write

from schemas.run import FlowResult
from system.processes import leftovers

pytestmark = pytest.mark.chaos

KILLS: Final = int(os.environ.get("STEPWISE_KILLS") or 8)
SEED: Final = int(os.environ.get("STEPWISE_SOAK_SEED") or 7)
FLOWS: Final = 10
ROUNDS: Final = 4
NO_SERVER: Final = 2
"""Exit code of a worker that finds no server when it begins; whoever runs it starts it again."""
EASILY_LOST: Final[dict[str, Any]] = {"retries": {"infrastructure": 50}}
COMMITS: Final = ["plan #1", *(f"build #{number + 1}" for number in range(ROUNDS)), "close #1"]


def three_steps() -> dict[str, Any]:
    """Return a flow whose second step loops until its gate has seen every round."""
    rounds = gate("rounds", "test", *" -a ".join(f"-f round-{number}" for number in range(ROUNDS)).split())
    return flow(
        step("plan", linear("build"), gates=[gate("planned", "test", "-f", "plan")], **EASILY_LOST),
        step("build", loop("build", "close", max_iterations=ROUNDS), gates=[rounds], **EASILY_LOST),
        step("close", gates=[gate("closed", "test", "-f", "closed")], **EASILY_LOST),
    )


def agents(go: Path) -> dict[str, Any]:
    """Return what the agents do; the last one waits until nobody is killed any more."""
    talk = [{"do": "tokens", "prompt": 10, "completion": 1}, {"do": "calls", "count": 5, "bytes": 50}]
    return script(
        plan=turn(*talk, write("plan", "plan\n"), {"do": "stall", "seconds": 0.2}),
        build=[
            turn(*talk, write(f"round-{number}", "done\n"), {"do": "run", "argv": ["sleep", "0.1"]})
            for number in range(ROUNDS)
        ],
        close=turn(*talk, hold(go), write("closed", "yes\n"), status="VERIFIED"),
    )


class Machines:
    """Two workers and a server, of which one after another is killed and comes back."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.disks = ["one", "two"]
        self.workers = [rig.worker(disk) for disk in self.disks]
        self.killed: Counter[str] = Counter()

    async def kill(self, rng: Random) -> None:
        """Kill somebody at a random moment; a worker comes back on its disk, or now and then on an empty one."""
        await asyncio.sleep(rng.uniform(0.2, 2.5))
        if rng.random() < 0.2:
            self.killed["server"] += 1
            await asyncio.to_thread(self.rig.server.kill)
            await asyncio.sleep(rng.uniform(0, 1))
            await asyncio.to_thread(self.rig.server.restart)
            return
        which = rng.randrange(len(self.workers))
        self.workers[which].kill()
        await asyncio.to_thread(self.workers[which].wait)
        is_lost = rng.random() < 0.25
        self.killed["worker and its disk" if is_lost else "worker"] += 1
        if is_lost:
            self.disks[which] = f"{self.disks[which]}-anew"
        self.workers[which] = self.rig.worker(self.disks[which])

    async def keep(self) -> None:
        """Start workers again that found no server, for ever."""
        while True:
            for which, worker in enumerate(self.workers):
                if worker.poll() == NO_SERVER:
                    self.workers[which] = self.rig.worker(self.disks[which])
            await asyncio.sleep(0.1)


@pytest.mark.timeout(420)
async def test_many_kills_over_ten_flows_lose_nothing_and_do_nothing_twice(
    own_rig: Rig, demo_repo: Path
) -> None:
    rig, go = own_rig, own_rig.folder / "go"
    machines = Machines(rig)
    names = [f"killed-{number}" for number in range(FLOWS)]
    given = {"spec": three_steps(), "repo": str(demo_repo), "task": "t", "scenario": agents(go)}
    for name in names:
        rig.start(name, given)
    for name in names:
        await rig.until(name, lambda now: now.get("phase") is not None)
    keeping = asyncio.create_task(machines.keep())
    rng = Random(SEED)  # noqa: S311 - moments, not secrets
    for _ in range(KILLS):
        await machines.kill(rng)
    go.touch()
    results = [await rig.result(name, within_s=300) for name in names]
    keeping.cancel()
    for result in results:
        assert result.outcome == "verified", (SEED, machines.killed, result, rig.log()[-6_000:])
        check(rig, demo_repo, result)


def check(rig: Rig, repo: Path, result: FlowResult) -> None:
    """Assert that a run left what an undisturbed one leaves, whatever it took."""
    rig.check_evidence(result)
    receipts = rig.receipts(result.run_id)
    assert sum(one.token_counts.total for one in receipts) == result.usage.total
    finished = [(one.step_id, one.visit) for one in receipts if one.execution_status == "succeeded"]
    visits = [("plan", 1), *(("build", number + 1) for number in range(ROUNDS)), ("close", 1)]
    assert [one for one in finished if one[0] != "_final"] == visits, (
        "each visit succeeded once, in its order"
    )
    assert result.git is not None
    clone = rig.folder / f"fetched-{result.run_id}"
    git(rig.folder, "clone", "--quiet", str(repo), str(clone))
    git(clone, *result.git.fetch.split()[1:])
    git(clone, "checkout", "--quiet", result.git.branch)
    assert git(clone, "rev-parse", "HEAD") == result.git.head
    log = git(clone, "log", "--reverse", "--format=%s", f"{result.git.base}..HEAD").splitlines()
    assert log == [f"small/{commit}" for commit in COMMITS], "each commit of the engine is there once"
    for name in ("plan", *(f"round-{number}" for number in range(ROUNDS)), "closed"):
        assert (clone / name).is_file(), "the gates pass on the final tree"
    assert leftovers(result.run_id) == []
