"""JSON that somebody else wrote: an agent, a person, a file that was tampered with."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for whatever is none, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        message = "it is nested too deeply"
        raise ValueError(message) from None
