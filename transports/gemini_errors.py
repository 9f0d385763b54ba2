"""What a failed turn of Gemini CLI means: one pure function from the facts of the failure to an error. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schemas.envelopes import ErrorEnvelope
from system.processes import how_ended
from transports.port import SESSION_LOST

KEY: Final = "GEMINI_API_KEY"
"""The variable that has to be set."""


@dataclass(frozen=True)
class Failure:
    """The facts: the terminal event's error, the end of stderr, and how the process ended.

    ``finished`` says that there was a terminal event at all; ``status`` is its word.
    """

    message: str = ""
    stderr: str = ""
    exit_code: int | None = None
    signal: int | None = None
    finished: bool = True
    kind: str = ""


@dataclass(frozen=True)
class Classified:
    """What it means: the error, and for a limit that passes how many seconds the provider asked to wait."""

    error: ErrorEnvelope
    rate_limited: bool = False
    retry_after_s: float | None = None
    details: dict[str, str] = field(default_factory=dict)


_STATUS_IN_TEXT: Final = re.compile(r'"code"\s*:\s*(\d{3})\b|\bstatus: (\d{3})\b|\bcode: (\d{3})\b')
# The program ends with the HTTP status, of which a shell sees the last eight bits.
_STATUS_BY_EXIT: Final = {
    144: 400,
    145: 401,
    147: 403,
    148: 404,
    152: 408,
    173: 429,
    244: 500,
    246: 502,
    247: 503,
    248: 504,
}
_SECONDS: Final = re.compile(
    r"(?:retry in|retry after) ([0-9.]+)(ms|s|m|h)\b|retryDelayMs: ([0-9.]+)|\"retryDelay\"\s*:\s*\"([0-9.]+)s\"",
    re.IGNORECASE,
)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NO_QUOTA: Final = re.compile(r"limit:\s*0(?!\d|\.\d)|INSUFFICIENT", re.IGNORECASE)
_DAILY: Final = re.compile(r"daily quota|PerDay", re.IGNORECASE)
_DAILY_S: Final = 3600.0
_REPORT: Final = "Error when talking to Gemini API"
_BAD_KEY: Final = re.compile(r"API key not valid|API_KEY_INVALID|API key expired", re.IGNORECASE)
_CONTEXT: Final = re.compile(
    r"input token count.*exceeds|context (?:window|length)|will overflow", re.IGNORECASE
)
_LOST_CONNECTION: Final = re.compile(
    r"API Error: (?:terminated|fetch failed|exception .*fetch failed)|ECONNREFUSED|ECONNRESET|ENOTFOUND|ETIMEDOUT"
    r"|UND_ERR|socket hang up|other side closed",
    re.IGNORECASE,
)
_NO_PROTOCOL: Final = re.compile(
    r"Incomplete JSON segment|in JSON at position|is not valid JSON", re.IGNORECASE
)
_EMPTY: Final = re.compile(r"empty (?:text )?response|no final response text", re.IGNORECASE)
_NO_ROOM: Final = re.compile(r"\AModel response was truncated")
_BLOCKED: Final = re.compile(r"\AThe model response was blocked due to ")
# What the program says when it stops a turn: the word of its end may be "success" all the same.
_LOOPED: Final = re.compile(r"\ALoop detected, stopping")
_TURNS_USED: Final = re.compile(r"\AMaximum session turns exceeded")
_SAID: Final = re.compile(r"\A\[API Error: (.*?)\]?\Z", re.DOTALL)
_MAX_MESSAGE: Final = 600
_UNKNOWN_MODEL: Final = 404
_TOO_MANY: Final = 429
_CLIENT_ERRORS: Final = range(400, 500)
_SERVER_ERRORS: Final = frozenset({408, 499, *range(500, 600)})
_AUTH_EXIT: Final = 41
_INPUT_EXIT: Final = 42
_NOT_RESUMED: Final = "Error resuming session"
_TURNS_EXIT: Final = 53
_NO_SPACE_EXIT: Final = 54
# The program advises a change of its settings, which are ours, or says no more than that it stopped.
_OWN_WORDS: Final = {
    "agent_looped": "the model repeated itself, also after it was told so, and the program stopped the turn",
    "turns_exhausted": "the model answered as often as it may in one turn; the session goes on in the next attempt",
}


def classify(failure: Failure) -> Classified:
    """Return what a failure means.

    Codes: ``auth_failed``, ``model_not_found``, ``context_overflow``, ``bad_request``, ``quota_exhausted``,
    ``rate_limited``, ``server_error``, ``connection_lost``, ``protocol_error``, ``empty_response``,
    ``answer_incomplete``, ``refused_by_provider``, ``turns_exhausted``, ``agent_looped``, ``disk_full``,
    ``session_lost``, ``agent_crashed``, ``agent_failed``.
    """
    # What stands before may be said by tools, in the words of anybody.
    _, found, report = failure.stderr.rpartition(_REPORT)
    text = f"{failure.message}\n{report if found else ''}"
    status = _status(failure, text)
    for applies, code, retryable, mend in _RULES:
        if applies(failure, status, text):
            return _made(failure, code, retryable=retryable, mend=mend, text=text)
    return _made(failure, "agent_failed", retryable=True, mend="", text=text)


_Applies = Callable[[Failure, int | None, str], bool]
_Rule = tuple[_Applies, str, bool, str]


def stopped_by_itself(warned: str) -> bool:
    """Tell whether the program stopped its model, by the last error or warning of its stream."""
    return _LOOPED.search(warned) is not None or _TURNS_USED.search(warned) is not None


def _when(pattern: re.Pattern[str]) -> _Applies:
    return lambda _failure, _status, text: pattern.search(text) is not None


_RULES: Final[tuple[_Rule, ...]] = (
    (
        lambda failure, status, text: (
            status in {401, 403} or failure.exit_code == _AUTH_EXIT or _BAD_KEY.search(text) is not None
        ),
        "auth_failed",
        False,
        f"set {KEY} to a key of this project, in the worker's environment",
    ),
    (
        lambda failure, _s, _t: failure.exit_code == _INPUT_EXIT and _NOT_RESUMED in failure.stderr,
        SESSION_LOST,
        True,
        "",
    ),
    (
        lambda _f, status, _t: status == _UNKNOWN_MODEL,
        "model_not_found",
        False,
        "name a model that this key may use",
    ),
    # In its words the program guesses at the context window: it knows no more than that no text came.
    (_when(_EMPTY), "empty_response", True, ""),
    (
        _when(_CONTEXT),
        "context_overflow",
        False,
        "the session has grown too long for the model: start it anew",
    ),
    (
        lambda _f, status, text: status == _TOO_MANY and _NO_QUOTA.search(text) is not None,
        "quota_exhausted",
        False,
        "raise the quota of the key",
    ),
    (lambda _f, status, _t: status == _TOO_MANY, "rate_limited", True, ""),
    (lambda _f, status, _t: status in _SERVER_ERRORS, "server_error", True, ""),
    (lambda _f, status, _t: status in _CLIENT_ERRORS, "bad_request", False, ""),
    (_when(_LOST_CONNECTION), "connection_lost", True, ""),
    (_when(_NO_PROTOCOL), "protocol_error", True, "what answers at GOOGLE_GEMINI_BASE_URL is no Gemini API"),
    (_when(_NO_ROOM), "answer_incomplete", True, ""),
    (_when(_BLOCKED), "refused_by_provider", False, ""),
    (_when(_LOOPED), "agent_looped", True, ""),
    (
        lambda failure, _s, text: (
            failure.exit_code == _TURNS_EXIT
            or failure.kind == "FatalTurnLimitedError"
            or _TURNS_USED.search(text) is not None
        ),
        "turns_exhausted",
        True,
        "",
    ),
    (
        lambda failure, _s, _t: failure.exit_code == _NO_SPACE_EXIT,
        "disk_full",
        False,
        "make room on the worker",
    ),
    (lambda failure, _s, _t: not failure.finished, "agent_crashed", True, ""),
)


def _status(failure: Failure, text: str) -> int | None:
    found = _STATUS_IN_TEXT.search(text)
    if found is not None:
        return int(next(filter(None, found.groups())))
    return _STATUS_BY_EXIT.get(failure.exit_code or 0)


def _made(failure: Failure, code: str, *, retryable: bool, mend: str, text: str) -> Classified:
    said = _SAID.match(failure.message)
    words = (said[1] if said else failure.message).strip() or _ended(failure)
    message = _OWN_WORDS.get(code, words)[:_MAX_MESSAGE]
    error = ErrorEnvelope(
        code=code,
        message=f"Gemini CLI: {message} ({mend})" if mend else f"Gemini CLI: {message}",
        retryable=retryable,
    )
    limited = code == "rate_limited"
    return Classified(error=error, rate_limited=limited, retry_after_s=_wait(text) if limited else None)


def _ended(failure: Failure) -> str:
    last = next((line for line in reversed(failure.stderr.splitlines()) if line.strip()), "")
    how = how_ended(failure.exit_code, failure.signal)
    return f"it ended without a result ({how})" + (f": {last.strip()}" if last else "")


def _wait(text: str) -> float | None:
    found = _SECONDS.search(text)
    if found is None:
        return _DAILY_S if _DAILY.search(text) else None
    amount, unit, milliseconds, seconds = found.groups()
    if amount is not None:
        return float(amount) * _UNIT_S[unit.lower()]
    return float(milliseconds) / 1000 if milliseconds is not None else float(seconds)
