"""From our errors to those Temporal shows: the type is the wire name, and says whether a retry can help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from schemas.cutting import cut
from schemas.errors import OWN_ERROR_TYPES, BadInput, EvidenceConflict, LeaseLost, StepwiseError
from system.git import SourceRefused

MAX_MESSAGE: Final = 20_000
"""Characters of an error: a file may have thousands of faults, and a failure must fit into a payload."""
_BY_CLASS: Final = (
    (SourceRefused, "RepositoryRefused"),
    (LeaseLost, "LeaseLost"),
    (EvidenceConflict, "EvidenceConflict"),
    (BadInput, "BadFlowInput"),
)
_ORDINARY: Final = ApplicationErrorCategory.UNSPECIFIED


def refused(kind: str, message: str) -> ApplicationError:
    """Return the error of something that no retry can mend; what a person typed wrong is no fault of the worker."""
    category = ApplicationErrorCategory.BENIGN if kind in OWN_ERROR_TYPES else _ORDINARY
    return ApplicationError(cut(message, MAX_MESSAGE), type=kind, non_retryable=True, category=category)


@contextmanager
def translated() -> Iterator[None]:
    """Turn our own errors into ApplicationErrors; what a retry may mend stays retryable."""
    try:
        yield
    except StepwiseError as error:
        raise _translate(error) from error


def _translate(error: StepwiseError) -> ApplicationError:
    if error.code in OWN_ERROR_TYPES:
        return refused(error.code, str(error))
    for known, kind in _BY_CLASS:
        if isinstance(error, known):
            return refused(kind, str(error))
    return ApplicationError(cut(str(error), MAX_MESSAGE), type=error.code, non_retryable=False)
