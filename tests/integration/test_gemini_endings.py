"""Turns that a real Gemini CLI calls a success: which of them are, and which only stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gemini_kit import GeminiBench, calls_of, needs_gemini, serving
from model_servers.script import Mind, Read, Reply, Run, Say, Seen, Tokens, Write, in_order, turn

from schemas.handoff import HandoffDraft
from system import processes
from transports.conformance_bench import Heard, opened
from transports.port import WorkOutcome, WorkRequest

pytestmark = needs_gemini
WORDY = turn(Say("Plan: " + "word " * 400, pieces=40), Run("echo 1"))
MEMORY = "<state_snapshot>the first file is there</state_snapshot>"


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


async def work(bench: GeminiBench, prompt: str = "Do it.") -> tuple[WorkOutcome, Heard]:
    async with opened(bench, bench.spec("idle")) as (session, heard):
        return await session.work(WorkRequest(prompt), heard.emit), heard


@pytest.mark.parametrize(
    ("mind", "calls"),
    [(in_order(WORDY, WORDY), 0), (lambda _: turn(Run("cat missing.txt")), 4)],
    ids=["the same words", "the same call"],
)
async def test_a_turn_that_was_stopped_as_a_loop_is_tried_again(
    mind: Mind, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(mind, monkeypatch):
        outcome, heard = await work(GeminiBench(tmp_path))
    assert (outcome.end, outcome.error and outcome.error.code) == ("failed", "agent_looped")
    assert outcome.error is not None
    assert outcome.error.retryable
    assert len(calls_of(heard.events)) == calls


async def test_a_loop_that_the_model_leaves_when_it_is_told_of_it_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_order(WORDY, turn(Run("echo 1"))), monkeypatch) as server:
        outcome, _ = await work(GeminiBench(tmp_path))
    assert outcome.end == "completed", outcome.error
    assert "loop detected" in server.seen[1].asked


async def test_answers_that_are_used_up_otherwise_than_by_calls_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program counts the words by which it told of a loop, and then calls the end a success."""
    monkeypatch.setattr("transports.gemini_home._MAX_TURNS", 3)

    def mind(seen: Seen) -> Reply:
        if not seen.calls and "loop detected" not in seen.asked:
            return WORDY
        return turn(Write(f"{len(seen.calls)}.txt", "a"))

    with serving(mind, monkeypatch):
        outcome, heard = await work(GeminiBench(tmp_path))
    assert (outcome.end, outcome.error and outcome.error.code) == ("failed", "turns_exhausted")
    assert len(calls_of(heard.events)) == 2


async def test_a_prompt_that_is_too_long_for_the_model_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_order(), monkeypatch) as server:
        outcome, _ = await work(GeminiBench(tmp_path), "do this: " + "abcd efgh " * 480_000)
    assert server.seen == []
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("context_overflow", False)


async def test_results_that_are_too_long_for_the_model_are_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace").mkdir()
    names = [f"{number}.txt" for number in range(3)]
    for name in names:
        (tmp_path / "workspace" / name).write_text(("ab cd " * 330 + "\n") * 2_000)
    with serving(in_order(turn("I read.", *map(Read, names))), monkeypatch) as server:
        outcome, heard = await work(GeminiBench(tmp_path))
    assert len(server.seen) == 1
    assert [call.success for call in calls_of(heard.events)] == [True] * 3
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("context_overflow", False)


async def test_a_model_that_says_nothing_after_its_calls_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(in_order(turn(Write("a.txt", "a")), turn()), monkeypatch) as server:
        outcome, _ = await work(GeminiBench(tmp_path))
    assert len(server.seen) == 2
    assert outcome.end == "completed", outcome.error


async def test_a_history_that_was_compressed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mind(seen: Seen) -> Reply:
        if not seen.streams:
            return turn(MEMORY)
        if seen.asked == "Once more.":
            return turn("And more.")
        if not seen.calls:
            return turn(Write("1.txt", "a"), tokens=Tokens(input=600_000))
        return turn("Done.") if "2.txt" in str(seen.calls) else turn(Write("2.txt", "a"))

    bench = GeminiBench(tmp_path)
    with serving(mind, monkeypatch) as server:
        async with opened(bench, bench.spec("idle")) as (session, heard):
            first = await session.work(WorkRequest("Do it."), heard.emit)
            again = await session.work(WorkRequest("Once more."), heard.emit)
    assert (first.end, again.end) == ("completed", "completed")
    assert [seen.streams for seen in server.seen] == [True, False, False, True, True, True]
    assert [call.success for call in calls_of(heard.events)] == [True, True]
    # Of the turn that was compressed the next process knows what was kept of it.
    assert [call.tool for call in server.seen[-1].calls] == ["write_file", "write_file"]
    used = sum(event.usage.total for event in heard.events if event.kind == "usage")
    assert used == 600_010 + 5 * 110


async def test_what_a_loop_leaves_unsaid_when_a_value_is_asked_for_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = GeminiBench(tmp_path)
    with serving(lambda _: turn(Read("missing.txt")), monkeypatch):
        async with opened(bench, bench.spec("idle")) as (session, heard):
            result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=60)
    assert result.error is not None
    assert result.error.code == "agent_looped"
    assert [event.error.code for event in heard.events if event.kind == "error"] == ["agent_looped"]
    assert heard.events[-1].kind == "turn_ended"
