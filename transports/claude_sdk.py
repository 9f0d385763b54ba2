"""The ``claude-sdk`` transport: Claude Code with its own tools, driven through claude-agent-sdk."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from schemas.events import SessionOpened
from transports.claude_hand_in import NAMES
from transports.claude_opening import gate_for, not_begun, reader_for, refused_resume, started
from transports.claude_policy import OWN, QUESTION, SERVER
from transports.claude_program import Folders, availability
from transports.claude_session import ClaudeSession
from transports.claude_wire import finish
from transports.port import Availability, Emit, SessionSpec, TransportCapabilities

CAPABILITIES: Final = TransportCapabilities(
    output_format=True,
    interrupts=True,
    hooks=True,
    hot_context=True,
    context_across_steps=True,
    streaming=True,
    native_tools=True,
    tool_observation=True,
    tool_interception=True,
    project_context=True,
    questions=True,
    subagents=True,
    parallel_calls=True,
    steering=True,
    retry_time=True,
    max_context_tokens=200_000,
    provider_name="anthropic",
    structured_output_fallback="microloop",
    small_model="haiku",
)
"""What it can do, as far as the conformance suite proves it."""

_NAME: Final = "claude-sdk"
_TOOLS: Final = (*OWN.reading, *OWN.writing, OWN.command, QUESTION, "Agent")
_CONNECT_S: Final = 60.0
_MCP: Final = json.dumps({"mcpServers": {SERVER: {"type": "sdk", "name": SERVER, "alwaysLoad": True}}})


def _connect() -> Callable[..., Awaitable[ClaudeSession]]:
    from transports.claude_sdk_session import connect  # noqa: PLC0415 - the vendor's package is optional

    return connect


class ClaudeSdkTransport:
    """Drives the program that comes with claude-agent-sdk; the SDK itself is imported when a session is opened."""

    name = _NAME
    capabilities = CAPABILITIES
    reports_cost = True

    def is_available(self) -> Availability:
        """Say whether the SDK is installed; starts nothing."""
        return availability(needs_sdk=True)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> ClaudeSession:
        """Start the program and shake hands; raises TransportError, as refused for an unknown session id."""
        folders = Folders.of(spec, _NAME)
        refused_resume(spec, folders)
        session_id = spec.resume or str(uuid.uuid4())
        reader = reader_for(spec, folders, session_id, source="sdk")
        reader.hidden = NAMES
        gate = gate_for(spec, session_id, reader, OWN)
        wire = await started(spec, folders, session_id, tools=_TOOLS, mcp_config=_MCP)
        try:
            # The program begins meanwhile; the import takes a second, which is not to be the event loop's.
            connect = await asyncio.to_thread(_connect)
            session = await connect(spec, session_id, folders, wire, gate, reader, timeout_s=_CONNECT_S)
        except Exception as error:
            # Whatever the SDK raises, its program must not outlive it.
            refusal = not_begun(spec, wire, error)
            await wire.close()
            raise refusal from error
        except asyncio.CancelledError:
            await finish(asyncio.create_task(wire.close()))
            raise
        emit(SessionOpened(session_id=session_id, model=spec.model))
        return session
