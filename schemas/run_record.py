"""``run.json``: who holds a run, and where it stands."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from schemas.calls import Lease
from schemas.common import ArtifactRef, Digest, Durable, Outcome, UtcTime
from schemas.fork import ForkRef
from schemas.handoff import Savepoint


class RunRecord(Durable):
    """The one stored file that is replaced, by compare-and-set. Unknown keys are kept, for newer workers' sake.

    ``savepoints`` counts the savepoints taken; ``newest`` is the newest of them, or the newest commit of the
    run's branch, whichever came last; ``head`` is the tip of that branch once the engine has committed;
    ``released`` is true once the workspace was given back. A fork's ``forked_from`` names its parent, whose
    ``forks`` name it.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    run_id: str
    workflow_id: str
    execution_run_id: str
    flow_key: str
    repo: str
    base: str | None = None
    base_commit: str = ""
    branch: str = ""
    bundle: ArtifactRef | None = None
    lease: Lease
    host: str = ""
    workspace: str = ""
    savepoints: int = Field(default=0, ge=0)
    newest: Savepoint | None = None
    head: str = ""
    created_at: UtcTime
    ended_at: UtcTime | None = None
    outcome: Outcome | None = None
    receipts_head: Digest | None = None
    released: bool = False
    forked_from: ForkRef | None = None
    forks: list[ForkRef] = []
