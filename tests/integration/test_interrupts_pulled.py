"""An interrupt on a server that pushes no cancellation: the worker hears of it by a heartbeat of its phase."""

from __future__ import annotations

from pathlib import Path

from conftest import _rig
from flow_kit import OK, files_at, partial_of, script, turn, write
from interrupt_kit import begun, interrupted, until_there
from run_kit import TWO_STEPS, ended, resume, start, update

from benchmarks.interrupts import WITHOUT_PUSH
from system.devserver import DevServer


async def test_an_interrupt_that_is_not_pushed_stops_the_agent_by_its_heartbeat(
    repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    stays = turn(write("half", "x"), {"do": "run", "argv": until_there(go)})
    with DevServer.start(ui=False, dynamic_config=WITHOUT_PUSH) as server:
        rig = await _rig(server, tmp_path, "pulled")
        rig.worker()
        try:
            start(rig, "pulled", repo, TWO_STEPS, script(only={"turns": [stays], "resumed": turn(OK)}))
            begun(go)
            verdict = await update(rig, "pulled", "interrupt", {"by": "ann"})
            assert verdict["verdict"] == "accepted"
            await interrupted(rig, "pulled")
            await resume(rig, "pulled")
            result = await ended(rig, "pulled", "verified")
        finally:
            rig.kill_all()
    first, second, _ = result.receipts
    assert partial_of(rig, first).reason == "interrupt"
    assert first.stop is not None
    assert (first.stop.requested_by, first.stop.method) == ("ann", "cooperative")
    assert (second.attempt, second.session) == (2, "resumed")
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "half", "ok"]
