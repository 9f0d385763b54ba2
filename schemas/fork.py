"""Forks: a run that begins where another one stood before one of its steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.common import ArtifactRef, Closed, Durable, StepId
from schemas.flow import GateParser


class ForkOf(Closed):
    """Where a run begins that goes on from another one: as that run stood before a visit of a step.

    ``run_id`` is the parent's run id. ``flow`` is needed only where flows of a chain have steps of one name; the
    newest of them is meant otherwise.
    """

    run_id: Annotated[str, Field(min_length=1, max_length=200)]
    step: StepId
    visit: int = Field(ge=1)
    flow: StepId | None = None


class ForkGate(Durable):
    """A required gate of a step that the parent had visited: it must hold for the fork's final tree too.

    ``limit_s``: seconds; ``passed`` is what the parent measured of this very command on the tree the fork begins with.
    """

    flow_key: str
    bundle: ArtifactRef
    step_id: str
    gate: str
    argv: list[str]
    parse: GateParser = "exit_code"
    limit_s: int
    passed: bool | None = None


class ForkRef(Durable):
    """The other end of a fork: the other run's id, and the parent's visit before which both part, at which commit."""

    run_id: str
    flow_key: str
    step_id: str
    visit: int
    commit: str
