"""Messages that come when the work has ended and the next thing has not begun: they hold all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import OK, flow, gate, linear, script, step, transcript_of, turn
from home_kit import at_home, begun_at_home
from interrupt_kit import interrupted, until_there
from run_kit import READ_ONLY, Played, approved, ended, resume, said, signal, start, update, waiting

from activities import register as module
from activities.context import WorkerContext
from activities.recording import write_record
from schemas.calls import RecordIn, RecordOut

ASKS = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}
SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


class Records:
    """The records that a worker writes as an activity of its own; that of ``held`` waits until it may."""

    def __init__(self, held: str) -> None:
        self._held = held
        self.begun = asyncio.Event()
        self.may = asyncio.Event()

    async def write(self, ctx: WorkerContext, call: RecordIn) -> RecordOut:
        if call.key.step_id == self._held:
            self.begun.set()
            await self.may.wait()
        return await write_record(ctx, call)


@asynccontextmanager
async def holding(
    desk: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_id: str
) -> AsyncIterator[tuple[Rig, Records]]:
    """Yield a worker of this process that holds the record of a step."""
    records = Records(step_id)
    monkeypatch.setattr(module, "write_record", records.write)
    async with at_home(desk, tmp_path, STEPWISE_HOLD_S="0.05") as home:
        yield home, records


async def test_an_interrupt_before_a_question_is_waited_for_is_waited_out_first(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holding(desk, tmp_path, monkeypatch, "only") as (home, records):
        start(home, "between", repo, SPEC, script(only={"turns": [turn(ASKS)], "resumed": turn(OK)}))
        await records.begun.wait()
        verdict = await update(home, "between", "interrupt", {"by": "ann"})
        assert verdict["verdict"] == "accepted"
        records.may.set()
        await interrupted(home, "between")
        await resume(home, "between", note="Blue would be nice.")
        await waiting(home, "between", "answer")
        await update(home, "between", "answer", {"answers": {"Red or blue?": "blue"}})
        result = await ended(home, "between", "verified")
    assert [one.execution_status for one in result.receipts[:2]] == ["interrupted", "succeeded"]


async def at_the_last_record(
    home: Rig, records: Records, name: str, repo: Path, message: str, spec: dict[str, Any] = SPEC
) -> Played:
    """Play a run to which a message is sent while its last record is written."""
    start(home, name, repo, spec, script(only=turn(OK)))
    await records.begun.wait()
    assert (await update(home, name, message))["verdict"] == "accepted"
    records.may.set()
    if message != "abort":
        await waiting(home, name, "human" if message == "interrupt" else "pause")
        await resume(home, name)
    return await ended(home, name)


@pytest.mark.parametrize(
    ("message", "outcome"), [("abort", "stopped"), ("interrupt", "verified"), ("pause", "verified")]
)
async def test_a_message_while_the_last_record_is_written_takes_hold_behind_it(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, outcome: str
) -> None:
    async with holding(desk, tmp_path, monkeypatch, "end") as (home, records):
        result = await at_the_last_record(home, records, f"last-{message}", repo, message)
    assert result.outcome == outcome
    assert [(one.step_id, one.execution_status) for one in result.receipts] == [
        ("only", "succeeded"),
        ("end", "succeeded"),
    ]


async def test_who_interrupts_while_the_last_record_is_written_may_have_the_step_begun_again(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holding(desk, tmp_path, monkeypatch, "end") as (home, records):
        start(home, "again", repo, SPEC, script(only=turn(OK)))
        await records.begun.wait()
        await update(home, "again", "interrupt")
        records.may.set()
        await interrupted(home, "again")
        await resume(home, "again", action="retry")
        result = await ended(home, "again", "verified")
    assert [(one.step_id, one.attempt) for one in result.receipts] == [("only", 1), ("end", 1), ("end", 2)]


async def test_a_last_record_that_contradicts_what_is_stored_is_no_success(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with holding(desk, tmp_path, monkeypatch, "end") as (home, records):
        start(home, "contradicts", repo, SPEC, script(only=turn(OK)))
        await records.begun.wait()
        (place,) = home.store.glob("runs/contradicts-*/*/end/1/1/work.json")
        place.with_name("envelope.json").write_text("{}")
        records.may.set()
        result = await home.result("contradicts")
    assert result.outcome == "failed"
    assert result.error is not None
    assert result.error.code == "EvidenceConflict"


async def test_nothing_that_is_asked_of_people_or_a_model_is_asked_before_the_record_is_written(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of which a gate or an approval follows has a record of its own; between others it goes with the work."""
    plain, gated = step("plain", linear("asked")), step("asked", linear("after"), approval="before")
    spec = flow(plain, gated, step("after", linear("last"), approval="after"), step("last", **READ_ONLY))
    alone: list[str] = []

    async def noting(ctx: WorkerContext, call: RecordIn) -> RecordOut:
        alone.append(call.key.step_id)
        return await write_record(ctx, call)

    monkeypatch.setattr(module, "write_record", noting)
    async with at_home(desk, tmp_path) as home:
        start(home, "alone", repo, spec, "noop")
        for _ in range(2):
            await waiting(home, "alone", "approval")
            await update(home, "alone", "approve")
        result = await ended(home, "alone")
    assert alone == ["plain", "after", "last"]
    assert [one.step_id for one in result.receipts] == ["plain", "asked", "after", "last"]


