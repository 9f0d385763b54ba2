"""What each failure of Codex means, as it was seen on the real program."""

from __future__ import annotations

from typing import Any

import pytest

from transports.codex_errors import KEY, classify, crashed

HTTP = "unexpected status {}: scripted, url: http://model/v1/responses"


@pytest.mark.parametrize(
    ("info", "message", "code", "retryable"),
    [
        (
            "contextWindowExceeded",
            "Codex ran out of room in the model's context window.",
            "context_window_exceeded",
            False,
        ),
        (
            "usageLimitExceeded",
            "Quota exceeded. Check your plan and billing details.",
            "quota_exceeded",
            False,
        ),
        ("internalServerError", "We are currently experiencing high demand", "provider_error", True),
        ("serverOverloaded", "overloaded", "provider_overloaded", True),
        ("unauthorized", "no", "bad_api_key", False),
        ("badRequest", "no such tool", "bad_request", False),
        ("cyberPolicy", "no", "refused_by_provider", False),
        ("sandboxError", "no", "sandbox_failed", True),
        ({"httpConnectionFailed": {"httpStatusCode": 400}}, HTTP.format(400), "bad_request", False),
        ({"httpConnectionFailed": {"httpStatusCode": 401}}, HTTP.format(401), "bad_api_key", False),
        ({"httpConnectionFailed": {"httpStatusCode": 402}}, HTTP.format(402), "quota_exceeded", False),
        ({"httpConnectionFailed": {"httpStatusCode": 408}}, HTTP.format(408), "provider_unreachable", True),
        ({"httpConnectionFailed": {"httpStatusCode": 409}}, HTTP.format(409), "provider_error", True),
        ({"httpConnectionFailed": {"httpStatusCode": 422}}, HTTP.format(422), "bad_request", False),
        ("other", "Invalid prompt: we've limited access to this content.", "refused_by_provider", False),
        ({"httpConnectionFailed": {"httpStatusCode": 403}}, HTTP.format(403), "no_access", False),
        ({"httpConnectionFailed": {"httpStatusCode": 404}}, HTTP.format(404), "unknown_model", False),
        ({"httpConnectionFailed": {"httpStatusCode": 503}}, HTTP.format(503), "provider_error", True),
        ({"httpConnectionFailed": {"httpStatusCode": 529}}, HTTP.format(529), "provider_error", True),
        (
            {"httpConnectionFailed": {"httpStatusCode": None}},
            "error sending request",
            "provider_unreachable",
            True,
        ),
        ({"responseStreamDisconnected": {"httpStatusCode": None}}, "gone", "stream_cut", True),
        ("other", "stream disconnected before completion: stream closed", "stream_cut", True),
        ("other", "Incomplete response returned, reason: max_output_tokens", "answer_incomplete", True),
        (
            {"responseStreamDisconnected": {"httpStatusCode": None}},
            "stream disconnected before completion: Incomplete response returned, reason: content_filter",
            "refused_by_provider",
            False,
        ),
        ("other", '{"error": {"message": "no", "type": "invalid_request_error"}}', "bad_request", False),
        ("other", "something new", "agent_failed", True),
        ({"something": "new", "and": "more"}, "", "agent_failed", True),
        (None, "", "agent_failed", True),
    ],
)
def test_a_failure_has_a_code_and_says_whether_to_try_again(
    info: Any, message: str, code: str, retryable: bool
) -> None:
    failure = classify(info, message)
    assert (failure.error.code, failure.error.retryable, failure.rate_limited) == (code, retryable, False)
    assert failure.error.message


@pytest.mark.parametrize(
    ("info", "message", "details", "seconds"),
    [
        ("rateLimitExceeded", "Rate limit reached. Please try again in 11.5s.", "", 11.5),
        ("rateLimitExceeded", "Please try again in 250ms.", "", 0.25),
        ("rateLimitExceeded", "Please try again in 6m0s.", "", 360),
        ("rateLimitExceeded", "Please try again in 1h2m3s.", "", 3723),
        ("rateLimitExceeded", "Please try again in 20m.", "", 1200),
        ("rateLimitExceeded", "Please try again in a while.", "", None),
        ({"responseTooManyFailedAttempts": {"httpStatusCode": 429}}, "exceeded retry limit", "", None),
        (
            {"responseStreamDisconnected": {"httpStatusCode": 429}},
            "Reconnecting... 1/1",
            "try again in 2s",
            2,
        ),
        (
            {"responseStreamDisconnected": {"httpStatusCode": None}},
            "Reconnecting... 1/1",
            "rate limit exceeded: Rate limit reached. Please try again in 90s.",
            90,
        ),
        ("other", "exceeded retry limit, last status: 429 Too Many Requests", "", None),
    ],
)
def test_a_rate_limit_says_how_long_to_wait_where_it_was_told(
    info: Any, message: str, details: str, seconds: float | None
) -> None:
    failure = classify(info, message, details)
    assert failure.rate_limited
    assert failure.error.retryable
    assert failure.retry_after_s == seconds


def test_the_words_are_the_providers_not_those_of_the_programs_own_tries() -> None:
    failure = classify(
        {"responseStreamDisconnected": {"httpStatusCode": 429}}, "Reconnecting... 1/1", "slow down"
    )
    assert failure.error.message == "slow down"


@pytest.mark.parametrize("status", [401, 403])
def test_a_bad_key_says_which_variable_to_set(status: int) -> None:
    assert KEY in classify({"httpConnectionFailed": {"httpStatusCode": status}}, "no").error.message


@pytest.mark.parametrize(
    ("exit_code", "signal", "how"),
    [(None, 9, "signal 9"), (3, None, "exit code 3"), (None, None, "its guard was killed")],
)
def test_a_crash_may_be_tried_again_and_says_how_it_ended(
    exit_code: int | None, signal: int | None, how: str
) -> None:
    error = crashed(exit_code, signal, "boom\n")
    assert error.code == "agent_crashed"
    assert error.retryable
    assert how in error.message
    assert error.details == {"stderr": "boom"}
