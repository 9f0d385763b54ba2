"""Transports that do not hold a check of the conformance suite are found out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from stub_bench import StubBench

from schemas.events import TextEvent, TransportEvent
from schemas.questions import CallDecision, CallRequest
from system import processes
from transports.conformance import CHECKS, Check, prove, unproved, without_scenario
from transports.conformance_bench import (
    Bench,
    NotConforming,
)
from transports.port import (
    SESSION_LOST,
    Emit,
    SessionSpec,
    StepSession,
    StopReport,
    Transport,
    TransportCapabilities,
    TransportError,
    unwatched,
)
from transports.resuming import drop_mark
from transports.stub import CAPABILITIES, StubTransport
from transports.stub_session import StubSession


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@dataclass(frozen=True)
class More(TransportCapabilities):
    """What transports could also do."""

    telepathy: bool = False


def test_a_claim_without_a_proof_is_found() -> None:
    assert unproved(More(interrupts=True, telepathy=True)) == {"telepathy"}


def test_a_flag_without_a_scenario_is_found() -> None:
    assert without_scenario(More) == {"telepathy"}


def test_a_check_is_left_out_only_for_who_does_not_claim_it_or_cannot_show_it(tmp_path: Path) -> None:
    asks_again = next(check for check in CHECKS if check.name == "asks_again")
    modest = StubTransport()
    modest.capabilities = replace(CAPABILITIES, structured_output_fallback="none")
    assert asks_again.applies(StubBench(tmp_path))
    assert not asks_again.applies(StubBench(tmp_path, transport=modest))
    assert not asks_again.applies(StubBench(tmp_path, behaviours=frozenset({"idle"})))


class Forgetful(StubTransport):
    """Starts a new session when it is asked to resume one."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        return await super().open_session(replace(spec, resume=None), emit)


class Trusting(StubTransport):
    """Takes what is left of a session's file for the whole."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        if spec.resume is not None:
            drop_mark(spec.state, spec.resume)
        return await super().open_session(spec, emit)


class Vague(StubTransport):
    """Does not say that it is the session which cannot be gone on with."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        try:
            return await super().open_session(spec, emit)
        except TransportError as error:
            raise TransportError(error.error) from error


class Careless(StubTransport):
    """Edits files in a read-only session."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        return await super().open_session(replace(spec, read_only=False), emit)


class Deaf(StubTransport):
    """Never asks anybody."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        return await super().open_session(replace(spec, on_question=None), emit)


class Rash(StubTransport):
    """Makes every call without asking."""

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        async def allow(request: CallRequest) -> CallDecision:
            return CallDecision(signature=request.signature, allow=True)

        return await super().open_session(replace(spec, on_call=allow), emit)


@dataclass
class Wrapped:
    """A transport whose sessions are all of one kind of liar."""

    kind: type[Session]
    inner: StubTransport = field(default_factory=StubTransport)
    name = "wrapped"
    capabilities = CAPABILITIES
    reports_cost = True

    def is_available(self) -> Any:
        return self.inner.is_available()

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StepSession:
        session = self.kind.__new__(self.kind)
        session.__dict__.update((await self.inner.open_session(spec, emit)).__dict__)
        return session


class Session(StubSession):
    """A session of the stub."""


class Silent(Session):
    """Reports a turn's events only after it."""

    async def work(self, request: Any, emit: Emit) -> Any:
        kept: list[TransportEvent] = []
        try:
            return await super().work(request, kept.append)
        finally:
            for event in kept:
                emit(event)


class Whole(Session):
    """Says a text only once it is whole, and gives no sign of life before."""

    async def work(self, request: Any, emit: Emit) -> Any:
        words: list[str] = []

        def whole(event: TransportEvent) -> None:
            if event.kind == "text":
                words.append(event.text)
                return
            if words:
                emit(TextEvent(text="".join(words)))
                words.clear()
            emit(event)

        return await super().work(replace(request, on_output=unwatched), whole)


class Blunt(Session):
    """Kills without asking."""

    async def interrupt(self, grace_s: float) -> StopReport:
        del grace_s
        await self._kill_at_once()
        return StopReport("killed")

    async def _kill_at_once(self) -> None:
        if self._running is not None:
            await self._kill(self._running)


