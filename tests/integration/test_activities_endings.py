"""However work ends before its time, it leaves one kind of partial handoff, and the next attempt goes on from that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from activities_kit import (
    FLOW,
    RUN,
    Driver,
    acquired,
    make_worker,
    nothing_outlives_a_test,
    partial_of,
    until,
)
from live_kit import transcript_of
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from schemas.calls import Recover, WorkOut, WorkResult
from schemas.common import Budget

HALF = "{do: edit, path: half.txt, content: half}"
STALL = "{do: stall, seconds: 3600}"
REST = "{do: edit, path: rest.txt, content: rest}"


__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


@dataclass(frozen=True)
class Case:
    """What the agent does after half of its work, what the engine does to it, and how that is called."""

    action: str
    ended: str
    reason: str
    method: str | None = None
    timeouts: str = ""
    cancel: ActivityCancellationDetails | None = None
    changes: dict[str, Any] = field(default_factory=dict)


CASES = {
    "failed": Case("{do: fail, code: overloaded}", "agent_failed", "agent_failed"),
    "crashed": Case("{do: crash_child}", "agent_failed", "agent_failed"),
    "rate limited": Case("{do: rate_limit, seconds: 5}", "rate_limited", "rate_limit"),
    "asked": Case("{do: ask, question: 'Which?'}", "question", "question"),
    "called": Case("{do: run, argv: ['true'], ask: true}", "approval", "approval"),
    "too long": Case(STALL, "timeout", "timeout", "cooperative", "work: 1, no_output: 900"),
    "silent": Case(STALL, "timeout", "timeout", "cooperative", "no_output: 1"),
    "hung": Case("{do: hang}", "timeout", "timeout", "killed", "no_output: 1"),
    "tokens": Case("{do: tokens, prompt: 100}", "budget", "budget", changes={"budget": Budget(tokens=100)}),
    "tokens of one that goes on": Case(
        "{do: tokens, prompt: 100}\n          - {do: stall, seconds: 3600}",
        "budget",
        "budget",
        changes={"budget": Budget(tokens=50)},
    ),
    "dollars": Case(
        "{do: tokens, prompt: 1, cost_usd: 2.0}\n          - {do: stall, seconds: 3600}",
        "budget",
        "budget",
        "cooperative",
        changes={"budget": Budget(usd=1)},
    ),
    "seconds": Case(STALL, "budget", "budget", "cooperative", changes={"budget": Budget(seconds=1)}),
    "interrupted": Case(
        STALL,
        "interrupted",
        "interrupt",
        "cooperative",
        cancel=ActivityCancellationDetails(cancel_requested=True),
    ),
    "shut down": Case(
        STALL,
        "worker_shutdown",
        "worker_shutdown",
        "cooperative",
        cancel=ActivityCancellationDetails(worker_shutdown=True),
    ),
    "server lost": Case(
        STALL, "server_lost", "server_lost", "cooperative", cancel=ActivityCancellationDetails(not_found=True)
    ),
}


async def ended(driver: Driver, case: Case) -> WorkOut:
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(driver.work(environment=environment, **case.changes))
    if case.cancel is not None:
        spool = driver.ctx.spool
        await until(lambda: any("half.txt" in path.read_text() for path in spool.rglob("events.jsonl")))
        environment.cancel(case.cancel)
    return await work


def check(driver: Driver, out: WorkOut, reason: str, method: str | None) -> None:
    """Assert what every partial handoff has, and that it agrees with the result and with the disk."""
    partial = partial_of(driver, out)
    assert partial.reason == out.reason == reason
    assert partial.stop_method == out.stop_method
    assert method is None or partial.stop_method == method
    assert (partial.phase, partial.step_id, partial.visit, partial.attempt) == ("work", "implement", 1, 1)
    assert (partial.requested_by, partial.requested_at) == ("", None), "the receipt says who"
    assert partial.done == ["created half.txt"]
    assert partial.file_changes.created == ["half.txt"]
    assert out.changes.created == 1
    savepoint = partial.savepoint
    assert savepoint is not None
    assert savepoint == out.savepoint
    assert savepoint.tree == out.tree
    assert savepoint.bundle is not None
    assert driver.ctx.evidence.read(savepoint.bundle)
    assert partial.session == out.session
    assert partial.session is not None
    assert partial.session.resumable
    assert partial.last_tool_calls[0].tool_name == "stub.edit"
    assert partial.transcript is not None
    assert b"half.txt" in driver.ctx.evidence.read(partial.transcript)
    assert partial.summary
    assert partial.resume_hint
    assert out.commit_after == out.commit_before
    assert not driver.ctx.sessions.holds(RUN)
    stored = driver.ctx.results.load(driver.key(), WorkResult)
    assert stored is not None
    assert stored.out == out
    assert stored.transcript == partial.transcript


@pytest.mark.parametrize("name", CASES)
async def test_every_ending_leaves_the_same_kind_of_partial_handoff(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    timeouts = f"    timeouts: {{{case.timeouts}}}\n" if case.timeouts else ""
    flow = FLOW.replace("    outputs:", f"{timeouts}    outputs:")
    driver = await acquired(tmp_path, HALF, case.action, REST, flow=flow)

    out = await ended(driver, case)

    assert out.ended == case.ended
    check(driver, out, case.reason, case.method)


async def test_so_does_a_worker_that_was_killed(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, STALL)

    class Killed(BaseException):
        """Stands for the end of the process: nothing after it is done."""

    def kill(reached: str) -> None:
        if reached == "work.savepoint":
            raise Killed

    driver.ctx.crash_at = kill
    with pytest.raises(Killed):
        await ended(driver, CASES["interrupted"])
    driver.ctx.crash_at = lambda _: None
    again = await driver.acquire(recover=Recover(key=driver.key(), phase="work", failure="heartbeat"))

    out = again.partial_work
    assert out is not None
    assert out.ended == "crash"
    assert again.partial == out.partial
    check(driver, out, "crash", "killed")


async def test_the_next_attempt_goes_on_from_what_is_left(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, HALF, "{do: rate_limit, seconds: 5}", REST)
    first = await driver.work()

    out = await driver.work(driver.key(attempt=2), partial=first.partial, session=first.session)

    assert (out.ended, out.session_mode, out.changes.created) == ("finished", "resumed", 2)
    transcript = transcript_of(driver, 2)
    assert "Reason of the stop: rate_limit." in transcript
    assert "Done: created half.txt" in transcript


@pytest.mark.parametrize("policy", ["test", "read-only"])
@pytest.mark.parametrize("action", [STALL, "{do: ask, question: 'Which?'}"])
async def test_a_stopped_attempt_whose_run_is_anothers_writes_nothing(
    tmp_path: Path, policy: str, action: str
) -> None:
    go = tmp_path / "go"
    flow = FLOW.replace("    outputs:", f"    policy: {policy}\n    outputs:")
    old = await acquired(tmp_path, HALF, f"{{do: wait_for_file, path: {go}}}", action, flow=flow)
    environment = ActivityEnvironment()
    work = asyncio.ensure_future(old.work(environment=environment))
    spool = old.ctx.spool
    await until(lambda: any("half.txt" in path.read_text() for path in spool.rglob("events.jsonl")))
    new = Driver(make_worker(tmp_path, data="other", worker_id="w2"), old.repo, flow, old.scenario)
    new.resolved = old.resolved
    await new.acquire(recover=Recover(key=old.key(), phase="measure", failure="heartbeat"))
    stored = new.ctx.evidence.blobs.keys(f"runs/{RUN}/")
    if action == STALL:
        environment.cancel()
    else:
        go.touch()

    with pytest.raises(ApplicationError) as refused:
        await work

    assert refused.value.type == "LeaseLost"
    assert new.ctx.evidence.blobs.keys(f"runs/{RUN}/") == stored
    assert not old.ctx.sessions.holds(RUN)
