"""Why a turn that is called a success is none, and why a model stopped, as the program's telemetry says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from transports.gemini_finish import Success, cut_short, not_done


def response(*reasons: str, role: str = "main", said: str = "") -> str:
    attributes = {"said": said, "finish_reasons": list(reasons), "role": role, "http.status_code": 200}
    return json.dumps({"attributes": attributes, "_body": "API response"}, indent=2) + "\n"


QUOTED = '"finish_reasons": [\n "length"\n],\n"role": "main"'


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (response("stop", "length"), "answer_incomplete"),
        (response("stop", "content_filter"), "refused_by_provider"),
        (response("length") + response("stop"), None),
        (response("stop") + response("length", role="utility_router"), None),
        (response("stop", said=QUOTED), None),
        (response(), None),
        ("{", None),
    ],
    ids=["no room", "refused", "earlier", "of a helper", "quoted", "none", "torn"],
)
def test_the_last_answer_of_the_agents_model_counts(written: str, code: str | None, tmp_path: Path) -> None:
    file = tmp_path / "telemetry.log"
    file.write_text(written)
    error = cut_short(file)
    assert (error and error.code) == code


NOBODY: dict[str, Any] = {"total_tokens": 0, "models": {}}
SOMEBODY: dict[str, Any] = {"total_tokens": 9, "models": {"m": {}}}


@pytest.mark.parametrize(
    ("success", "code", "retryable"),
    [
        (Success("", answered=True, unread=False, stats=SOMEBODY), None, None),
        (Success("Something", answered=True, unread=False), None, None),
        (Success("Loop detected, stopping execution", True, False, SOMEBODY), "agent_looped", True),
        (Success("Loop detected, stopping execution", False, False, NOBODY), "agent_looped", True),
        (Success("Maximum session turns exceeded", True, True, SOMEBODY), "turns_exhausted", True),
        (Success("", answered=True, unread=True, stats=SOMEBODY), "context_overflow", False),
        (Success("", answered=False, unread=False, stats=NOBODY), "context_overflow", False),
        (Success("", answered=False, unread=False, stats=SOMEBODY), "agent_failed", True),
        (Success("", answered=False, unread=False), "agent_failed", True),
    ],
    ids=["done", "warned", "looped", "at once", "turns", "not read", "not asked", "no answer", "no totals"],
)
def test_what_is_called_a_success_may_be_none(
    success: Success, code: str | None, retryable: bool | None
) -> None:
    error = not_done(success)
    assert (error and error.code, error and error.retryable) == (code, retryable)


def test_without_telemetry_nothing_is_known(tmp_path: Path) -> None:
    assert cut_short(tmp_path / "none") is None
