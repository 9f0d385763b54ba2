"""A consent to one call whose worker is lost: asked for again where the call may have been made, and only there."""

from __future__ import annotations

from pathlib import Path

from chaos_kit import killed
from conftest import Rig
from consent_kit import CALL, SPEC, made, parked
from flow_kit import OK, script, turn
from interrupt_kit import begun, until_there
from run_kit import ended, start, update


async def test_a_consent_that_lost_work_may_have_used_lets_no_second_call_pass(rig: Rig, repo: Path) -> None:
    go = rig.folder / "go"
    first = rig.worker(STEPWISE_HOLD_S="0.05")
    play = script(only=turn(CALL, {"do": "run", "argv": until_there(go)}, CALL, OK))
    start(rig, "lost", repo, SPEC, play)
    await parked(rig, "lost", 1)
    await update(rig, "lost", "approve")
    begun(go)
    first.kill()
    await killed(first, rig)
    go.touch()

    rig.worker(STEPWISE_HOLD_S="0.05")

    await parked(rig, "lost", 3)
    await update(rig, "lost", "reject")
    assert made(await ended(rig, "lost", "verified")) == ["made"]


async def test_a_consent_that_no_worker_had_when_it_was_lost_is_not_asked_for_again(
    rig: Rig, repo: Path
) -> None:
    first = rig.worker(STEPWISE_HOLD_S="0.05", STEPWISE_SCHEDULE_TO_START_S="1")
    start(rig, "unbegun", repo, SPEC, script(only=turn(CALL, OK)))
    await parked(rig, "unbegun", 1)
    first.kill()
    await killed(first, rig)
    rig.worker("another", STEPWISE_HOLD_S="0.05")

    await update(rig, "unbegun", "approve")

    result = await ended(rig, "unbegun", "verified")
    assert made(result) == ["made"]
    assert [one.attempt for one in result.receipts if one.step_id == "only"] == [1, 2, 3]
