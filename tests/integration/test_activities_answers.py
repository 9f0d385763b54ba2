"""What the agent does when it is asked for hand-off and route: logged, counted, and told from its work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from activities_kit import FLOW, RUN, SCENARIO, Driver, make_worker, nothing_outlives_a_test
from flow_kit import make_repository

from activities.answering import KEPT_OPEN_S, Asking, _open_log
from activities.running import Stop
from schemas.calls import FinalizeOut, ProposeOut, Recover, SessionPhaseIn
from schemas.common import AgentPhase
from schemas.events import TextEvent
from schemas.facts import StepFacts
from schemas.receipt import StepReceipt
from store.attempts import log_folder

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here

READING = FLOW.replace(
    '    agent: worker\n    objective: "Do', '    agent: worker\n    policy: read-only\n    objective: "Do'
)
SLY = """\
version: 1
steps:
  implement:
    turns:
      - work: [{do: edit, path: early.txt, content: x}, {do: tokens, prompt: 100, completion: 10}]
        finalize:
          actions: [{do: edit, path: late.txt, content: x}, {do: tokens, prompt: 7, completion: 3, cost_usd: 0.5}]
          value: {status: VERIFIED, summary: It is made.}
        route:
          actions: [{do: run, argv: [touch, later.txt]}, {do: tokens, prompt: 1}]
          value: {decision: branch, next_step_id: finish}
