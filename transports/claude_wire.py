"""The line to a Claude Code program: one JSON frame a line in each direction, under the guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from schemas.errors import StepwiseError
from schemas.json_text import parse_json
from system.processes import Child, Finished, LineTooLong, StdinClosed, how_ended

MAX_LINE: Final = 32_000_000
"""Longest frame that is read, in bytes."""
STDERR_CHARS: Final = 2_000
"""How much of what the program wrote to stderr is kept for an error."""

INTERRUPT: Final = {"subtype": "interrupt", "cancel_queued": True}
"""What ends a turn, with what is queued: else that would begin the next one. An older program ends the turn alone."""

_HOLDS: Final = {"control_request": "request", "control_response": "response"}
_CLOSE_S: Final = 3.0
_ENDING_S: Final = 2.0
_GRACE_S: Final = 0.5


def withdrawal(prompt_id: str) -> dict[str, str]:
    """Return the request that takes back what was said under an id, where the program has not begun with it."""
    return {"subtype": "cancel_async_message", "message_uuid": prompt_id}


class WireBroken(StepwiseError):
    """Raised when a frame can be neither read nor written: ``agent_crashed``, ``agent_protocol`` or ``line_too_long``."""

    retryable = True


class Link(Protocol):
    """How a session talks to its program."""

    @property
    def pid(self) -> int:
        """The program's process id."""

    async def prompt(self, text: str, prompt_id: str, *, begins: bool = True) -> None:
        """Say something as the user, under an id; raises StepwiseError when nobody listens.

        What ``begins`` nothing is only kept in the session: the agent hears it with what is said to it next.
        """

    async def withdraw(self, prompt_id: str) -> None:
        """Have the program drop what was said under this id, if it has not begun with it; raises StepwiseError."""

    async def interrupt(self) -> None:
        """Ask the program, once, to end its turn and to drop what waits in it to begin another one.

        May wait for as long as it likes, and may raise anything.
        """

    async def kill(self) -> None:
        """End the program and all it started, at once."""

    async def close(self) -> None:
        """Let the program end, then end it; may be called twice."""


class Wire:
    """A program that talks in frames; ``finished`` says how it ended once it has."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._closing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.finished: Finished | None = None

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], pipes: Mapping[str, str]
    ) -> Wire:
        """Start the program, ``pipes`` as in ``Child.start``; raises SpawnFailed and GuardUnavailable."""
        child = await Child.start(argv, cwd=cwd, env=env, pipes=pipes, grace_s=_GRACE_S, max_line=MAX_LINE)
        return cls(child)

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._child.pid

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Write a frame; raises WireBroken when nobody reads it any more."""
        await self.send_text(json.dumps(frame, ensure_ascii=False) + "\n")

    async def send_text(self, line: str) -> None:
        """Write a frame that is text already, with its newline; raises WireBroken."""
        try:
            async with self._writing:
                await self._child.write(line.encode("utf-8", "replace"))
        except StdinClosed as error:
            raise WireBroken("agent_crashed", "the program does not read any more") from error

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the frames up to the program's end, for one reader; what is no JSON object is left out.

        Raises WireBroken for a line that is too long or a frame that is torn or of no known shape.
        """
        try:
            async for line in self._child.lines():
                frame = _parsed(line)
                if frame is not None:
                    yield frame
        except LineTooLong as error:
            raise WireBroken("line_too_long", f"the program wrote a line of over {MAX_LINE} bytes") from error

    async def ended(self) -> WireBroken:
        """Wait until the program has ended, and return what that says."""
        self.finished = finished = await self._child.wait()
        how = how_ended(finished.exit_code, finished.signal)
        said = finished.stderr.decode("utf-8", "replace").strip()[-STDERR_CHARS:]
        return WireBroken("agent_crashed", f"the program ended ({how})", stderr=said)

    async def why(self, otherwise: WireBroken) -> WireBroken:
        """Return how the program ended, if it does within a moment, else what it looked like."""
        try:
            async with asyncio.timeout(_ENDING_S):
                return await self.ended()
        except TimeoutError:
            return otherwise

    async def kill(self) -> None:
        """End the program and all it started, at once."""
        await self._child.stop(0)

    async def close(self) -> None:
        """Let the program end by itself, within a bound, then end it and all it started; may be called twice.

        Who is cancelled meanwhile does not keep it from ending.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await finish(self._closing)

    async def _close(self) -> None:
        async with self._child as child:
            child.close_stdin()
            ending = asyncio.create_task(child.wait())
            await asyncio.wait({ending}, timeout=_CLOSE_S)
            await child.stop(0)
            self.finished = await ending


async def finish(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, even if we are cancelled meanwhile: it may hold a program. Its result is its own."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _parsed(line: bytes) -> dict[str, Any] | None:
    text = line.strip()
    if not text.startswith(b"{"):
        return None
    try:
        frame = parse_json(text)
    except ValueError as error:
        raise WireBroken("agent_protocol", f"the program wrote a torn frame: {text[:200]!r}") from error
    if not isinstance(frame, dict):
        return None
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise WireBroken("agent_protocol", f"the program wrote a frame without a kind: {text[:200]!r}")
    holds = _HOLDS.get(kind)
    if holds is not None and not isinstance(frame.get(holds), dict):
        raise WireBroken("agent_protocol", f"the program wrote a {kind} without a {holds}: {text[:200]!r}")
    return frame
