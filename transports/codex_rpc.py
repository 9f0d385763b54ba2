"""A client of the Codex app-server: JSON-RPC, one message a line, over the pipes of a guarded child."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import psutil

from schemas.envelopes import ErrorEnvelope, Reported
from schemas.errors import StepwiseError
from schemas.json_text import parse_json
from system.processes import Child, ProcessError
from transports.codex_errors import crashed

Notified = Callable[[str, dict[str, Any]], None]
"""Takes a notification: its method and parameters; never blocks, never raises."""
Asked = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request of the server; raises Unanswerable for one it does not know."""

_MAX_LINE: Final = 32_000_000
_METHOD_NOT_FOUND: Final = -32601
_INTERNAL_ERROR: Final = -32603
_GRACE_S: Final = 2.0
_LOOK_S: Final = 0.01
_LOOKS: Final = 2


class Refused(StepwiseError):
    """Raised when the server answers a request with an error."""

    def __init__(self, method: str, message: str) -> None:
        super().__init__("agent_refused", f"{method}: {message}")
        self.said = message


class Gone(Reported):
    """Raised when the server is not there any more; ``error`` says how it ended."""


class Unanswerable(Exception):
    """Raised for a request of the server that nobody here answers."""


class AppServer:
    """One app-server process; ``gone`` is set when nothing more will come, ``error`` then says why unless it was ended here."""

    def __init__(self, child: Child, notified: Notified, asked: Asked, lost: Callable[[], None]) -> None:
        self.gone = asyncio.Event()
        self.error: ErrorEnvelope | None = None
        self._child = child
        self._notified = notified
        self._asked = asked
        self._lost = lost
        self._own: frozenset[int] = frozenset()
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._pump = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        notified: Notified,
        asked: Asked,
        lost: Callable[[], None],
    ) -> AppServer:
        """Start the program; ``lost`` is called once when nothing more will come. Raises ProcessError."""
        child = await Child.start(argv, cwd=cwd, env=env, grace_s=_GRACE_S, max_line=_MAX_LINE)
        return cls(child, notified, asked, lost)

    async def call(self, method: str, params: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Ask the server for something; raises Refused, Gone, and TimeoutError after ``timeout_s`` seconds."""
        number = next(self._ids)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._send({"id": number, "method": method, "params": params})
                return _result(method, await reply)
        finally:
            del self._waiting[number]

    async def notify(self, method: str) -> None:
        """Tell the server something; raises Gone."""
        await self._send({"method": method})

    async def settled(self) -> None:
        """Note the processes that belong to the server itself: what comes later was started by a turn."""
        self._own = await asyncio.to_thread(self._tree)

    async def alone(self, within_s: float) -> bool:
        """Tell whether what turns had started is gone, or goes within so many seconds.

        One look is not enough: whose parent ends while the processes are listed hangs below nobody in that list.
        """
        until = time.monotonic() + within_s
        seen_none = 0
        while seen_none < _LOOKS:
            if not await asyncio.to_thread(self._tree) - self._own:
                seen_none += 1
                continue
            seen_none = 0
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def end(self, grace_s: float = _GRACE_S) -> None:
        """End the process with its whole tree; many may call it, and a caller that is cancelled changes nothing."""
        self._ending = self._ending or asyncio.create_task(self._end(grace_s))
        await asyncio.shield(self._ending)

    def _tree(self) -> frozenset[int]:
        """Return the processes below the server's guard, which orphans fall to."""
        try:
            guard = psutil.Process(self._child.pid).parent()
            return (
                frozenset()
                if guard is None
                else frozenset(each.pid for each in guard.children(recursive=True))
            )
        except psutil.NoSuchProcess:
            return frozenset()

    async def _end(self, grace_s: float) -> None:
        try:
            await self._child.stop(grace_s)
        finally:
            await self._child.__aexit__(None, None, None)
            await asyncio.wait({self._pump})

    async def _send(self, message: Mapping[str, Any]) -> None:
        if self.gone.is_set():
            raise self._gone()
        try:
            await self._child.write(json.dumps(message).encode() + b"\n")
        except ProcessError as error:
            await self.gone.wait()
            raise self._gone() from error

    async def _read(self) -> None:
        """Take the server's messages until it ends; whoever waits for one then learns that it is gone."""
        try:
            async for line in self._child.lines():
                self._take(line)
            ended = await self._child.wait()
            if self._ending is None:
                self.error = crashed(ended.exit_code, ended.signal, ended.stderr.decode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody understands this server any more
            self.error = ErrorEnvelope(
                code="agent_protocol", message=f"the app-server is not understood: {error!r}", retryable=True
            )
            self._ending = self._ending or asyncio.create_task(self._end(0))
        finally:
            self.gone.set()
            for task in self._answering:
                task.cancel()
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(self._gone())
                    reply.exception()
            self._lost()

    def _take(self, line: bytes) -> None:
        message = parse_json(line)
        if not isinstance(message, dict):
            raise TypeError("a message is no object")
        method, number = message.get("method"), message.get("id")
        if method is None:
            reply = self._waiting.get(number) if isinstance(number, int) else None
            if reply is not None and not reply.done():
                reply.set_result(message)
            return
        params = message.get("params") or {}
        if number is None:
            self._notified(method, params)
            return
        task = asyncio.create_task(self._answer(number, method, params))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, number: int | str, method: str, params: dict[str, Any]) -> None:
        message: dict[str, Any] = {"id": number}
        try:
            message["result"] = await self._asked(method, params)
        except Unanswerable:
            message["error"] = {"code": _METHOD_NOT_FOUND, "message": f"nobody answers {method}"}
        except Exception as error:  # noqa: BLE001 - what cannot be answered is refused, never left open
            message["error"] = {"code": _INTERNAL_ERROR, "message": repr(error)}
        try:
            await self._send(message)
        except Gone:
            return

    def _gone(self) -> Gone:
        ended = ErrorEnvelope(code="session_closed", message="the session is closed", retryable=True)
        return Gone(self.error or ended)


def _result(method: str, message: Mapping[str, Any]) -> dict[str, Any]:
    error = message.get("error")
    if error is not None:
        raise Refused(method, str(error.get("message") if isinstance(error, Mapping) else error))
    result = message.get("result")
    return result if isinstance(result, dict) else {}
