"""Agents that take longer over one thing than silence may last: what still streams lives, what hangs is ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from activities_kit import FLOW, Driver, make_worker, nothing_outlives_a_test
from agents_kit import agents
from flow_kit import make_repository
from model_servers.script import Part, Reply, Say, Think, Write, in_order, turn

from schemas.calls import WorkOut, WorkResult
from transports import registry

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here

SILENCE_S: Final = {"claude-sdk": 8, "codex": 8, "gemini-cli": 15}
"""How long an agent may be silent here, in seconds; Gemini CLI starts its program in each turn."""
PIECES: Final = 12
LONG: Final = "".join(f"This is piece {number:02}.\n" for number in range(PIECES))
"""Comes in all for longer than silence may last. No two lines are the same, since Gemini CLI ends what repeats itself."""
SLOW: Final[dict[str, Callable[[], tuple[Part, ...]]]] = {
    "text": lambda: (Say(LONG, pieces=PIECES),),
    "thought": lambda: (Think(LONG, pieces=PIECES), Say("Well.")),
    "call": lambda: (Write("made.txt", LONG, pieces=PIECES),),
}
"""What the model takes its time for."""
SHOWN: Final = (
    *(("claude-sdk", what) for what in SLOW),
    *(("codex", what) for what in SLOW),
    # It prints no thoughts, and its protocol has a call whole.
    ("gemini-cli", "text"),
)


@asynccontextmanager
async def driven(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch, *replies: Reply
) -> AsyncIterator[Driver]:
    """Hold a worker whose agent is the real program, with a model behind it that gives these replies."""
    transport = registry.open(name)
    if not transport.is_available().ok:
        pytest.skip(transport.is_available().reason)
    flow = FLOW.replace("    outputs:", f"    timeouts: {{no_output: {SILENCE_S[name]}}}\n    outputs:")
    with agents({name: in_order(*replies)}) as env:
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        worker = make_worker(root, transports={name: transport})
        driver = Driver(worker, make_repository(root / "repo"), flow)
        await driver.resolve(transport=name, scenario=None)
        await driver.acquire()
        try:
            yield driver
        finally:
            await worker.sessions.close_all()


def transcript(driver: Driver) -> list[dict[str, Any]]:
    stored = driver.ctx.results.load(driver.key(), WorkResult)
    assert stored is not None
    assert stored.transcript is not None
    return [json.loads(line) for line in driver.ctx.evidence.read(stored.transcript).splitlines()]


@pytest.mark.parametrize(("name", "what"), SHOWN)
async def test_what_takes_longer_than_silence_may_last_is_no_silence_while_its_pieces_come(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = turn(*SLOW[what](), pace_s=1.2 * SILENCE_S[name] / PIECES)
    async with driven(tmp_path, name, monkeypatch, slow) as driver:
        out: WorkOut = await driver.work(transports=[name])
        assert (out.ended, out.error) == ("finished", None)
        if what == "call":
            assert (driver.ctx.folder(driver.run_id).workspace / "made.txt").read_text() == LONG


@pytest.mark.parametrize("name", SILENCE_S)
async def test_a_model_that_only_keeps_its_line_open_is_silent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = turn(Say(LONG, pieces=PIECES), hang_after=4, kept_alive=True)
    async with driven(tmp_path, name, monkeypatch, hangs) as driver:
        out: WorkOut = await driver.work(transports=[name])
        assert (out.ended, out.error and out.error.code) == ("timeout", "no_output")


@pytest.mark.parametrize("name", ["claude-sdk", "codex"])
async def test_pieces_are_not_stored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with driven(tmp_path, name, monkeypatch, turn(Say(LONG, pieces=PIECES))) as driver:
        await driver.work(transports=[name])
        said = [line for line in transcript(driver) if "This is piece" in json.dumps(line)]
    assert len(said) == 1
