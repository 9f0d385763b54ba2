"""A consent to a call that an agent is stopped before it makes: it stands until the call is made, and lets one pass."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from consent_kit import CALL, SPEC, made, parked
from flow_kit import OK, script, turn
from home_kit import at_home
from interrupt_kit import begun, until_there
from run_kit import ended, replays, resume, start, update, waiting

from schemas.scenario import Run
from transports.port import Emit, WorkOutcome
from transports.stub_actions import Actor


def dawdling(monkeypatch: pytest.MonkeyPatch, attempt: int) -> asyncio.Event:
    """Let the agent think for ever in one attempt before it makes a call that policy asks about."""
    thinks = asyncio.Event()
    run = Actor._run

    async def slow(self: Actor, action: Run, call_id: str, emit: Emit) -> WorkOutcome | None:
        if action.ask and int(self._spec.place["attempt"]) == attempt:
            thinks.set()
            await self.tools.heeding_stop(asyncio.Event().wait())
        return await run(self, action, call_id, emit)

    monkeypatch.setattr(Actor, "_run", slow)
    return thinks


@pytest.mark.parametrize(
    ("message", "payload"), [("approve", {}), ("reject", {"reason": "leave it"})], ids=["yes", "no"]
)
async def test_what_was_said_of_a_call_stands_when_the_agent_is_interrupted_before_it_makes_it(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, payload: Any
) -> None:
    name = f"kept-{message}"
    thinks = dawdling(monkeypatch, attempt=2)
    async with at_home(desk, tmp_path, STEPWISE_HOLD_S="0.05") as home:
        start(home, name, repo, SPEC, script(only=turn(CALL, CALL, OK)))
        await parked(home, name)
        await update(home, name, message, payload)
        async with asyncio.timeout(60):
            await thinks.wait()
        await update(home, name, "interrupt")
        await waiting(home, name, "human")

        await resume(home, name)

        # The first call has its answer; the second one like it has none.
        await parked(home, name, attempt=3)
        await update(home, name, "reject")
        result = await ended(home, name, "verified")
        assert await replays(home, name, tmp_path)
    assert made(result) == (["made"] if message == "approve" else [])
    assert [one.tool_calls.blocked for one in result.receipts[:4]] == [
        0, 0, 0 if message == "approve" else 1, 1,
    ]  # fmt: skip


async def test_a_consent_is_used_up_by_the_call_also_where_the_agent_is_stopped_behind_it(
    hasty: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    play = script(only=turn(CALL, {"do": "run", "argv": until_there(go)}, CALL, OK))
    start(hasty, "used-up", repo, SPEC, play)
    await parked(hasty, "used-up")
    await update(hasty, "used-up", "approve")
    begun(go)
    await update(hasty, "used-up", "interrupt")
    await waiting(hasty, "used-up", "human")
    go.touch()

    await resume(hasty, "used-up")

    await parked(hasty, "used-up", attempt=3)
    await update(hasty, "used-up", "reject")
    result = await ended(hasty, "used-up", "verified")
    assert made(result) == ["made"]


async def test_a_retry_asks_again(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinks = dawdling(monkeypatch, attempt=2)
    async with at_home(desk, tmp_path, STEPWISE_HOLD_S="0.05") as home:
        start(home, "anew", repo, SPEC, script(only=turn(CALL, OK)))
        await parked(home, "anew")
        await update(home, "anew", "approve")
        async with asyncio.timeout(60):
            await thinks.wait()
        await update(home, "anew", "interrupt")
        await waiting(home, "anew", "human")
        await resume(home, "anew", action="retry")
        await parked(home, "anew", attempt=3)
        await update(home, "anew", "approve")
        result = await ended(home, "anew", "verified")
    assert made(result) == ["made"]
