"""Interrupts that come twice, with other messages, or just too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, eventually
from flow_kit import (
    OK,
    file_at,
    files_at,
    flow,
    git,
    hold,
    kinds,
    linear,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from interrupt_kit import begun, holding, interrupted, until_there
from run_kit import (
    READ_ONLY,
    TWO_STEPS,
    ended,
    payload,
    refused,
    resume,
    said,
    signal,
    start,
    update,
    waiting,
    working,
)


async def test_a_second_interrupt_is_already_so_also_during_the_grace(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end"), interrupt={"grace_s": 1}), step("end", **READ_ONLY))
    start(desk, "twice", repo, spec, script(only=turn({"do": "hang"})))
    await working(desk, "twice")
    run_id = (await desk.status("twice"))["run_id"]
    spool = desk.folder / "disk" / "spool"
    eventually(lambda: any("stub.hang" in at.read_text() for at in spool.glob(f"{run_id}*/**/events.jsonl")))
    first, second = await asyncio.gather(
        update(desk, "twice", "interrupt", {"by": "ann"}), update(desk, "twice", "interrupt", {"by": "bob"})
    )
    assert sorted([first["verdict"], second["verdict"]]) == ["accepted", "already"]
    assert (await update(desk, "twice", "interrupt"))["verdict"] == "already"
    assert "resume is not legal while the run is stopping; legal now: interrupt, abort" in await refused(
        desk, "twice", "resume"
    )
    status = await interrupted(desk, "twice")
    (receipt,) = desk.receipts(status["run_id"])
    assert receipt.stop is not None
    assert receipt.stop.method == "killed"
    assert receipt.stop.requested_by in {"ann", "bob"}
    assert (await update(desk, "twice", "interrupt"))["verdict"] == "already", "it is held, and waits"
    await resume(desk, "twice", action="abort")
    result = await ended(desk, "twice", "stopped")
    assert [one["verdict"] for one in said(desk, result.run_id, "human_message")] == [
        "accepted",
        "already",
        "already",
        "already",
        "accepted",
    ]


@pytest.mark.parametrize("order", [("interrupt", "abort"), ("abort", "interrupt")])
async def test_an_interrupt_and_an_abort_together_end_the_run(
    desk: Rig, repo: Path, tmp_path: Path, order: tuple[str, str]
) -> None:
    name = f"with-{'-'.join(order)}"
    go = tmp_path / "go"
    start(desk, name, repo, TWO_STEPS, script(only=holding("work", go)))
    begun(go)
    for number, message in enumerate(order):
        await signal(desk, name, message, {"by": "ann" if number == 0 else "bob"})
    result = await ended(desk, name, "stopped")
    messages = [(one["name"], one["verdict"]) for one in said(desk, result.run_id, "human_message")]
    assert messages == [(order[0], "accepted"), (order[1], "accepted" if order[1] == "abort" else "already")]
    (receipt,) = result.receipts
    assert receipt.execution_status == "interrupted"
    assert receipt.stop is not None
    assert receipt.stop.requested_by == ("bob" if order[1] == "abort" else "ann")
    assert partial_of(desk, receipt).done == ["created ok"]


async def test_an_interrupt_in_the_moment_the_agent_ends_loses_nothing_whoever_is_first(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    async def race(number: int) -> str:
        name, go = f"race-{number}", tmp_path / f"go-{number}"
        start(desk, name, repo, TWO_STEPS, script(only=turn(write("half", "x"), hold(go), OK)))
        await working(desk, name)
        both: list[Callable[[], Any]] = [go.touch, lambda: signal(desk, name, "interrupt")]
        for act in both if number % 2 else reversed(both):
            found = act()
            if found is not None:
                await found
        await interrupted(desk, name)
        await resume(desk, name)
        result = await ended(desk, name, "verified")
        assert files_at(result.git) == ["README.md", "half", "ok"]
        assert len(said(desk, result.run_id, "human_message")) == 2
        attempts = [one for one in result.receipts if one.step_id == "only"]
        assert [one.execution_status for one in attempts] in (["succeeded"], ["interrupted", "succeeded"])
        return attempts[0].execution_status

    assert set(await asyncio.gather(*(race(number) for number in range(6)))) <= {"succeeded", "interrupted"}


async def test_a_pause_and_an_interrupt_are_one_wait(desk: Rig, repo: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    start(desk, "both", repo, TWO_STEPS, script(only=holding("work", go)))
    begun(go)
    await update(desk, "both", "pause", {"reason": "lunch"})
    await update(desk, "both", "interrupt", {"by": "ann"})
    status = await interrupted(desk, "both")
    assert status["pause_requested"] is False
    go.touch()
    await resume(desk, "both")
    result = await ended(desk, "both", "verified")
    assert [one["waiting_for"] for one in said(desk, result.run_id, "waiting")] == ["human"]


async def test_a_retry_stops_an_agent_that_asks_and_begins_the_step_anew(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    ask = {"do": "ask", "question": "Red or blue?"}
    first = {"do": "run", "argv": ["sh", "-c", f"test -e {tmp_path}/1 || echo x > half; touch {tmp_path}/1"]}
    start(desk, "ask-retry", repo, TWO_STEPS, script(only=turn(first, ask, OK)))
    await waiting(desk, "ask-retry", "answer")
    await resume(desk, "ask-retry", action="retry", note="Look again.")
    await desk.until("ask-retry", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "ask-retry", "answer", {"answers": {"1": "red"}})
    result = await ended(desk, "ask-retry", "verified")
    assert [(one.attempt, one.session) for one in result.receipts[:2]] == [(1, "cold"), (2, "cold")]
    assert files_at(result.git) == ["README.md", "ok"]
    assert "Look again." in transcript_of(desk, result.receipts[1])
    assert kinds(desk, result.run_id).count("interrupted") == 1


async def test_an_interrupted_run_can_be_cancelled(desk: Rig, repo: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    start(desk, "cancelled", repo, TWO_STEPS, script(only=holding("work", go)))
    begun(go)
    await update(desk, "cancelled", "interrupt")
    status = await interrupted(desk, "cancelled")
    assert desk.temporal("workflow", "cancel", "--workflow-id", "cancelled").returncode == 0
    eventually(lambda: kinds(desk, status["run_id"])[-1] == "run_completed")
    assert payload(desk.journal(status["run_id"])[-1])["outcome"] == "cancelled"


async def test_an_answer_of_the_first_interrupt_is_no_answer_to_the_second(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = turn(write("a", "1\n"), {"do": "run", "argv": until_there(one)})
    again = turn(write("b", "2\n"), {"do": "run", "argv": until_there(two)}, OK)
    start(desk, "again", repo, TWO_STEPS, script(only={"turns": [first], "resumed": again}))
    begun(one)
    await update(desk, "again", "interrupt", {"by": "ann"})
    await interrupted(desk, "again")
    await resume(desk, "again", note="first note")
    begun(two)
    await update(desk, "again", "interrupt", {"by": "bob"})
    status = await interrupted(desk, "again")
    assert (status["attempt"], status["waiting"]["reason"]) == (2, "interrupted by bob")
    two.touch()
    await resume(desk, "again", note="second note")
    result = await ended(desk, "again", "verified")
    stops = [one.stop.requested_by if one.stop else None for one in result.receipts]
    assert stops == ["ann", "bob", None, None]
    told = transcript_of(desk, result.receipts[2])
    assert "Done: created a" in told
    assert "Done: created b" in told
    assert "second note" in told
    assert result.git is not None
    assert file_at(result.git, "a") == "1"
    assert git(result.git.workspace, "log", "--format=%s").splitlines() == ["small/only #1", "first"]
