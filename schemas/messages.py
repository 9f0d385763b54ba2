"""Payloads of the messages people send to a run. Every one works with no payload at all."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from schemas.common import MAX_CYCLES, Closed

Reason = Annotated[str, Field(max_length=2_000)]
By = Annotated[str, Field(max_length=200)]
"""Who sends it, as they say themselves."""
MAX_ANSWERS = 100_000
"""Characters of all answers to a question together: they travel to the agent, and from attempt to attempt."""


class Pause(Closed):
    """Take hold at the next phase boundary."""

    reason: Reason = ""
    by: By = ""


class Interrupt(Closed):
    """Stop the agent in the middle of its work; what it did is kept, and the run waits for a human."""

    reason: Reason = ""
    by: By = ""


class Abort(Closed):
    """End the run at once; its receipt and journal are still written."""

    reason: Reason = ""
    by: By = ""


class Resume(Closed):
    """Go on from a wait; ``step`` belongs to ``goto``."""

    action: Literal["continue", "retry", "skip", "goto", "abort"] = "continue"
    note: str = Field(default="", max_length=20_000)
    transport: str | None = None
    step: str | None = None
    by: By = ""


class Approve(Closed):
    """Let an approval gate (or the call ``call_id``) pass."""

    call_id: str | None = None
    remember: Literal["once", "run"] = "once"
    by: By = ""


class Reject(Closed):
    """Refuse at an approval gate (or the call ``call_id``)."""

    call_id: str | None = None
    reason: Reason = ""
    by: By = ""


class AnswerQuestion(Closed):
    """Answer an agent's question: by question text, header or number ("1" is the first); no payload: the defaults.

    The default of a question with options is its first option, that of one without is the agent's own judgement.
    ``question_id`` may be left out where one question waits.
    """

    question_id: str | None = None
    answers: dict[str, str | list[str]] = Field(default={}, max_length=50)
    by: By = ""

    @field_validator("answers")
    @classmethod
    def _travels(cls, answers: dict[str, str | list[str]]) -> dict[str, str | list[str]]:
        size = sum(len(key) + sum(map(len, value)) for key, value in answers.items())
        if size > MAX_ANSWERS:
            message = f"the answers have {size} characters, at most {MAX_ANSWERS} can travel"
            raise ValueError(message)
        return answers


class Steer(Closed):
    """Say something to the agent while it works."""

    text: str = Field(
        default="Look at the objective again, and at what is left to do.", min_length=1, max_length=20_000
    )
    by: By = ""


class ExtendBudget(Closed):
    """Allow more: what is given is added to the bounds that exist; no payload adds the used-up bound once more."""

    tokens: int | None = Field(default=None, gt=0, le=1_000_000_000)
    usd: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)
    seconds: int | None = Field(default=None, gt=0, le=31_536_000)
    cycles: int | None = Field(default=None, gt=0, le=MAX_CYCLES)
    by: By = ""


class Verdict(Closed):
    """The answer to a message: accepted, already so, queued for the agent's next turn, or refused."""

    verdict: Literal["accepted", "already", "queued", "refused"]
    name: str
    message: str = ""
    legal: list[str] = []
