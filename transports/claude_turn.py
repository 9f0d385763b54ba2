"""One turn of Claude Code: what was said to the agent in it, and what ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from schemas.events import TransportEvent
from transports.claude_wire import WireBroken
from transports.port import Emit, unwatched

_SWEPT: Final[Mapping[str, Any]] = {"type": "result", "subtype": "cancelled", "is_error": True}


def begins_run(frame: Mapping[str, Any]) -> bool:
    """Tell whether the program says that it has begun with something that was said to it."""
    return frame.get("type") == "command_lifecycle" and frame.get("state") == "started"


class Turn:
    """One turn: what was said to the agent in it, and the result frame it ends with, or why there is none.

    ``unheard`` are the words that the program had taken in, and then dropped before the agent heard them; who keeps one
    for the agent takes it out.
    """

    def __init__(self, emit: Emit, on_output: Callable[[], None] = unwatched) -> None:
        self.emit = emit
        self.stir = on_output
        self.begun = time.monotonic()
        self.unheard: list[str] = []
        self._said: set[str] = set()
        self._unanswered: set[str] = set()
        self._queued: dict[str, str] = {}
        self._last: Mapping[str, Any] | None = None
        self._running = False
        self.steerable = False
        self.tokens = 0
        self.ended_by: str | None = None
        self.done: asyncio.Future[Mapping[str, Any] | WireBroken] = asyncio.get_running_loop().create_future()

    def heard(self, event: TransportEvent) -> None:
        """Pass an event on."""
        if event.kind == "usage":
            self.tokens += event.usage.total
        self.emit(event)

    def finish(self, how: Mapping[str, Any] | WireBroken) -> None:
        """End the turn; only the first end counts."""
        if not self.done.done():
            self.done.set_result(how)

    def said(self, prompt_id: str, text: str = "") -> None:
        """Note that something is said to the agent: the turn is not over before that is answered.

        ``text`` is to be kept for the agent where the program drops it before the agent hears it.
        """
        self._said.add(prompt_id)
        self._unanswered.add(prompt_id)
        if text:
            self._queued[prompt_id] = text

    @property
    def waiting(self) -> list[str]:
        """The ids of words that the program has not begun with: it will, when it is done with what it does."""
        return list(self._queued)

    @property
    def lost(self) -> list[str]:
        """The words that no agent hears any more once the turn is over."""
        return [*self.unheard, *(text for said, text in self._queued.items() if said in self._unanswered)]

    def take(self, frame: Mapping[str, Any]) -> None:
        """Take a frame that may end the turn: a result, or the end of something that was said.

        What is said while the agent works is either heard in the same run of the program, or begins another one; the
        turn goes on until all has been heard, so that nothing runs after it.
        """
        if frame.get("type") == "result":
            ids = {*(frame.get("user_message_uuids") or []), frame.get("user_message_uuid")} - {None}
            if ids and not ids & self._said:
                return  # of something that was said in an earlier turn
            self._last = frame
            self._unanswered = self._unanswered - ids if ids else set()
        elif frame.get("type") == "command_lifecycle":
            self._moved(str(frame.get("command_uuid")), str(frame.get("state")))
        if self._last is not None and not self._unanswered:
            self.finish(self._last)

    def _moved(self, said: str, state: str) -> None:
        """Take what became of something that was said."""
        if state == "queued" or said not in self._said:
            return
        text = self._queued.pop(said, None)
        if state == "started":
            self._running = True
            return
        self._unanswered.discard(said)
        if text is not None and state != "completed":
            self.unheard.append(text)
        if self.ended_by is not None and not self._running and not self._unanswered:
            self.finish(_SWEPT)  # it was told to end before it had begun: no result will come
