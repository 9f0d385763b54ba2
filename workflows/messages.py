"""The one table of messages: name, payload, when it is legal. Signals and updates are made from it.

Everything here is pure. A message is judged twice: by a validator before an update is accepted, and by the main
loop when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from schemas.answers import BadAnswer, checked
from schemas.calls import ASKED, RECORDED, SETTLED, Recorded
from schemas.common import Closed, Durable
from schemas.cutting import cut
from schemas.fields import fields_beside
from schemas.messages import (
    Abort,
    AnswerQuestion,
    Approve,
    ExtendBudget,
    Interrupt,
    Pause,
    Reject,
    Resume,
    Steer,
)
from schemas.questions import CallRequest, Question
from schemas.run_state import Asked, Settled, State, WaitFor

LEGAL_NOW = "; legal now: "
"""Between what a message was refused for and what is legal instead."""
MAX_FAULTS = 20
MAX_REFUSAL = 4_000
"""Characters of a refusal: what was typed may be megabytes, and the answer must fit into a payload."""


@dataclass(frozen=True)
class Message:
    """One message people can send: its payload model and one line of help."""

    name: str
    model: type[Closed]
    help: str


MESSAGES: dict[str, Message] = {
    "pause": Message("pause", Pause, "Take hold at the next phase boundary; no payload needed."),
    "interrupt": Message(
        "interrupt",
        Interrupt,
        "Stop the agent in the middle of its work; what it did is kept, and the run waits for a resume.",
    ),
    "resume": Message(
        "resume",
        Resume,
        'Go on. action: continue (default) | retry | skip | goto (with "step") | abort; note: words to the agent; '
        "transport: another agent.",
    ),
    "answer": Message(
        "answer",
        AnswerQuestion,
        'Answer the agent\'s question: {"answers": {"1": "…"}}; no payload: its first options.',
    ),
    "approve": Message(
        "approve", Approve, "Let the approval gate, or the call that policy asks about, pass."
    ),
    "reject": Message(
        "reject",
        Reject,
        "Refuse at the approval gate, or refuse the call; reason: for the agent, before a step for a person.",
    ),
    "steer": Message("steer", Steer, 'Say something to the agent while it works: {"text": "…"}.'),
    "extend_budget": Message(
        "extend_budget",
        ExtendBudget,
        "Allow more (tokens, usd, seconds, cycles); no payload: the used-up bound once more.",
    ),
    "abort": Message("abort", Abort, "End the run at once, with receipt and journal; outcome stopped."),
}
INTERNAL: dict[str, type[Durable]] = {ASKED: Asked, SETTLED: Settled, RECORDED: Recorded}
"""Signals of the work activity: a live session asks a human something; that is over; a record is written."""


@dataclass(frozen=True)
class Situation:
    """What decides whether a message is legal now.

    ``questions`` and ``calls`` are what is waited for, the oldest first: several where a session that works asks several
    at once. ``live`` says that the session that asks still works.
    ``step`` is the step the run is in; without one there is nothing to retry, skip or leave. ``following`` is the step
    that follows it when nothing is chosen; without one there is nothing to skip to.
    """

    state: State
    waiting_for: WaitFor | None = None
    pause_requested: bool = False
    steps: Sequence[str] = ()
    transports: Sequence[str] = ()
    step: str | None = None
    following: str | None = None
    live: bool = False
    questions: Sequence[Question] = ()
    calls: Sequence[CallRequest] = ()

    @property
    def question(self) -> Question | None:
        """The question that has waited longest."""
        return self.questions[0] if self.questions else None

    @property
    def call(self) -> CallRequest | None:
        """The call that has waited longest."""
        return self.calls[0] if self.calls else None


class BadMessage(Exception):
    """Raised when a message's payload cannot be used; the text names the field and the mend."""


def parse(name: str, args: Sequence[Any]) -> Closed:
    """Return the payload of message ``name``; no argument, null and an empty text mean the defaults."""
    message = MESSAGES[name]
    if len(args) > 1:
        raise BadMessage(f"{name} takes one JSON object, got {len(args)} arguments")
    raw = args[0] if args else None
    if raw is None or raw in ("", b"", [], {}):
        raw = {}
    if not isinstance(raw, dict):
        raise BadMessage(f"{name} takes a JSON object such as {{}}, got {type(raw).__name__}")
    try:
        return message.model.model_validate(raw)
    except ValidationError as error:
        raise BadMessage(f"{name}: {describe(error, message.model)}") from None


