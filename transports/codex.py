"""The ``codex`` transport: OpenAI's Codex through its app-server, every command and patch passed by our policy."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from schemas.envelopes import ErrorEnvelope
from schemas.errors import StepwiseError
from schemas.events import SessionOpened
from transports import codex_program as program
from transports.codex_line import Line
from transports.codex_program import WORK, Folders
from transports.codex_rollout import Rollout, holds_a_turn
from transports.codex_rpc import AppServer, Refused
from transports.codex_session import CodexSession
from transports.credentials import require_key
from transports.port import Availability, Emit, SessionSpec, TransportCapabilities, TransportError
from transports.resuming import refused, require_whole, unknown

CAPABILITIES: Final = TransportCapabilities(
    output_format=True,
    interrupts=True,
    sandbox=True,
    hot_context=True,
    context_across_steps=True,
    streaming=True,
    native_tools=True,
    tool_observation=True,
    tool_interception=True,
    project_context=True,
    questions=True,
    parallel_calls=True,
    steering=True,
    max_context_tokens=258_400,
    provider_name="openai",
    structured_output_fallback="microloop",
    small_model="",
)
"""What Codex can do as it is driven here."""

DEFAULT_MODEL: Final = "gpt-5.5"
"""The program's own default runs tools from scripts, in which a call of a tool is not seen as one."""
_EXPOSED: Final = "the sandbox of Codex lets commands write below /dev, where {} is: set STEPWISE_DATA_DIR to a folder on a disk"
_PATTERN: Final = frozenset("*?[]")
_AS_PATTERN: Final = (
    "Codex takes {} for a pattern: set STEPWISE_DATA_DIR to a folder without *, ?, [ and ] in its path"
)
_CALL_S: Final = 60.0
_VERSION: Final = "1"
# What is told of a turn and not read here; diffs and outputs can be large.
_UNHEARD: Final = (
    "turn/diff/updated",
    "turn/plan/updated",
    "item/fileChange/outputDelta",
    "item/reasoning/summaryPartAdded",
    "account/rateLimits/updated",
    "thread/readState/changed",
)


