"""The Model Context Protocol over standard streams, as far as a server of tools speaks it.

One JSON-RPC message a line. Here is what needs no workspace: what comes is read, and the client is told who is here and
what the tools are. Nothing is imported that would make it wait: an agent starts no work before it has these answers.
"""

from __future__ import annotations

import json
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

INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
_PARSE_ERROR: Final = -32700
_METHOD_NOT_FOUND: Final = -32601


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
        self._say({"jsonrpc": "2.0", "id": request_id, "result": result})

    def refuse(self, request_id: object, refused: RefusedError) -> None:
        """Answer a request with an error."""
        error = {"code": refused.code, "message": str(refused)}
        self._say({"jsonrpc": "2.0", "id": request_id, "error": error})

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

    def _say(self, message: Mapping[str, Any]) -> None:
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
