"""kill -9 of the worker, at every named point of every phase."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from chaos_kit import Counted, ended
from conftest import Rig

pytestmark = pytest.mark.chaos


async def test_an_undisturbed_run_has_each_effect_once(rig: Rig, demo_repo: Path) -> None:
    run = Counted(rig, demo_repo)
    rig.worker()
    run.start()
    await run.as_if_undisturbed()


POINTS = ["acquire.cloned","acquire.leased","acquire.based","acquire.done","work.started","work.intent","work.committed","work.bundled","work.logged","work.result","measure.gates","measure.done","finalize.draft","finalize.done","route.done","record.envelope","record.receipt","record.done","release.record"]

@pytest.mark.parametrize("point", POINTS)
async def test_killed_on_the_same_disk(rig: Rig, demo_repo: Path, point: str) -> None:
    run = Counted(rig, demo_repo)
    first = rig.worker(STEPWISE_CRASH_AT=point)
    run.start()
    assert await ended(first, within_s=20) == -signal.SIGKILL
    rig.worker()
    await run.as_if_undisturbed()
