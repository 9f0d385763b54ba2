"""What people say to a run: the verdict, the effect, and where a refusal shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Rig, eventually
from flow_kit import (
    OK,
    envelope_of,
    event_types,
    failure,
    files_at,
    flow,
    gate,
    git,
    hold,
    kinds,
    linear,
    make_repository,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from schemas.events import RunEvent
from schemas.handoff import PartialHandoff
from schemas.run import FlowResult

READ_ONLY: dict[str, Any] = {"policy": "read-only", "agent": "reviewer"}
TWO_STEPS = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with one file; no test changes it."""
    return make_repository(tmp_path_factory.mktemp("messages") / "repo")


def start(rig: Rig, name: str, repo: Path, spec: Mapping[str, Any], play: Any = "noop", **more: Any) -> None:
    rig.start(name, {"spec": spec, "repo": str(repo), "task": "t", "scenario": play, **more})


async def signal(rig: Rig, name: str, signal_name: str, *args: Any) -> None:
    await rig.client.get_workflow_handle(name).signal(signal_name, args=list(args))


async def update(rig: Rig, name: str, update_name: str, *args: Any) -> dict[str, Any]:
    verdict: dict[str, Any] = await rig.client.get_workflow_handle(name).execute_update(
        update_name, args=list(args)
    )
    return verdict


async def refused(rig: Rig, name: str, update_name: str, *args: Any) -> str:
    """Send an update that must be refused; return the reason."""
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await update(rig, name, update_name, *args)
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "Refused"
    return cause.message


async def working(rig: Rig, name: str, step_id: str = "only") -> dict[str, Any]:
    """Wait until an agent works."""
    return await rig.until(name, lambda now: now.get("phase") == "work" and now.get("step") == step_id)


async def waiting(rig: Rig, name: str, kind: str) -> dict[str, Any]:
    """Wait until a run waits for ``kind``."""
    return await rig.until(name, lambda now: (now.get("waiting") or {}).get("kind") == kind)


async def refused_signal(rig: Rig, name: str) -> dict[str, Any]:
    """Wait until a signal shows as refused."""
    status = await rig.until(name, lambda now: now.get("last_refused") is not None)
    shown: dict[str, Any] = status["last_refused"]
    return shown


async def ended(rig: Rig, name: str, outcome: str) -> FlowResult:
    result = await rig.result(name)
    assert result.outcome == outcome, result
    rig.check_evidence(result)
    return result


def said(rig: Rig, run_id: str, kind: str) -> list[dict[str, Any]]:
    """Return the payloads of the journal's events of one kind."""
    return [payload(event) for event in rig.journal(run_id) if event.kind == kind]


def payload(event: RunEvent) -> dict[str, Any]:
    return event.model_extra or {}


# Pause and resume.


@pytest.mark.parametrize("way", ["signal", "update"])
@pytest.mark.parametrize(("kind", "body"), [("none", []), ("null", [None]), ("object", [{}]), ("text", [""])])
async def test_pause_and_resume_need_no_payload(
    desk: Rig, repo: Path, tmp_path: Path, way: str, kind: str, body: list[Any]
) -> None:
    name = f"pause-{way}-{kind}"
    start(desk, name, repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, name)
    send = signal if way == "signal" else update
    await send(desk, name, "pause", *body)
    status = await desk.until(name, lambda now: now["pause_requested"])
    assert status["state"] == "running"
    (tmp_path / "go").touch()
    status = await waiting(desk, name, "pause")
    assert status["needs_human"]
    assert status["legal"] == ["resume", "abort"]
    await send(desk, name, "resume", *body)
    result = await ended(desk, name, "verified")
    assert [one["waited_for"] for one in said(desk, result.run_id, "resumed")] == ["pause"]


