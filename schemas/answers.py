"""Answers to an agent's questions: checked against its options. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.questions import Question, QuestionItem, Words


class BadAnswer(Exception):
    """Raised when an answer does not fit the question; the text names what would."""


def checked(question: Question, answers: Mapping[str, Words]) -> dict[str, Words]:
    """Return the answers by question text; none given means the defaults. Raises BadAnswer.

    An item is named by its text, its header, or its number from 1; an option by its text or its number from 1.
    """
    if not answers:
        return question.defaults
    found: dict[str, Words] = {}
    for key, value in answers.items():
        item = _item(question, key)
        found[item.question] = _value(item, value)
    missing = [
        f"{number} ({item.question})"
        for number, item in enumerate(question.items, 1)
        if item.question not in found
    ]
    if missing:
        raise BadAnswer(f"not answered: {'; '.join(missing)}")
    return found


def _item(question: Question, key: str) -> QuestionItem:
    for number, item in enumerate(question.items, 1):
        if key in {item.question, item.header, str(number)} and key:
            return item
    known = "; ".join(f"{number} ({item.question})" for number, item in enumerate(question.items, 1))
    raise BadAnswer(f"no question {key!r}; asked: {known}")


def _value(item: QuestionItem, value: Words) -> Words:
    values = [value] if isinstance(value, str) else value
    if not values or not all(one.strip() for one in values):
        raise BadAnswer(f"the answer to {item.question!r} is empty")
    if not item.multi_select and len(values) > 1:
        raise BadAnswer(f"{item.question!r} takes one answer, got {len(values)}")
    if item.options:
        values = [_option(item, one) for one in values]
    return values if item.multi_select else values[0]


def _option(item: QuestionItem, value: str) -> str:
    if value in item.options:
        return value
    numbers = {str(number): option for number, option in enumerate(item.options, 1)}
    if value in numbers:
        return numbers[value]
    raise BadAnswer(f"{value!r} is no option of {item.question!r}; options: {', '.join(item.options)}")
