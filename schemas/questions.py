"""Questions an agent asks, and their answers."""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from pydantic import Field

from schemas.common import Durable, UtcTime

Words = str | list[str]
"""The answer to one question; a list where several options may be chosen."""
OWN_JUDGEMENT: Final = "Use your best judgement."
"""The answer to a question without options where nobody gives one."""


class QuestionItem(Durable):
    """One question with its options; ``multi_select`` allows more than one of them."""

    question: str
    header: str = ""
    options: list[str] = []
    multi_select: bool = False

    @property
    def default(self) -> Words:
        """The answer that stands for silence: the first option, or the agent's own judgement."""
        if not self.options:
            return OWN_JUDGEMENT
        return self.options[:1] if self.multi_select else self.options[0]


class Question(Durable):
    """What an agent asked at once; every item is answered separately."""

    question_id: str
    session_id: str | None = None
    attempt: int = 1
    items: list[QuestionItem] = Field(min_length=1)
    deadline: UtcTime | None = None

    @property
    def defaults(self) -> dict[str, Words]:
        """The answers that stand for silence, by question text."""
        return {item.question: item.default for item in self.items}


class CallRequest(Durable):
    """A tool call that policy lets happen only with a human's consent.

    ``signature`` is the same for the same call (tool and arguments), also in another session; ``code`` and ``reason``
    are the policy's.
    """

    call_id: str
    signature: str
    tool_name: str
    input: str = Field(default="", max_length=2_100)
    code: str = ""
    reason: str = Field(default="", max_length=2_000)
    deadline: UtcTime | None = None


def call_signature(tool_name: str, arguments: object) -> str:
    """Return the SHA-256, in hex, of a tool's name and its arguments (a JSON value) in their canonical form."""
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{tool_name}\0{canonical}".encode("utf-8", "replace")).hexdigest()


class CallDecision(Durable):
    """What a human said of a call; ``remember`` lets the same call pass for the rest of the run."""

    signature: str
    allow: bool
    reason: str = ""
    by: str = ""
    remember: Literal["once", "run"] = "once"


DEADLINE: Final = "deadline"
"""Who has decided where nobody did in time."""


def code_of_denial(decision: CallDecision) -> str:
    """Return the code with which a call that was denied is reported as blocked."""
    return "denied_by_deadline" if decision.by == DEADLINE else "denied_by_human"


class Given(Durable):
    """A human's answer to a question an earlier attempt ended with, for the session that goes on."""

    question: Question
    answers: dict[str, Words]
    by: str = ""


class Answer(Durable):
    """Answers by question text, who gave them, and how long that took (milliseconds)."""

    answers: dict[str, Words]
    source: str
    model: str | None = None
    context_messages: int = 0
    ms: int = 0
