"""The Model Context Protocol over standard streams, as far as a server of tools speaks it.

One JSON-RPC message a line. Nothing of a library is needed for that, so the server starts in the time of a Python.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Any, Final

from cli.mcp_tools import Said, Tool, Workshop
from schemas.json_text import parse_json

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions of the protocol that are spoken, the newest first."""

_PARSE_ERROR: Final = -32700
_INVALID_REQUEST: Final = -32600
_METHOD_NOT_FOUND: Final = -32601
_INVALID_PARAMS: Final = -32602


class _RefusedError(Exception):
    """Raised for a request that is answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """Answers one client; ``write`` takes each line, ``name`` and ``version`` are what it calls itself."""

    def __init__(
        self, workshop: Workshop, write: Callable[[bytes], None], *, name: str, version: str
    ) -> None:
        self._workshop = workshop
        self._write = write
        self._info = {"name": name, "version": version}
        self._calls: dict[str, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterable[bytes]) -> None:
        """Answer until the lines end, then end the calls that still run."""
        try:
            async for line in lines:
                if line.strip():
                    self._take(line)
        finally:
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _take(self, line: bytes) -> None:
        try:
            message = parse_json(line)
        except ValueError:
            self._refuse(None, _RefusedError(_PARSE_ERROR, "not JSON"))
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            if not (isinstance(message, dict) and ("result" in message or "error" in message)):
                self._refuse(None, _RefusedError(_INVALID_REQUEST, "not a request"))
            return
        params = message.get("params")
        self._dispatch(message["method"], message.get("id"), params if isinstance(params, dict) else {})

    def _dispatch(self, method: str, request_id: object, params: Mapping[str, Any]) -> None:
        if method == "notifications/cancelled":
            call = self._calls.get(json.dumps(params.get("requestId")))
            if call is not None:
                call.cancel()
            return
        if request_id is None:
            return
        try:
            if method == "tools/call":
                self._begin(request_id, params)
            else:
                self._reply(request_id, self._answer(method, params))
        except _RefusedError as refused:
            self._refuse(request_id, refused)

    def _answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            wanted = params.get("protocolVersion")
            return {
                "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": self._info,
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [_declared(name, tool) for name, tool in self._workshop.tools.items()]}
        raise _RefusedError(_METHOD_NOT_FOUND, f"there is no method {method!r}")

    def _begin(self, request_id: object, params: Mapping[str, Any]) -> None:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _RefusedError(_INVALID_PARAMS, "a call needs a name, and arguments as an object")
        key = json.dumps(request_id)
        if key in self._calls:
            raise _RefusedError(_INVALID_REQUEST, "the id is in use")
        task = asyncio.create_task(self._call(request_id, name, arguments))
        self._calls[key] = task
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _call(self, request_id: object, name: str, arguments: Mapping[str, Any]) -> None:
        """Make a call and answer it; one that is cancelled has no answer."""
        said: Said = await self._workshop.call(name, arguments)
        content = [{"type": "text", "text": said.text}]
        self._reply(request_id, {"content": content, "isError": said.failed})

    def _reply(self, request_id: object, result: Mapping[str, Any]) -> None:
        self._say({"jsonrpc": "2.0", "id": request_id, "result": result})

    def _refuse(self, request_id: object, refused: _RefusedError) -> None:
        error = {"code": refused.code, "message": str(refused)}
        self._say({"jsonrpc": "2.0", "id": request_id, "error": error})

    def _say(self, message: Mapping[str, Any]) -> None:
        self._write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _declared(name: str, tool: Tool) -> dict[str, Any]:
    schema = tool.arguments.model_json_schema()
    schema.pop("description", None)
    schema.pop("title", None)
    return {
        "name": name,
        "description": (tool.arguments.__doc__ or "").strip(),
        "inputSchema": schema,
        "annotations": {"readOnlyHint": tool.reads, "openWorldHint": False},
    }