class Leaky(Session):
    """Leaves its children alone when it is interrupted."""

    async def interrupt(self, grace_s: float) -> StopReport:
        del grace_s
        return StopReport("killed")


class Talkative(Session):
    """Takes words at any time."""

    async def steer(self, text: str) -> bool:
        await super().steer(text)
        return True


class Obstinate(Session):
    """Does not take an answer with the prompt of its next turn."""

    async def work(self, request: Any, emit: Emit) -> Any:
        return await super().work(replace(request, given=None), emit)


class Immortal(Session):
    """Says it ended while it did not."""

    async def aclose(self) -> None:
        if self._running is None:
            await super().aclose()


class Hasty(Session):
    """Gives its session up for whatever goes wrong."""

    async def work(self, request: Any, emit: Emit) -> Any:
        outcome = await super().work(request, emit)
        lost = outcome.error and outcome.error.model_copy(update={"code": SESSION_LOST})
        return replace(outcome, error=lost)


LIARS: Final[list[tuple[Transport, str, str]]] = [
    (Forgetful(), "resumes", "calls itself cold"),
    (Forgetful(), "carries_context_across_steps", "calls itself cold"),
    (Forgetful(), "refuses_unknown_sessions", "never was"),
    (Forgetful(), "heals_empty_sessions", "does not know what it wrote"),
    (Vague(), "heals_empty_sessions", "not told that the id is at fault"),
    (Trusting(), "heals_torn_sessions", "does not know what it wrote"),
    (Vague(), "heals_torn_sessions", "not told that the id is at fault"),
    (Wrapped(Hasty), "keeps_sessions_its_provider_refuses", "given up"),
    (Careless(), "keeps_read_only", "wrote a file"),
    (Careless(), "intercepts_tools", "took effect"),
    (Deaf(), "passes_questions_on", "asked was"),
    (Rash(), "asks_before_calls", "took effect"),
    (Rash(), "parks_on_calls", "ended as completed"),
    (Wrapped(Obstinate), "goes_on_with_an_answer", "ended as question"),
    (Wrapped(Blunt), "stops_while_it_asks", "killed"),
    (Wrapped(Blunt), "obeys_interrupts", "killed"),
    (Wrapped(Leaky), "kills_what_hangs", "processes are left"),
    (Wrapped(Immortal), "ends_when_closed", "processes are left"),
    (Wrapped(Talkative), "steers_only_work", "before its turn"),
]
"""Transports that do not hold a check, with how that is said; tests/conformance/test_conformance_bent.py has more."""


@pytest.mark.parametrize(
    ("transport", "check_name", "message"),
    LIARS,
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_transport_that_does_not_hold_a_check_is_found_out(
    transport: Transport, check_name: str, message: str, tmp_path: Path
) -> None:
    check = next(check for check in CHECKS if check.name == check_name)
    with pytest.raises(NotConforming, match=message):
        await prove(check, StubBench(tmp_path, transport=transport))


@pytest.mark.parametrize("kind", [Silent, Whole])
async def test_a_transport_that_tells_only_what_is_whole_does_not_stream(
    kind: type[Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transports.conformance.LIMIT_S", 0.5)
    check = next(check for check in CHECKS if check.name == "streams")
    with pytest.raises(NotConforming, match="not done within"):
        await prove(check, StubBench(tmp_path, transport=Wrapped(kind)))


async def test_a_process_that_outlives_its_session_is_found_out(tmp_path: Path) -> None:
    bench = StubBench(tmp_path)

    async def leave_one(bench: Bench) -> None:
        spec = bench.spec("idle")
        child = await processes.Child.start(["/bin/sleep", "600"], cwd=tmp_path, env=spec.environment)
        kept.append(child)

    kept: list[processes.Child] = []
    with pytest.raises(NotConforming, match="processes are left"):
        await prove(Check("leaves_one", leave_one, None, "idle"), bench)
    async with asyncio.TaskGroup() as group:
        for child in kept:
            group.create_task(child.stop(0))
