"""Every way in which a work phase can end, with a real workspace and real processes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from activities_kit import (
    FLOW,
    RUN,
    Driver,
    acquired,
    commits,
    make_worker,
    nothing_outlives_a_test,
    partial_of,
    until,
)
from flow_kit import git, make_repository
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from schemas.calls import WorkResult
from schemas.common import Budget
from schemas.envelopes import ErrorEnvelope
from schemas.events import ErrorEvent
from schemas.facts import StepFacts
from schemas.handoff import SessionRef
from schemas.receipt import StepReceipt
from system.leftovers import leftovers
from transports.port import (
    Availability,
    Emit,
    SessionSpec,
    StepSession,
    TransportCapabilities,
    TransportError,
)
from transports.stub import StubTransport
from transports.stub_session import StubSession

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


async def test_a_phase_run_twice_takes_effect_once(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)

    first, second = await driver.work(), await driver.work()

    assert first == second
    assert commits(driver) == ["small/implement #1", "first"]


async def test_the_commit_is_the_engines_own_and_names_its_attempt(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)
    await driver.work()

    shown = git(driver.ctx.folder(RUN).workspace, "log", "-1", "--format=%an <%ae>%n%B")

    assert shown.splitlines()[0] == "Stepwise <stepwise@localhost>"
    assert f"Stepwise-Run: {RUN}" in shown
    assert "Stepwise-Visit: small/implement#1" in shown
    assert "Stepwise-Attempt: 1" in shown


async def test_a_turn_that_changes_nothing_leaves_neither_commit_nor_intent(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: say, text: nothing to do}")

    out = await driver.work()

    assert out.ended == "finished"
    assert out.commit_before == out.commit_after
    assert commits(driver) == ["first"]
    kept = driver.ctx.evidence.blobs.keys(f"{driver.key().path}/")
    assert [key.rpartition("/")[2] for key in kept] == [
        "events.jsonl",
        "transcript.jsonl",
        "work.json",
    ]


async def test_commits_of_the_agent_stay_below_that_of_the_engine(tmp_path: Path) -> None:
    driver = await acquired(
        tmp_path,
        "{do: edit, path: a.txt, content: a}",
        "{do: run, argv: [git, add, .]}",
        # Options before the sub-command are not for agents, so it goes round about.
        "{do: run, argv: [python3, -c, 'import os; os.system(\"git -c user.name=A -c user.email=a@b commit -qm own\")']}",
        "{do: edit, path: b.txt, content: b}",
    )

    out = await driver.work()

    assert commits(driver) == ["small/implement #1", "own", "first"]
    assert out.changes.created == 2


@pytest.mark.parametrize(
    ("details", "ended", "reason"),
    [
        (ActivityCancellationDetails(cancel_requested=True), "interrupted", "interrupt"),
        (ActivityCancellationDetails(worker_shutdown=True), "worker_shutdown", "worker_shutdown"),
        (ActivityCancellationDetails(not_found=True), "server_lost", "server_lost"),
        (ActivityCancellationDetails(timed_out=True), "server_lost", "server_lost"),
        (ActivityCancellationDetails(paused=True), "activity_paused", "activity_paused"),
        (ActivityCancellationDetails(reset=True), "activity_reset", "activity_reset"),
    ],
)
async def test_a_cancelled_turn_is_ended_saved_and_returned(
    tmp_path: Path, details: ActivityCancellationDetails, ended: str, reason: str
) -> None:
    driver = await acquired(tmp_path, "{do: edit, path: half.txt, content: half}", "{do: hang}")
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: bool(leftovers(RUN)))

    environment.cancel(details)
    out = await task

    assert out.ended == ended
    assert out.stop_method == "killed"
    partial = partial_of(driver, out)
    assert partial.reason == reason
    assert partial.stop_method == "killed"
    assert partial.file_changes.created == ["half.txt"]
    assert partial.savepoint is not None
    assert partial.savepoint.bundle is not None
    assert partial.session is not None
    assert partial.session.resumable
    assert partial.last_tool_calls[0].tool_name
    assert commits(driver) == ["first"]
    stored = driver.ctx.results.load(driver.key(), WorkResult)
    assert stored is not None
    assert stored.out == out


async def test_an_agent_that_stops_when_asked_is_not_killed(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: stall, seconds: 1000}")
    environment = ActivityEnvironment()
    task = asyncio.ensure_future(driver.work(environment=environment))
    await until(lambda: driver.ctx.sessions.holds(RUN))
    environment.cancel()

    out = await task

    assert out.ended == "interrupted"
    assert out.stop_method == "cooperative"
    assert out.savepoint is None


async def test_a_second_cancellation_changes_nothing(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: edit, path: half.txt, content: half}", "{do: hang}")
    task = asyncio.ensure_future(driver.work())
    await until(lambda: bool(leftovers(RUN)))
    inner = next(iter(driver.environment._activities)).task
    assert inner is not None
    inner.cancel()
    await asyncio.sleep(0)
    inner.cancel()

    out = await task

    assert out.ended == "interrupted"
    assert out.partial is not None


async def test_silence_ends_the_turn_as_a_time_out(tmp_path: Path) -> None:
    flow = FLOW.replace("    outputs:", "    timeouts: {no_output: 1}\n    outputs:")
    driver = await acquired(tmp_path, "{do: stall, seconds: 1000}", flow=flow)

    out = await driver.work()

    assert out.ended == "timeout"
    assert out.error is not None
    assert out.error.code == "no_output"
    assert partial_of(driver, out).reason == "timeout"


async def test_a_turn_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    flow = FLOW.replace("    outputs:", "    timeouts: {work: 1, no_output: 900}\n    outputs:")
    driver = await acquired(tmp_path, "{do: stall, seconds: 1000}", flow=flow)

    out = await driver.work()

    assert out.ended == "timeout"
    assert out.stop_reason == "timeout"
    assert out.stop_method == "cooperative"


async def test_a_question_is_returned_and_kept_in_the_partial(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, '{do: ask, question: "Which one?", options: [a, b]}')

    out = await driver.work()

    assert out.ended == "question"
    assert out.question is not None
    assert out.question.items[0].question == "Which one?"
    assert partial_of(driver, out).open_question == out.question


async def test_a_rate_limit_says_when_to_come_back(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: rate_limit, seconds: 5}")

    out = await driver.work()

    assert out.ended == "rate_limited"
    assert out.retry_at is not None
    assert partial_of(driver, out).reason == "rate_limit"
    assert not driver.ctx.sessions.holds(RUN)


async def test_a_failed_agent_is_a_value(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: fail, code: overloaded, message: too much}")

    out = await driver.work()

    assert out.ended == "agent_failed"
    assert out.error is not None
    assert out.error.code == "overloaded"
    assert out.error.retryable


async def test_a_child_that_dies_is_a_failed_agent(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, "{do: crash_child}")

    assert (await driver.work()).ended == "agent_failed"


@pytest.mark.parametrize("budget", [Budget(tokens=50), Budget(usd=0.5)])
async def test_a_budget_ends_the_turn_and_keeps_what_was_done(tmp_path: Path, budget: Budget) -> None:
    driver = await acquired(
        tmp_path,
        "{do: edit, path: half.txt, content: half}",
        "{do: tokens, prompt: 100, cost_usd: 1.0}",
        "{do: stall, seconds: 1000}",
    )

    out = await driver.work(budget=budget)

    assert out.ended == "budget"
    assert out.usage.total == 100
    assert partial_of(driver, out).done == ["created half.txt"]


class Careless(StubTransport):
    """A stub that lets its agent edit in a read-only session."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        return await super().open_session(replace(spec, read_only=False), emit)


