"""Messages on their way to the main loop: handlers only enqueue, one pump applies them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError
from temporalio import workflow

from schemas.common import Closed, Durable
from schemas.messages import Verdict
from workflows.log import logger
from workflows.messages import INTERNAL, MESSAGES, BadMessage, parse

Settle = Callable[[Verdict], None]


class Judge(Protocol):
    """Who judges messages: the run."""

    def apply(self, name: str, payload: Closed, settle: Settle) -> None:
        """Judge a message, and ``settle`` it now or when a live session has had it."""

    def heard(self, payload: Durable) -> None:
        """Take a word of the work activity."""

    def refuse(self, name: str, reason: str) -> Verdict:
        """Refuse a message."""


@dataclass
class Ticket:
    """One message: still raw, or judged."""

    name: str
    args: Sequence[Any]
    verdict: Verdict | None = None

    def settle(self, verdict: Verdict) -> None:
        """Note the verdict, which the sender of an update waits for."""
        self.verdict = verdict


class Mailbox:
    """Keeps messages in the order they came and hands each to its judge once."""

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

    def drain(self, judge: Judge) -> None:
        """Judge every message that is there now."""
        while self._queue:
            ticket = self._queue.popleft()
            if ticket.name in INTERNAL:
                self._hear(judge, ticket)
            elif ticket.name not in MESSAGES:
                known = ", ".join(MESSAGES)
                ticket.settle(judge.refuse(ticket.name, f"no message {ticket.name!r}; known: {known}"))
            else:
                try:
                    payload = parse(ticket.name, ticket.args)
                except BadMessage as error:
                    ticket.settle(judge.refuse(ticket.name, str(error)))
                else:
                    judge.apply(ticket.name, payload, ticket.settle)

    def _hear(self, judge: Judge, ticket: Ticket) -> None:
        try:
            payload = INTERNAL[ticket.name].model_validate(ticket.args[0] if ticket.args else None)
        except ValidationError:
            logger.warning("signal %s of the work activity cannot be read", ticket.name)
        else:
            judge.heard(payload)

    async def pump(self, judge: Judge) -> None:
        """Judge messages as they come, for ever."""
        while True:
            await workflow.wait_condition(lambda: bool(self._queue))
            self.drain(judge)
