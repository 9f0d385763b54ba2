"""The errors a workflow or an activity ends with, by their wire names.

```
ErrorEnvelope                      data: what a tool, a phase or a command reports
StepwiseError                      raised; carries code, mend and whether a retry can help
├── BadInput                       what a person wrote is wrong: never retried
├── LeaseLost                      another worker holds the run now: never retried, nothing is written
└── EvidenceConflict               a stored file exists with other content: never retried
```
"""

from __future__ import annotations

from typing import Annotated, get_args

from schemas.common import Durable, Outcome
from schemas.tools import shortened

OWN_ERROR_TYPES = ("BadFlowInput", "UnknownFlow", "FlowRefused", "RepositoryRefused", "ResetNotSupported")
"""ApplicationError types with which a run is refused before it has a workspace."""
SAID_ERROR_TYPES = frozenset((*OWN_ERROR_TYPES, *get_args(Outcome), "Refused", "UnknownWorkflowType"))
"""ApplicationError types that answer a person: their message says everything, a stack trace would bury it."""


class ErrorEnvelope(Durable):
    """An error as data: a stable code, one sentence, details, and whether a retry can help.

    It may be an agent's or a provider's own, and is cut where it is too long to travel.
    """

    code: Annotated[str, shortened(200)]
    message: Annotated[str, shortened(4_000)]
    details: dict[str, str] = {}
    retryable: bool = False
    request_id: str | None = None
    correlation_id: str | None = None


class StepwiseError(Exception):
    """An error with a stable code and, where there is one, the mend."""

    retryable = False

    def __init__(self, code: str, message: str, *, mend: str | None = None, **details: str) -> None:
        super().__init__(f"{message} ({mend})" if mend else message)
        self.code = code
        self.message = message
        self.mend = mend
        self.details = details

    def envelope(self) -> ErrorEnvelope:
        """Return this error as data."""
        return ErrorEnvelope(
            code=self.code, message=str(self), details=self.details, retryable=self.retryable
        )


def envelope_of(error: Exception, *, code: str) -> ErrorEnvelope:
    """Return any error as data: one that is not ours is of kind ``code``, and may be gone at the next attempt."""
    if isinstance(error, StepwiseError):
        return error.envelope()
    return ErrorEnvelope(code=code, message=repr(error), retryable=True)


class BadInput(StepwiseError):
    """Raised when something a person wrote cannot be used; the message names the field and the mend."""


class LeaseLost(StepwiseError):
    """Raised when the caller's lease on a run is older than the one in ``run.json``."""


class EvidenceConflict(StepwiseError):
    """Raised when a create-if-absent write meets other content under the same key."""
