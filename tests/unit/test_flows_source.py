from __future__ import annotations

import pytest

from flows.shape import check_shape
from flows.source import MAX_FILE_BYTES, Place, read_source

TEXT = """\
# a comment
name: demo
list:
  - one
  - {key: 5,
     other: long}
  - &shared [1, 2]
  - *shared
empty:
quoted: "5"
"""


def test_plain_words_become_values_of_yaml_1_2_and_quoted_ones_stay_text() -> None:
    text = "[5, -3, 1.5, 1e3, true, False, null, ~, yes, 'on', '7', 0x10, 2026-01-01, .inf, .nan, 1e999, 007]"
    source, findings = read_source("f", text)
    assert findings == []
    assert source is not None
    assert source.data == [
        5, -3, 1.5, 1000.0, True, False, None, None, "yes", "on", "7", "0x10", "2026-01-01", ".inf", ".nan",
        "1e999", 7,
    ]  # fmt: skip


def test_every_key_and_value_has_its_place() -> None:
    source, findings = read_source("f", TEXT)
    assert findings == []
    assert source is not None
    assert source.at(("name",)) == Place(2, 7)
    assert source.at(("name",), on_key=True) == Place(2, 1)
    assert source.at(("list", 1, "other")) == Place(6, 13)
    assert source.at(("list", 2, 1)) == Place(7, 17)
    assert source.at(("empty",)) == Place(9, 1)


def test_a_value_that_is_not_written_has_the_place_of_what_is_around_it() -> None:
    source, _ = read_source("f", "a:\n  b: {c: 1}\n")
    assert source is not None
    assert source.at(("a", "b", "missing", 3)) == source.at(("a", "b")) == Place(2, 6)


def test_what_an_alias_stands_for_has_the_place_of_the_alias() -> None:
    source, _ = read_source("f", "a: &x {b: 1}\nc: *x\n")
    assert source is not None
    assert source.data == {"a": {"b": 1}, "c": {"b": 1}}
    assert source.at(("c", "b")) == Place(2, 4)


def test_a_duplicate_key_keeps_the_first_value_and_the_rest_is_still_read() -> None:
    source, findings = read_source("f", "a: 1\nb: 2\na: {c: 3}\nb: 4\n")
    assert source is not None
    assert source.data == {"a": 1, "b": 2}
    assert [(finding.line, finding.code) for finding in findings] == [
        (3, "duplicate_key"),
        (4, "duplicate_key"),
    ]


def test_lines_can_be_counted_from_the_middle_of_a_file() -> None:
    source, _ = read_source("f", "a: 1\n", first_line=7)
    assert source is not None
    assert source.at(("a",)) == Place(7, 4)


def test_a_file_may_be_as_large_as_the_limit_and_no_larger() -> None:
    fits = "a: " + "x" * (MAX_FILE_BYTES - 4) + "\n"
    assert read_source("f", fits)[1] == []
    source, findings = read_source("f", fits + "#")
    assert source is None
    assert [finding.code for finding in findings] == ["yaml_limit"]


def test_aliases_cannot_nest_deeper_than_values_may() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 60))]
    source, findings = read_source("f", "\n".join(lines))
    assert source is None
    assert "nested deeper" in findings[0].what


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 20_000, "- " * 50_000, "? " * 30_000])
def test_a_file_that_only_opens_is_refused_without_recursion(text: str) -> None:
    source, findings = read_source("f", text)
    assert source is None
    assert findings


@pytest.mark.parametrize("text", ['a: "\\0"', 'a: "\\ud800"', "a: \x07", "a: \ud800", "a:\n b: \ufffe"])
def test_characters_that_are_no_text_are_refused_with_their_line(text: str) -> None:
    source, findings = read_source("f", text)
    assert source is None
    assert findings[0].code == "yaml_syntax"
    assert findings[0].line == text.count("\n") + 1


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    source, findings = read_source("f", "\ufeffa: 1\n")
    assert findings == []
    assert source is not None
    assert source.data == {"a": 1}


def test_a_contradiction_found_by_the_contract_itself_becomes_a_finding() -> None:
    from schemas.flow import FlowSpec

    step = "{id: a, agent: x, objective: o, routing: {kind: terminal}}"
    source, _ = read_source("f", f"id: f\nversion: 1\ntitle: t\nsteps: [{step}, {step}]\n")
    assert source is not None
    spec, findings = check_shape(source, FlowSpec)
    assert spec is None
    assert [(finding.code, finding.line) for finding in findings] == [("inconsistent", 1)]
    assert "used twice" in findings[0].what
