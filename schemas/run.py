"""What starts a run and what it ends with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from schemas.common import Approval, Budget, Closed, Durable, Outcome, Publish, Usage, Verification
from schemas.envelopes import ErrorEnvelope
from schemas.flow import Scalar
from schemas.fork import ForkOf

MAX_SPEC_BYTES = 128 * 1024
MAX_INPUT_BYTES = 4 * MAX_SPEC_BYTES
"""A run that continues as new carries its input twice in one payload, of at most 2 MB."""


class InlineFile(Closed):
    """A file sent with the start: its name and its text."""

    name: str
    text: str


class InlineSpec(Closed):
    """A flow file sent whole, with the personas and skills beside it."""

    name: str
    text: str
    files: dict[str, str] = {}


class FlowInput(Closed):
    """The one JSON object a person types to start a run.

    ``flow`` (a name the worker knows) or ``spec`` (a whole flow file), never both. ``repo`` is a path on the
    worker's machine or an https/ssh URL, ``base`` a branch, tag or commit in it (default: its HEAD).
    ``scenario`` drives the ``stub`` transport: a shipped name or a file sent whole. ``fork`` goes on from another
    run; ``repo`` is then that run's.
    """

    flow: str | None = None
    spec: InlineSpec | None = None
    task: Annotated[str, Field(min_length=1, max_length=100_000)]
    repo: Annotated[str, Field(min_length=1, max_length=4_096)]
    base: str | None = None
    params: dict[str, Scalar | list[str]] = {}
    transport: str | list[str] | None = None
    model: str | None = None
    budget: Budget | None = None
    approval: Approval = "human"
    publish: Publish = "none"
    trusted: bool = False
    deterministic: bool = False
    scenario: str | InlineFile | None = None
    allow_dirty: bool = False
    fork: ForkOf | None = None

    @model_validator(mode="after")
    def _one_flow(self) -> FlowInput:
        if (self.flow is None) == (self.spec is None):
            message = "give exactly one of 'flow' (a name the worker knows) and 'spec' (a whole flow file)"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _travels(self) -> FlowInput:
        size = len(self.model_dump_json(exclude_unset=True).encode())
        if size > MAX_INPUT_BYTES:
            message = f"the whole input has {size} bytes, at most {MAX_INPUT_BYTES} can travel; long texts belong in files of the repository"
            raise ValueError(message)
        return self


class StepSummary(Durable):
    """How one step stands: its last visit, its verification, how often it was visited and tried."""

    step_id: str
    status: Verification | None = None
    visits: int = 0
    attempts: int = 0
    gates: str = ""


class DecisionSummary(Durable):
    """One routing decision, as shown to people."""

    step_id: str
    visit: int
    iteration: int
    decision: str
    next_step_id: str | None = None
    exit: str | None = None
    source: str = "deterministic"
    explanation: str = ""


class GitResult(Durable):
    """Where the result is: the run's branch, its commits, and the command that fetches it."""

    branch: str
    base: str
    head: str
    tree: str
    workspace: str = ""
    host: str = ""
    fetch: str = ""


class FlowResult(Durable):
    """What a run ends with; also the details of the error of a FAILED run."""

    run_id: str
    outcome: Outcome
    summary: str = ""
    steps: list[StepSummary] = []
    decisions: list[DecisionSummary] = []
    decisions_truncated: bool = False
    usage: Usage = Usage()
    git: GitResult | None = None
    pull_request: str | None = None
    receipts_head: str | None = None
    error: ErrorEnvelope | None = None
