"""What the stub answers to structured requests: a well-formed default, a script's fields, or its raw text."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel

from schemas.errors import StepwiseError
from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from schemas.scenario import Answering, Turn
from transports.stub_progress import Progress

Request = Literal["finalize", "route"]


def request_for(schema: type[BaseModel]) -> Request:
    """Return which part of a turn answers requests for this schema; raises StepwiseError if none does."""
    if issubclass(schema, HandoffDraft):
        return "finalize"
    if issubclass(schema, RoutingSignal):
        return "route"
    raise StepwiseError("unsupported_schema", f"the stub answers no {schema.__name__}")


def answering_of(turn: Turn, request: Request) -> Answering:
    """Return the part of a turn that answers."""
    return turn.finalize if request == "finalize" else turn.route


def answer_text(answering: Answering, request: Request, progress: Progress, *, tries: int) -> str:
    """Return the answer of one try (the first is 0): raw text while there is some, then the JSON object."""
    if tries < len(answering.raw):
        return answering.raw[tries]
    default = _draft(progress) if request == "finalize" else _signal()
    return json.dumps(default | answering.value, ensure_ascii=False)


def _draft(progress: Progress) -> dict[str, Any]:
    return HandoffDraft(
        status="UNVERIFIED",
        summary=f"stub did {progress.actions} actions",
        proposed_next_step=None,
        notes_for_next_step="; ".join(progress.labels),
        confidence=0.5,
        can_further_iteration_help="unsure",
        assumptions=[],
        decisions=[],
        blockers=[],
        evidence_names=[],
    ).model_dump(mode="json")


def _signal() -> dict[str, Any]:
    return RoutingSignal(
        decision="advance", reason="the scenario names no other way", confidence=0.5
    ).model_dump(mode="json")
