"""The ``stub`` transport: an agent that plays a scenario, and really does what it is told."""

from __future__ import annotations

from typing import Final

from schemas.events import SessionOpened
from transports.port import Availability, Emit, SessionSpec, TransportCapabilities
from transports.stub_progress import SessionFile, session_id_of
from transports.stub_script import read_scenario, turn_of
from transports.stub_session import StubSession

CAPABILITIES: Final = TransportCapabilities(
    interrupts=True,
    hot_context=True,
    context_across_steps=True,
    streaming=True,
    tool_observation=True,
    tool_interception=True,
    questions=True,
    steering=True,
    retry_time=True,
    max_context_tokens=200_000,
    provider_name="stub",
    structured_output_fallback="microloop",
)
"""What the stub can do."""


class StubTransport:
    """Plays scenarios; needs no key. ``may_crash_worker`` lets one kill this very process."""

    name = "stub"
    capabilities = CAPABILITIES
    reports_cost = True

    def __init__(self, *, may_crash_worker: bool = False) -> None:
        self._may_crash_worker = may_crash_worker

    def is_available(self) -> Availability:
        """Say that it can be used: there is nothing to install."""
        return Availability(ok=True)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> StubSession:
        """Open a session; raises TransportError for a bad scenario or, as refused, an unknown session id."""
        scenario = read_scenario(spec.scenario)
        file = SessionFile.create(spec) if spec.resume is None else SessionFile.resume(spec, spec.resume)
        # A session that the same attempt opened before is gone on with, but the attempt is no resumed one.
        resumed = spec.resume not in (None, session_id_of(spec.run_id, spec.place))
        key, turn = turn_of(scenario, spec.place, resumed=resumed)
        emit(SessionOpened(session_id=file.progress.session_id, model=spec.model))
        return StubSession(spec, file, key, turn, may_crash_worker=self._may_crash_worker)
