"""JSON of others: whatever is none raises ValueError, however deep it is nested."""

from __future__ import annotations

import pytest

from schemas.json_text import parse_json
from transports.codex_rollout import _object
from transports.gemini_log import _parsed
from transports.structured import _parsed as _answer

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("text", ["", "{", DEEP, b"\xff", '{"a": ' * 50_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
    assert parse_json('{"a": [1]}') == {"a": [1]}


def test_what_a_model_nests_too_deeply_ends_no_reader() -> None:
    assert _object(DEEP) == {}
    assert _parsed(DEEP.encode()) is None


@pytest.mark.parametrize(
    "written", [r'{"a\ud800": ["b\uDFFF", {"c": "\ud83d\ude00"}]}', '{"a\ud800": ["b\udfff", {"c": "😀"}]}']
)
def test_half_a_surrogate_pair_is_text_afterwards(written: str) -> None:
    assert parse_json(written) == {"a\ufffd": ["b\ufffd", {"c": "😀"}]}


def test_an_answer_with_half_a_surrogate_pair_can_be_stored() -> None:
    assert _answer(r'{"headline": "x\ud800"}') == {"headline": "x\ufffd"}