async def test_a_pause_holds_at_the_next_phase_and_says_why(desk: Rig, repo: Path, tmp_path: Path) -> None:
    start(desk, "pause-why", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, "pause-why")
    first = await update(desk, "pause-why", "pause", {"reason": "lunch", "by": "ann"})
    assert first == {
        "verdict": "accepted",
        "name": "pause",
        "message": "takes hold at the next phase boundary",
        "legal": [],
    }
    again = await update(desk, "pause-why", "pause")
    assert again["verdict"] == "already"
    (tmp_path / "go").touch()
    status = await waiting(desk, "pause-why", "pause")
    assert status["waiting"]["reason"] == "lunch"
    assert status["waiting"]["deadline"] is not None
    assert (await update(desk, "pause-why", "pause"))["verdict"] == "already"
    run_id = status["run_id"]
    assert kinds(desk, run_id)[-1] == "waiting", "the journal is stored before the wait"
    assert (await update(desk, "pause-why", "resume", {"note": "Be quick.", "by": "bob"}))[
        "verdict"
    ] == "accepted"
    result = await ended(desk, "pause-why", "verified")
    messages = said(desk, result.run_id, "human_message")
    assert [(one["name"], one["verdict"], one.get("by")) for one in messages] == [
        ("pause", "accepted", "ann"),
        ("pause", "already", None),
        ("pause", "already", None),
        ("resume", "accepted", "bob"),
    ]
    assert len(desk.receipts(result.run_id)) == 2, "a pause between phases costs no attempt"


async def test_a_pause_that_is_withdrawn_before_the_boundary_never_holds(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    start(desk, "withdrawn", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, "withdrawn")
    await update(desk, "withdrawn", "pause")
    assert (await update(desk, "withdrawn", "resume"))["message"] == "the pause is withdrawn"
    (tmp_path / "go").touch()
    result = await ended(desk, "withdrawn", "verified")
    assert "waiting" not in kinds(desk, result.run_id)


async def test_many_signals_at_once_are_judged_in_their_order(desk: Rig, repo: Path, tmp_path: Path) -> None:
    start(desk, "many", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, "many")
    for number in range(40):
        await signal(desk, "many", "pause" if number % 2 == 0 else "resume")
    await desk.until("many", lambda now: not now["pause_requested"])
    (tmp_path / "go").touch()
    result = await ended(desk, "many", "verified")
    messages = [(one["name"], one["verdict"]) for one in said(desk, result.run_id, "human_message")]
    assert messages == [("pause", "accepted"), ("resume", "accepted")] * 20
    assert "waiting" not in kinds(desk, result.run_id)


async def test_many_updates_at_once_each_get_their_answer(desk: Rig, repo: Path, tmp_path: Path) -> None:
    start(desk, "many-updates", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, "many-updates")
    verdicts = await asyncio.gather(*(update(desk, "many-updates", "pause") for _ in range(12)))
    assert sorted(one["verdict"] for one in verdicts) == ["accepted", *["already"] * 11]
    (tmp_path / "go").touch()
    await waiting(desk, "many-updates", "pause")
    await update(desk, "many-updates", "resume")
    await ended(desk, "many-updates", "verified")


# What is refused, and where it shows.


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("approve", [], "approve is not legal while the run is running; legal now: pause, abort"),
        ("reject", [{"reason": "no"}], "reject is not legal while the run is running"),
        ("resume", [], "resume is not legal while the run is running; legal now: pause, abort"),
        ("pause", ["now"], "pause takes a JSON object such as {}, got str"),
        ("pause", [["now"]], "pause takes a JSON object such as {}, got list"),
        ("pause", [7], "pause takes a JSON object such as {}, got int"),
        ("pause", [{}, {}], "pause takes one JSON object, got 2 arguments"),
        ("pause", [{"why": "x"}], "pause: why: no such field; known: reason, by"),
        ("pause", [{"reason": 5}], "pause: reason: Input should be a valid string"),
        ("pause", [{"reason": "x" * 2_001}], "pause: reason: String should have at most 2000 characters"),
        ("abort", ["stop"], "abort takes a JSON object such as {}, got str"),
        (
            "resume",
            [{"action": "jump"}],
            "resume: action: Input should be 'continue', 'retry', 'skip', 'goto' or 'abort'",
        ),
    ],
)
async def test_a_message_that_cannot_be_taken_says_why_as_update_and_shows_as_signal(
    held: tuple[Rig, str], name: str, args: list[Any], says: str
) -> None:
    rig, run = held
    assert says in await refused(rig, run, name, *args)
    await signal(rig, run, name, *args)
    await rig.until(run, lambda now: says in (now.get("last_refused") or {}).get("reason", ""))
    shown = (await rig.status(run))["last_refused"]
    assert shown["name"] == name
    assert shown["legal"] == ["pause", "abort"]
    assert (await rig.status(run))["state"] == "running"


