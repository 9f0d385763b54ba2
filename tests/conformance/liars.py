"""Transports that lie: the stub, with one thing bent on its way to who looks on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from pydantic import BaseModel

from schemas.common import SessionMode
from schemas.events import TransportEvent
from schemas.questions import Answer, Question
from system.processes import Child
from transports.port import (
    Availability,
    Emit,
    Park,
    SessionSpec,
    StopReport,
    StructuredResult,
    TransportCapabilities,
    WorkOutcome,
    WorkRequest,
)
from transports.stub import CAPABILITIES, StubTransport
from transports.stub_session import StubSession


def _as_it_is(what: Any) -> Any:
    return what


@dataclass(frozen=True)
class Bent:
    """A stub that says what is not so: of its events, of how its turns end, of its values, or of what it can do."""

    emits: Callable[[TransportEvent], TransportEvent | None] = _as_it_is
    ends: Callable[[WorkOutcome], WorkOutcome] = _as_it_is
    hands: Callable[[StructuredResult], StructuredResult] = _as_it_is
    opens: Callable[[SessionSpec], SessionSpec] = _as_it_is
    claims: Mapping[str, Any] = field(default_factory=dict)
    session: type[BentSession] | None = None
    inner: StubTransport = field(default_factory=StubTransport)
    name: str = "bent"
    reports_cost: bool = True

    @property
    def capabilities(self) -> TransportCapabilities:
        return replace(CAPABILITIES, **self.claims)

    def is_available(self) -> Availability:
        return self.inner.is_available()

    async def open_session(self, spec: SessionSpec, emit: Emit) -> BentSession:
        inner = await self.inner.open_session(self.opens(spec), self.bending(emit))
        return (self.session or BentSession)(self, inner, spec)

    def bending(self, emit: Emit) -> Emit:
        """Return what takes events, and passes them on as they are to be seen."""

        def take(event: TransportEvent) -> None:
            bent = self.emits(event)
            if bent is not None:
                emit(bent)

        return take


@dataclass
class BentSession:
    """A session of it."""

    bent: Bent
    inner: StubSession
    spec: SessionSpec

    @property
    def session_id(self) -> str:
        return self.inner.session_id

    @property
    def mode(self) -> SessionMode:
        return self.inner.mode

    @property
    def resumable(self) -> bool:
        return self.inner.resumable

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        return self.bent.ends(await self.inner.work(request, self.bent.bending(emit)))

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        bending = self.bent.bending(emit)
        return self.bent.hands(await self.inner.structured(prompt, schema, bending, timeout_s=timeout_s))

    async def steer(self, text: str) -> bool:
        return await self.inner.steer(text)

    async def interrupt(self, grace_s: float) -> StopReport:
        return await self.inner.interrupt(grace_s)

    async def aclose(self) -> None:
        await self.inner.aclose()


class Stubborn(BentSession):
    """Returns when it is cancelled, as if nothing were."""

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        try:
            return await super().work(request, emit)
        except asyncio.CancelledError:
            return WorkOutcome(end="failed")


class Cold(BentSession):
    """Says that it is new, always."""

    @property
    def mode(self) -> SessionMode:
        return "cold"


class Drowsy(BentSession):
    """Does not hear an interrupt that comes before its turn has begun."""

    async def interrupt(self, grace_s: float) -> StopReport:
        del grace_s
        return StopReport("cooperative")


class Leaving(BentSession):
    """Leaves a process behind; who looks on ends those that were ``left``."""

    left: ClassVar[list[Child]] = []

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        argv = ["/bin/sleep", "600"]
        self.left.append(await Child.start(argv, cwd=self.spec.workspace, env=self.spec.environment))
        return await super().work(request, emit)


class Mute(BentSession):
    """Takes no words."""

    async def steer(self, text: str) -> bool:
        del text
        return False


class Deafened(BentSession):
    """Takes words, and passes none on."""

    async def steer(self, text: str) -> bool:
        del text
        return True


class Pretending(BentSession):
    """Takes nothing back, and says nothing of it."""

    async def rewind(self) -> None:
        return None


class Rewinding(BentSession):
    """Tells the truth: it forgets what it did."""

    async def rewind(self) -> None:
        file = self.inner._file
        file.progress = file.progress.model_copy(update={"actions": 0, "labels": []})


def without(kind: str) -> Callable[[TransportEvent], TransportEvent | None]:
    """Return what leaves events of a kind out."""
    return lambda event: None if event.kind == kind else event


def saying(text: str) -> Callable[[TransportEvent], TransportEvent]:
    """Return what has every text be another one."""
    return lambda event: event.model_copy(update={"text": text}) if event.kind == "text" else event


def calling(**changes: Any) -> Callable[[TransportEvent], TransportEvent]:
    """Return what has every call that ended be another one."""

    def bend(event: TransportEvent) -> TransportEvent:
        if event.kind != "tool_ended":
            return event
        return event.model_copy(update={"call": event.call.model_copy(update=changes)})

    return bend


def failing(**changes: Any) -> Callable[[WorkOutcome], WorkOutcome]:
    """Return what has the error of every turn be another one."""

    def bend(outcome: WorkOutcome) -> WorkOutcome:
        error = outcome.error
        return outcome if error is None else replace(outcome, error=error.model_copy(update=changes))

    return bend


def ending(**changes: Any) -> Callable[[WorkOutcome], WorkOutcome]:
    """Return what has every turn end otherwise."""
    return lambda outcome: replace(outcome, **changes)


def handing(**changes: Any) -> Callable[[StructuredResult], StructuredResult]:
    """Return what has every answer be another one."""
    return lambda result: replace(result, **changes)


def limited_until(later: timedelta | None) -> Bent:
    """Return a stub that may go on later than its provider said, or at no time that is known."""

    def ends(outcome: WorkOutcome) -> WorkOutcome:
        return replace(outcome, retry_at=_moved(outcome.retry_at))

    def emits(event: TransportEvent) -> TransportEvent:
        if event.kind != "rate_limited":
            return event
        return event.model_copy(update={"reset_at": _moved(event.reset_at)})

    def _moved(moment: datetime | None) -> datetime | None:
        return None if moment is None or later is None else moment + later

    return Bent(ends=ends, emits=emits)


def mishearing(spec: SessionSpec) -> SessionSpec:
    """Return a spec whose answers reach the agent as other words."""
    asked = spec.on_question
    if asked is None:
        return spec

    async def answer(question: Question) -> Answer | Park:
        said = await asked(question)
        return said if isinstance(said, Park) else said.model_copy(update={"answers": {}})

    return replace(spec, on_question=answer)
