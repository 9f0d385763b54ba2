"""What can go wrong with stored evidence.

```
StepwiseError
├── EvidenceConflict (schemas)  a key exists with other content
├── NotStored                   nothing under that key, or it was pruned
├── EvidenceCorrupt             what is stored is not what was written
├── RedactionFailed             secrets could not be taken out, so nothing was written
└── StoreUnavailable            disk full, I/O error, store away: a retry can help
```
"""

from __future__ import annotations

from schemas.errors import StepwiseError


class NotStored(StepwiseError):
    """Raised when nothing is stored under a key (``E_NOT_STORED``) or it was pruned (``E_PRUNED``)."""


class EvidenceCorrupt(StepwiseError):
    """Raised when stored bytes do not have the digest or the form they were written with."""


class RedactionFailed(StepwiseError):
    """Raised when redaction failed for whatever reason; nothing was written."""


class StoreUnavailable(StepwiseError):
    """Raised when the store cannot be read or written for now; nothing half-written is visible."""

    retryable = True
