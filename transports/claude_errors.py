"""What a failed turn of Claude Code means: one pure function, from the facts of the failure to an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemas.envelopes import ErrorEnvelope
from transports.claude_program import SECRETS

_MEND_KEY: Final = f"set {' or '.join(SECRETS)} for the worker"
_STATUSES: Final[Mapping[int, tuple[str, bool]]] = {
    400: ("bad_request", False),
    401: ("auth_failed", False),
    402: ("billing", False),
    403: ("auth_failed", False),
    404: ("model_not_found", False),
    408: ("provider_unreachable", True),
    409: ("provider_error", True),
    413: ("request_too_large", False),
    429: ("rate_limited", True),
    529: ("provider_overloaded", True),
}
_OF_ASSISTANT: Final[Mapping[str, tuple[str, bool]]] = {
    "authentication_failed": ("auth_failed", False),
    "oauth_org_not_allowed": ("auth_failed", False),
    "billing_error": ("billing", False),
    "rate_limit": ("rate_limited", True),
    "overloaded": ("provider_overloaded", True),
    "server_error": ("provider_error", True),
    "invalid_request": ("bad_request", False),
    "model_not_found": ("model_not_found", False),
    "max_output_tokens": ("output_limit", True),
}
_OF_SUBTYPE: Final[Mapping[str, tuple[str, bool]]] = {
    "error_max_turns": ("max_turns", False),
    "error_max_budget_usd": ("budget_exhausted", False),
}
_REFUSALS: Final = range(400, 500)
_SERVER_ERRORS: Final = range(500, 600)


@dataclass(frozen=True)
class Failure:
    """What is known of a turn that went wrong.

    ``status`` is the provider's HTTP status (None: there was no answer), ``api_error`` the program's word where the
    provider could not be reached, ``assistant_error`` the one on its last message, ``reset_at`` the time until which
    the provider refuses, in seconds since the epoch.
    """

    subtype: str = ""
    terminal_reason: str = ""
    status: int | None = None
    api_error: str | None = None
    assistant_error: str | None = None
    text: str = ""
    reset_at: float | None = None

    @classmethod
    def of(
        cls, result: Mapping[str, Any], *, assistant_error: str | None = None, reset_at: float | None = None
    ) -> Failure:
        """Read the facts off a result frame."""
        status = result.get("api_error_status")
        errors = [str(each) for each in result.get("errors") or []]
        return cls(
            subtype=str(result.get("subtype") or ""),
            terminal_reason=str(result.get("terminal_reason") or ""),
            status=status if isinstance(status, int) else None,
            api_error=result.get("api_error"),
            assistant_error=assistant_error,
            text=str(result.get("result") or "; ".join(errors)),
            reset_at=reset_at,
        )


@dataclass(frozen=True)
class Classified:
    """What a failure means; a rate limit may say until when."""

    error: ErrorEnvelope
    rate_limited: bool = False
    retry_at: datetime | None = None


def classify(failure: Failure) -> Classified:
    """Return what a failure means. Total: what is not known can be tried again."""
    code, retryable = _kind(failure)
    message = failure.text.strip() or f"the agent failed: {failure.terminal_reason or failure.subtype}"
    if code == "auth_failed":
        message = f"{message} ({_MEND_KEY})"
    details = {name: str(value) for name, value in vars(failure).items() if value and name != "text"}
    error = ErrorEnvelope(code=code, message=message, retryable=retryable, details=details)
    if code != "rate_limited":
        return Classified(error)
    return Classified(error, rate_limited=True, retry_at=_moment(failure.reset_at))


def _moment(seconds: float | None) -> datetime | None:
    """Return a moment given in seconds since the epoch; None for one that no calendar has."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OSError, OverflowError, ValueError):
        return None


def _kind(failure: Failure) -> tuple[str, bool]:
    if failure.status is not None and failure.status in _STATUSES:
        return _STATUSES[failure.status]
    if failure.status in _SERVER_ERRORS:
        return "provider_error", True
    if failure.status in _REFUSALS:
        return "bad_request", False
    if failure.api_error is not None:
        return _OF_ASSISTANT.get(failure.api_error, ("provider_unreachable", True))
    if failure.assistant_error is not None and failure.assistant_error in _OF_ASSISTANT:
        return _OF_ASSISTANT[failure.assistant_error]
    if failure.subtype in _OF_SUBTYPE:
        return _OF_SUBTYPE[failure.subtype]
    if failure.terminal_reason == "api_error":
        return "provider_unreachable", True
    return "agent_failed", True
