"""Answers to an agent's questions: how an item and an option may be named, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.answers import BadAnswer, checked
from schemas.questions import OWN_JUDGEMENT, Question, QuestionItem

COLOUR = QuestionItem(question="Red or blue?", header="Colour", options=["red", "blue"])
PARTS = QuestionItem(question="Which parts?", header="Parts", options=["core", "cli", "2"], multi_select=True)
NAME = QuestionItem(question="What is its name?")
ONE = Question(question_id="q", items=[COLOUR])
ALL = Question(question_id="q", items=[COLOUR, PARTS, NAME])


@pytest.mark.parametrize("key", ["Red or blue?", "Colour", "1"])
@pytest.mark.parametrize("value", ["blue", "2", ["blue"], ["2"]])
def test_an_item_is_named_by_text_header_or_number_and_so_is_an_option(key: str, value: Any) -> None:
    assert checked(ONE, {key: value}) == {"Red or blue?": "blue"}


def test_every_item_is_answered_by_itself() -> None:
    given: dict[str, str | list[str]] = {"1": "1", "Parts": ["core", "2"], "What is its name?": "x y"}
    assert checked(ALL, given) == {
        "Red or blue?": "red",
        # An option's own text comes before its number.
        "Which parts?": ["core", "2"],
        "What is its name?": "x y",
    }


def test_one_word_is_enough_where_several_may_be_chosen() -> None:
    assert checked(Question(question_id="q", items=[PARTS]), {"1": "cli"}) == {"Which parts?": ["cli"]}


def test_no_answer_at_all_means_the_first_options_and_the_agents_own_judgement() -> None:
    assert checked(ALL, {}) == {
        "Red or blue?": "red",
        "Which parts?": ["core"],
        "What is its name?": OWN_JUDGEMENT,
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"1": "green"}, "'green' is no option of 'Red or blue?'; options: red, blue"),
        ({"1": "3"}, "'3' is no option of 'Red or blue?'"),
        ({"1": "0"}, "'0' is no option"),
        ({"1": "Blue"}, "'Blue' is no option"),
        ({"1": ["red", "blue"]}, "'Red or blue?' takes one answer, got 2"),
        ({"1": ""}, "the answer to 'Red or blue?' is empty"),
        ({"1": "  "}, "the answer to 'Red or blue?' is empty"),
        ({"1": []}, "the answer to 'Red or blue?' is empty"),
        ({"4": "x"}, "no question '4'; asked: 1 (Red or blue?); 2 (Which parts?); 3 (What is its name?)"),
        ({"": "x"}, "no question ''"),
        ({"2": ["core", "nothing"], "1": "red", "3": "n"}, "'nothing' is no option of 'Which parts?'"),
        ({"1": "red"}, "not answered: 2 (Which parts?); 3 (What is its name?)"),
        ({"3": "n", "2": "core"}, "not answered: 1 (Red or blue?)"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadAnswer) as raised:
        checked(ALL, given)
    assert says in str(raised.value)


def test_an_empty_header_names_no_item() -> None:
    with pytest.raises(BadAnswer):
        checked(Question(question_id="q", items=[NAME]), {"": "x"})
