"""Questions an agent asks, and their answers."""

from __future__ import annotations

from pydantic import Field

from schemas.common import Durable, UtcTime


class QuestionItem(Durable):
    """One question with its options; ``multi_select`` allows more than one of them."""

    question: str
    header: str = ""
    options: list[str] = []
    multi_select: bool = False


class Question(Durable):
    """What an agent asked at once; every item is answered separately."""

    question_id: str
    session_id: str | None = None
    attempt: int = 1
    items: list[QuestionItem] = Field(min_length=1)
    deadline: UtcTime | None = None


class Answer(Durable):
    """Answers by question text, who gave them, and how long that took (milliseconds)."""

    answers: dict[str, str | list[str]]
    source: str
    model: str | None = None
    context_messages: int = 0
    ms: int = 0
