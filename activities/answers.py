"""Questions as people see them, and their answers as the agent that asked gets them. Pure."""

from __future__ import annotations

from typing import Final

from schemas.questions import Given, Question, QuestionItem
from schemas.tools import cut

MAX_ITEMS: Final = 20
MAX_OPTIONS: Final = 20
_MAX_QUESTION_CHARS: Final = 1_000
_MAX_OPTION_CHARS: Final = 200
OWN_JUDGEMENT: Final = "Use your best judgement."
"""The answer to a question without options where nobody is asked."""

Words = str | list[str]


def bounded(question: Question) -> Question:
    """Return a question of a size that history can bear; the places of items and options stay."""
    items = [
        QuestionItem(
            question=cut(item.question, _MAX_QUESTION_CHARS),
            header=cut(item.header, _MAX_OPTION_CHARS),
            options=[cut(option, _MAX_OPTION_CHARS) for option in item.options[:MAX_OPTIONS]],
            multi_select=item.multi_select,
        )
        for item in question.items[:MAX_ITEMS]
    ]
    return question.model_copy(update={"items": items})


def defaults(question: Question) -> dict[str, Words]:
    """Return the answers where nobody is asked: each first option, or the agent's own judgement."""
    return {item.question: _default(item) for item in question.items}


def in_its_words(asked: Question, shown: Question, answers: dict[str, Words]) -> dict[str, Words]:
    """Return the answers to ``shown``, by the texts of ``asked``: what people saw may have been cut and redacted.

    An item without an answer gets its default.
    """
    found: dict[str, Words] = {}
    for place, item in enumerate(asked.items):
        seen = shown.items[place] if place < len(shown.items) else None
        given = answers.get(seen.question) if seen is not None else None
        if seen is None or given is None:
            found[item.question] = _default(item)
            continue
        options = dict(zip(seen.options, item.options, strict=False))
        found[item.question] = (
            options.get(given, given)
            if isinstance(given, str)
            else [options.get(word, word) for word in given]
        )
    return found


def in_lines(given: Given) -> list[str]:
    """Return question and answer, one line each, for a prompt."""
    lines: list[str] = []
    for item in given.question.items:
        answer = given.answers.get(item.question, _default(item))
        lines += [
            f"Question: {item.question}",
            f"Answer: {answer if isinstance(answer, str) else ', '.join(answer)}",
        ]
    return lines


def _default(item: QuestionItem) -> Words:
    if not item.options:
        return OWN_JUDGEMENT
    return item.options[:1] if item.multi_select else item.options[0]