async def test_a_read_only_step_that_changes_files_fails_and_is_undone(tmp_path: Path) -> None:
    flow = FLOW.replace("    outputs:", "    policy: read-only\n    outputs:")
    command = "{do: run, argv: [sh, -c, 'echo x > sneaked.txt; rm README.md']}"
    driver = await acquired(tmp_path, command, flow=flow)

    driver.ctx.transports = {"stub": Careless()}

    out = await driver.work()

    workspace = driver.ctx.folder(RUN).workspace
    assert out.ended == "agent_failed"
    assert out.error is not None
    assert out.error.code == "read_only_violated"
    assert not (workspace / "sneaked.txt").exists()
    assert (workspace / "README.md").exists()
    assert out.changes.created == 0
    assert commits(driver) == ["first"]


async def test_an_attempt_waits_for_a_slot_and_says_so(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, max_agents=1)
    await driver.ctx.slots.acquire()
    environment = ActivityEnvironment()
    said: list[str] = []
    waiting = asyncio.Event()

    def heard(*details: Any) -> None:
        said.extend(details)
        if "waiting for a slot" in details:
            waiting.set()

    environment.on_heartbeat = heard
    task = asyncio.ensure_future(driver.work(environment=environment))
    await waiting.wait()
    assert not task.done()
    driver.ctx.slots.release()

    assert (await task).ended == "finished"
    assert said[-1] != "waiting for a slot"
    assert not driver.ctx.slots.locked()


