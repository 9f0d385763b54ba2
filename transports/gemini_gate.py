"""The gate: what the hook of Gemini CLI asks before each tool call, answered by the session's policy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from schemas.json_text import parse_json
from schemas.questions import call_signature
from transports import gemini_hook
from transports.gemini_hook import DENY, GONE, WORD

MAX_CALL_BYTES: Final = 32 * 1024 * 1024
"""Longer calls are denied unread."""
HOOK_TIMEOUT_MS: Final = 14 * 24 * 3600 * 1000
"""How long the program waits for its hook: a call passes after that, so it is longer than any wait for a human."""

INTERPRETER: Final = sys.executable
"""What runs the hook."""

_SOCKET: Final = "gate"

Decide = Callable[[str, Mapping[str, Any]], Awaitable[str | None]]
"""Takes a tool and its arguments; None lets the call pass, ``code: reason`` denies it."""


class Gate:
    """Listens on a socket in ``folder`` while it is entered, and knows which calls it let pass."""

    def __init__(self, folder: Path, decide: Decide) -> None:
        self._folder = folder
        self._decide = decide
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._passed: Counter[str] = Counter()

    def use_up(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a call that was made had been let pass; each pass is good for one call with these arguments."""
        signature = call_signature(tool, arguments)
        if not self._passed[signature]:
            return False
        self._passed[signature] -= 1
        return True

    @property
    def command(self) -> str:
        """The command line of the hook. Whatever becomes of its interpreter, the shell around it denies.

        A signal that asks the program and all it started to end does not end the hook: the program lets a call pass whose
        hook died so, and makes it before it ends itself. The hook ends when the gate hangs up.
        """
        script = [INTERPRETER, "-I", "-S", "-B", gemini_hook.__file__, str(self._folder / _SOCKET)]
        gone = f"echo {shlex.quote(GONE)} >&2"
        deaf = "trap '' HUP INT TERM"
        return f"{deaf}; {shlex.join(script)}; code=$?; [ $code -eq 0 ] && exit 0; [ $code -eq {DENY} ] || {gone}; exit {DENY}"

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        socket = self._folder / _SOCKET
        socket.unlink(missing_ok=True)
        # The path of a socket may have 107 bytes: it is bound through a descriptor of its folder.
        descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, f"/proc/self/fd/{descriptor}/{_SOCKET}"
            )
        finally:
            os.close(descriptor)
        socket.chmod(0o600)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._answering):
            task.cancel()
        (self._folder / _SOCKET).unlink(missing_ok=True)
        if self._answering:
            await asyncio.wait(self._answering)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a server's callback is a task
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        try:
            answer = await self._answer(reader)
            with contextlib.suppress(OSError):
                writer.write(answer)
                await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            call = parse_json(await _all(reader))
            tool, arguments = call["tool_name"], call["tool_input"]
            if not isinstance(tool, str) or not isinstance(arguments, dict):
                return b"policy_error: the call cannot be read"
            denied = await self._decide(tool, arguments)
        except (ValueError, KeyError, TypeError):
            return b"policy_error: the call cannot be read"
        except Exception as error:  # noqa: BLE001 - an error in the policy denies
            return f"policy_error: {type(error).__name__}".encode()
        if denied is not None:
            return denied.encode("utf-8", "replace")
        self._passed[call_signature(tool, arguments)] += 1
        return WORD


async def _all(reader: asyncio.StreamReader) -> bytes:
    """Return what the hook sends until it is done. Raises ValueError for more than a call may have."""
    data = bytearray()
    while part := await reader.read(65_536):
        data += part
        if len(data) > MAX_CALL_BYTES:
            message = f"a call of more than {MAX_CALL_BYTES} bytes"
            raise ValueError(message)
    return bytes(data)
