"""How a phase of the agent ended: from the transport's words and the engine's orders to those of its result. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from activities.running import StopReason
from schemas.calls import AnswerEnded, Ended, WorkOut
from schemas.common import ChangeCounts, FileChanges
from schemas.envelopes import ErrorEnvelope
from schemas.handoff import PartialHandoff, PartialReason
from transports.port import StructuredResult, WorkEnd, WorkOutcome

Order = StopReason | Literal["budget", "no_output"]
"""Why the engine ended a turn: somebody asked, or a limit was reached."""

LOST: Final = frozenset({"worker_shutdown", "crash", "server_lost", "activity_paused", "activity_reset"})
"""Endings nobody asked the agent for: the work goes on in the next attempt without a human."""

NO_ANSWER: Final = frozenset(
    {
        # There is an agent, and it does not say what it was asked.
        *("structured_output_invalid", "structured_timeout", "finalize_timeout", "route_timeout"),
        *(
            "no_answer",
            "no_session",
            "question",
            "approval",
            "too_many_denials",
            "max_turns",
            "turns_exhausted",
            "agent_looped",
        ),
        # The provider takes no more of this conversation: it would not the next time.
        *("bad_request", "request_too_large", "context_overflow", "context_window_exceeded", "output_limit"),
        *("refused_by_provider", "empty_response", "answer_incomplete"),
    }
)
"""Codes of answers that are missing through no fault of agent or provider that would pass, or that people could mend."""
_CUT_OFF: Final = frozenset({"interrupted", "session_closed", "session_busy"})
"""Codes of turns that somebody else ended: nothing is wrong, and they may be tried again."""

_OF_TURN: Final[dict[WorkEnd, tuple[Ended, PartialReason | None]]] = {
    "completed": ("finished", None),
    "question": ("question", "question"),
    "approval": ("approval", "approval"),
    "rate_limited": ("rate_limited", "rate_limit"),
    "budget": ("budget", "budget"),
    "failed": ("agent_failed", "agent_failed"),
}
_OF_ORDER: Final[dict[Order, tuple[Ended, PartialReason]]] = {
    "interrupt": ("interrupted", "interrupt"),
    "timeout": ("timeout", "timeout"),
    "no_output": ("timeout", "timeout"),
    "budget": ("budget", "budget"),
    "worker_shutdown": ("worker_shutdown", "worker_shutdown"),
    "server_lost": ("server_lost", "server_lost"),
    "activity_paused": ("activity_paused", "activity_paused"),
    "activity_reset": ("activity_reset", "activity_reset"),
}
_HINTS: Final[dict[PartialReason, str]] = {
    "interrupt": "resume with action continue to go on from here, retry to start the step again",
    "question": "answer the question to go on from here, or resume with action retry or skip",
    "approval": "approve or reject the call to go on from here, or resume with action retry or skip",
    "budget": "extend the budget to go on from here, or resume with action retry, skip or goto",
    "rate_limit": "the work goes on by itself when the limit is over",
    "agent_failed": "resume with action retry or continue, on another transport if need be",
    "timeout": "resume with action continue to go on from here",
}


@dataclass(frozen=True)
class Ending:
    """How a turn ended, in the words of ``WorkOut``; ``error`` says what went wrong, if something did."""

    ended: Ended
    reason: PartialReason | None = None
    stop_reason: str | None = None
    error: ErrorEnvelope | None = None


def of_turn(outcome: WorkOutcome) -> Ending:
    """Return the ending of a turn that ended by itself; an end nobody knows is a failure."""
    ended, reason = _OF_TURN.get(outcome.end, ("agent_failed", "agent_failed"))
    error = outcome.error
    if ended == "agent_failed" and error is not None and error.code == "no_output":
        # Transports watch for silence too; whoever notices first, it is the same ending.
        ended, reason = _OF_ORDER["no_output"]
    if ended == "agent_failed" and error is None:
        message = outcome.stop_reason or f"the turn ended as {outcome.end!r}"
        error = ErrorEnvelope(code="agent_failed", message=message, retryable=True)
    return Ending(ended, reason, outcome.stop_reason or outcome.end, error)


def of_answer(result: StructuredResult) -> tuple[AnswerEnded, ErrorEnvelope | None]:
    """Return how a phase of answers ended, and why there is no answer.

    Without one that validates it is as finished as with one. That the agent could not be asked is as it is in work: a
    limit is waited for, what may pass is tried again, and what no retry mends ends the run.
    """
    error = result.error
    if result.value is not None:
        return "finished", None
    if result.rate_limited:
        return "rate_limited", error
    if error is None or error.code in NO_ANSWER:
        return "finished", error or ErrorEnvelope(code="no_answer", message="the agent gave no answer")
    if error.code in _CUT_OFF:
        error = error.model_copy(update={"retryable": True})
    return "agent_failed", error


def of_order(order: Order) -> Ending:
    """Return the ending of a turn that the engine ended."""
    ended, reason = _OF_ORDER[order]
    error = None
    if order == "no_output":
        error = ErrorEnvelope(code="no_output", message="the agent was silent too long", retryable=True)
    return Ending(ended, reason, order, error)


def failed(code: str, message: str, *, retryable: bool = True) -> Ending:
    """Return the ending of an attempt whose agent could not be used, or did what it must not."""
    error = ErrorEnvelope(code=code, message=message, retryable=retryable)
    return Ending("agent_failed", "agent_failed", code, error)


def hint(reason: PartialReason) -> str:
    """Return what to do next, for people who read a partial handoff."""
    return _HINTS.get(reason, "the work goes on from here in the next attempt")


def counts(changes: FileChanges) -> ChangeCounts:
    """Return how many paths changed."""
    return ChangeCounts(
        created=len(changes.created), modified=len(changes.modified), deleted=len(changes.deleted)
    )


def done(changes: FileChanges) -> list[str]:
    """Return the measured changes as sentences."""
    return [
        f"{word} {path}"
        for word, paths in (
            ("created", changes.created),
            ("modified", changes.modified),
            ("deleted", changes.deleted),
        )
        for path in paths
    ]


def summary(out: WorkOut, partial: PartialHandoff | None = None) -> str:
    """Return in one or two sentences how an attempt without a draft of its own ended."""
    changed = out.changes.created + out.changes.modified + out.changes.deleted
    text = f"The work ended as {out.ended}: {changed} files changed, {out.tool_calls} tool calls."
    if out.error is not None:
        text = f"{text} {out.error.message}"
    if partial is not None and partial.summary and partial.summary != text:
        text = f"{text} {partial.summary}"
    return text[:2_000]
