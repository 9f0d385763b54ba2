"""``senders.json``: who sent a run its messages, as the server knows them."""

from __future__ import annotations

from typing import Literal

from schemas.common import Durable, UtcTime


class Sender(Durable):
    """One message: when the server took it, as a signal or an update, and the sender's identity.

    The identity is what the sender's client says (for the Temporal CLI its user and host), which workflow code cannot
    see; ``event_id`` and ``execution_run_id`` find the message in its history.
    """

    ts: UtcTime
    kind: Literal["signal", "update"]
    name: str
    identity: str
    event_id: int
    execution_run_id: str


class Senders(Durable):
    """All messages of a run, in their order; ``complete`` is false where not every history could be read."""

    run_id: str
    messages: list[Sender] = []
    complete: bool = True
