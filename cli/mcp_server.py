"""The calls of an MCP client: they run beside each other, and can be cancelled."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from cli.mcp_protocol import CANCELLED, INVALID_PARAMS, INVALID_REQUEST, Desk, RefusedError, Request
from cli.mcp_tools import Said, Workshop
from system.processes import child_env, shutdown

_MAX_LINE: Final = 32_000_000
_OWN: Final = ("HOME", "TMPDIR")


def work(
    desk: Desk,
    unread: bytes,
    *,
    workspace: str,
    read_only: bool,
    screened: bool,
    environment: Mapping[str, str] | None,
    timeout_s: float,
) -> None:
    """Make a client's calls until its end; ``unread`` is what was taken from standard input already.

    Without an environment commands see the harmless variables, and where this process has its home.
    """
    if environment is None:
        environment = child_env(extra={name: os.environ[name] for name in _OWN if name in os.environ})
    workshop = Workshop(
        Path(workspace),
        read_only=read_only,
        environment=environment,
        timeout_s=timeout_s,
        screened=screened,
    )
    asyncio.run(_serve(desk, workshop, unread))


async def _serve(desk: Desk, workshop: Workshop, unread: bytes) -> None:
    try:
        await Server(desk, workshop).serve(_lines(unread))
    finally:
        workshop.close()
        await shutdown()


async def _lines(unread: bytes) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    reader.feed_data(unread)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    try:
        while line := await reader.readline():
            yield line
    finally:
        pipe.close()


class Server:
    """Makes the calls of one client; what is no call the desk answers."""

    def __init__(self, desk: Desk, workshop: Workshop) -> None:
        self._desk = desk
        self._workshop = workshop
        self._calls: dict[str, asyncio.Task[None]] = {}

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Answer until the lines end, then end the calls that still run."""
        try:
            async for line in lines:
                request = self._desk.take(line)
                if request is not None:
                    self._dispatch(request)
        finally:
            calls = list(self._calls.values())
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _dispatch(self, request: Request) -> None:
        if request.method == CANCELLED:
            call = self._calls.get(json.dumps(request.params.get("requestId")))
            if call is not None:
                call.cancel()
            return
        try:
            self._begin(request.id, request.params)
        except RefusedError as refused:
            self._desk.refuse(request.id, refused)

    def _begin(self, request_id: object, params: Mapping[str, Any]) -> None:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RefusedError(INVALID_PARAMS, "a call needs a name, and arguments as an object")
        key = json.dumps(request_id)
        if key in self._calls:
            raise RefusedError(INVALID_REQUEST, "the id is in use")
        task = asyncio.create_task(self._call(request_id, name, arguments))
        self._calls[key] = task
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _call(self, request_id: object, name: str, arguments: Mapping[str, Any]) -> None:
        """Make a call and answer it; one that is cancelled has no answer."""
        said: Said = await self._workshop.call(name, arguments)
        content = [{"type": "text", "text": said.text}]
        self._desk.reply(request_id, {"content": content, "isError": said.failed})
