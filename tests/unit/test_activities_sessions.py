"""Sessions belong to the registry: parked, closed, interrupted, whatever their transport does."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from activities import sessions as module
from activities.asking import Desk, teller
from activities.sessions import HeldSession, SessionRegistry
from schemas.calls import AttemptKey
from schemas.common import SessionMode
from schemas.events import TextEvent, TransportEvent
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from transports.port import (
    Availability,
    Emit,
    SessionSpec,
    StopReport,
    StructuredResult,
    TransportCapabilities,
    WorkOutcome,
    WorkRequest,
)


class FakeSession:
    """A session whose turn ends when it is told to, if it obeys."""

    session_id: str | None = "s"
    mode: SessionMode = "cold"
    resumable = True

    def __init__(self, *, obeys: bool = True, closes: bool = True) -> None:
        self.obeys = obeys
        self.closes = closes
        self.closed = asyncio.Event()
        self.ending = asyncio.Event()
        self.in_activity: bool | None = None

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        self.in_activity = activity.in_activity()
        emit(TextEvent(text=request.prompt))
        await self.ending.wait()
        return WorkOutcome(end="failed", stop_reason="interrupted")

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        raise NotImplementedError

    async def steer(self, text: str) -> bool:
        return bool(text)

    async def interrupt(self, grace_s: float) -> StopReport:
        if not self.obeys:
            await asyncio.sleep(3_600)
        self.ending.set()
        return StopReport(method="cooperative", detail=f"within {grace_s} s")

    async def aclose(self) -> None:
        self.closed.set()
        while not self.closes:
            with contextlib.suppress(asyncio.CancelledError):
                await self.ending.wait()
                self.closes = True


class FakeTransport:
    """Opens the session it was given."""

    name = "fake"
    capabilities = TransportCapabilities()
    reports_cost = True

    def __init__(
        self, session: FakeSession, opening: asyncio.Event | None = None, *, heeds: bool = True
    ) -> None:
        self._session = session
        self._opening = opening
        self._heeds = heeds

    def is_available(self) -> Availability:
        return Availability(ok=True)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> FakeSession:
        emit(TextEvent(text=f"opened for {spec.run_id}"))
        if self._opening is not None:
            try:
                await self._opening.wait()
            except asyncio.CancelledError:
                # A transport may well get its session in the moment it is cancelled, or long after.
                if not self._heeds:
                    await self._opening.wait()
        return self._session


SPEC = SessionSpec(
    run_id="r",
    place={},
    workspace=Path("/"),
    private=Path("/"),
    environment={},
    state=Path("/"),
    system="",
    model=None,
    read_only=False,
    command_timeout_s=1,
    no_output_s=1,
)


def key(attempt: int = 1) -> AttemptKey:
    return AttemptKey(run_id="r", flow_key="f", step_id="s", visit=1, attempt=attempt)


def drop(_event: TransportEvent) -> None:
    """Hear nothing."""


async def opened(registry: SessionRegistry, session: FakeSession, attempt: int = 1) -> HeldSession:
    return await registry.open(key(attempt), FakeTransport(session), SPEC, drop)


async def test_a_turn_knows_nothing_of_the_activity_that_asked_for_it() -> None:
    registry, session = SessionRegistry(park_s=60), FakeSession()

    async def phase() -> Any:
        held = await opened(registry, session)
        turn = registry.start(held.session.work(WorkRequest("p"), drop))
        session.ending.set()
        return await turn

    await ActivityEnvironment().run(phase)

    assert session.in_activity is False


async def test_a_session_parked_is_found_by_its_own_attempt_and_closed_by_the_next() -> None:
    registry, first, second = SessionRegistry(park_s=60), FakeSession(), FakeSession()
    held = await opened(registry, first)
    registry.park(held)

    assert registry.take(key(), drop) is held
    assert registry.take(key(2), drop) is None
    await opened(registry, second, 2)
    assert first.closed.is_set()
    assert registry.take(key(), drop) is None


async def test_a_session_parked_too_long_is_closed() -> None:
    registry, session = SessionRegistry(park_s=0.01), FakeSession()
    registry.park(await opened(registry, session))

    await session.closed.wait()

    assert not registry.holds("r")


async def test_a_session_in_use_again_is_not_closed_by_the_time_it_was_parked() -> None:
    registry, session = SessionRegistry(park_s=0.01), FakeSession()
    registry.park(await opened(registry, session))
    registry.take(key(), drop)
    other = FakeSession()
    registry.park(
        await registry.open(key().model_copy(update={"run_id": "q"}), FakeTransport(other), SPEC, drop)
    )

    await other.closed.wait()

    assert not session.closed.is_set()


async def test_events_go_to_the_phase_that_uses_the_session_and_nowhere_while_parked() -> None:
    registry = SessionRegistry(park_s=60)
    heard: list[str] = []
    held = await registry.open(
        key(), FakeTransport(FakeSession()), SPEC, lambda event: heard.append(event.kind)
    )
    registry.park(held)
    held.relay(TextEvent(text="lost"))
    registry.take(key(), lambda _: heard.append("second"))
    held.relay(TextEvent(text="kept"))

    assert heard == ["text", "second"]


async def test_a_listener_that_fails_is_not_felt_by_the_transport() -> None:
    registry = SessionRegistry(park_s=60)

    def failing(_event: TransportEvent) -> None:
        raise OSError("disk full")

    held = await registry.open(key(), FakeTransport(FakeSession()), SPEC, failing)

    assert held.relay.lost == 1


async def test_an_obedient_turn_ends_by_the_sessions_own_ladder() -> None:
    registry, session = SessionRegistry(park_s=60), FakeSession()
    held = await opened(registry, session)
    turn = registry.start(held.session.work(WorkRequest("p"), drop))

    report = await registry.interrupt(held, turn, 0.5)

    assert report == StopReport(method="cooperative", detail="within 0.5 s")
    assert turn.done()


async def test_a_turn_that_does_not_end_is_closed_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LADDER_SLACK_S", 0.01)
    registry, session = SessionRegistry(park_s=60), FakeSession(obeys=False)
    held = await opened(registry, session)
    turn = registry.start(held.session.work(WorkRequest("p"), drop))

    report = await registry.interrupt(held, turn, 0)

    assert report.method == "killed"
    assert turn.cancelled()
    assert session.closed.is_set()


async def test_a_session_that_opens_in_the_moment_it_is_cancelled_is_closed() -> None:
    registry, session, never = SessionRegistry(park_s=60), FakeSession(), asyncio.Event()
    task = asyncio.ensure_future(registry.open(key(), FakeTransport(session, never), SPEC, drop))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert session.closed.is_set()
    assert not registry.holds("r")


async def test_a_session_that_opens_long_after_it_was_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in ("sessions", "closing"):
        monkeypatch.setattr(f"activities.{room}.CLOSE_LIMIT_S", 0.01)
    registry, session, late = SessionRegistry(park_s=60), FakeSession(), asyncio.Event()
    transport = FakeTransport(session, late, heeds=False)
    task = asyncio.ensure_future(registry.open(key(), transport, SPEC, drop))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not session.closed.is_set()

    late.set()

    await session.closed.wait()
    assert not registry.holds("r")


async def test_a_session_that_does_not_close_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("sessions", "closing"):
        monkeypatch.setattr(f"activities.{room}.CLOSE_LIMIT_S", 0.01)
    registry, session = SessionRegistry(park_s=60), FakeSession(closes=False)
    held = await opened(registry, session)

    await registry.close(held)

    assert session.closed.is_set()
    assert not registry.holds("r")
    session.ending.set()


async def test_a_desk_is_found_while_its_attempt_is_attended_and_is_closed_after_it(tmp_path: Path) -> None:
    registry = SessionRegistry(park_s=60)
    blobs = open_blobs(f"file://{tmp_path}", fsync=False, shared=True, temporal_is_loopback=True)
    desk = Desk(key(), teller(None, "wf"), Evidence(blobs, Redactor()), hold_s=60)

    with registry.attending(desk):
        assert registry.desk(key()) is desk
        assert registry.desk(key(2)) is None
        assert registry.held(key()) is None

    assert registry.desk(key()) is None
    assert desk.is_over


async def test_closing_all_ends_turns_that_still_run() -> None:
    registry, session = SessionRegistry(park_s=60), FakeSession()
    held = await opened(registry, session)
    turn = registry.start(held.session.work(WorkRequest("p"), drop))

    await registry.close_all()

    assert session.closed.is_set()
    assert turn.done()
