"""The Model Context Protocol over standard streams, as far as a server of tools speaks it.

One JSON-RPC message a line. Here is what needs no workspace: what comes is read, and the client is told who is here and
what the tools are. Nothing is imported that would make it wait: an agent starts no work before it has these answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cli.mcp_declared import DECLARED
from schemas.json_text import parse_json

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions of the protocol that are spoken, the newest first."""
NAME: Final = "stepwise"
"""What the server calls itself."""
CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
RUN: Final = "run_command"
"""The tool that is more than files."""
MAX_LINE: Final = 32_000_000
"""The longest message of a client, in bytes."""

INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
_PARSE_ERROR: Final = -32700
_METHOD_NOT_FOUND: Final = -32601
_PART: Final = 65_536


class RefusedError(Exception):
    """Raised for a request that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Request(NamedTuple):
    """One message of the client; ``id`` is None where it wants no answer."""

    method: str
    id: object
    params: Mapping[str, Any]


class Call(NamedTuple):
    """A call of a tool."""

    id: object
    tool: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, request: Request) -> Call:
        """Return what a request calls. Raises RefusedError."""
        tool, arguments = request.params.get("name"), request.params.get("arguments") or {}
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise RefusedError(INVALID_PARAMS, "a call needs a name, and arguments as an object")
        return cls(request.id, tool, arguments)


class Input:
    """What a client says, line by line, from a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()

    @property
    def unread(self) -> bytes:
        """What was taken from the descriptor and from no line."""
        return bytes(self._buffer)

    def line(self) -> bytes | None:
        """Wait for the next line, and return it with its end; None once there is none. Raises ValueError if too long."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > MAX_LINE:
                raise ValueError(f"a message of more than {MAX_LINE} bytes")
            part = os.read(self._fd, _PART)
            if not part:
                end = searched
                break
            self._buffer += part
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line or None

    def put_back(self, line: bytes) -> None:
        """Let a line be the next one again."""
        self._buffer[:0] = line


class Desk:
    """Answers one client as far as no tool is needed; ``write`` takes each line, ``version`` is what it says of us."""

    def __init__(self, write: Callable[[bytes], None], *, version: str) -> None:
        self._write = write
        self._version = version
        self.listed = False
        """The client knows the tools: what comes next are calls."""

    def take(self, line: bytes) -> Request | None:
        """Answer a line, or return its request when it calls a tool or cancels a call."""
        if not line.strip():
            return None
        try:
            request = _read(line)
        except RefusedError as refused:
            self.refuse(None, refused)
            return None
        if request is None or request.method == CANCELLED:
            return request
        if request.id is None:
            return None
        if request.method == CALL:
            return request
        try:
            self.reply(request.id, self._answer(request))
        except RefusedError as refused:
            self.refuse(request.id, refused)
        return None

    def reply(self, request_id: object, result: Mapping[str, Any]) -> None:
        """Answer a request."""
        self._send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def say(self, call: Call, text: str, *, failed: bool) -> None:
        """Answer a call."""
        self.reply(call.id, {"content": [{"type": "text", "text": text}], "isError": failed})

    def refuse(self, request_id: object, refused: RefusedError) -> None:
        """Answer a request with an error."""
        error = {"code": refused.code, "message": str(refused)}
        self._send({"jsonrpc": "2.0", "id": request_id, "error": error})

    def _answer(self, request: Request) -> dict[str, Any]:
        if request.method == "initialize":
            wanted = request.params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": NAME, "version": self._version},
            }
        if request.method == "ping":
            return {}
        if request.method == "tools/list":
            self.listed = True
            return {"tools": DECLARED}
        raise RefusedError(_METHOD_NOT_FOUND, f"there is no method {request.method!r}")

    def _send(self, message: Mapping[str, Any]) -> None:
        self._write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _read(line: bytes) -> Request | None:
    """Return the request of a line; None for an answer, since nothing was asked. Raises RefusedError."""
    try:
        message = parse_json(line)
    except ValueError:
        raise RefusedError(_PARSE_ERROR, "not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        if isinstance(message, dict) and ("result" in message or "error" in message):
            return None
        raise RefusedError(INVALID_REQUEST, "not a request")
    params = message.get("params")
    return Request(message["method"], message.get("id"), params if isinstance(params, dict) else {})
