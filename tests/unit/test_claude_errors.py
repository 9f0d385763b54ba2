"""What a failed turn of Claude Code means, case by case as the program was seen to tell it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from transports.claude_errors import Failure, classify

RESULT: dict[str, Any] = {
    "type": "result",
    "subtype": "success",
    "is_error": True,
    "terminal_reason": "api_error",
}


@pytest.mark.parametrize(
    ("result", "assistant_error", "code", "retryable"),
    [
        ({"api_error_status": 400}, "invalid_request", "bad_request", False),
        ({"api_error_status": 401}, "authentication_failed", "auth_failed", False),
        ({"api_error_status": 402}, None, "billing", False),
        ({"api_error_status": 403}, None, "auth_failed", False),
        ({"api_error_status": 409}, None, "provider_error", True),
        ({"api_error_status": 422, "api_error": "x"}, None, "bad_request", False),
        ({"api_error_status": 404}, "model_not_found", "model_not_found", False),
        ({"api_error_status": 413, "terminal_reason": "image_error"}, None, "request_too_large", False),
        ({"api_error_status": 429}, "rate_limit", "rate_limited", True),
        ({"api_error_status": 500}, "server_error", "provider_error", True),
        ({"api_error_status": 503}, None, "provider_error", True),
        ({"api_error_status": 529}, None, "provider_overloaded", True),
        (
            {"api_error_status": None, "api_error": "connection_failed"},
            "server_error",
            "provider_unreachable",
            True,
        ),
        ({"api_error_status": None}, "authentication_failed", "auth_failed", False),
        ({"api_error_status": None}, "billing_error", "billing", False),
        ({"api_error_status": None}, "overloaded", "provider_overloaded", True),
        ({"api_error_status": None}, "max_output_tokens", "output_limit", True),
        ({"api_error_status": None}, "unknown", "provider_unreachable", True),
        ({"api_error_status": None}, None, "provider_unreachable", True),
        ({"subtype": "error_max_turns", "terminal_reason": "max_turns"}, None, "max_turns", False),
        ({"subtype": "error_max_budget_usd", "terminal_reason": "x"}, None, "budget_exhausted", False),
        ({"subtype": "error_during_execution", "terminal_reason": "completed"}, None, "agent_failed", True),
        ({"subtype": "something new", "terminal_reason": None}, None, "agent_failed", True),
    ],
)
def test_each_failure_has_its_code(
    result: dict[str, Any], assistant_error: str | None, code: str, retryable: bool
) -> None:
    found = classify(Failure.of({**RESULT, **result}, assistant_error=assistant_error))
    assert (found.error.code, found.error.retryable) == (code, retryable)
    assert found.error.message
    assert found.rate_limited is (code == "rate_limited")
    assert found.retry_at is None


def test_the_words_are_the_providers_and_a_bad_key_says_what_to_set() -> None:
    bad_key = classify(Failure.of({**RESULT, "api_error_status": 401, "result": "No such key."}))
    assert bad_key.error.message.startswith("No such key. (set ANTHROPIC_API_KEY")
    listed = classify(Failure.of({**RESULT, "subtype": "error_max_turns", "errors": ["one", "two"]}))
    assert listed.error.message == "one; two"


def test_a_rate_limit_says_until_when_where_that_is_known() -> None:
    found = classify(Failure.of({**RESULT, "api_error_status": 429}, reset_at=1_800_000_000))
    assert found.retry_at == datetime.fromtimestamp(1_800_000_000, UTC)


@pytest.mark.parametrize("reset_at", [1e300, float("inf"), float("nan"), -1e20])
def test_a_rate_limit_until_a_moment_that_is_none_says_nothing_of_when(reset_at: float) -> None:
    found = classify(Failure.of({**RESULT, "api_error_status": 429}, reset_at=reset_at))
    assert (found.rate_limited, found.retry_at) == (True, None)
