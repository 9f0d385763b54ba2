"""What a run says to people, in words. Pure."""

from __future__ import annotations

from schemas.common import Closed
from schemas.flow import Human
from schemas.messages import Approve, ExtendBudget, Reject, Resume
from schemas.questions import CallRequest, Given
from schemas.run_state import WaitFor

MAX_SAID_CHARS = 100_000
"""What people may have said to an agent, in all, before its next turn."""


def silence(kind: WaitFor, human: Human, by_itself: bool) -> str:
    """Return what happens when nobody comes, in words."""
    if kind == "rate_limit":
        return "it goes on by itself"
    if human.on_silence == "keep_waiting":
        return "it waits for ever"
    if not by_itself:
        return "the run ends as needs_human"
    return {
        "approval": "the call is denied",
        "answer": "the default answers are given",
    }.get(kind, "it goes on by itself")


def call_reason(call: CallRequest | None) -> str:
    """Return the question whether a call may be made, in words."""
    if call is None:
        return ""
    why = f" ({call.reason})" if call.reason else ""
    what = f"{call.tool_name} {call.input[:200]}".strip()
    return f"may the agent call {what}?{why}"


def by(name: str) -> str:
    """Return who did something, if they said."""
    return f" by {name}" if name else ""


def ordered_by(order: Resume) -> str:
    """Return who ordered what a resume does; where they did not say, the resume itself."""
    return order.by or f"a resume with {order.action}"


def together(*texts: str | None) -> str | None:
    """Return what people said to an agent as one text, None for nothing; only too much loses its beginning."""
    return "\n\n".join(text for text in texts if text)[-MAX_SAID_CHARS:] or None


def because(reason: str) -> str:
    """Return a reason as the end of a sentence."""
    return f": {reason}" if reason else ""


def said(payload: Closed) -> dict[str, str]:
    """Return what a message said, cut to what the journal keeps."""
    return {key: str(value)[:500] for key, value in payload.model_dump(exclude_defaults=True).items()}


def action(order: object) -> str:
    """Return what ended a wait."""
    match order:
        case Resume():
            return order.action
        case Approve():
            return "approve"
        case Reject():
            return "reject"
        case ExtendBudget():
            return "extend_budget"
        case Given():
            return "answer"
        case _:
            return "timer"
