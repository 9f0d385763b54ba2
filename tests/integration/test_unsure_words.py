"""Words to an agent that does not say in time whether it took them: said once, whatever becomes of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from conftest import Rig
from flow_kit import flow, linear, script, step, transcript_of, turn
from home_kit import at_home, begun_at_home
from interrupt_kit import until_there
from run_kit import ended, start, update

from activities import deliver as module
from transports.stub_session import StubSession

SPEC = flow(step("one", linear("two")), step("two"))
WORDS = "Mind the gap."


@pytest.mark.parametrize("took", [True, False])
async def test_words_of_which_only_the_end_of_the_work_says_whether_they_were_taken_are_said_once(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, took: bool
) -> None:
    may, heard = asyncio.Event(), asyncio.Event()
    steer = StubSession.steer

    async def slow(self: StubSession, text: str) -> bool:
        await may.wait()
        try:
            return await steer(self, text)
        finally:
            heard.set()

    monkeypatch.setattr(StubSession, "steer", slow)
    monkeypatch.setattr(module, "LIMIT_S", 0.1)
    name, go = f"unsure-{took}", tmp_path / "go"
    async with at_home(desk, tmp_path) as home:
        start(home, name, repo, SPEC, script(one=turn({"do": "run", "argv": until_there(go)})))
        await begun_at_home(go)
        verdict = await update(home, name, "steer", {"text": WORDS})
        assert verdict["verdict"] == "queued"
        assert "unless it has it by then" in verdict["message"]
        if took:
            may.set()
            await heard.wait()
        go.touch()
        result = await ended(home, name)
    one, two = result.receipts[:2]
    assert [WORDS in transcript_of(home, receipt) for receipt in (one, two)] == [took, not took]
