"""One line of the ``events.jsonl`` of an attempt's phase."""

from __future__ import annotations

from schemas.common import Durable, UtcTime
from schemas.events import TransportEvent


class AttemptEvent(Durable):
    """What an agent did, redacted: numbered from 1 within the phase, with the worker's time."""

    seq: int
    ts: UtcTime
    event: TransportEvent
