"""The ``gemini-cli`` transport: Gemini CLI as it is, autonomous, under a floor of policy files and a gate before each call."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Final

from schemas.envelopes import ErrorEnvelope, envelope_of
from schemas.events import SessionOpened
from transports.credentials import provider_environment, require_key
from transports.gemini_home import DEFAULT_MODEL, NAME, Home
from transports.gemini_log import SessionLost, make_resumable, session_file
from transports.gemini_session import GeminiSession
from transports.port import Availability, Emit, SessionSpec, TransportCapabilities, TransportError
from transports.programs import AGENTS, Missing, find_program
from transports.resuming import drop_mark, refused, require_whole, unknown

PROGRAM: Final = "gemini"
"""The name of its program."""
INSTALL: Final = "npm install --global @google/gemini-cli@0.61.0 (in a checkout: make agents)"
"""What installs it; in a checkout ``make agents`` does."""
CLIENT_ATTEMPTS: Final = 1
"""How often the program sends a request that fails, in all: it would wait minutes itself, which is the engine's to do."""

CAPABILITIES: Final = TransportCapabilities(
    interrupts=True,
    hooks=True,
    context_across_steps=True,
    streaming=True,
    native_tools=True,
    tool_observation=True,
    tool_interception=True,
    project_context=True,
    parallel_calls=True,
    retry_time=True,
    max_context_tokens=1_048_576,
    provider_name="google",
    structured_output_fallback="microloop",
    small_model="gemini-3.5-flash-lite",
)
"""What it can do. A process takes one prompt, so there is no hot context, and nobody can be asked by it."""


class GeminiCliTransport:
    """Drives the program ``gemini``; a setting may name it, ``client_attempts`` bounds its own tries."""

    name = NAME
    capabilities = CAPABILITIES
    reports_cost = False

    def __init__(
        self, *, program: Path | None = None, agents: Path = AGENTS, client_attempts: int = CLIENT_ATTEMPTS
    ) -> None:
        self._named = program
        self._agents = agents
        self._attempts = client_attempts

    def is_available(self) -> Availability:
        """Say whether the program is there."""
        found = find_program(PROGRAM, named=self._named, agents=self._agents)
        if isinstance(found, Missing):
            return Availability(ok=False, reason=found.reason, install_hint=INSTALL)
        return Availability(ok=True)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> GeminiSession:
        """Open a session; raises TransportError without a program or, as refused, for an unknown session id."""
        found = find_program(PROGRAM, named=self._named, agents=self._agents)
        if isinstance(found, Missing):
            raise TransportError(ErrorEnvelope(code="sdk_unavailable", message=f"{found.reason}: {INSTALL}"))
        require_key("Gemini CLI", "google", provider_environment("google"))
        session_id = spec.resume or str(uuid.uuid4())
        if spec.resume is not None:
            await asyncio.to_thread(_require_session, spec, spec.resume, Home(spec, self._attempts).chats)
        emit(SessionOpened(session_id=session_id, model=spec.model or DEFAULT_MODEL))
        return GeminiSession(spec, found, session_id, attempts=self._attempts)


def _require_session(spec: SessionSpec, session_id: str, chats: Path) -> None:
    """Raise TransportError, as refused, for a session that the program would not go on with."""
    file = session_file(chats, session_id)
    if file is None:
        raise unknown(session_id)
    require_whole(spec.state, session_id, file)
    try:
        drop_mark(spec.state, session_id)
        make_resumable(chats, session_id)
    except SessionLost as error:
        raise refused(session_id, str(error)) from error
    except OSError as error:
        # It could not be written anew: the disk is at fault, not the session.
        raise TransportError(envelope_of(error, code="gemini_cli_error")) from error
