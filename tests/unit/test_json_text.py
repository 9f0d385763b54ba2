"""JSON of others: whatever is none raises ValueError, however deep it is nested."""

from __future__ import annotations

import pytest

from schemas.json_text import parse_json
from transports.codex_rollout import _object
from transports.gemini_log import _parsed

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ["", "{", DEEP, b"\xff", '{"a": ' * 50_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_what_a_model_nests_too_deeply_ends_no_reader() -> None:
    assert _object(DEEP) == {}
    assert _parsed(DEEP.encode()) is None
