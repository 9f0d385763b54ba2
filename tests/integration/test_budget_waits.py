"""A budget that is used up asks for more: what an extension does, and one that does not help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import (
    OK,
    files_at,
    flow,
    gate,
    hold,
    linear,
    partial_of,
    script,
    step,
    turn,
    write,
)
from run_kit import READ_ONLY, ended, refused, replays, resume, said, signal, start, update, waiting

USE = {"do": "tokens", "prompt": 90, "completion": 20}


def bounded(budget: dict[str, Any] | None) -> dict[str, Any]:
    """Return a flow whose first step has a budget."""
    more = {"budget": budget} if budget else {}
    return flow(step("only", linear("end"), gates=[gate("there")], **more), step("end", **READ_ONLY))


def run_budget(budget: dict[str, Any] | None) -> dict[str, Any]:
    """Return the part of the input that bounds the whole run."""
    return {"budget": budget} if budget else {}


def is_asked(*, attempt: int | None = None, reason: str | None = None) -> Callable[[dict[str, Any]], bool]:
    """Return what holds while an attempt waits for a budget, for a reason."""

    def holds(now: dict[str, Any]) -> bool:
        waits = now["waiting"] is not None and now["waiting"]["kind"] == "budget"
        return waits and attempt in (None, now["attempt"]) and reason in (None, now["waiting"]["reason"])

    return holds


TOKENS = {"tokens": 100}


@pytest.mark.parametrize(
    ("own", "whole", "allowed"),
    [
        (TOKENS, None, {}),
        (TOKENS, None, {"tokens": 11}),
        (None, TOKENS, {}),
        (None, TOKENS, {"tokens": 1_000, "seconds": 5}),
        (TOKENS, TOKENS, {}),
        (TOKENS, {"tokens": 10_000}, {"tokens": 50}),
    ],
)
async def test_an_extension_lets_the_agent_go_on_where_it_was(
    desk: Rig, repo: Path, own: Any, whole: Any, allowed: dict[str, Any]
) -> None:
    name = f"more-{bool(own)}-{(whole or {}).get('tokens')}-{allowed.get('tokens')}".lower()
    play = script(only=turn(write("half", "x"), USE, OK))
    start(desk, name, repo, bounded(own), play, **run_budget(whole))
    status = await waiting(desk, name, "budget")
    assert status["waiting"]["reason"].startswith("the budget of 100 tokens is used up (110 used)")
    assert status["legal"] == ["resume", "extend_budget", "abort"]
    assert status["next_command"].endswith("--name extend_budget")
    assert (await update(desk, name, "extend_budget", {**allowed, "by": "ann"}))["verdict"] == "accepted"
    result = await ended(desk, name, "verified")
    first, second, _ = result.receipts
    assert partial_of(desk, first).reason == "budget"
    assert first.stop is not None
    assert first.stop.reason == "budget"
    assert (second.attempt, second.session) == (2, "resumed")
    assert result.usage.total == 110
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "half", "ok"]


async def test_an_extension_that_does_not_help_waits_again_and_says_so(desk: Rig, repo: Path) -> None:
    start(desk, "too-little", repo, bounded(TOKENS), script(only=turn(USE, OK)))
    await waiting(desk, "too-little", "budget")
    for payload, reason in (
        ({"tokens": 5}, "that is not enough: the budget of 105 tokens is used up (110 used)"),
        ({"seconds": 60}, "that is not enough: the budget of 105 tokens is used up (110 used)"),
        ({"tokens": 5}, "that is not enough: the budget of 110 tokens is used up (110 used)"),
    ):
        verdict = await update(desk, "too-little", "extend_budget", payload)
        assert (verdict["verdict"], verdict["message"]) == ("accepted", reason)
        await desk.until("too-little", is_asked(reason=reason))
    await signal(desk, "too-little", "extend_budget")
    result = await ended(desk, "too-little", "verified")
    assert [one.attempt for one in result.receipts] == [1, 2, 1], "too little costs no attempt"
    assert [one["waiting_for"] for one in said(desk, result.run_id, "waiting")] == ["budget"] * 4


async def test_without_a_number_it_is_enough_however_much_was_used_beyond_the_bound(
    desk: Rig, repo: Path
) -> None:
    start(desk, "far-beyond", repo, bounded(TOKENS), script(only=turn({**USE, "prompt": 330}, USE, OK)))
    await desk.until("far-beyond", is_asked(attempt=1))
    assert (await update(desk, "far-beyond", "extend_budget"))["message"] == ""
    status = await desk.until("far-beyond", is_asked(attempt=2))
    assert status["waiting"]["reason"] == "the budget of 450 tokens is used up (460 used)"
    await update(desk, "far-beyond", "extend_budget")
    await ended(desk, "far-beyond", "verified")


async def test_a_budget_is_used_up_again_and_extended_again(desk: Rig, repo: Path) -> None:
    start(desk, "again", repo, bounded(TOKENS), script(only=turn(USE, USE, USE, OK)))
    for attempt in (1, 2):
        await desk.until("again", is_asked(attempt=attempt))
        await update(desk, "again", "extend_budget")
    result = await ended(desk, "again", "verified")
    assert result.usage.total == 330


async def test_seconds_of_work_are_extended_too(desk: Rig, repo: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    play = script(only=turn(write("half", "x"), hold(go), OK))
    start(desk, "seconds", repo, bounded({"seconds": 1}), play)
    status = await waiting(desk, "seconds", "budget")
    assert status["waiting"]["reason"].startswith("the budget of 1 seconds is used up")
    assert status["waiting"]["used_up"] == ["seconds"]
    go.touch()
    await update(desk, "seconds", "extend_budget", {"seconds": 60})
    result = await ended(desk, "seconds", "verified")
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "half", "ok"]


async def test_a_retry_has_the_steps_own_budget_anew_but_not_the_runs(desk: Rig, repo: Path) -> None:
    start(desk, "anew", repo, bounded(TOKENS), script(only=turn(USE, OK)), **run_budget({"tokens": 200}))
    await waiting(desk, "anew", "budget")
    assert (await update(desk, "anew", "resume", {"action": "retry"}))["message"] == ""
    await desk.until("anew", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    assert "cannot simply continue" in await refused(desk, "anew", "resume")
    status = await desk.status("anew")
    assert "the budget of 200 tokens is used up (220 used)" in status["waiting"]["reason"]
    verdict = await update(desk, "anew", "resume", {"action": "retry"})
    assert verdict["message"] == "that is not enough: the budget of 200 tokens is used up (220 used)"
    await desk.until("anew", is_asked(reason="the budget of 200 tokens is used up (220 used)"))
    await resume(desk, "anew", action="skip")
    await desk.until("anew", lambda now: now["step"] == "end" and now["waiting"] is not None)
    await update(desk, "anew", "extend_budget")
    result = await ended(desk, "anew", "nothing_to_do")
    places = [(one.step_id, one.attempt) for one in result.receipts]
    assert places == [("only", 1), ("only", 2), ("end", 1)], "what is not begun costs no attempt"


async def test_a_resume_for_which_there_is_no_budget_says_so_and_waits(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    name, spent = "held-up", {"actions": [USE], "value": {"status": "BLOCKED", "summary": "stuck"}}
    play = script(only={"work": [write("half", "x")], "finalize": spent})
    start(desk, name, repo, bounded(None), play, **run_budget(TOKENS))
    await waiting(desk, name, "human")
    used_up = "the budget of 100 tokens is used up (110 used)"

    verdict = await update(desk, name, "resume", {"note": "once more"})

    assert (verdict["verdict"], verdict["message"]) == ("accepted", f"that is not enough: {used_up}")
    await desk.until(name, is_asked(attempt=1, reason=used_up))
    await resume(desk, name, action="retry")
    await desk.until(name, is_asked(attempt=1, reason=f"that is not enough: {used_up}"))
    await update(desk, name, "extend_budget", {"tokens": 1_000})
    await waiting(desk, name, "human")
    assert (await update(desk, name, "resume", {"action": "skip"}))["message"] == ""
    result = await ended(desk, name)
    assert [one.attempt for one in result.receipts if one.step_id == "only"] == [1, 2]
    assert await replays(desk, name, tmp_path)
