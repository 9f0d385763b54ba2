"""Questions as people see them, and their answers as the agent that asked gets them. Pure."""

from __future__ import annotations

from typing import Final

from schemas.cutting import cut
from schemas.questions import Given, Question, QuestionItem, Words

MAX_ITEMS: Final = 20
MAX_OPTIONS: Final = 20
_MAX_QUESTION_CHARS: Final = 1_000
_MAX_OPTION_CHARS: Final = 200


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


def in_its_words(asked: Question, shown: Question, answers: dict[str, Words]) -> dict[str, Words]:
    """Return the answers to ``shown``, by the texts of ``asked``: what people saw may have been cut and redacted.

    An item without an answer gets its default.
    """
    found: dict[str, Words] = {}
    for place, item in enumerate(asked.items):
        seen = shown.items[place] if place < len(shown.items) else None
        given = answers.get(seen.question) if seen is not None else None
        if seen is None or given is None:
            found[item.question] = item.default
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
        answer = given.answers.get(item.question, item.default)
        lines += [
            f"Question: {item.question}",
            f"Answer: {answer if isinstance(answer, str) else ', '.join(answer)}",
        ]
    return lines
