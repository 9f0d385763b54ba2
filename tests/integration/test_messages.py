"""What people say to a run: the verdict, the effect, and where a refusal shows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import OK, event_types, flow, hold, kinds, linear, script, step, transcript_of, turn
from run_kit import (
    READ_ONLY,
    TWO_STEPS,
    ended,
    refused,
    said,
    signal,
    start,
    update,
    waiting,
    working,
)

from activities.senders import senders_key
from schemas.senders import Senders

RUNNING = ["pause", "interrupt", "steer", "abort"]

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
    _, following = desk.receipts(result.run_id)
    assert "Be quick." in transcript_of(desk, following), (
        "that step's work was done: the note is the next agent's"
    )


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
        (
            "approve",
            [],
            "approve is not legal while the run is running; legal now: pause, interrupt, steer, abort",
        ),
        ("answer", [], "answer is not legal while the run is running"),
        ("extend_budget", [], "extend_budget is not legal while the run is running"),
        ("reject", [{"reason": "no"}], "reject is not legal while the run is running"),
        ("resume", [], "resume is not legal while the run is running; legal now: pause, interrupt"),
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
    assert shown["legal"] == RUNNING
    assert (await rig.status(run))["state"] == "running"


@pytest.fixture(scope="module")
def held(desk: Rig, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, str]:
    """A run whose agent works until the module's worker ends."""
    go = tmp_path_factory.mktemp("held") / "go"
    start(desk, "held", repo, TWO_STEPS, script(only=turn(hold(go), OK)))
    asyncio.run(working(desk, "held"))
    return desk, "held"


async def test_a_refused_update_is_told_to_its_sender_alone(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, "told", repo, spec, script(only=turn(OK, status="BLOCKED")))
    status = await waiting(desk, "told", "human")
    assert "approve" in await refused(desk, "told", "approve")
    assert (await desk.status("told"))["last_refused"] is None
    await signal(desk, "told", "approve")
    await desk.until("told", lambda now: (now.get("last_refused") or {}).get("name") == "approve")
    await update(desk, "told", "abort")
    await ended(desk, "told", "stopped")
    assert kinds(desk, status["run_id"]).count("message_refused") == 1


async def test_an_unknown_signal_shows_with_the_known_ones(held: tuple[Rig, str]) -> None:
    rig, run = held
    await signal(rig, run, "pasue", {"reason": "x"})
    status = await rig.until(run, lambda now: (now.get("last_refused") or {}).get("name") == "pasue")
    assert status["last_refused"]["reason"] == (
        "no message 'pasue'; known: "
        "pause, interrupt, resume, answer, approve, reject, steer, extend_budget, abort"
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
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, "orders", repo, spec, script(only=turn(OK, status="BLOCKED")))
    await waiting(desk, "orders", "human")
    assert "needs 'step': one of only, end" in await refused(desk, "orders", "resume", {"action": "goto"})
    assert "no step 'ende'; steps: only, end" in await refused(
        desk, "orders", "resume", {"action": "goto", "step": "ende"}
    )
    assert "'step' belongs to action goto" in await refused(
        desk, "orders", "resume", {"action": "retry", "step": "end"}
    )
    assert "transport 'clod' is not offered; offered: stub" in await refused(
        desk, "orders", "resume", {"transport": "clod"}
    )
    assert (
        "approve is not legal while the run is waiting for human; legal now: resume, abort"
        in await refused(desk, "orders", "approve")
    )
    await update(desk, "orders", "resume", {"action": "goto", "step": "end", "by": "ann"})
    result = await ended(desk, "orders", "unverified")
    decisions = [(one.step_id, one.decision, one.next_step_id, one.source) for one in result.decisions]
    assert decisions == [
        ("only", "escalate", None, "deterministic"),
        ("only", "branch", "end", "human"),
        ("end", "terminate", None, "fast_path"),
    ]


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


@pytest.mark.parametrize(("who", "named"), [({}, "a resume with retry"), ({"by": "ann"}, "ann")])
async def test_the_receipt_of_what_a_retry_ended_in_its_midst_says_who_wanted_it(
    desk: Rig, repo: Path, tmp_path: Path, who: dict[str, str], named: str
) -> None:
    name = f"midst-{len(who)}"
    start(desk, name, repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, name)
    await update(desk, name, "pause")
    (tmp_path / "go").touch()
    await waiting(desk, name, "pause")
    await update(desk, name, "resume", {"action": "retry", **who})
    result = await ended(desk, name, "verified")
    stop = desk.receipts(result.run_id)[0].stop
    assert stop is not None
    assert (stop.reason, stop.requested_by) == ("interrupt", named)


async def test_the_end_of_a_run_stores_the_senders_who_sent_its_messages(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    start(desk, "senders", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "go"), OK)))
    await working(desk, "senders")
    sent = desk.temporal("workflow", "signal", "--workflow-id", "senders", "--name", "pause")
    assert sent.returncode == 0, sent.stderr
    await desk.until("senders", lambda now: now["pause_requested"])
    await update(desk, "senders", "resume")
    (tmp_path / "go").touch()
    result = await ended(desk, "senders", "verified")
    stored = desk.evidence.get_model(senders_key(result.run_id), Senders)
    assert stored is not None
    assert stored.complete
    assert [(one.kind, one.name) for one in stored.messages] == [("signal", "pause"), ("update", "resume")]
    assert stored.messages[0].identity.startswith("temporal-cli:")
    assert stored.messages[1].identity == desk.client.service_client.config.identity
