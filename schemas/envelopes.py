"""Errors as data: what a tool, a phase or a command reports."""

from __future__ import annotations

from typing import Annotated

from schemas.common import Durable
from schemas.errors import StepwiseError
from schemas.tools import shortened


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

    @classmethod
    def of(cls, error: StepwiseError) -> ErrorEnvelope:
        """Return an error of ours as data."""
        if isinstance(error, Reported):
            return error.error
        return cls(code=error.code, message=str(error), details=error.details, retryable=error.retryable)


class Reported(StepwiseError):
    """Raised for an error that came as data already: ``error``, whole."""

    def __init__(self, error: ErrorEnvelope) -> None:
        super().__init__(error.code, error.message)
        self.error = error
        self.retryable = error.retryable


def envelope_of(error: Exception, *, code: str) -> ErrorEnvelope:
    """Return any error as data: one that is not ours is of kind ``code``, and may be gone at the next attempt."""
    if isinstance(error, StepwiseError):
        return ErrorEnvelope.of(error)
    return ErrorEnvelope(code=code, message=repr(error), retryable=True)
