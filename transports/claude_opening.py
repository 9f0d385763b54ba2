"""How a session of Claude Code begins: a resumed id that is known, folders, and a program that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policy.commands import Verdict
from schemas.envelopes import ErrorEnvelope, envelope_of
from schemas.errors import StepwiseError
from transports.claude_gate import Gate
from transports.claude_messages import Reader, Source
from transports.claude_policy import Toolset, judge_tool
from transports.claude_program import (
    INSTALL,
    PIPED,
    Folders,
    command_line,
    environment,
    find_program,
    loads_project,
)
from transports.claude_project import project_arguments
from transports.claude_usage import noted_total
from transports.claude_wire import STDERR_CHARS, Wire, WireBroken
from transports.credentials import require_key
from transports.port import SessionSpec, TransportError
from transports.resuming import refused, require_whole, unknown


def refused_resume(spec: SessionSpec, folders: Folders) -> None:
    """Raise TransportError, as refused, when the session to go on with was not kept here, or not whole."""
    if spec.resume is None:
        return
    file = folders.session_file(spec.resume)
    if file is None:
        raise unknown(spec.resume)
    require_whole(spec.state, spec.resume, file)


def not_begun(spec: SessionSpec, wire: Wire, error: Exception) -> TransportError:
    """Return why a program did not begin its session; as refused where it ended by itself over one to go on with.

    Of a file it cannot use it says so only by its end, in words of its own. A key or an address that is wrong is no
    reason for that: those show in the first turn.
    """
    ended = wire.finished
    if spec.resume is not None and isinstance(error, WireBroken) and ended is not None and ended.exit_code:
        said = ended.stderr.decode("utf-8", "replace").strip()[-STDERR_CHARS:]
        return refused(spec.resume, said or error.message)
    return TransportError(envelope_of(error, code="sdk_unavailable"))


def reader_for(spec: SessionSpec, folders: Folders, session_id: str, *, source: Source) -> Reader:
    """Return what reads the session's frames; a resumed one goes on counting where it was."""
    reader = Reader(source)
    if spec.resume is not None:
        reader.base = noted_total(folders, session_id)
    return reader


def gate_for(spec: SessionSpec, session_id: str, reader: Reader, tools: Toolset) -> Gate:
    """Return what judges the session's calls."""

    def judge(name: str, arguments: Mapping[str, Any]) -> Verdict:
        return judge_tool(
            name,
            arguments,
            tools=tools,
            workspace=spec.workspace,
            read_only=spec.read_only,
            repository_tools=loads_project(spec),
        )

    return Gate(spec, session_id, judge, reader.blocked, reading=tools.reading)


async def started(
    spec: SessionSpec, folders: Folders, session_id: str, *, tools: Sequence[str], mcp_config: str
) -> Wire:
    """Start the program for a session; raises TransportError."""
    program = find_program()
    if program is None:
        error = ErrorEnvelope(code="sdk_unavailable", message=f"claude is not installed: {INSTALL}")
        raise TransportError(error)
    env = environment(spec, folders)
    if not loads_project(spec):  # the settings of a repository may name a program that has the key
        require_key("Claude Code", "anthropic", env)
    try:
        folders.make()
        system = folders.told / "system.md"
        system.write_text(spec.system, encoding="utf-8")
        argv = command_line(
            program,
            spec,
            session_id=session_id,
            tools=tools,
            mcp_config=mcp_config,
            system_file=system,
            project=project_arguments(spec.workspace, folders.told) if loads_project(spec) else (),
        )
        return await Wire.start(argv, cwd=spec.workspace, env=env, pipes=PIPED)
    except (OSError, StepwiseError) as error:
        raise TransportError(envelope_of(error, code="spawn_failed")) from error
