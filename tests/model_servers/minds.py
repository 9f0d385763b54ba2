"""Models that play whole flows, whichever program asks them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from model_servers.script import HandIn, Reply, Seen, Write, turn

DRAFT: Final[Mapping[str, Any]] = {
    "status": "UNVERIFIED",
    "summary": "It is done.",
    "proposed_next_step": None,
    "notes_for_next_step": "",
    "confidence": 0.5,
    "can_further_iteration_help": "unsure",
    "assumptions": [],
    "decisions": [],
    "blockers": [],
    "evidence_names": [],
}
_ANSWERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "can_further_iteration_help": DRAFT,
    "on_track": {"on_track": True, "steer": ""},
    "approve": {"approve": True, "reason": ""},
}
"""Values by a field that only their schema has."""

WRONG: Final = '''\
"""Averages."""

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; ValueError if there are no values."""
    return sum(values) / len(values)
'''
RIGHT: Final = '''\
"""Averages."""

from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; ValueError if there are no values."""
    if not values:
        raise ValueError("no values have no mean")
    return sum(values) / len(values)
'''
BUGGY: Final = "calc/stats.py"
"""The file of the demo repository that has the defect."""


def is_structured(seen: Seen) -> bool:
    """Tell whether a request is one for a structured answer."""
    return seen.schema is not None or "must validate against" in seen.asked


class Player:
    """Plays a plan: the replies of each work turn by its prompt; what is asked in a structured way has its value.

    A turn that is over the plan is done. ``values`` are further values by a field that only their schema has.
    """

    def __init__(
        self, plan: Callable[[Seen], Sequence[Reply]], values: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._plan = plan
        self._values = {**_ANSWERS, **(values or {})}
        self._asked: str | None = None
        self._left: list[Reply] = []
        self._lock = threading.Lock()

    def __call__(self, seen: Seen) -> Reply:
        """Answer a request."""
        if is_structured(seen):
            return turn(HandIn(self._value(seen)))
        with self._lock:
            if seen.asked != self._asked:
                self._asked, self._left = seen.asked, list(self._plan(seen))
            return self._left.pop(0) if self._left else turn("Done.")

    def _value(self, seen: Seen) -> Mapping[str, Any]:
        wanted = json.dumps(seen.schema) if seen.schema is not None else seen.asked
        return next((value for field, value in self._values.items() if f'"{field}"' in wanted), DRAFT)


def mends(seen: Seen) -> Sequence[Reply]:
    """Mend the demo repository where the step is to implement: wrong at first, right once the gate has failed."""
    if "Find the cause" not in seen.asked:
        return []
    return [turn("I mend it.", Write(BUGGY, RIGHT if "Gates that failed" in seen.asked else WRONG))]