async def test_an_attempt_cancelled_while_it_waits_opens_no_session_and_takes_no_slot(tmp_path: Path) -> None:
    driver = await acquired(tmp_path, max_agents=1)
    await driver.ctx.slots.acquire()
    environment = ActivityEnvironment()
    waiting = asyncio.Event()
    environment.on_heartbeat = lambda *details: waiting.set() if details[0] else None
    task = asyncio.ensure_future(driver.work(environment=environment))
    await waiting.wait()
    environment.cancel()

    out = await task

    assert out.ended == "interrupted"
    assert out.session is None
    assert partial_of(driver, out).reason == "interrupt"
    driver.ctx.slots.release()
    assert not driver.ctx.slots.locked()


class Refusing:
    """A transport that opens no session."""

    name = "refusing"
    capabilities = TransportCapabilities(provider_name="nobody")
    reports_cost = True

    def __init__(self, *, available: bool, error: Exception) -> None:
        self._available = available
        self._error = error

    def is_available(self) -> Availability:
        return Availability(ok=self._available, reason="not installed", install_hint="pip install it")

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StepSession:
        emit(ErrorEvent(error=ErrorEnvelope(code="refused", message=f"not for {spec.run_id}")))
        raise self._error


REFUSED = TransportError(ErrorEnvelope(code="auth", message="the key is bad"))


@pytest.mark.parametrize(
    ("transport", "code"),
    [
        (Refusing(available=False, error=REFUSED), "sdk_unavailable"),
        (Refusing(available=True, error=REFUSED), "sdk_error_message"),
        (Refusing(available=True, error=RuntimeError("boom")), "sdk_exception"),
        (None, "sdk_not_enabled"),
    ],
)
async def test_the_next_transport_of_the_list_is_used_and_the_refusal_recorded(
    tmp_path: Path, transport: Refusing | None, code: str
) -> None:
    driver = await acquired(tmp_path)
    offered: dict[str, Any] = {"stub": StubTransport()}
    driver.ctx.transports = offered if transport is None else {**offered, "refusing": transport}

    out = await driver.work(transports=["refusing", "stub"])

    assert out.ended == "finished"
    assert out.transport == "stub"
    assert [(one.transport, one.code) for one in out.fallbacks] == [("refusing", code)]
    if code == "sdk_unavailable":
        assert out.fallbacks[0].reason == "not installed, install: pip install it"


async def test_a_named_model_stays_with_the_provider_it_was_named_for_and_the_fallback_says_so(
    tmp_path: Path,
) -> None:
    flow = FLOW.replace("    outputs:", "    transport: [codex, stub]\n    model: theirs\n    outputs:", 1)
    offered: dict[str, Any] = {"codex": Refusing(available=True, error=REFUSED), "stub": StubTransport()}
    driver = Driver(make_worker(tmp_path, transports=offered), make_repository(tmp_path / "repo"), flow)
    await driver.acquire()

    out = await driver.work(transports=["codex", "stub"], model="theirs")
    chosen = await driver.work(driver.key(visit=2), transports=["stub"], model="theirs")

    assert (out.transport, out.model) == ("stub", None)
    assert out.fallbacks[0].reason == (
        "the key is bad; stub takes its own model, since 'theirs' was named for codex"
    )
    assert (chosen.transport, chosen.model, chosen.fallbacks) == ("stub", None, [])


