"""Which runs of a batch the server that skips time broke: what they fail in says nothing of us, and of nobody else's runs.

Seen of that server, and of it alone: it refuses, again and again, to cancel an activity that has just ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CANCELS_WHAT_ENDED: Final = "ACTIVITY_UNKNOWN"


@dataclass(frozen=True)
class Played:
    """A run as it was played alone, and what the workers logged meanwhile."""

    workflow_id: str
    logged: str


def broken_runs(played: Sequence[Played]) -> set[str]:
    """Return the workflow ids of the runs that the server broke."""
    return {one.workflow_id for one in played if CANCELS_WHAT_ENDED in one.logged}


def are_its_own(failures: Sequence[str], broken: set[str]) -> bool:
    """Tell whether there are failures, and each is one of a run that the server broke."""
    return bool(failures) and all(failure.partition(": ")[0] in broken for failure in failures)
