"""The two kinds of contract, and the small types all of them share.

*Closed* models are what people and models write: an unknown key is an error. *Durable* models are stored or
travel through workflow history: an unknown key is ignored, and new fields are optional with defaults, so that
old histories and files stay readable.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints


class Closed(BaseModel):
    """A contract written by people or models: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Durable(BaseModel):
    """A contract that is stored or kept in history: unknown keys are ignored, fields are only ever added."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def _to_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


UtcTime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""An instant; on the wire RFC 3339 in UTC with ``Z``."""

STEP_ID_PATTERN = r"^[a-z][a-z0-9_-]*$"
StepId = Annotated[str, StringConstraints(pattern=STEP_ID_PATTERN, max_length=64)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in lower-case hex."""

MAX_CYCLES = 64
"""No budget, and no extension of one, takes the cycles of a step's tool loop beyond this."""
FINAL_STEP = "_final"
"""Step id of the engine's own last measurement; no flow can use it, since step ids start with a letter."""

Verification = Literal["VERIFIED", "UNVERIFIED", "PARTIAL", "BLOCKED"]
Execution = Literal["succeeded", "failed", "interrupted", "timeout", "skipped"]
Phase = Literal["acquire", "work", "measure", "finalize", "route", "record"]
AgentPhase = Literal["work", "finalize", "route"]
"""The phases in which an agent is asked."""
Help = Literal["yes", "no", "unsure"]
Outcome = Literal[
    "verified", "nothing_to_do", "stopped", "unverified", "blocked", "failed", "needs_human", "cancelled"
]
SessionMode = Literal["hot", "resumed", "cold"]
Approval = Literal["human", "developer", "auto"]
Publish = Literal["none", "branch", "pull_request"]


class ArtifactRef(Durable):
    """A stored file: where it is (relative to the store), its SHA-256, its size in bytes, its media type."""

    uri: str
    sha256: Digest
    bytes: int = Field(ge=0)
    media_type: str = "application/json"


class Usage(Durable):
    """Tokens and money one or more model calls used; ``cost_usd`` is None where the provider reports none."""

    prompt: int = 0
    completion: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost_usd: float | None = None

    @property
    def total(self) -> int:
        """All tokens: prompt, completion, cache reads and cache writes."""
        return self.prompt + self.completion + self.cache_read + self.cache_write

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both; the cost is known if either is known."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            cost_usd=sum(costs) if costs else None,
        )


class FileChanges(Durable):
    """Paths that differ between two trees, sorted; a rename is a deletion and a creation."""

    created: list[str] = []
    modified: list[str] = []
    deleted: list[str] = []

    @property
    def total(self) -> int:
        """Number of paths that changed."""
        return len(self.created) + len(self.modified) + len(self.deleted)


class ChangeCounts(Durable):
    """How many paths were created, modified and deleted."""

    created: int = 0
    modified: int = 0
    deleted: int = 0


class Budget(Closed):
    """Upper bounds: tokens, US dollars, seconds of work, cycles of the tool loop. None means no bound."""

    tokens: int | None = Field(default=None, gt=0)
    usd: float | None = Field(default=None, gt=0)
    seconds: int | None = Field(default=None, gt=0)
    cycles: int | None = Field(default=None, gt=0, le=MAX_CYCLES)
