"""One line of an attempt's ``events.jsonl``."""

from __future__ import annotations

from schemas.common import Durable, UtcTime
from schemas.events import TransportEvent


class AttemptEvent(Durable):
    """What an agent did, redacted: numbered from 1 within the attempt, with the worker's time."""

    seq: int
    ts: UtcTime
    event: TransportEvent
