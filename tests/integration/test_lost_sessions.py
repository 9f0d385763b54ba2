"""Sessions whose files were torn, emptied or lost are healed by cold ones, in the phase that finds it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from activities_kit import RUN, Driver, make_worker, nothing_outlives_a_test
from agents_kit import agents
from flow_kit import make_repository
from model_servers.minds import Player
from model_servers.script import Reply, Seen, Write, turn
from session_files import DAMAGES, file_of

from schemas.calls import SessionPhaseIn, WorkOut, WorkResult
from schemas.envelopes import ErrorEnvelope
from transports import registry
from transports.port import SESSION_LOST, Emit, SessionSpec, StructuredResult, WorkOutcome, WorkRequest
from transports.resuming import drop_mark
from transports.stub import StubTransport
from transports.stub_session import StubSession

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here

LOST = ErrorEnvelope(code=SESSION_LOST, message="there is no such session any more", retryable=True)


def works(_: Seen) -> list[Reply]:
    return [turn("I make it.", Write("made.txt", "made\n"))]


def driver_of(root: Path, name: str) -> Driver:
    transport = registry.open(name)
    if not transport.is_available().ok:
        pytest.skip(transport.is_available().reason)
    offered = {name: transport, "stub": registry.open("stub")}
    return Driver(make_worker(root, transports=offered), make_repository(root / "repo"))


def kept(driver: Driver, out: WorkOut) -> Path:
    assert out.session is not None
    assert out.session.session_id is not None
    return file_of(driver.ctx.folder(RUN).private / "agents", out.session.session_id)


def transcript(driver: Driver, attempt: int) -> str:
    """Return what was said in an attempt's work."""
    stored = driver.ctx.results.load(driver.key(attempt=attempt), WorkResult)
    assert stored is not None
    assert stored.transcript is not None
    return driver.ctx.evidence.read(stored.transcript).decode()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["claude-sdk", "claude-cli", "codex", "gemini-cli"])
async def test_a_session_whose_file_is_damaged_is_healed_by_a_cold_one(
    name: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agents({name: Player(works)}) as env:
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        driver = driver_of(tmp_path, name)
        await driver.acquire()
        first = await driver.work(transports=[name])
        await driver.ctx.sessions.close_all()
        assert first.ended == "finished"
        assert first.session is not None
        file = kept(driver, first)
        file.write_bytes(DAMAGES[damage](file.read_bytes()))
        if damage == "head":
            # Its worker was killed before it let the session go.
            drop_mark(driver.ctx.folder(RUN).private / "agents", str(first.session.session_id))

        draft = await driver.finalize()
        again = await driver.work(driver.key(attempt=2), transports=[name], session=first.session)
        await driver.ctx.sessions.close_all()

    assert (draft.session_mode, draft.claimed_status, draft.error) == ("cold", "UNVERIFIED", None)
    assert (again.ended, again.session_mode, again.fallbacks) == ("finished", "cold", [])
    assert again.session is not None
    assert again.session.session_id != first.session.session_id
    assert "# Task" in transcript(driver, 2)


@pytest.mark.parametrize("how", ["gone", "foreign"])
async def test_a_program_that_finds_out_in_its_turn_is_begun_cold_in_the_same_phase(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "gemini-cli"
    with agents({name: Player(works)}) as env:
        for variable, value in env.items():
            monkeypatch.setenv(variable, value)
        driver = driver_of(tmp_path, name)
        await driver.acquire()
        first = await driver.work(transports=[name])
        file = kept(driver, first)
        if how == "gone":
            # The session is parked, and its next turn would be a process of its own.
            file.unlink()
        else:
            await driver.ctx.sessions.close_all()
            assert first.session is not None
            drop_mark(driver.ctx.folder(RUN).private / "agents", str(first.session.session_id))
            # Fit to be resumed as far as we can see; the program says that there is no such session, and ends.
            file.write_bytes(file.read_bytes().replace(b'"kind":"main"', b'"kind":"subagent"'))

        draft = await driver.finalize()
        again = await driver.work(driver.key(attempt=2), transports=[name], session=first.session)
        await driver.ctx.sessions.close_all()

    assert (draft.session_mode, draft.claimed_status, draft.error) == ("cold", "UNVERIFIED", None)
    assert (again.ended, again.session_mode) == ("finished", "cold")
    assert "is lost, a cold one takes its place" in caplog.text


class Late(StubSession):
    """A session that turns out to be lost when it is asked for something."""

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        del request, emit
        return WorkOutcome(end="failed", stop_reason=LOST.code, error=LOST)

    async def structured(self, *_: Any, **__: Any) -> StructuredResult:
        return StructuredResult(value=None, error=LOST)


class Finding(StubTransport):
    """Finds out in the turn of a resumed session that it is lost."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        session = await super().open_session(spec, emit)
        if spec.resume is not None:
            session.__class__ = Late
        return session


async def test_a_session_that_turns_out_to_be_lost_is_healed_in_each_phase(tmp_path: Path) -> None:
    worker = make_worker(tmp_path, transports={"stub": Finding()})
    driver = Driver(worker, make_repository(tmp_path / "repo"))
    await driver.acquire()
    first = await driver.work()
    await driver.ctx.sessions.close_all()

    draft = await driver.finalize()
    await driver.ctx.sessions.close_all()
    route = await driver.call("propose_route", SessionPhaseIn(**driver.phase(driver.key()), work_attempt=1))
    again = await driver.work(driver.key(attempt=2), session=first.session)

    assert (draft.session_mode, draft.claimed_status) == ("cold", "VERIFIED")
    assert (route.session_mode, route.error) == ("cold", None)
    assert (again.ended, again.session_mode, again.fallbacks) == ("finished", "cold", [])
    said = transcript(driver, 2)
    assert said.count("# Objective") == 2, "the lost session was asked first, with what is new"
    assert said.count("# Task") == 1
