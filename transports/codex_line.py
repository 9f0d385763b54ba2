"""Between the app-server and the session: what the server says goes to the turn that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from transports.codex_rpc import Unanswerable
from transports.codex_turn import Meter, Turn


class Answering(Protocol):
    """Who answers what a turn asks."""

    async def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the server; raises Unanswerable for one nobody answers."""


class Line:
    """Passes on what the server says to the turn that is attached; without one everything is declined."""

    def __init__(self, *, new: bool) -> None:
        self.meter = Meter(new=new)
        self._turn: Turn | None = None
        self._desk: Answering | None = None

    def attach(self, turn: Turn, desk: Answering) -> None:
        """Have a turn take what comes, and a desk answer what is asked."""
        self._turn, self._desk = turn, desk

    def detach(self) -> None:
        """Have nobody take what comes."""
        self._turn = self._desk = None

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification of the server."""
        if self._turn is not None:
            self._turn.take(method, params)
        elif method == "thread/tokenUsage/updated":
            # A resumed session tells its old total again.
            self.meter.delta(params["tokenUsage"], current=False)

    async def asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the server; raises Unanswerable for one nobody answers."""
        if self._desk is not None:
            return await self._desk.answer(method, params)
        if method.endswith("/requestApproval"):
            return {"decision": "decline"}
        raise Unanswerable

    def lost(self) -> None:
        """Take that the server has ended."""
        if self._turn is not None:
            self._turn.lost()
