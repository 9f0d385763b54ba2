"""The calls of an MCP client once it runs commands: they run beside each other, and can be cancelled."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from cli.mcp_commands import Shell
from cli.mcp_protocol import CANCELLED, INVALID_REQUEST, MAX_LINE, RUN, Call, Desk, RefusedError, Request
from cli.mcp_tools import Workshop
from system.processes import shutdown


def serve(desk: Desk, unread: bytes, workshop: Workshop, shell: Shell) -> None:
    """Make a client's calls until its end; ``unread`` is what was taken from standard input already."""
    asyncio.run(_serve(Server(desk, workshop, shell), unread))


async def _serve(server: Server, unread: bytes) -> None:
    try:
        await server.serve(_lines(unread))
    finally:
        await shutdown()


async def _lines(unread: bytes) -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=MAX_LINE)
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

    def __init__(self, desk: Desk, workshop: Workshop, shell: Shell) -> None:
        self._desk = desk
        self._workshop = workshop
        self._shell = shell
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
            self._begin(Call.of(request))
        except RefusedError as refused:
            self._desk.refuse(request.id, refused)

    def _begin(self, call: Call) -> None:
        key = json.dumps(call.id)
        if key in self._calls:
            raise RefusedError(INVALID_REQUEST, "the id is in use")
        task = asyncio.create_task(self._make(call))
        self._calls[key] = task
        task.add_done_callback(lambda _: self._calls.pop(key, None))

    async def _make(self, call: Call) -> None:
        """Make a call and answer it; one that is cancelled has no answer."""
        if call.tool == RUN:
            said = await self._shell.call(call.arguments)
        else:
            said = await asyncio.to_thread(self._workshop.call, call.tool, call.arguments)
        self._desk.say(call, said.text, failed=said.failed)