async def test_without_any_transport_the_agent_has_failed_and_the_error_says_why(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)
    driver.ctx.transports = {"refusing": Refusing(available=True, error=REFUSED)}

    out = await driver.work(transports=["refusing"])

    assert out.ended == "agent_failed"
    assert out.error is not None
    assert out.error.code == "auth"
    assert not out.error.retryable
    assert out.partial is not None


async def test_a_session_that_cannot_be_resumed_is_healed_by_a_cold_one(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)
    gone = SessionRef(transport="stub", session_id="stub-" + "0" * 24, resumable=True)

    out = await driver.work(session=gone)

    assert out.ended == "finished"
    assert out.session_mode == "cold"
    assert out.fallbacks == []


async def test_the_transcript_holds_the_prompt_and_is_complete(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)
    await driver.work(note="mind the gap")

    stored = driver.ctx.results.load(driver.key(), WorkResult)

    assert stored is not None
    assert stored.transcript is not None
    lines = driver.ctx.evidence.read(stored.transcript).decode()
    assert "mind the gap" in lines
    assert "Do the thing." in lines
    assert '"complete":true' in lines
    assert list(stored.outputs) == ["notes.md"]


async def test_an_output_that_is_not_kept_is_named_with_its_reason_in_log_and_receipt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = FLOW.replace("[notes.md]", "[notes.md, gone.md, data.bin, big.txt, folder, out/link.md]")
    made = "echo notes > notes.md; printf '\\\\377' > data.bin; head -c 5000001 /dev/zero > big.txt; mkdir -p folder out"
    actions = [f'{{do: run, argv: [sh, -c, "{made}; ln -s ../notes.md out/link.md"]}}']
    driver = await acquired(tmp_path, *actions, flow=flow)

    with caplog.at_level(logging.WARNING, "stepwise.activities"):
        out = await driver.work()
        recorded = await driver.record(
            StepFacts(status="UNVERIFIED", tree=out.tree), work=out, work_attempt=1
        )

    stored = driver.ctx.results.load(driver.key(), WorkResult)
    receipt = StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))
    assert stored is not None
    assert list(stored.outputs) == ["notes.md"]
    reasons = {
        "gone.md": "it is not there",
        "data.bin": "it is no UTF-8 text",
        "big.txt": "it is larger than 5000000 bytes",
        "folder": "it is a folder",
        "out/link.md": "'out/link.md': symbolic links are not followed",
    }
    assert receipt.outputs_not_kept == stored.outputs_not_kept == reasons
    for path, why in reasons.items():
        assert f"output {path} of small/implement#1 is not kept: {why}" in caplog.text


async def test_a_receipt_says_nothing_of_outputs_that_are_all_kept(tmp_path: Path) -> None:
    driver = await acquired(tmp_path)
    out = await driver.work()

    recorded = await driver.record(StepFacts(status="UNVERIFIED", tree=out.tree), work=out, work_attempt=1)

    assert b"outputs_not_kept" not in driver.ctx.evidence.read(recorded.receipt)


async def test_the_gates_of_the_last_attempt_and_the_handoffs_reach_the_next_prompt(tmp_path: Path) -> None:
    flow = FLOW.replace("test, -f, made.txt", "sh, -c, 'echo it is broken; exit 1'")
    driver = await acquired(tmp_path, flow=flow)
    await driver.work()
    measured = await driver.measure()
    assert not measured.gates[0].fact.passed

    await driver.work(driver.key(visit=2), last_gates=driver.key())

    stored = driver.ctx.results.load(driver.key(visit=2), WorkResult)
    assert stored is not None
    assert stored.transcript is not None
    assert "it is broken" in driver.ctx.evidence.read(stored.transcript).decode()
