"""Results of finished phases, each under its own key, so that a phase never takes effect twice."""

from __future__ import annotations

from typing import Final, TypeVar

from schemas.calls import AttemptKey, FinalizeOut, MeasureOut, ProposeOut, WorkResult
from schemas.common import ArtifactRef, Phase
from store.evidence import Evidence

Result = WorkResult | MeasureOut | FinalizeOut | ProposeOut
R = TypeVar("R", WorkResult, MeasureOut, FinalizeOut, ProposeOut)

PHASE_OF: Final[dict[type[Result], Phase]] = {
    WorkResult: "work",
    MeasureOut: "measure",
    FinalizeOut: "finalize",
    ProposeOut: "route",
}
"""Which phase leaves which result; the file is ``<phase>.json`` in the attempt's folder."""


class Results:
    """Stored phase results. Calls block; they raise StoreUnavailable."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def save(self, key: AttemptKey, result: Result) -> ArtifactRef:
        """Store a finished phase's result; raises EvidenceConflict if another one is there."""
        return self._evidence.put_model(_place(key, type(result)), result)

    def load(self, key: AttemptKey, result: type[R]) -> R | None:
        """Return the phase's result, or None if the phase did not finish; raises EvidenceCorrupt."""
        return self._evidence.get_model(_place(key, result), result)


def _place(key: AttemptKey, result: type[Result]) -> str:
    return f"{key.path}/{PHASE_OF[result]}.json"
