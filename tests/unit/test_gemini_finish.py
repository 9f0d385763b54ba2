"""Why a model stopped, as the program's telemetry says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transports.gemini_finish import cut_short


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


def test_without_telemetry_nothing_is_known(tmp_path: Path) -> None:
    assert cut_short(tmp_path / "none") is None
