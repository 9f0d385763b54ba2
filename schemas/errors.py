"""The errors that end a workflow or an activity, by their wire names. ``schemas.envelopes`` has them as data.

```
StepwiseError                      raised; carries code, mend and whether a retry can help
├── BadInput                       what a person wrote is wrong: never retried
├── LeaseLost                      another worker holds the run now: never retried, nothing is written
└── EvidenceConflict               a stored file exists with other content: never retried
```
"""

from __future__ import annotations

OWN_ERROR_TYPES = ("BadFlowInput", "UnknownFlow", "FlowRefused", "RepositoryRefused", "ResetNotSupported")
"""ApplicationError types with which a run is refused before it has a workspace."""


class StepwiseError(Exception):
    """An error with a stable code and, where there is one, the mend."""

    retryable = False

    def __init__(self, code: str, message: str, *, mend: str | None = None, **details: str) -> None:
        super().__init__(f"{message} ({mend})" if mend else message)
        self.code = code
        self.message = message
        self.mend = mend
        self.details = details


class BadInput(StepwiseError):
    """Raised when something a person wrote cannot be used; the message names the field and the mend."""


class LeaseLost(StepwiseError):
    """Raised when the caller's lease on a run is older than the one in ``run.json``."""


class EvidenceConflict(StepwiseError):
    """Raised when a create-if-absent write meets other content under the same key."""
