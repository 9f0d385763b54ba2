"""Messages on their way to the main loop: handlers only enqueue, one pump applies them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import ValidationError
from temporalio import workflow

from schemas.common import Closed, Durable
from schemas.messages import Resume, Verdict
from workflows.log import logger
from workflows.messages import INTERNAL, MESSAGES, BadMessage, parse

Settle = Callable[[Verdict], None]
ONE_BY_ONE = "one-by-one"
"""The patch with which what comes after the answer to a wait is judged by where the run stands once it has gone on."""
ABORT_FITS = "abort-fits"
"""The patch with which an abort that will be refused does not let pass what is held."""


class Judge(Protocol):
    """Who judges messages: the run."""

    @property
    def is_answered(self) -> bool:
        """Whether the run has the answer to what it waits for, and has not gone on yet."""

    def apply(self, name: str, payload: Closed, settle: Settle) -> None:
        """Judge a message, and ``settle`` it now or when a live session has had it."""

    def heard(self, payload: Durable) -> None:
        """Take a word of the work activity."""

    def refuse(self, name: str, reason: str) -> Verdict:
        """Refuse a message."""


@dataclass(eq=False)
class Ticket:
    """One message: still raw, or judged."""

    name: str
    args: Sequence[Any]
    ends_run: bool = False
    """Whether this asks for the end of the run."""
    verdict: Verdict | None = None

    def settle(self, verdict: Verdict) -> None:
        """Note the verdict, which the sender of an update waits for."""
        self.verdict = verdict


def _ends_run(name: str, args: Sequence[Any]) -> bool:
    """Tell whether a message asks for the end of the run; one that will be refused asks for nothing."""
    given = args[0] if args else None
    resumes = name == "resume" and isinstance(given, dict) and given.get("action") == "abort"
    if name != "abort" and not resumes:
        return False
    try:
        payload = parse(name, args)
    except BadMessage:
        fits = False
    else:
        fits = not isinstance(payload, Resume) or (payload.step is None and payload.transport is None)
    return fits or not workflow.patched(ABORT_FITS)


class Mailbox:
    """Keeps messages in the order they came and hands each to its judge once."""

    def __init__(self) -> None:
        self._queue: deque[Ticket] = deque()

    def post(self, name: str, args: Sequence[Any]) -> Ticket:
        """Enqueue a message; never raises, whatever its payload."""
        ticket = Ticket(name, args, _ends_run(name, args))
        self._queue.append(ticket)
        return ticket

    @property
    def empty(self) -> bool:
        """Whether every message was judged."""
        return not self._queue

    async def pump(self, judge: Judge) -> None:
        """Judge messages as they come, for ever.

        One that comes after the answer to a wait is held until the run has gone on, unless the run is to end.
        """
        while True:
            await workflow.wait_condition(lambda: bool(self._queue))
            while self._queue:
                is_held = self._is_held(judge) and workflow.patched(ONE_BY_ONE)
                ticket = self._first(is_held)
                if ticket is None:
                    await workflow.wait_condition(lambda: self._first(self._is_held(judge)) is not None)
                else:
                    self._queue.remove(ticket)
                    self._judge(judge, ticket)

    def _is_held(self, judge: Judge) -> bool:
        return judge.is_answered and not any(ticket.ends_run for ticket in self._queue)

    def _first(self, is_held: bool) -> Ticket | None:
        """Return what is judged next: where people's messages are held, what the engine itself says."""
        return next((ticket for ticket in self._queue if not is_held or ticket.name in INTERNAL), None)

    def _judge(self, judge: Judge, ticket: Ticket) -> None:
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