"""


def before_the_answer(*actions: str) -> str:
    """Return a scenario whose agent does these actions before its draft."""
    listed = ", ".join(actions)
    return SCENARIO.replace("finalize:\n", f"finalize:\n          actions: [{listed}]\n")


async def worked(root: Path, scenario: str, flow: str = FLOW, **settings: Any) -> Driver:
    driver = Driver(make_worker(root, **settings), make_repository(root / "repo"), flow, scenario)
    await driver.acquire()
    await driver.work()
    return driver


async def routed(driver: Driver) -> ProposeOut:
    call = SessionPhaseIn(**driver.phase(driver.key()), work_attempt=1, candidates=["finish"])
    out: ProposeOut = await driver.call("propose_route", call)
    return out


def lines(driver: Driver, phase: AgentPhase, name: str, attempt: int = 1) -> list[dict[str, Any]]:
    place = f"{log_folder(driver.key(attempt=attempt), phase)}/{name}.jsonl"
    return [json.loads(line) for line in driver.ctx.evidence.read_key(place).splitlines()]


async def receipt(driver: Driver, **more: Any) -> StepReceipt:
    recorded = await driver.record(StepFacts(status="UNVERIFIED"), work_attempt=1, **more)
    return StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))


async def test_calls_that_are_blocked_while_it_answers_stand_in_logs_and_receipt(tmp_path: Path) -> None:
    driver = await worked(tmp_path, SLY, READING)

    draft, signal = await driver.finalize(), await routed(driver)

    assert (draft.tool_calls, draft.tools_blocked, draft.usage.total) == (1, 1, 10)
    assert (signal.tool_calls, signal.tools_blocked, signal.usage.total) == (1, 1, 1)
    for phase in ("finalize", "route"):
        (call,) = lines(driver, phase, "tool_calls")
        assert call["blocked"]
        header, prompt, *_, footer = lines(driver, phase, "transcript")
        assert (header["phase"], header["transport"]) == (phase, "stub")
        assert header["session_id"].startswith("stub-")
        assert prompt["event_type"] == "user_prompt"
        assert (footer["blocked"], footer["complete"]) == (1, True)
        kinds = [line["event"]["kind"] for line in lines(driver, phase, "events")]
        assert kinds[-1] == "turn_ended"
        assert "usage" in kinds
    told = await receipt(driver, finalize_attempt=1, route_attempt=1)
    assert [(one.phase, one.tool_name, one.code) for one in told.tool_calls.blocked_calls] == [
        ("work", "stub.edit", "read_only"),
        ("finalize", "stub.edit", "read_only"),
        ("route", "stub.run", "read_only"),
    ]
    assert (told.tool_calls.count, told.tool_calls.blocked) == (3, 3)
    assert all(one.reason for one in told.tool_calls.blocked_calls)
    assert [(one.phase, one.attempt, one.session, one.blocked) for one in told.phases] == [
        ("work", 1, "cold", 1),
        ("finalize", 1, "hot", 1),
        ("route", 1, "hot", 1),
    ]
    for one in told.phases:
        assert one.calls is not None
        assert one.transcript is not None
        assert len(driver.ctx.evidence.read(one.calls).splitlines()) == 1
    assert not (driver.ctx.folder(RUN).workspace / "late.txt").exists()


async def test_what_is_stored_of_an_answer_is_not_carried_through_history(tmp_path: Path) -> None:
    driver = await worked(tmp_path, SLY, READING)

    first, second = await driver.finalize(), await driver.finalize()

    stored = driver.ctx.results.load(driver.key(), FinalizeOut)
    assert stored is not None
    assert stored.transcript is not None
    assert stored.calls is not None
    assert first == second
    assert first.model_fields_set == second.model_fields_set
    assert not first.model_fields_set & {"transcript", "calls", "ended", "retry_at"}


async def test_an_answer_without_calls_says_nothing_of_them(tmp_path: Path) -> None:
    driver = await worked(tmp_path, SCENARIO)
    out = await driver.finalize()
    assert not out.model_fields_set & {"tool_calls", "tools_blocked", "blocked_calls", "calls", "transcript"}


@pytest.mark.parametrize(("seconds", "open_after"), [(KEPT_OPEN_S / 2, True), (2 * KEPT_OPEN_S, False)])
async def test_a_limit_is_a_result_and_the_next_attempt_asks_the_same_session(
    tmp_path: Path, seconds: float, *, open_after: bool
) -> None:
    scenario = before_the_answer("{do: tokens, prompt: 5}", f"{{do: rate_limit, seconds: {seconds}}}")
    driver = await worked(tmp_path, scenario)

    limited = await driver.finalize()

    assert (limited.ended, limited.draft, limited.usage.total) == ("rate_limited", None, 5)
    assert limited.retry_at is not None
    assert limited.error is not None
    assert limited.error.code == "rate_limited"
    assert await driver.finalize() == limited, "a repeat finds what is there"
    assert driver.ctx.sessions.holds(RUN) is open_after
    again = await driver.finalize(driver.key(attempt=2), work_attempt=1)
    assert (again.ended, again.claimed_status) == ("finished", "VERIFIED")
    assert again.session_mode == ("hot" if open_after else "resumed")
    kinds = [line["event"]["kind"] for line in lines(driver, "finalize", "events")]
    assert kinds.count("rate_limited") == 1
    first = await receipt(driver, finalize_attempt=1, execution_status="interrupted", stop="rate_limit")
    (work, finalize) = first.phases
    assert (work.error, finalize.error) == (None, limited.error)


@pytest.mark.parametrize(
    ("action", "code", "retryable"),
    [
        ("{do: fail, code: auth_failed, message: set A_KEY, retryable: false}", "auth_failed", False),
        ("{do: fail, code: provider_overloaded}", "provider_overloaded", True),
        ("{do: crash_child}", "agent_crashed", True),
    ],
)
async def test_an_agent_that_cannot_be_asked_is_a_result_and_its_session_is_closed(
    tmp_path: Path, action: str, code: str, *, retryable: bool
) -> None:
    driver = await worked(tmp_path, before_the_answer(action))
    out = await driver.finalize()
    assert out.ended == "agent_failed"
    assert out.error is not None
    assert (out.error.code, out.error.retryable) == (code, retryable)
    assert not driver.ctx.sessions.holds(RUN)


async def test_the_log_of_a_lost_answer_is_kept_and_named_in_the_receipt_of_its_attempt(
    tmp_path: Path,
) -> None:
    def broken(point: str) -> None:
        if point == "finalize.logged":
            message = "the engine's own fault"
            raise RuntimeError(message)

    driver = await worked(tmp_path, SLY, READING, crash_at=broken)
    log = driver.ctx.spool / f"{driver.key().path.removeprefix('runs/').replace('/', '.')}.finalize"
    with pytest.raises(Exception, match="own fault"):
        await driver.finalize()
    assert not log.exists(), "it was stored before"

    await driver.acquire(Recover(key=driver.key(), phase="finalize", failure="it broke"))

    told = await receipt(driver, execution_status="failed", stop="crash")
    (_, lost) = told.phases
    assert (lost.phase, lost.attempt, lost.session) == ("finalize", 1, None)
    assert lost.transcript is not None
    assert lost.calls is not None
    assert b"late.txt" in driver.ctx.evidence.read(lost.calls)


async def test_the_log_of_an_answer_whose_worker_was_killed_is_recovered(tmp_path: Path) -> None:
    driver = await worked(tmp_path, SLY, READING)
    key = driver.key()
    bundle = await driver.ctx.bundle(driver.phase(key)["bundle"])
    call = SessionPhaseIn(**driver.phase(key), work_attempt=1)
    dead = _open_log(Asking(driver.ctx, call, bundle, bundle.step("implement"), "finalize", Stop()))
    dead.append(TextEvent(text="half an answer"))
    dead.abandon()

    await driver.acquire(Recover(key=key, phase="finalize", failure="heartbeat"))

    header, said, footer = lines(driver, "finalize", "transcript")
    assert header["phase"] == "finalize"
    assert said["block"]["text"] == "half an answer"
    assert footer["complete"] is False