@pytest.fixture(scope="module")
def held(desk: Rig, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, str]:
    """A run whose agent works until the module's worker ends."""
    go = tmp_path_factory.mktemp("held") / "go"
    start(desk, "held", repo, TWO_STEPS, script(only=turn(hold(go), OK)))
    asyncio.run(working(desk, "held"))
    return desk, "held"


async def test_an_unknown_signal_shows_with_the_known_ones(held: tuple[Rig, str]) -> None:
    rig, run = held
    await signal(rig, run, "pasue", {"reason": "x"})
    status = await rig.until(run, lambda now: (now.get("last_refused") or {}).get("name") == "pasue")
    assert status["last_refused"]["reason"] == (
        "no message 'pasue'; known: pause, resume, abort, approve, reject"
    )
    assert status["state"] == "running"


async def test_an_unknown_update_is_refused_with_the_known_ones(held: tuple[Rig, str]) -> None:
    rig, run = held
    done = rig.temporal("workflow", "update", "execute", "--workflow-id", run, "--name", "pasue")
    assert done.returncode == 1
    assert "pasue" in done.stderr
    assert "pause" in done.stderr.replace("pasue", "")


async def test_refusals_neither_fail_a_task_nor_leave_the_journal(held: tuple[Rig, str]) -> None:
    rig, run = held
    await signal(rig, run, "nonsense", "a", "b")
    await rig.until(run, lambda now: (now.get("last_refused") or {}).get("name") == "nonsense")
    types = await event_types(rig, run)
    assert "WORKFLOW_TASK_FAILED" not in types


async def test_goto_needs_a_step_there_is_and_nothing_else_takes_one(desk: Rig, repo: Path) -> None:
    start(desk, "orders", repo, TWO_STEPS, script(only=turn(OK, status="BLOCKED")))
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, "orders-2", repo, spec, script(only=turn(OK, status="BLOCKED")))
    await waiting(desk, "orders-2", "human")
    assert "needs 'step': one of only, end" in await refused(desk, "orders-2", "resume", {"action": "goto"})
    assert "no step 'ende'; steps: only, end" in await refused(
        desk, "orders-2", "resume", {"action": "goto", "step": "ende"}
    )
    assert "'step' belongs to action goto" in await refused(
        desk, "orders-2", "resume", {"action": "retry", "step": "end"}
    )
    assert "transport 'clod' is not offered; offered: stub" in await refused(
        desk, "orders-2", "resume", {"transport": "clod"}
    )
    assert (
        "approve is not legal while the run is waiting for human; legal now: resume, abort"
        in await refused(desk, "orders-2", "approve")
    )
    await update(desk, "orders-2", "resume", {"action": "goto", "step": "end", "by": "ann"})
    result = await ended(desk, "orders-2", "unverified")
    decisions = [(one.step_id, one.decision, one.next_step_id, one.source) for one in result.decisions]
    assert decisions == [
        ("only", "escalate", None, "deterministic"),
        ("only", "branch", "end", "human"),
        ("end", "terminate", None, "fast_path"),
    ]
    await ended(desk, "orders", "verified")


@pytest.mark.parametrize(
    ("action", "steps", "outcome"),
    [
        ("continue", [("only", 1, 1), ("only", 1, 2), ("end", 1, 1)], "nothing_to_do"),
        ("retry", [("only", 1, 1), ("only", 1, 2), ("end", 1, 1)], "nothing_to_do"),
        ("skip", [("only", 1, 1), ("end", 1, 1)], "nothing_to_do"),
        ("abort", [("only", 1, 1)], "stopped"),
    ],
)
async def test_each_order_of_resume_does_what_it_says(
    desk: Rig, repo: Path, action: str, steps: list[tuple[str, int, int]], outcome: str
) -> None:
    spec = flow(step("only", linear("end"), retries={"agent": 0}), step("end", **READ_ONLY))
    play = script(only={"turns": [turn({"do": "fail"}, {"do": "say", "text": "after the failure"})]})
    name = f"order-{action}"
    start(desk, name, repo, spec, play)
    await waiting(desk, name, "human")
    if action == "retry":
        # A fresh session plays the same script, so it fails again: that it is fresh is what shows.
        await update(desk, name, "resume", {"action": "retry"})
        await desk.until(name, lambda now: now["attempt"] == 2 and now["waiting"] is not None)
        result_receipts = desk.receipts((await desk.status(name))["run_id"])
        assert [one.session for one in result_receipts] == ["cold", "cold"]
        await update(desk, name, "resume", {"action": "skip"})
    else:
        await update(desk, name, "resume", {"action": action})
    result = await ended(desk, name, outcome)
    receipts = desk.receipts(result.run_id)
    assert [(one.step_id, one.visit, one.attempt) for one in receipts] == steps
    if action == "continue":
        assert receipts[1].session == "resumed"


