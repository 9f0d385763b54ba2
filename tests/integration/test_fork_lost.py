"""Forks whose workers die: while they are acquired, and afterwards, when nothing of the parent is left."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import Rig
from flow_kit import files_at, flow, git, hold, linear, make_repository, script, step, turn, write
from fork_kit import LOOPING, check, looped, record, visits
from run_kit import READ_ONLY, start, working

POINTS: Mapping[str, str] = {
    "acquire.leased": "other",
    "fork.bundled": "same",
    "acquire.based": "other",
    "fork.linked": "same",
}
"""Where a worker dies while it acquires a fork, and whether the next one has the same disk."""


async def test_a_worker_killed_while_it_acquires_a_fork_shows_nowhere_in_the_result(
    rig: Rig, tmp_path: Path
) -> None:
    repo = make_repository(tmp_path / "repo")
    rig.worker("first")
    parent = await looped(rig, "killed-parent", repo)
    at = {"run_id": parent.run_id, "step": "polish", "visit": 1}
    play = script(implement=turn(), polish=turn(write("p", "1\n")))

    async def disturbed(point: str, disk: str) -> tuple[Any, ...]:
        name = f"killed-{point}".replace(".", "-")
        own = replace(rig, task_queue=f"{rig.task_queue}-{name}")
        dies = own.worker(name, STEPWISE_CRASH_AT=point)
        start(own, name, repo, LOOPING, play, fork={**at, "flow": "small"})
        assert await asyncio.to_thread(dies.wait, 60) == -signal.SIGKILL
        own.worker(name if disk == "same" else f"{name}-2")
        result = await own.result(name)
        check(own, result)
        assert result.git is not None
        parents = git(result.git.workspace, "rev-parse", f"{result.git.head}^", f"{result.git.head}~2")
        return result.outcome, result.summary, result.git.tree, parents, visits(own.receipts(result.run_id))

    found = await asyncio.gather(*(disturbed(point, disk) for point, disk in POINTS.items()))
    assert found == [found[0]] * len(POINTS)
    assert found[0][0] == "verified"
    assert len(record(rig, parent.run_id).forks) == len(POINTS)


async def test_a_fork_that_loses_its_worker_needs_nothing_of_its_parent(rig: Rig, tmp_path: Path) -> None:
    own = make_repository(tmp_path / "repo")
    first = rig.worker("one")
    parent = await looped(rig, "lost-parent", own)
    at = {"run_id": parent.run_id, "flow": "small", "step": "polish", "visit": 1}
    spec = flow(step("polish", linear("end")), step("end", **READ_ONLY), name="fresh")
    play = script(polish=turn(write("p", "1\n"), hold(tmp_path / "go")))
    start(rig, "lost-child", own, spec, play, fork=at)
    await working(rig, "lost-child")
    first.kill()
    shutil.rmtree(own)
    shutil.rmtree(rig.folder / "one")
    for kept in ("base", "small", "events"):
        shutil.rmtree(rig.store / "runs" / parent.run_id / kept)
    (tmp_path / "go").touch()
    rig.worker("two")
    result = await rig.result("lost-child")
    assert result.outcome == "verified"
    assert {"first", "ok", "p"} <= set(files_at(result.git))
    assert (rig.receipts(result.run_id)[-1].flow_key, result.steps[-1].step_id) == ("small", "_final")
