"""What people said of calls an agent wanted to make, from the moment they said it until an agent has used it up. Pure.

It is of one visit, and nothing continues as new within one; what they allowed for the whole run stands in the run's
state.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.calls import WorkOut
from schemas.questions import CallDecision


def unused(decisions: Sequence[CallDecision], out: WorkOut) -> list[CallDecision]:
    """Return the decisions that work has left for the next: its agent was stopped before it came to their calls.

    Work that ended well needs them no more. A worker from before this does not say what was used: with it, all that
    its session was told is gone.
    """
    if out.spent is None:
        return list(decisions) if out.session is None else []
    if out.ended == "finished":
        return []
    return [one for one in decisions if one.remember == "once" and one.signature not in out.spent]


def without_doubt(decisions: Sequence[CallDecision]) -> list[CallDecision]:
    """Return the decisions that are left by work that was lost, of which nobody knows what it used: the denials.

    A call may have been made before the worker was gone, and a consent to one call must not let a second pass: the
    agent's call is asked about again. A denial lets nothing pass.
    """
    return [one for one in decisions if not one.allow]
