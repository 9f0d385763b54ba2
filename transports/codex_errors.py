"""What a failure of Codex means: one pure function from what its server said to an error with its consequences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.cutting import cut
from schemas.envelopes import ErrorEnvelope
from system.processes import how_ended

KEY: Final = "OPENAI_API_KEY"
"""The variable with the provider's key."""

_MAX_MESSAGE: Final = 2_000
_WAIT = re.compile(r"try again in\s+(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)(ms|s))?", re.IGNORECASE)
_STATUS = re.compile(r"\bstatus:? (\d{3})\b")
_LIMITED: Final = "rate limit exceeded: "
_CUT_STREAM: Final = "stream disconnected before completion"
_INCOMPLETE: Final = "Incomplete response returned"
_FILTERED: Final = "reason: content_filter"
_BLOCKED: Final = "Invalid prompt:"
_TRIES_AGAIN: Final = "Reconnecting"
_TOO_MANY: Final = 429
_REFUSALS: Final = 400
_SERVER_ERRORS: Final = 500

# By the words of the server: our code, whether to try again, what to do about it.
_KNOWN: Final[Mapping[str, tuple[str, bool, str]]] = {
    "contextWindowExceeded": (
        "context_window_exceeded",
        False,
        "split the step, or let it begin a new session",
    ),
    "sessionBudgetExceeded": ("session_budget_exceeded", False, "raise the budget set at the provider"),
    "usageLimitExceeded": ("quota_exceeded", False, "check the plan and billing of the account"),
    "serverOverloaded": ("provider_overloaded", True, ""),
    "flexUnavailable": ("provider_overloaded", True, ""),
    "internalServerError": ("provider_error", True, ""),
    "unauthorized": ("bad_api_key", False, f"set {KEY} to a valid key"),
    "badRequest": ("bad_request", False, ""),
    "cyberPolicy": ("refused_by_provider", False, ""),
    "misalignmentPolicyViolation": ("refused_by_provider", False, ""),
    "tooManyDenials": ("too_many_denials", False, "allow what the step needs, or change its objective"),
    "sandboxError": ("sandbox_failed", True, ""),
    "threadRollbackFailed": ("agent_failed", True, ""),
}
_BY_STATUS: Final[Mapping[int, tuple[str, bool, str]]] = {
    400: ("bad_request", False, ""),
    401: ("bad_api_key", False, f"set {KEY} to a valid key"),
    402: ("quota_exceeded", False, "check the plan and billing of the account"),
    403: ("no_access", False, f"the key in {KEY} may not use this model"),
    404: ("unknown_model", False, "name a model that the provider has"),
    408: ("provider_unreachable", True, ""),
    409: ("provider_error", True, ""),
    413: ("bad_request", False, ""),
}


@dataclass(frozen=True)
class Failure:
    """A classified failure; ``rate_limited`` with the seconds to wait, where they were said."""

    error: ErrorEnvelope
    rate_limited: bool = False
    retry_after_s: float | None = None


def classify(info: object, message: str, details: str = "") -> Failure:
    """Say what a failed turn means, from the server's ``codexErrorInfo``, its message and its further details."""
    said = f"{message}\n{details}" if details else message
    if details and message.startswith(_TRIES_AGAIN):
        message = details  # what the provider said; the message tells of the program's own tries
    name, status = _name_and_status(info)
    status = status or _status_in(said)
    if name == "rateLimitExceeded" or status == _TOO_MANY or _LIMITED in said:
        error = _envelope("rate_limited", True, "", message)
        return Failure(error, rate_limited=True, retry_after_s=_wait_in(said))
    if name in _KNOWN:
        return Failure(_envelope(*_KNOWN[name], message))
    if status is not None and status in _BY_STATUS:
        return Failure(_envelope(*_BY_STATUS[status], message))
    if status is not None and status >= _SERVER_ERRORS:
        return Failure(_envelope("provider_error", True, "", message))
    if status is not None and status >= _REFUSALS:
        return Failure(_envelope("bad_request", False, "", message))
    if name in {"httpConnectionFailed", "responseStreamConnectionFailed"}:
        return Failure(
            _envelope("provider_unreachable", True, "see OPENAI_BASE_URL and the network", message)
        )
    if _INCOMPLETE in message and _FILTERED in message:
        return Failure(_envelope("refused_by_provider", False, "", message))
    if name == "responseStreamDisconnected" or _CUT_STREAM in message:
        return Failure(_envelope("stream_cut", True, "", message))
    if _INCOMPLETE in message:
        return Failure(_envelope("answer_incomplete", True, "", message))
    if message.startswith(_BLOCKED):
        return Failure(_envelope("refused_by_provider", False, "", message))
    if '"invalid_request_error"' in message:
        return Failure(_envelope("bad_request", False, "", message))
    return Failure(_envelope("agent_failed", True, "", message))


def crashed(exit_code: int | None, signal: int | None, stderr: str) -> ErrorEnvelope:
    """Return the error of a server that ended by itself while it was needed."""
    return ErrorEnvelope(
        code="agent_crashed",
        message=f"the app-server of Codex ended ({how_ended(exit_code, signal)})",
        details={"stderr": cut(stderr.strip())} if stderr.strip() else {},
        retryable=True,
    )


def _name_and_status(info: object) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, Mapping) and len(info) == 1:
        name, facts = next(iter(info.items()))
        status = facts.get("httpStatusCode") if isinstance(facts, Mapping) else None
        return str(name), status if isinstance(status, int) else None
    return "", None


def _status_in(said: str) -> int | None:
    found = _STATUS.search(said)
    return int(found[1]) if found else None


def _wait_in(said: str) -> float | None:
    found = _WAIT.search(said)
    if found is None or not any(found.groups()):
        return None
    hours, minutes, number, unit = found.groups()
    seconds = float(number or 0) / (1000 if unit == "ms" else 1)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds


def _envelope(code: str, retryable: bool, mend: str, message: str) -> ErrorEnvelope:
    said = cut(message, _MAX_MESSAGE) or "no reason was given"
    return ErrorEnvelope(code=code, message=f"{said} ({mend})" if mend else said, retryable=retryable)
