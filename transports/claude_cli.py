"""The ``claude-cli`` transport: ``claude --print`` by its streams, with our tools for reading, writing and running.

It has none of its own tools but the one that asks and the one that has sub-agents: what writes and runs is
``stepwise mcp``, so that policy holds where they run, and the program asks us before each call.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from schemas.envelopes import envelope_of
from schemas.errors import StepwiseError
from schemas.events import SessionOpened
from system.files import write_atomic
from transports.claude_cli_link import CliLink
from transports.claude_opening import gate_for, not_begun, reader_for, refused_resume, started
from transports.claude_policy import OURS, QUESTION, SERVER
from transports.claude_program import Folders, availability
from transports.claude_server import SERVER_SCRIPT
from transports.claude_session import ClaudeSession
from transports.claude_wire import finish
from transports.port import Availability, Emit, SessionSpec, TransportCapabilities, TransportError

CAPABILITIES: Final = TransportCapabilities(
    interrupts=True,
    hooks=True,
    hot_context=True,
    context_across_steps=True,
    streaming=True,
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

_NAME: Final = "claude-cli"
_CONNECT_S: Final = 60.0
_TOOLS: Final = (QUESTION, "Agent")


class ClaudeCliTransport:
    """Drives the program alone: the SDK's, or ``claude`` on PATH."""

    name = _NAME
    capabilities = CAPABILITIES
    reports_cost = True

    def is_available(self) -> Availability:
        """Say whether the program is installed; starts nothing."""
        return availability(needs_sdk=False)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> ClaudeSession:
        """Start the program and shake hands; raises TransportError, as refused for an unknown session id."""
        folders = Folders.of(spec, _NAME)
        refused_resume(spec, folders)
        session_id = spec.resume or str(uuid.uuid4())
        reader = reader_for(spec, folders, session_id, source="cli-observed")
        gate = gate_for(spec, session_id, reader, OURS)
        try:
            config = _mcp_config(spec, folders)
        except (OSError, StepwiseError) as error:
            raise TransportError(envelope_of(error, code="spawn_failed")) from error
        wire = await started(spec, folders, session_id, tools=_TOOLS, mcp_config=str(config))
        link = CliLink(wire, gate)
        session = ClaudeSession(spec, session_id, folders, link, gate, reader)
        link.begin(session.take, session.lost)
        try:
            await link.initialize(_CONNECT_S)
        except StepwiseError as error:
            refusal = not_begun(spec, wire, error)
            await link.close()
            raise refusal from error
        except asyncio.CancelledError:
            await finish(asyncio.create_task(link.close()))
            raise
        emit(SessionOpened(session_id=session_id, model=spec.model))
        return session


def _mcp_config(spec: SessionSpec, folders: Folders) -> Path:
    """Write what the program is told of our server, and what its commands see; return the file."""
    folders.make()
    environment = {**spec.environment, "HOME": str(folders.home), "TMPDIR": str(folders.temporary)}
    seen = folders.told / "commands.json"
    write_atomic(seen, json.dumps(environment).encode(), fsync=False)
    given = {
        "workspace": str(spec.workspace),
        "read_only": spec.read_only,
        "screened": True,
        "environment": str(seen),
        "timeout_s": spec.command_timeout_s,
        "version": version("stepwise"),
    }
    server: dict[str, Any] = {
        "type": "stdio",
        "command": sys.executable,
        "args": ["-I", "-S", str(SERVER_SCRIPT), json.dumps(given)],
        "alwaysLoad": True,
    }
    config = folders.told / "mcp.json"
    write_atomic(config, json.dumps({"mcpServers": {SERVER: server}}).encode(), fsync=False)
    return config
