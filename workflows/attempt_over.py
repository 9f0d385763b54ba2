"""How an attempt ends before all its phases have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.calls import AnswerOut, FinalizeOut, ProposeOut, WorkOut
from schemas.common import ArtifactRef
from schemas.handoff import PartialReason
from schemas.messages import Resume
from workflows.words import ordered_by

STOPS: Final[dict[str, PartialReason]] = {
    "interrupted": "interrupt",
    "budget": "budget",
    "crash": "crash",
    "rate_limited": "rate_limit",
    "agent_failed": "agent_failed",
}


@dataclass(eq=False)
class AttemptOver(Exception):
    """Raised when an attempt ends before all its phases have: how, and what the next one can go on from.

    ``answer`` is what the phase returned in which the agent was to answer and could not be asked; its work is finished.
    """

    ended: str
    work: WorkOut | None = None
    partial: ArtifactRef | None = None
    order: Resume | None = None
    reason: str = ""
    answer: FinalizeOut | ProposeOut | None = None

    @property
    def stop(self) -> PartialReason | None:
        """Why it was stopped, where the end of its work does not say so."""
        return STOPS.get(self.ended)

    @property
    def by(self) -> str:
        """Who ordered the stop; empty where nobody did."""
        return ordered_by(self.order) if self.order is not None else ""

    @property
    def asked_again(self) -> str:
        """What people read of what follows the wait for a limit; nothing where that is work."""
        if self.answer is None:
            return ""
        what = "hand-off" if isinstance(self.answer, FinalizeOut) else "route"
        return f"; then the agent is asked again for its {what}"

    @property
    def out(self) -> WorkOut | AnswerOut | None:
        """What the phase returned that ended so, if one did."""
        return self.answer or self.work