def describe(error: ValidationError, model: type[Closed]) -> str:
    """Return one line for the faults of a payload, naming each field and what would be right; of very many, the first."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False)[:MAX_FAULTS]:
        where = ".".join(str(part) for part in fault["loc"]) or "payload"
        if fault["type"] == "extra_forbidden":
            known = fields_beside(model, fault["loc"])
            faults.append(f"{where}: no such field" + (f"; known: {', '.join(known)}" if known else ""))
        else:
            faults.append(f"{where}: {fault['msg']}")
    return cut("; ".join(faults), MAX_REFUSAL)


_ANSWERS: dict[WaitFor, tuple[str, ...]] = {
    "approval": ("approve", "reject"),
    "answer": ("answer",),
    "budget": ("extend_budget",),
}
"""What answers a wait, beside ``resume`` and ``abort``, which are legal in every one."""


def _answers(now: Situation) -> list[str]:
    """Return the names of the messages that answer what is waited for."""
    kinds: list[WaitFor] = [now.waiting_for] if now.waiting_for else []
    kinds += ["answer"] if now.questions else []
    kinds += ["approval"] if now.calls else []
    return list(dict.fromkeys(name for kind in kinds for name in _ANSWERS.get(kind, ())))


def legal_now(now: Situation) -> list[str]:
    """Return the names of the messages that are legal in this situation, in the order of the table."""
    if now.state == "done":
        return []
    if now.state == "stopping":
        return ["interrupt", "abort"]
    names = {"abort"}
    if now.state == "running":
        names |= {"resume" if now.pause_requested else "pause", "interrupt", "steer"}
    else:
        names |= {"resume", *_answers(now)}
        if now.live:
            names |= {"interrupt", "steer"}
        elif now.waiting_for == "rate_limit":
            # It would go on by itself.
            names |= {"interrupt"}
    return [name for name in MESSAGES if name in names]


def refusal(name: str, payload: Closed, now: Situation) -> str | None:
    """Return why the message is refused now, or None where it is legal."""
    if _is_so(name, now):
        return None
    legal = legal_now(now)
    if name not in legal:
        where = f"waiting for {now.waiting_for}" if now.state == "waiting" else now.state
        if name == "steer" and now.waiting_for is not None:
            goes_on = now.waiting_for in {"pause", "human", "rate_limit"}
            say = (
                "resume, with 'note', tells it to the agent"
                if goes_on
                else "send it again when an agent works; nothing of it is kept"
            )
            where += f", and no agent works: {say}"
        return f"{name} is not legal while the run is {where}{LEGAL_NOW}{', '.join(legal) or 'nothing'}"
    match payload:
        case Resume():
            return _refuse_resume(payload, now)
        case Approve() | Reject():
            return _refuse_call(payload.call_id, now)
        case AnswerQuestion():
            return _refuse_answer(payload, now)
        case _:
            return None


def _is_so(name: str, now: Situation) -> bool:
    """Tell whether what a message asks for is so already: that is no fault, and answered so."""
    held = now.state == "waiting" and now.waiting_for in {"pause", "human"}
    asked = now.pause_requested and now.state in {"running", "waiting"}
    return (name == "pause" and (held or asked)) or (name == "interrupt" and held)


def withdraws(payload: Resume, now: Situation) -> bool:
    """Tell whether a resume withdraws a pause that has not taken hold, and does nothing else.

    While a run waits for words, ``continue`` means nothing else; where it waits until a time, it means to try now.
    """
    goes_on = payload.action == "continue" and payload.transport is None
    means_no_more = now.state == "running" or now.waiting_for in _ANSWERS
    return now.pause_requested and goes_on and means_no_more


def _refuse_resume(payload: Resume, now: Situation) -> str | None:
    if payload.action == "goto":
        if payload.step is None:
            return f"resume with action goto needs 'step': one of {', '.join(now.steps)}"
        if payload.step not in now.steps:
            return f"no step {payload.step!r}; steps: {', '.join(now.steps)}"
    elif payload.step is not None:
        return "'step' belongs to action goto; leave it out or set action to goto"
    if payload.transport is not None:
        if payload.action not in {"continue", "retry"}:
            return "'transport' belongs to the actions continue and retry; leave it out"
        if payload.transport not in now.transports:
            return f"transport {payload.transport!r} is not offered; offered: {', '.join(now.transports)}"
    if withdraws(payload, now):
        return None
    if now.state == "running" and payload.action != "abort":
        return "the run is not held yet: all that resume can do now is withdraw the pause, or abort"
    if payload.action == "continue" and now.waiting_for in _ANSWERS:
        return f"a run waiting for {now.waiting_for} cannot simply continue; use {_instead(now)}"
    if payload.action == "skip" and now.step is not None and now.following is None:
        return f"no single step follows {now.step!r}; use goto with 'step': one of {', '.join(now.steps)}"
    if now.step is None and payload.action in ("retry", "skip", "goto"):
        return f"no step runs that {payload.action} could mean; use continue or abort"
    return None


def _instead(now: Situation) -> str:
    return f"{', '.join(_answers(now))}, or resume with retry, skip, goto or abort"


def _refuse_call(call_id: str | None, now: Situation) -> str | None:
    if call_id is None or find_call(now, call_id) is not None:
        return None
    known = ", ".join(repr(call.call_id) for call in now.calls)
    waits = f"waiting: {known}" if known else "the approval gate does: leave call_id out"
    return f"no call {call_id!r} waits for an approval; {waits}"


def _refuse_answer(payload: AnswerQuestion, now: Situation) -> str | None:
    question = find_question(now, payload.question_id)
    if question is None:
        known = ", ".join(repr(one.question_id) for one in now.questions)
        which = f" {payload.question_id!r} waits for an answer; waiting: {known or 'none'}"
        return f"no question{which if payload.question_id else ' waits for an answer'}"
    try:
        checked(question, payload.answers)
    except BadAnswer as error:
        return str(error)
    return None


def find_question(now: Situation, question_id: str | None) -> Question | None:
    """Return the question of this id that waits; without an id the one that has waited longest."""
    if question_id is None:
        return now.question
    return next((one for one in now.questions if one.question_id == question_id), None)


def find_call(now: Situation, call_id: str | None) -> CallRequest | None:
    """Return the call of this id that waits; without an id the one that has waited longest."""
    if call_id is None:
        return now.call
    return next((one for one in now.calls if one.call_id == call_id), None)