# Approval gates.


def approved(kind: str) -> dict[str, Any]:
    """Return a flow whose first step is approved ``before`` or ``after``."""
    return flow(step("only", linear("end"), gates=[gate("there")], approval=kind), step("end", **READ_ONLY))


async def test_approval_before_a_step_waits_before_anything_is_done(desk: Rig, repo: Path) -> None:
    start(desk, "before", repo, approved("before"), script(only=turn(OK)))
    status = await waiting(desk, "before", "approval")
    assert status["waiting"]["reason"] == "may only start?"
    assert status["legal"] == ["resume", "abort", "approve", "reject"]
    assert status["next_command"].endswith("--name approve")
    assert desk.receipts(status["run_id"]) == []
    assert "cannot simply continue" in await refused(desk, "before", "resume")
    await update(desk, "before", "approve", {"by": "ann"})
    result = await ended(desk, "before", "verified")
    assert [(one["name"], one.get("by")) for one in said(desk, result.run_id, "human_message")] == [
        ("approve", "ann")
    ]


async def test_a_step_that_may_not_start_waits_for_a_human(desk: Rig, repo: Path) -> None:
    start(desk, "before-no", repo, approved("before"), script(only=turn(OK)))
    await waiting(desk, "before-no", "approval")
    await update(desk, "before-no", "reject", {"reason": "not today"})
    status = await waiting(desk, "before-no", "human")
    assert status["waiting"]["reason"] == "not today"
    await update(desk, "before-no", "resume", {"action": "skip"})
    result = await ended(desk, "before-no", "nothing_to_do")
    assert [one.step_id for one in desk.receipts(result.run_id)] == ["end"]


async def test_approval_after_a_step_comes_when_its_receipt_is_written(desk: Rig, repo: Path) -> None:
    start(desk, "after", repo, approved("after"), script(only=turn(OK)))
    status = await waiting(desk, "after", "approval")
    assert status["waiting"]["reason"] == "is the result of only right?"
    receipt = desk.receipts(status["run_id"])[0]
    assert receipt.verification_status == "VERIFIED"
    await signal(desk, "after", "approve")
    result = await ended(desk, "after", "verified")
    assert len(desk.receipts(result.run_id)) == 2


async def test_a_rejected_result_is_done_again_with_the_reason(desk: Rig, repo: Path) -> None:
    start(desk, "after-no", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "after-no", "approval")
    await update(desk, "after-no", "reject", {"reason": "Use a longer word.", "by": "ann"})
    await desk.until("after-no", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "after-no", "approve")
    result = await ended(desk, "after-no", "verified")
    first, second, _ = desk.receipts(result.run_id)
    assert (first.attempt, second.attempt, second.session) == (1, 2, "cold")
    assert "Use a longer word." in transcript_of(desk, second)
    assert [(one.step_id, one.decision, one.source, one.explanation) for one in result.decisions][1] == (
        "only",
        "loop",
        "human",
        "ann ordered reject after step only.",
    )


def is_asked(attempt: int) -> Callable[[dict[str, Any]], bool]:
    """Return what holds while an attempt waits for approval."""
    return lambda now: now["attempt"] == attempt and (now["waiting"] or {}).get("kind") == "approval"


