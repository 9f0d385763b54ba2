"""An interrupt that comes when the work has ended and the next wait has not begun: it holds all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import Rig
from flow_kit import OK, flow, gate, linear, script, step, turn
from home_kit import at_home
from interrupt_kit import interrupted
from run_kit import READ_ONLY, ended, resume, start, update, waiting

from activities import register as module
from activities.context import WorkerContext
from activities.recording import write_record
from schemas.calls import RecordIn, RecordOut

ASKS = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}
SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


async def test_an_interrupt_before_a_question_is_waited_for_is_waited_out_first(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, may = asyncio.Event(), asyncio.Event()

    async def held(ctx: WorkerContext, call: RecordIn) -> RecordOut:
        recording.set()
        await may.wait()
        return await write_record(ctx, call)

    monkeypatch.setattr(module, "write_record", held)
    async with at_home(desk, tmp_path, STEPWISE_HOLD_S="0.05") as home:
        start(home, "between", repo, SPEC, script(only={"turns": [turn(ASKS)], "resumed": turn(OK)}))
        await recording.wait()
        verdict = await update(home, "between", "interrupt", {"by": "ann"})
        assert verdict["verdict"] == "accepted"
        may.set()
        await interrupted(home, "between")
        await resume(home, "between", note="Blue would be nice.")
        await waiting(home, "between", "answer")
        await update(home, "between", "answer", {"answers": {"Red or blue?": "blue"}})
        result = await ended(home, "between", "verified")
    assert [one.execution_status for one in result.receipts[:2]] == ["interrupted", "succeeded"]