async def test_an_interrupt_before_a_rate_limit_is_waited_out_holds_the_run_for_a_person(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = turn({"do": "rate_limit", "seconds": 1000})
    async with holding(desk, tmp_path, monkeypatch, "only") as (home, records):
        start(home, "limited", repo, SPEC, script(only={"turns": [limited], "resumed": turn(OK)}))
        await records.begun.wait()
        await update(home, "limited", "interrupt")
        records.may.set()
        await interrupted(home, "limited")
        await resume(home, "limited")
        await ended(home, "limited", "verified")


async def test_who_interrupts_before_a_gate_may_leave_its_step_out(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    spec = flow(
        step("only", linear("end"), approval="before"), step("end", **READ_ONLY), setup=[until_there(go)]
    )
    start(desk, "left-out", repo, spec)
    await begun_at_home(go)
    await update(desk, "left-out", "interrupt")
    await asyncio.to_thread(go.touch)
    await interrupted(desk, "left-out")
    await resume(desk, "left-out", action="skip")
    result = await ended(desk, "left-out")
    assert [one.step_id for one in result.receipts] == ["end"]
    assert (result.decisions[0].step_id, result.decisions[0].decision) == ("only", "skip")


async def test_of_two_answers_that_come_at_once_the_first_counts(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    async with at_home(desk, tmp_path) as home:
        start(home, "twice", repo, approved("before"), script(only=turn(OK)))
        await waiting(home, "twice", "approval")
    # Nobody takes workflow tasks now: both come with the same one.
    for name in ("approve", "reject"):
        await signal(home, "twice", name)
    async with at_home(desk, tmp_path):
        result = await ended(home, "twice", "verified")
    verdicts = [(one["name"], one["verdict"]) for one in said(home, result.run_id, "human_message")]
    assert verdicts == [("approve", "accepted")]
    (late,) = said(home, result.run_id, "message_refused")
    assert (late["name"], "while the run is running" in late["reason"]) == ("reject", True)


async def at_once(desk: Rig, tmp_path: Path, name: str, repo: Path, **then: str) -> Rig:
    """Send a run that waits after an interrupt messages that all come with one workflow task."""
    go = tmp_path / "go"
    async with at_home(desk, tmp_path) as home:
        played = turn({"do": "run", "argv": until_there(go)}, OK)
        spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
        start(home, name, repo, spec, script(only={"turns": [played], "resumed": turn(OK)}))
        await begun_at_home(go)
        await update(home, name, "interrupt")
        await interrupted(home, name)
    await signal(home, name, "resume")
    for message, text in then.items():
        await signal(home, name, message, {"text": text} if message == "steer" else {"reason": text})
    return home


@pytest.mark.parametrize(("message", "kind"), [("pause", "pause"), ("interrupt", "human")])
async def test_what_holds_a_run_holds_it_also_where_it_comes_right_after_a_resume(
    desk: Rig, repo: Path, tmp_path: Path, message: str, kind: str
) -> None:
    name = f"after-{message}"
    home = await at_once(desk, tmp_path, name, repo, **{message: "not yet"})
    async with at_home(desk, tmp_path):
        status = await waiting(home, name, kind)
        assert "not yet" in status["waiting"]["reason"]
        await resume(home, name)
        result = await ended(home, name)
    messages = [(one["name"], one["verdict"]) for one in said(home, result.run_id, "human_message")]
    assert messages[-3:] == [("resume", "accepted"), (message, "accepted"), ("resume", "accepted")]


async def test_words_that_come_right_after_a_resume_are_given_to_the_agent(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    home = await at_once(desk, tmp_path, "after-steer", repo, steer="Mind the gap.")
    async with at_home(desk, tmp_path):
        result = await ended(home, "after-steer")
    heard = ["Mind the gap." in transcript_of(home, receipt) for receipt in result.receipts]
    assert heard.count(True) == 1, "by the agent that goes on, or by the next one"
    assert said(home, result.run_id, "message_refused") == []


async def test_an_abort_is_not_held_by_what_came_before_it(desk: Rig, repo: Path, tmp_path: Path) -> None:
    home = await at_once(desk, tmp_path, "after-abort", repo, pause="not yet", abort="enough")
    async with at_home(desk, tmp_path):
        await ended(home, "after-abort", "stopped")


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        ("abort", {"why": "typo"}),
        ("resume", {"action": "abort", "step": "end"}),
        ("resume", {"action": "abort", "by": 1}),
    ],
)
async def test_an_abort_that_is_refused_does_not_lose_the_pause_before_it(
    desk: Rig, repo: Path, tmp_path: Path, message: str, payload: dict[str, Any]
) -> None:
    name = f"typo-{'-'.join([message, *payload])}"
    home = await at_once(desk, tmp_path, name, repo, pause="not yet")
    await signal(home, name, message, payload)
    async with at_home(desk, tmp_path):
        status = await waiting(home, name, "pause")
        assert "not yet" in status["waiting"]["reason"]
        await resume(home, name)
        result = await ended(home, name)
    (refused,) = said(home, result.run_id, "message_refused")
    assert refused["name"] == message


@pytest.mark.parametrize(
    ("action", "message", "kind"),
    [
        ("skip", "interrupt", "human"),
        ("skip", "pause", "pause"),
        ("goto", "interrupt", "human"),
        ("goto", "pause", "pause"),
        ("retry", "interrupt", "human"),
    ],
)
async def test_what_holds_a_run_holds_it_also_while_an_agent_that_asks_is_stopped_for_a_resume(
    desk: Rig, repo: Path, action: str, message: str, kind: str
) -> None:
    name = f"while-{action}-{message}"
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, name, repo, spec, script(only={"turns": [turn(ASKS, OK), turn(OK)]}))
    await waiting(desk, name, "answer")
    step_of = {"step": "end"} if action == "goto" else {}
    await signal(desk, name, "resume", {"action": action, **step_of})
    await signal(desk, name, message, {"reason": "not yet"})
    status = await waiting(desk, name, kind)
    assert "not yet" in status["waiting"]["reason"]
    await resume(desk, name)
    if action == "retry":
        await waiting(desk, name, "answer")
        await update(desk, name, "answer")
    result = await ended(desk, name)
    messages = [(one["name"], one["verdict"]) for one in said(desk, result.run_id, "human_message")]
    assert messages[:3] == [("resume", "accepted"), (message, "accepted"), ("resume", "accepted")]


async def test_a_resume_right_behind_an_interrupt_of_a_rate_limit_goes_on(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    limited = turn({"do": "rate_limit", "seconds": 3_600})
    async with at_home(desk, tmp_path) as home:
        start(
            home,
            "limited-held",
            repo,
            flow(step("only")),
            script(only={"turns": [limited], "resumed": turn(OK)}),
        )
        await waiting(home, "limited-held", "rate_limit")
    for name in ("interrupt", "resume"):
        await signal(home, "limited-held", name)
    async with at_home(desk, tmp_path):
        result = await ended(home, "limited-held")
    verdicts = [(one["name"], one["verdict"]) for one in said(home, result.run_id, "human_message")]
    assert verdicts == [("interrupt", "accepted"), ("resume", "accepted")]
