"""Payloads of the messages people send to a run. Every one works with no payload at all."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.common import Closed

MAX_REASON = 2_000
Reason = str


class Pause(Closed):
    """Take hold at the next phase boundary."""

    reason: str = Field(default="", max_length=MAX_REASON)
    by: str = Field(default="", max_length=200)


class Abort(Closed):
    """End the run at once; its receipt and journal are still written."""

    reason: str = Field(default="", max_length=MAX_REASON)
    by: str = Field(default="", max_length=200)


class Resume(Closed):
    """Go on from a wait; ``step`` belongs to ``goto``."""

    action: Literal["continue", "retry", "skip", "goto", "abort"] = "continue"
    note: str = Field(default="", max_length=20_000)
    transport: str | None = None
    step: str | None = None
    by: str = Field(default="", max_length=200)


class Approve(Closed):
    """Let an approval gate (or the call ``call_id``) pass."""

    call_id: str | None = None
    remember: Literal["once", "run"] = "once"
    by: str = Field(default="", max_length=200)


class Reject(Closed):
    """Refuse at an approval gate (or the call ``call_id``)."""

    call_id: str | None = None
    reason: str = Field(default="", max_length=MAX_REASON)
    by: str = Field(default="", max_length=200)


class Verdict(Closed):
    """The answer to a message: accepted, already so, or refused with what would be legal."""

    verdict: Literal["accepted", "already", "refused"]
    name: str
    message: str = ""
    legal: list[str] = []
