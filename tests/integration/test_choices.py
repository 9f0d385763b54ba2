"""What people may choose for a run that goes on: what cannot work is refused, or comes back to them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

import pytest
from conftest import Rig
from flow_kit import OK, flow, gate, linear, script, step, turn, write
from home_kit import at_home, begun_at_home
from interrupt_kit import interrupted, until_there
from run_kit import READ_ONLY, TWO_STEPS, ended, refused, resume, signal, start, update, waiting
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

import worker
from schemas.envelopes import ErrorEnvelope
from transports.port import (
    Availability,
    Emit,
    SessionSpec,
    TransportError,
    WorkOutcome,
    WorkRequest,
)
from transports.stub import StubTransport
from transports.stub_session import StubSession


class Keyless(StubTransport):
    """A transport that is installed and has no key."""

    name = "keyless"

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:  # noqa: ARG002 - what all take
        raise TransportError(ErrorEnvelope(code="missing_api_key", message="it has no key: set KEYLESS_KEY"))


class Unpaid(StubTransport):
    """A transport whose sessions open, and whose provider refuses the first word."""

    name = "unpaid"

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        return UnpaidSession.of(await super().open_session(spec, emit))


class UnpaidSession(StubSession):
    """A session in which nothing is ever done."""

    @classmethod
    def of(cls, opened: StubSession) -> UnpaidSession:
        opened.__class__ = cls
        assert isinstance(opened, cls)
        return opened

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:  # noqa: ARG002 - what all take
        error = ErrorEnvelope(code="authentication_failed", message="pay first", retryable=False)
        return WorkOutcome(end="failed", error=error)


@pytest.fixture
def two_transports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers of this process offer two transports."""
    offered = {"stub": StubTransport(), "keyless": Keyless()}
    monkeypatch.setattr(worker, "open_transports", lambda _: offered)


@pytest.mark.usefixtures("two_transports")
async def test_a_chosen_transport_that_cannot_be_used_comes_back_to_who_chose_it(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    play = script(only={"turns": [turn({"do": "run", "argv": until_there(go)})], "resumed": turn(OK)})
    async with at_home(desk, tmp_path) as home:
        start(home, "chosen", repo, TWO_STEPS, play)
        await begun_at_home(go)
        await update(home, "chosen", "interrupt")
        await interrupted(home, "chosen")
        await resume(home, "chosen", transport="keyless")
        status = await home.until(
            "chosen",
            lambda now: now["attempt"] == 2 and (now["waiting"] or {}).get("kind") == "human",
        )
        assert "keyless cannot be used: it has no key: set KEYLESS_KEY" in status["waiting"]["reason"]
        await resume(home, "chosen")
        result = await ended(home, "chosen", "verified")
    tried = [(one.transport, one.execution_status) for one in result.receipts if one.step_id == "only"]
    assert tried == [("stub", "interrupted"), ("", "failed"), ("stub", "succeeded")]


async def test_a_switch_that_fails_leaves_the_session_of_the_agent_that_worked(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "open_transports", lambda _: {"stub": StubTransport(), "unpaid": Unpaid()})
    go = tmp_path / "go"
    first = turn(write("half", "x"), {"do": "run", "argv": until_there(go)}, OK)
    play = script(only={"turns": [first], "resumed": turn(OK)})
    async with at_home(desk, tmp_path) as home:
        start(home, "switched", repo, TWO_STEPS, play)
        await begun_at_home(go)
        await update(home, "switched", "interrupt")
        await interrupted(home, "switched")
        handle = home.client.get_workflow_handle("switched")
        left = await handle.query("partial_handoff")
        await resume(home, "switched", transport="unpaid")
        status = await home.until(
            "switched",
            lambda now: now["attempt"] == 2 and (now["waiting"] or {}).get("kind") == "human",
        )
        assert "unpaid cannot be used: pay first" in status["waiting"]["reason"]
        assert await handle.query("partial_handoff") == left
        await resume(home, "switched")
        result = await ended(home, "switched", "verified")
    tried = [
        (one.transport, one.execution_status, one.session) for one in result.receipts if one.step_id == "only"
    ]
    assert tried == [
        ("stub", "interrupted", "cold"),
        ("unpaid", "failed", "cold"),
        ("stub", "succeeded", "resumed"),
    ]


@pytest.mark.usefixtures("two_transports")
async def test_a_transport_that_cannot_hold_the_steps_budget_cannot_be_chosen_either(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    dear = step("only", linear("end"), gates=[gate("there")], approval="before", budget={"usd": 1})
    spec = flow(dear, step("end", approval="before", **READ_ONLY))
    async with at_home(desk, tmp_path) as home:
        start(home, "dear", repo, spec, script(only=turn(OK)))
        await waiting(home, "dear", "approval")
        said = await refused(home, "dear", "resume", {"action": "retry", "transport": "keyless"})
        assert said == "transport 'keyless' is not offered; offered: stub"
        await update(home, "dear", "approve")
        status = await home.until("dear", lambda now: now["step"] == "end" and now["waiting"] is not None)
        assert "skip" not in str(status["legal"])
        said = await refused(home, "dear", "resume", {"action": "retry", "transport": "telepathy"})
        assert said == "transport 'telepathy' is not offered; offered: stub, keyless"
        await update(home, "dear", "approve")
        await ended(home, "dear", "verified")


async def test_a_step_that_none_follows_cannot_be_skipped_and_what_can_be_done_is_offered(
    desk: Rig, repo: Path
) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("there")]), step("end", approval="after", **READ_ONLY)
    )
    start(desk, "last", repo, spec, script(only=turn(OK)))
    await waiting(desk, "last", "approval")
    said = await refused(desk, "last", "resume", {"action": "skip"})
    assert said == "no single step follows 'end'; use goto with 'step': one of only, end"
    (item,) = await desk.client.get_workflow_handle("last").query("pending")
    offered = [one["command"].partition("--name ")[2] for one in item["legal"]]
    assert not any("skip" in one for one in offered)
    assert 'resume --input \'{"action": "goto", "step": "only"}\'' in offered
    await signal(desk, "last", "resume", {"action": "skip"})
    status = await desk.until("last", lambda now: now["last_refused"] is not None)
    assert status["waiting"]["kind"] == "approval", "a signal is judged as an update is"
    await update(desk, "last", "approve")
    await ended(desk, "last", "verified")


