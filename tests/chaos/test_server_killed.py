"""kill -9 of the Temporal server while agents work: what was done is kept, and the runs go on when it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from chaos_kit import Counted, Link, beside, happens
from conftest import Rig
from flow_kit import event_types
from looking import pauses

pytestmark = pytest.mark.chaos

SHORT_S, LONG_S = 2.0, 25.0
"""Within a heartbeat time-out as people have it; beyond it, and beyond the time for which the SDK tries to report
a result."""


async def outage(rig: Rig, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await asyncio.to_thread(rig.server.restart)


async def test_a_short_outage_in_the_middle_of_work_is_not_noticed(own_rig: Rig, demo_repo: Path) -> None:
    rig = own_rig
    run = Counted(rig, demo_repo)
    rig.worker(STEPWISE_HEARTBEAT_S="30")
    run.start(middle="waits")
    await run.begun()
    rig.server.kill()
    await outage(rig, SHORT_S)
    run.go.touch()
    result = await run.as_if_undisturbed()
    assert all(receipt.attempt == 1 for receipt in rig.receipts(result.run_id))


async def test_work_that_a_restart_cut_off_from_its_heartbeats_is_resumed(
    own_rig: Rig, demo_repo: Path
) -> None:
    """The outage is as short, but not for the kit's heartbeats; the server is back before the worker is."""
    rig = own_rig
    run = Counted(rig, demo_repo)
    async with Link(rig.server.address) as link:
        rig.worker(TEMPORAL_ADDRESS=link.address)
        run.start(middle="waits")
        await run.begun()
        rig.server.kill()
        await link.cut()
        await outage(rig, SHORT_S)
        async with asyncio.timeout(60):
            for pause in pauses():
                if "ACTIVITY_TASK_TIMED_OUT" in await event_types(rig, run.workflow_id):
                    break
                await asyncio.sleep(pause)
        await link.mend()
        await run.attempt_begun(2)
        run.go.touch()
        result = await run.as_if_undisturbed()
    lost, resumed = run.attempts(result)
    assert run.partial(lost).reason == "server_lost"
    assert run.partial(lost).done == ["created made.txt"]
    assert resumed.session == "resumed"


async def test_after_a_long_outage_finished_work_is_found_and_running_work_is_resumed(
    own_rig: Rig, demo_repo: Path
) -> None:
    finishing, running = beside(own_rig, "finishing"), beside(own_rig, "running")
    first, second = Counted(finishing, demo_repo), Counted(running, demo_repo)
    for rig, run in ((finishing, first), (running, second)):
        rig.worker()
        run.start(middle="waits")
        await run.begun()
    run_id = await finishing.run_id(first.workflow_id)
    own_rig.server.kill()
    first.go.touch()
    result = f"runs/{run_id}/counted/implement/1/1/work.json"
    await happens(lambda: finishing.evidence.blobs.exists(result), finishing)
    await outage(own_rig, LONG_S)
    ended = await first.as_if_undisturbed()
    # A server that just came back may lose a later phase too; the work that finished meanwhile is not done again.
    assert {one.from_attempt or one.attempt for one in first.attempts(ended)} == {1}
    await second.attempt_begun(2)
    second.go.touch()
    ended = await second.as_if_undisturbed()
    lost, resumed = second.attempts(ended)
    assert second.partial(lost).reason == "server_lost"
    assert second.partial(lost).done == ["created made.txt"]
    assert resumed.session == "resumed"
