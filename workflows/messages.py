"""The one table of messages: name, payload, when it is legal. Signals and updates are made from it.

Everything here is pure. A message is judged twice: by a validator before an update is accepted, and by the main
loop when its turn comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from schemas.common import Closed
from schemas.messages import Abort, Approve, Pause, Reject, Resume
from schemas.run_state import State, WaitFor


@dataclass(frozen=True)
class Message:
    """One message people can send: its payload model and one line of help."""

    name: str
    model: type[Closed]
    help: str


MESSAGES: dict[str, Message] = {
    "pause": Message("pause", Pause, "Take hold at the next phase boundary; no payload needed."),
    "resume": Message(
        "resume",
        Resume,
        'Go on. action: continue (default) | retry | skip | goto (with "step") | abort; note: words to the agent.',
    ),
    "abort": Message("abort", Abort, "End the run at once, with receipt and journal; outcome stopped."),
    "approve": Message("approve", Approve, "Let the approval gate pass."),
    "reject": Message("reject", Reject, "Refuse at the approval gate; reason goes to the agent."),
}


@dataclass(frozen=True)
class Situation:
    """What decides whether a message is legal now."""

    state: State
    waiting_for: WaitFor | None
    pause_requested: bool
    steps: Sequence[str]
    transports: Sequence[str]


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
    """Return one line for all faults of a payload, naming each field and what would be right."""
    faults = []
    for fault in error.errors(include_url=False, include_input=False):
        where = ".".join(str(part) for part in fault["loc"]) or "payload"
        if fault["type"] == "extra_forbidden":
            known = _fields_beside(model, fault["loc"])
            faults.append(f"{where}: no such field" + (f"; known: {', '.join(known)}" if known else ""))
        else:
            faults.append(f"{where}: {fault['msg']}")
    return "; ".join(faults)


def _fields_beside(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the model a place is in; none where that cannot be told."""
    inside: type[BaseModel] | None = model
    for part in place[:-1]:
        field = inside.model_fields.get(str(part)) if inside else None
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        inside = models[0] if len(models) == 1 else None
    return list(inside.model_fields) if inside else []


def legal_now(now: Situation) -> list[str]:
    """Return the names of the messages that are legal in this situation, in the order of the table."""
    if now.state == "done":
        return []
    if now.state == "stopping":
        return ["abort"]
    names: set[str] = {"abort"}
    if now.state == "running":
        names.add("resume" if now.pause_requested else "pause")
    elif now.waiting_for == "approval":
        names |= {"approve", "reject", "resume"}
    else:
        names.add("resume")
    return [name for name in MESSAGES if name in names]


def refusal(name: str, payload: Closed, now: Situation) -> str | None:
    """Return why the message is refused now, or None where it is legal."""
    if name == "pause" and (now.pause_requested or now.waiting_for == "pause"):
        return None
    legal = legal_now(now)
    if name not in legal:
        where = f"waiting for {now.waiting_for}" if now.waiting_for else now.state
        return f"{name} is not legal while the run is {where}; legal now: {', '.join(legal) or 'nothing'}"
    if isinstance(payload, Resume):
        return _refuse_resume(payload, now)
    if isinstance(payload, Approve | Reject) and payload.call_id is not None:
        return f"no call {payload.call_id!r} waits for an approval"
    return None


def _refuse_resume(payload: Resume, now: Situation) -> str | None:
    if payload.action == "goto":
        if payload.step is None:
            return f"resume with action goto needs 'step': one of {', '.join(now.steps)}"
        if payload.step not in now.steps:
            return f"no step {payload.step!r}; steps: {', '.join(now.steps)}"
    elif payload.step is not None:
        return "'step' belongs to action goto; leave it out or set action to goto"
    if payload.transport is not None and payload.transport not in now.transports:
        return f"transport {payload.transport!r} is not offered; offered: {', '.join(now.transports)}"
    if payload.action == "continue" and now.waiting_for in ("approval", "answer", "budget"):
        return f"a run waiting for {now.waiting_for} cannot simply continue; use retry, skip, goto or abort"
    return None
