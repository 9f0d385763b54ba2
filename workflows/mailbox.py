"""Messages on their way to the main loop: handlers only enqueue, one pump applies them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import workflow

from schemas.common import Closed
from schemas.messages import Verdict
from workflows.messages import MESSAGES, BadMessage, parse

Apply = Callable[[str, Closed], Verdict]
Refuse = Callable[[str, str], Verdict]


@dataclass
class Ticket:
    """One message: still raw, or judged."""

    name: str
    args: Sequence[Any]
    verdict: Verdict | None = None


class Mailbox:
    """Keeps messages in the order they came and hands each to ``apply`` once."""

    def __init__(self) -> None:
        self._queue: deque[Ticket] = deque()

    def post(self, name: str, args: Sequence[Any]) -> Ticket:
        """Enqueue a message; never raises, whatever its payload."""
        ticket = Ticket(name, args)
        self._queue.append(ticket)
        return ticket

    @property
    def empty(self) -> bool:
        """Whether every message was judged."""
        return not self._queue

    def drain(self, apply: Apply, refuse: Refuse) -> None:
        """Judge every message that is there now."""
        while self._queue:
            ticket = self._queue.popleft()
            if ticket.name not in MESSAGES:
                known = ", ".join(MESSAGES)
                ticket.verdict = refuse(ticket.name, f"no message {ticket.name!r}; known: {known}")
                continue
            try:
                payload = parse(ticket.name, ticket.args)
            except BadMessage as error:
                ticket.verdict = refuse(ticket.name, str(error))
            else:
                ticket.verdict = apply(ticket.name, payload)

    async def pump(self, apply: Apply, refuse: Refuse) -> None:
        """Judge messages as they come, for ever."""
        while True:
            await workflow.wait_condition(lambda: bool(self._queue))
            self.drain(apply, refuse)
