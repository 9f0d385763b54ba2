"""SIGTERM: a worker hands off what runs on it, ends in time and in order, and another one goes on from there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from chaos_kit import Counted, beside, ended, serving
from conftest import Rig

pytestmark = pytest.mark.chaos

DRAIN_S = "4"


async def drained(process: subprocess.Popen[bytes], rig: Rig) -> None:
    process.terminate()
    assert await ended(process, rig) == 0


@pytest.mark.parametrize("middle", ["waits", "hangs"])
async def test_a_worker_told_to_end_in_the_middle_of_work_hands_the_work_off(
    rig: Rig, demo_repo: Path, middle: Literal["waits", "hangs"]
) -> None:
    async def disturbed(rig: Rig, disk: str, again: Mapping[str, int], tokens: int) -> None:
        run = Counted(rig, demo_repo)
        first = rig.worker(STEPWISE_DRAIN_S=DRAIN_S)
        run.start(middle=middle)
        await run.begun()
        await drained(first, rig)
        rig.worker(disk)
        run.go.touch()
        result = await run.as_if_undisturbed(again=again, tokens=tokens)
        first_half, second_half = run.attempts(result)
        partial = run.partial(first_half)
        assert partial.reason == "worker_shutdown"
        assert partial.stop_method == ("killed" if middle == "hangs" else "cooperative")
        assert partial.savepoint is not None
        assert second_half.session == ("resumed" if disk == "disk" else "cold")

    runs = [disturbed(beside(rig, "same"), "disk", {}, 0)]
    if middle == "waits":
        runs.append(disturbed(beside(rig, "empty"), "another", {"implement.1 begun": 1}, 110))
    await asyncio.gather(*runs)


@pytest.mark.parametrize("gate", [0, 2], ids=["before the first step", "of a step"])
async def test_a_worker_told_to_end_while_a_gate_runs_lets_another_run_it_again(
    rig: Rig, demo_repo: Path, gate: int
) -> None:
    run = Counted(rig, demo_repo)
    run.hold_gate(gate)
    first = rig.worker(STEPWISE_DRAIN_S=DRAIN_S)
    run.start()
    await run.holding()
    await drained(first, rig)
    run.hold.unlink()
    rig.worker("another")
    await run.as_if_undisturbed()


async def test_another_worker_that_is_there_already_takes_over_from_the_one_that_drains(
    rig: Rig, demo_repo: Path
) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker(STEPWISE_DRAIN_S=DRAIN_S)
    run.start(middle="waits")
    await run.begun()
    rig.worker("another")
    await serving(rig, "another")
    await drained(first, rig)
    await run.begun("another")
    run.go.touch()
    await run.as_if_undisturbed(again={"implement.1 begun": 1}, tokens=110)


async def test_a_worker_told_to_end_while_a_run_waits_for_a_person_ends_at_once(
    rig: Rig, demo_repo: Path
) -> None:
    run = Counted(rig, demo_repo, approval="after")
    first = rig.worker(STEPWISE_DRAIN_S=DRAIN_S)
    run.start()
    await run.waiting()
    await drained(first, rig)
    rig.worker("another")
    run.tell("approve")
    result = await run.as_if_undisturbed()
    assert len(run.attempts(result, "choose")) == 1
