"""What each failure of Gemini CLI means."""

from __future__ import annotations

import json

import pytest

from transports.gemini_errors import Failure, classify

REPORT = "Error when talking to Gemini API Full report available at: /t/x.json "


def api(code: int, message: str = "no") -> str:
    """Return the message of a terminal event, as the program words an HTTP error."""
    return f"[API Error: {json.dumps({'error': {'code': code, 'message': message}})}]"


@pytest.mark.parametrize(
    ("failure", "code", "retryable"),
    [
        (Failure(api(401), exit_code=145), "auth_failed", False),
        (Failure(api(403), exit_code=147), "auth_failed", False),
        (Failure(api(400, "API key not valid. Please pass a valid API key.")), "auth_failed", False),
        (
            Failure(stderr="you must specify the GEMINI_API_KEY", exit_code=41, finished=False),
            "auth_failed",
            False,
        ),
        (
            Failure("[API Error: x]", stderr=f"{REPORT}ModelNotFoundError: x {{ code: 404 }}"),
            "model_not_found",
            False,
        ),
        (Failure(api(400, "The input token count (9) exceeds the maximum")), "context_overflow", False),
        (Failure(api(400), exit_code=144), "bad_request", False),
        (Failure("[API Error: x]\nPlease wait", exit_code=173), "rate_limited", True),
        (Failure("[API Error: limit: 0, model: m]", exit_code=173), "quota_exhausted", False),
        (Failure(api(500), exit_code=244), "server_error", True),
        (
            Failure("[API Error: overloaded]", stderr=f"{REPORT}RetryableQuotaError {{ status: 503 }}"),
            "server_error",
            True,
        ),
        (Failure("[API Error: terminated]", exit_code=1), "connection_lost", True),
        (
            Failure("[API Error: fetch failed]", stderr=f"{REPORT}ECONNREFUSED", exit_code=1),
            "connection_lost",
            True,
        ),
        (Failure("[API Error: Incomplete JSON segment at the end]"), "protocol_error", True),
        (Failure("The model returned an empty response with no text", exit_code=0), "empty_response", True),
        (
            Failure(
                "The model returned reasoning thoughts but no final response text. If your context window is"
            ),
            "empty_response",
            True,
        ),
        (
            Failure("Model response was truncated because it exceeded the token limit."),
            "answer_incomplete",
            True,
        ),
        (Failure("The model response was blocked due to safety settings."), "refused_by_provider", False),
        (
            Failure("The model response was blocked due to other policy settings."),
            "refused_by_provider",
            False,
        ),
        (Failure("Loop detected, stopping execution"), "agent_looped", True),
        (Failure("Maximum session turns exceeded"), "turns_exhausted", True),
        (Failure("[API Error: the text says: Loop detected, stopping execution]"), "agent_failed", True),
        (Failure("too many", kind="FatalTurnLimitedError", exit_code=53), "turns_exhausted", True),
        (Failure(exit_code=54, finished=False), "disk_full", False),
        (
            Failure(stderr="Error resuming session: No previous sessions", exit_code=42, finished=False),
            "session_lost",
            True,
        ),
        (Failure(stderr="Error resuming session", exit_code=0, finished=False), "agent_crashed", True),
        (Failure(exit_code=0, finished=False), "agent_crashed", True),
        (Failure(signal=9, finished=False), "agent_crashed", True),
        (Failure("something", exit_code=1), "agent_failed", True),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_failure_has_one_meaning(failure: Failure, code: str, retryable: bool) -> None:
    found = classify(failure)
    assert (found.error.code, found.error.retryable) == (code, retryable)
    assert found.rate_limited == (code == "rate_limited")


@pytest.mark.parametrize(
    ("message", "stderr", "seconds"),
    [
        ("[API Error: x]\nSuggested retry after 33s.", "", 33),
        ("[API Error: Please retry in 1500ms]", "", 1.5),
        ("[API Error: x]", f"{REPORT}RetryableQuotaError retryDelayMs: 12000,", 12),
        ("[API Error: You have exhausted your daily quota on this model.]", "", 3600),
        ("[API Error: x]", "", None),
    ],
)
def test_how_long_to_wait_is_read_where_it_is_said(message: str, stderr: str, seconds: float | None) -> None:
    found = classify(Failure(message, stderr, exit_code=173))
    assert (found.rate_limited, found.retry_after_s) == (True, seconds)


def test_a_bad_key_says_what_to_set() -> None:
    assert "GEMINI_API_KEY" in classify(Failure(api(401))).error.message


def test_a_used_up_limit_of_turns_advises_nothing_that_nobody_can_follow() -> None:
    said = "Reached max session turns. Increase the number of turns by specifying maxSessionTurns in settings.json."
    error = classify(Failure(said, kind="FatalTurnLimitedError", exit_code=53)).error
    assert "settings.json" not in error.message
    assert "goes on in the next attempt" in error.message


def test_what_tools_printed_decides_nothing() -> None:
    stderr = 'Error executing tool: {"error":{"code":401}} status: 429 API key not valid'
    assert classify(Failure("something", stderr, exit_code=1)).error.code == "agent_failed"


@pytest.mark.parametrize(
    ("exit_code", "signal", "how"),
    [(None, 9, "signal 9"), (3, None, "exit code 3"), (None, None, "its guard was killed")],
)
def test_a_crash_says_how_it_ended_and_what_was_printed_last(
    exit_code: int | None, signal: int | None, how: str
) -> None:
    failure = Failure(stderr="one\nlast words\n", exit_code=exit_code, signal=signal, finished=False)
    assert f"it ended without a result ({how}): last words" in classify(failure).error.message