async def test_the_sixth_rejection_is_a_humans_to_settle(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end"), approval="after"), step("end", **READ_ONLY))
    start(desk, "rejected", repo, spec, script(only=turn()))
    for number in range(1, 7):
        await desk.until("rejected", is_asked(number))
        await update(desk, "rejected", "reject", {"reason": f"no {number}"})
    status = await waiting(desk, "rejected", "human")
    assert status["waiting"]["reason"] == "rejected 6 times"
    await update(desk, "rejected", "resume", {"action": "skip"})
    result = await ended(desk, "rejected", "nothing_to_do")
    attempts = [one for one in desk.receipts(result.run_id) if one.step_id == "only"]
    assert [one.attempt for one in attempts] == [1, 2, 3, 4, 5, 6]
    assert "no 5" in transcript_of(desk, attempts[5])


async def test_a_plan_is_sent_back_and_then_carried_out(desk: Rig, demo_repo: Path) -> None:
    sent = {"flow": "plan-then-implement", "repo": str(demo_repo), "task": "t"}
    play = {"scenario": "plan-then-implement", "params": {"test": ["python3", "-m", "unittest", "-q"]}}
    desk.start("plan", {**sent, **play})
    await waiting(desk, "plan", "approval")
    await update(desk, "plan", "reject", {"reason": "Too long."})
    await desk.until("plan", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    await update(desk, "plan", "approve")
    result = await ended(desk, "plan", "verified")
    receipts = desk.receipts(result.run_id)
    assert [one.step_id for one in receipts] == ["plan", "plan", "implement", "implement", "finish"]
    assert "A plan in two steps" in transcript_of(desk, receipts[2])


# The end, by people.


async def test_abort_ends_an_agent_at_work_and_keeps_what_it_did(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "abort", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep, OK)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    assert psutil.pid_exists(pid)
    verdict = await update(desk, "abort", "abort", {"reason": "wrong branch", "by": "ann"})
    assert verdict["verdict"] == "accepted"
    result = await ended(desk, "abort", "stopped")
    assert result.summary == "aborted by ann: wrong branch"
    assert not psutil.pid_exists(pid)
    described = await desk.client.get_workflow_handle("abort").describe()
    assert described.status == WorkflowExecutionStatus.COMPLETED
    (receipt,) = desk.receipts(result.run_id)
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert receipt.stop is not None
    assert (receipt.stop.reason, receipt.stop.method, receipt.stop.requested_by) == (
        "interrupt",
        "cooperative",
        "ann",
    )
    assert [(one.measured, one.passed) for one in receipt.gates] == [(False, None)]
    assert envelope_of(desk, receipt).status == "PARTIAL"
    partial = partial_of(desk, receipt)
    assert partial.done == ["created half"]
    assert partial.savepoint is not None
    assert result.git is not None
    assert files_at(result.git) == ["README.md"]
    assert git(result.git.workspace, "show", f"{partial.savepoint.commit}:half") == "x"
    assert kinds(desk, result.run_id)[-1] == "run_completed"


async def test_abort_while_waiting_ends_the_run(desk: Rig, repo: Path) -> None:
    start(desk, "abort-wait", repo, approved("after"), script(only=turn(OK)))
    await waiting(desk, "abort-wait", "approval")
    await signal(desk, "abort-wait", "abort")
    result = await ended(desk, "abort-wait", "stopped")
    assert result.summary == "aborted"
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "ok"], "what was finished stays on the branch"


async def test_a_pause_sent_with_the_start_holds_before_the_first_work(desk: Rig, repo: Path) -> None:
    done = desk.temporal(
        *("workflow", "signal-with-start", "--signal-name", "pause", "--signal-input", '{"reason":"wait"}'),
        *("--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", "early-pause", "--input"),
        json.dumps({"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}),
    )
    assert done.returncode == 0, done.stderr
    status = await waiting(desk, "early-pause", "pause")
    assert status["waiting"]["reason"] == "wait"
    assert desk.receipts(status["run_id"]) == []
    await signal(desk, "early-pause", "resume")
    await ended(desk, "early-pause", "verified")


async def test_an_abort_sent_with_the_start_ends_before_any_work(desk: Rig, repo: Path) -> None:
    done = desk.temporal(
        *("workflow", "signal-with-start", "--signal-name", "abort", "--signal-input", "{}"),
        *("--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", "early-abort", "--input"),
        json.dumps({"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}),
    )
    assert done.returncode == 0, done.stderr
    result = await desk.result("early-abort")
    assert result.outcome == "stopped"
    assert desk.receipts(result.run_id) == []
    described = await desk.client.get_workflow_handle("early-abort").describe()
    assert described.status == WorkflowExecutionStatus.COMPLETED


async def test_a_cancelled_workflow_is_cleaned_up_like_an_aborted_one(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "cancel", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    run_id = await desk.run_id("cancel")
    assert desk.temporal("workflow", "cancel", "--workflow-id", "cancel").returncode == 0
    handle = desk.client.get_workflow_handle("cancel")
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError)
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    assert not psutil.pid_exists(pid)
    (receipt,) = desk.receipts(run_id)
    assert receipt.execution_status == "interrupted"
    assert partial_of(desk, receipt).done == ["created half"]
    assert payload(desk.journal(run_id)[-1])["outcome"] == "cancelled"
    record = json.loads(desk.evidence.read_key(f"runs/{run_id}/run.json"))
    assert (record["outcome"], record["released"]) == ("cancelled", True)


async def test_a_workflow_cancelled_while_it_waits_ends_cancelled(desk: Rig, repo: Path) -> None:
    start(desk, "cancel-wait", repo, approved("before"), script(only=turn(OK)))
    status = await waiting(desk, "cancel-wait", "approval")
    await desk.client.get_workflow_handle("cancel-wait").cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await desk.client.get_workflow_handle("cancel-wait").result()
    assert isinstance(raised.value.cause, CancelledError)
    assert payload(desk.journal(status["run_id"])[-1])["outcome"] == "cancelled"


async def test_a_terminated_workflow_loses_its_agent_and_the_partial_is_stored(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(desk, "terminate", repo, TWO_STEPS, script(only=turn(write("half", "x"), sleep)))
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))
    run_id = await desk.run_id("terminate")
    done = desk.temporal("workflow", "terminate", "--workflow-id", "terminate", "--reason", "test")
    assert done.returncode == 0, done.stderr
    eventually(lambda: not psutil.pid_exists(pid))
    key = f"runs/{run_id}/small/only/1/1/handoff_partial.json"
    eventually(lambda: desk.evidence.blobs.exists(key))
    partial = PartialHandoff.model_validate_json(desk.evidence.read_key(key))
    # A server that pushes cancellations does not say that the workflow is gone; one that does not, does.
    assert partial.reason in {"interrupt", "server_lost"}
    assert partial.done == ["created half"]
    assert desk.receipts(run_id) == []


@pytest.mark.parametrize("when", ["at work", "waiting"])
@pytest.mark.parametrize("to", ["first", "last"])
async def test_a_reset_is_refused_with_the_way_out(
    desk: Rig, repo: Path, tmp_path: Path, when: str, to: str
) -> None:
    name = f"reset-{to}-{when.rsplit(maxsplit=1)[-1]}"
    if when == "waiting":
        start(desk, name, repo, approved("after"), script(only=turn(OK)))
        status = await waiting(desk, name, "approval")
    else:
        start(desk, name, repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
        status = await working(desk, name)
    before = desk.receipts(status["run_id"])
    kind = "FirstWorkflowTask" if to == "first" else "LastWorkflowTask"
    done = desk.temporal("workflow", "reset", "--workflow-id", name, "--type", kind, "--reason", "test")
    assert done.returncode == 0, done.stderr
    error = await failure(desk, name)
    assert error.type == "ResetNotSupported"
    assert "a run cannot be reset" in error.message
    assert "WORKFLOW_TASK_FAILED" not in (await event_types(desk, name))[-4:]
    assert desk.receipts(status["run_id"]) == before
    (tmp_path / "go").touch()


async def test_a_message_to_a_run_that_has_ended_is_a_clear_error(desk: Rig, repo: Path) -> None:
    start(desk, "over", repo, TWO_STEPS, script(only=turn(OK)))
    await ended(desk, "over", "verified")
    sent = desk.temporal("workflow", "signal", "--workflow-id", "over", "--name", "pause")
    assert sent.returncode == 1
    assert "already completed" in sent.stderr
    sent = desk.temporal("workflow", "update", "execute", "--workflow-id", "over", "--name", "pause")
    assert sent.returncode == 1
    assert "already completed" in sent.stderr
    status = await desk.status("over")
    assert (status["state"], status["outcome"], status["legal"]) == ("done", "verified", [])