async def test_a_run_whose_workflow_is_cancelled_is_stopping_until_its_agent_is(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    stays = {"do": "run", "argv": until_there(go), "finish": True}
    start(desk, "cancelled", repo, TWO_STEPS, script(only=turn(stays)))
    handle = desk.client.get_workflow_handle("cancelled")
    await begun_at_home(go)
    await handle.cancel()
    status = await desk.until("cancelled", lambda now: now["state"] == "stopping")
    assert status["legal"] == ["interrupt", "abort"]
    for name in ("pause", "steer", "resume"):
        assert "is not legal while the run is stopping" in await refused(desk, "cancelled", name)
    for name in ("interrupt", "abort"):
        assert (await update(desk, "cancelled", name))["verdict"] == "already"
    await asyncio.to_thread(go.touch)
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED


async def test_what_is_waited_for_before_an_attempt_is_not_the_attempts_time(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    spec = flow(step("only", **READ_ONLY), setup=[until_there(go)])
    start(desk, "later", repo, spec)
    await begun_at_home(go)
    await update(desk, "later", "pause")
    await asyncio.to_thread(go.touch)
    paused = await waiting(desk, "later", "pause")
    await resume(desk, "later")
    result = await ended(desk, "later")
    since = datetime.fromisoformat(paused["waiting"]["since"])
    assert result.receipts[0].started_at > since


class Missing(StubTransport):
    """A transport whose program is not there."""

    name = "missing"

    def is_available(self) -> Availability:
        return Availability(ok=False, reason="no binary", install_hint="pip install it")


async def test_a_transport_that_is_not_installed_is_passed_over_for_the_next_of_the_list(
    desk: Rig, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = {"missing": Missing(), "stub": StubTransport()}
    monkeypatch.setattr(worker, "open_transports", lambda _: offered)
    async with at_home(desk, tmp_path) as home:
        start(home, "listed", repo, TWO_STEPS, script(only=turn(OK)), transport=["missing", "stub"])
        result = await ended(home, "listed", "verified")
    first = result.receipts[0]
    assert first.transport == "stub"
    assert [(one.transport, one.code) for one in first.fallbacks] == [("missing", "sdk_unavailable")]
