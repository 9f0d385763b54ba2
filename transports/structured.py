"""Structured output for agents without their own: parse, validate, ask again with the errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from schemas.cutting import cut
from schemas.envelopes import ErrorEnvelope, Reported, envelope_of
from schemas.errors import StepwiseError
from schemas.json_text import parse_json
from transports.port import StructuredResult, WorkOutcome

MAX_REPROMPTS: Final = 3
"""How often an agent is asked again after an answer that does not validate."""
MAX_ANSWER_CHARS: Final = 1_000_000
"""Longer answers are refused unread."""

_MAX_ERRORS: Final = 10
_MAX_ERROR_CHARS: Final = 300
_FENCE: Final = "```"

AskOnce = Callable[[str], Awaitable[str]]
"""Takes a prompt and returns the agent's whole answer; may raise StepwiseError when there is none."""


class AnswerRefused(StepwiseError):
    """Raised when an answer is not a value of the schema; ``errors`` are sentences to ask again with."""

    def __init__(self, *errors: str) -> None:
        super().__init__("answer_refused", "; ".join(errors))
        self.errors = errors


class TurnLost(Reported):
    """Raised when a turn that was to give an answer ended without one; ``outcome`` says how it ended."""

    def __init__(self, outcome: WorkOutcome) -> None:
        self.outcome = outcome
        untold = f"the turn ended before its answer: {outcome.end}"
        super().__init__(outcome.error or ErrorEnvelope(code=outcome.end, message=untold, retryable=True))


def unanswered(error: Exception, *, code: str = "transport_error", reprompts: int = 0) -> StructuredResult:
    """Return the result of a request that ``error`` ended; one that is not ours is of kind ``code``."""
    outcome = error.outcome if isinstance(error, TurnLost) else None
    return StructuredResult(
        value=None,
        reprompts=reprompts,
        error=envelope_of(error, code=code),
        rate_limited=outcome is not None and outcome.end == "rate_limited",
        retry_at=outcome.retry_at if outcome is not None else None,
    )


async def ask_structured(
    ask: AskOnce, prompt: str, schema: type[BaseModel], *, timeout_s: float
) -> StructuredResult:
    """Ask until the answer is a value of ``schema``, at most ``MAX_REPROMPTS`` times again.

    All tries together may take ``timeout_s`` seconds. Raises nothing but CancelledError: what goes wrong is the
    result's error, with code ``structured_output_invalid``, ``structured_timeout`` or that of the StepwiseError.
    """
    tries = 0
    try:
        async with asyncio.timeout(timeout_s):
            request = f"{prompt}\n\n{_demand(schema)}"
            while True:
                answer = await ask(request)
                try:
                    return StructuredResult(value=read_answer(answer, schema), reprompts=tries)
                except AnswerRefused as refused:
                    if tries == MAX_REPROMPTS:
                        return StructuredResult(
                            value=None, reprompts=tries, error=_invalid(schema, answer, refused.errors)
                        )
                    listed = "\n".join(f"- {error}" for error in refused.errors)
                    request = f"Your answer was not accepted:\n{listed}\n\n{_demand(schema)}"
                    tries += 1
    except TimeoutError:
        error = ErrorEnvelope(
            code="structured_timeout",
            message=f"no valid {schema.__name__} within {timeout_s:g} seconds",
            retryable=True,
        )
    except StepwiseError as raised:
        return unanswered(raised, reprompts=tries)
    return StructuredResult(value=None, reprompts=tries, error=error)


def read_answer(text: str, schema: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON object that is the whole of ``text``; raises AnswerRefused if it is no ``schema``.

    A lone ``{"output": …}`` around the object is taken off. Markdown fences are never looked into: where prose is
    allowed around the answer, what is the answer becomes a guess.
    """
    value = _unwrapped(_parsed(text), schema)
    errors = [
        _sentence(error.json_path, error.message)
        for error in sorted(_validator(schema).iter_errors(value), key=lambda error: error.json_path)
    ]
    if errors:
        raise AnswerRefused(*errors[:_MAX_ERRORS])
    if not isinstance(value, dict):
        raise AnswerRefused("the answer must be a JSON object")
    try:
        schema.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        sentences = [_sentence(".".join(map(str, item["loc"])), item["msg"]) for item in found]
        raise AnswerRefused(*sentences[:_MAX_ERRORS]) from error
    return value


def _parsed(text: str) -> object:
    if len(text) > MAX_ANSWER_CHARS:
        raise AnswerRefused(f"the answer has {len(text)} characters; at most {MAX_ANSWER_CHARS} are read")
    if text.lstrip().startswith(_FENCE):
        raise AnswerRefused("the answer is inside a markdown fence; write the JSON object alone")
    try:
        parsed: object = parse_json(text, parse_constant=_no_constant)
    except ValueError as error:
        raise AnswerRefused(f"the answer is not JSON: {error}") from None
    return parsed


def _no_constant(name: str) -> object:
    message = f"{name} is not a JSON value"
    raise ValueError(message)


def _unwrapped(value: object, schema: type[BaseModel]) -> object:
    if isinstance(value, dict) and value.keys() == {"output"} and "output" not in schema.model_fields:
        return value["output"]
    return value


@lru_cache(maxsize=32)
def _validator(schema: type[BaseModel]) -> Draft202012Validator:
    return Draft202012Validator(schema.model_json_schema())


@lru_cache(maxsize=32)
def _demand(schema: type[BaseModel]) -> str:
    return (
        "Answer with one JSON object and nothing else: no prose, no markdown fence. It must validate against\n"
        f"{json.dumps(schema.model_json_schema(), ensure_ascii=False)}"
    )


def _sentence(place: str, message: str) -> str:
    return f"{place}: {cut(message, _MAX_ERROR_CHARS)}"


def _invalid(schema: type[BaseModel], answer: str, errors: tuple[str, ...]) -> ErrorEnvelope:
    return ErrorEnvelope(
        code="structured_output_invalid",
        message=f"no valid {schema.__name__} after {MAX_REPROMPTS} reprompts: {errors[0]}",
        details={"errors": "\n".join(errors), "answer": cut(answer)},
    )