class CodexTransport:
    """Drives Codex; ``command`` is its program (default: the installed one), ``environment`` has its key and address.

    ``kept`` is the folder in which a worker keeps what no agent may write.
    """

    name = "codex"
    capabilities = CAPABILITIES
    reports_cost = False

    def __init__(
        self,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        kept: Path | None = None,
    ) -> None:
        self._command = command
        self._kept = kept
        self._environment = environment
        self._sandboxed = False

    def is_available(self) -> Availability:
        """Say whether the program is installed, and can be held to its place; starts nothing."""
        kept = self._kept.resolve() if self._kept is not None else None
        if kept is not None and kept.is_relative_to("/dev"):
            return Availability(ok=False, reason=_EXPOSED.format(self._kept))
        if kept is not None and _PATTERN & set(str(kept)):
            return Availability(ok=False, reason=_AS_PATTERN.format(self._kept))
        return program.availability(Path(self._command[0]) if self._command else program.find_program())

    async def open_session(self, spec: SessionSpec, emit: Emit) -> CodexSession:
        """Open a session, or go on with one; raises TransportError, also where commands cannot be sandboxed."""
        command = self._found()
        if not self.is_available().ok:
            raise _unusable("sandbox_unavailable", self.is_available().reason)
        folders = Folders.of(spec)
        env = program.program_environment(spec, folders, self._environment)
        require_key("Codex", "openai", env)
        if spec.resume is not None and not _is_id(spec.resume):
            raise unknown(spec.resume)
        line = Line(new=spec.resume is None)
        try:
            await asyncio.to_thread(_prepare, spec, folders)
            await self._check_sandbox(command, spec.workspace, env)
            server = await AppServer.start(
                [*command, *program.arguments(spec, folders, env)],
                cwd=spec.workspace,
                env=env,
                notified=line.notified,
                asked=line.asked,
                lost=line.lost,
            )
        except StepwiseError as error:
            raise TransportError(ErrorEnvelope.of(error)) from error
        try:
            return await _opened(spec, server, line, emit)
        except BaseException as error:
            await server.end(0)
            if isinstance(error, TimeoutError):
                raise _unusable("agent_silent", "the app-server does not answer", retryable=True) from error
            if isinstance(error, StepwiseError):
                raise TransportError(ErrorEnvelope.of(error)) from error
            if isinstance(error, KeyError | TypeError):
                raise _unusable("agent_protocol", f"an answer is not understood: {error!r}") from error
            raise

    def _found(self) -> list[str]:
        if self._command is not None:
            return list(self._command)
        found = program.find_program()
        if found is None:
            said = self.is_available()
            raise _unusable("not_installed", f"{said.reason}: {said.install_hint}")
        return [str(found)]

    async def _check_sandbox(self, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Raise TransportError where commands cannot be sandboxed: without a sandbox policy would judge words alone."""
        if self._sandboxed:
            return
        fault = await program.sandbox_fault(command, cwd, env)
        if fault is not None:
            raise _unusable("sandbox_unavailable", program.SANDBOX_FAULT.format(fault))
        self._sandboxed = True


def _prepare(spec: SessionSpec, folders: Folders) -> None:
    try:
        folders.make()
        program.give_instructions(spec, folders)
    except OSError as error:
        raise StepwiseError("no_folder", f"a folder of Codex cannot be made: {error}") from error


async def _opened(spec: SessionSpec, server: AppServer, line: Line, emit: Emit) -> CodexSession:
    """Open the thread; raises TransportError for an id nobody knows, Refused, Gone, TimeoutError."""
    info = {"name": "stepwise", "title": "Stepwise", "version": _VERSION}
    capabilities = {"experimentalApi": True, "optOutNotificationMethods": list(_UNHEARD)}
    said = await server.call(
        "initialize", {"clientInfo": info, "capabilities": capabilities}, timeout_s=_CALL_S
    )
    await server.notify("initialized")
    params: dict[str, Any] = {
        "cwd": str(spec.workspace),
        "approvalPolicy": "untrusted",
        "permissions": WORK,
        "developerInstructions": spec.system or None,
        "model": spec.model or DEFAULT_MODEL,
    }
    if spec.resume is None:
        opened = await server.call("thread/start", params, timeout_s=_CALL_S)
    else:
        opened = await _resumed(spec, spec.resume, server, params)
    await server.settled()
    thread = opened["thread"]
    rollout = Rollout(Path(thread["path"]))
    server_info = {"user_agent": said.get("userAgent"), "sandbox": WORK, "model": opened.get("model")}
    emit(SessionOpened(session_id=thread["id"], model=opened.get("model"), server_info=server_info))
    return CodexSession(spec, server, line, thread["id"], rollout)


async def _resumed(
    spec: SessionSpec, session_id: str, server: AppServer, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Go on with a thread, and tell it what it is told now: it keeps to the words it began with otherwise."""
    resume = {**params, "threadId": session_id, "excludeTurns": True}
    try:
        opened = await server.call("thread/resume", resume, timeout_s=_CALL_S)
        await asyncio.to_thread(_require_history, spec, session_id, Path(opened["thread"]["path"]))
        if spec.system:
            text = f"These instructions replace those given before.\n\n{spec.system}"
            item = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}
            told = {"threadId": session_id, "items": [item]}
            await server.call("thread/inject_items", told, timeout_s=_CALL_S)
    except Refused as error:
        raise refused(session_id, error.message, code="unknown_session") from error
    return opened


def _require_history(spec: SessionSpec, session_id: str, file: Path) -> None:
    """Raise TransportError, as refused, for a thread of which too little is left: the server takes any that has a head."""
    require_whole(spec.state, session_id, file)
    try:
        known = holds_a_turn(file)
    except OSError as error:
        raise refused(session_id, f"its file cannot be read: {error}") from error
    if not known:
        raise refused(session_id, "its file holds nothing that was said in it")


def _is_id(session_id: str) -> bool:
    try:
        return str(uuid.UUID(session_id)) == session_id
    except ValueError:
        return False


def _unusable(code: str, message: str, *, retryable: bool = False) -> TransportError:
    return TransportError(ErrorEnvelope(code=code, message=message, retryable=retryable))
