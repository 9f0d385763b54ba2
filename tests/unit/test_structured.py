"""Structured output by asking again: what is read, what is refused, what is asked again, when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from pydantic import Field, field_validator

from schemas.common import Closed
from schemas.errors import StepwiseError
from schemas.handoff import HandoffDraft
from transports.port import StructuredResult
from transports.structured import MAX_ANSWER_CHARS, MAX_REPROMPTS, AnswerRefused, ask_structured, read_answer


class Verdict(Closed):
    word: str
    score: float = Field(ge=0, le=1)

    @field_validator("word")
    @classmethod
    def _no_shouting(cls, word: str) -> str:
        if word.isupper():
            message = "do not shout"
            raise ValueError(message)
        return word


class Boxed(Closed):
    output: str


GOOD = {"word": "fine", "score": 0.5}


class Agent:
    """Gives the answers it was made with, in turn, and keeps the prompts."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []

    async def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answers.pop(0)


async def asked(agent: Agent, timeout_s: float = 60) -> StructuredResult:
    return await ask_structured(agent.ask, "What do you say?", Verdict, timeout_s=timeout_s)


async def test_a_good_answer_is_taken_at_once() -> None:
    agent = Agent(json.dumps(GOOD))
    assert await asked(agent) == StructuredResult(value=GOOD, reprompts=0)
    assert agent.prompts[0].startswith("What do you say?")
    assert '"score"' in agent.prompts[0]


async def test_a_bad_answer_is_asked_again_with_its_errors_until_a_good_one_comes() -> None:
    agent = Agent("I would say it is fine.", json.dumps({"word": "fine", "score": 7}), json.dumps(GOOD))
    assert await asked(agent) == StructuredResult(value=GOOD, reprompts=2)
    assert "not JSON" in agent.prompts[1]
    assert "$.score" in agent.prompts[2]
    assert "7 is greater than the maximum of 1" in agent.prompts[2]


async def test_bad_answers_end_after_the_last_reprompt_with_the_errors_and_the_answer() -> None:
    agent = Agent(*(['{"word": "fine"}'] * 9))
    result = await asked(agent)
    assert result.value is None
    assert result.reprompts == MAX_REPROMPTS == len(agent.prompts) - 1
    assert result.error is not None
    assert result.error.code == "structured_output_invalid"
    assert "'score' is a required property" in result.error.details["errors"]
    assert result.error.details["answer"] == '{"word": "fine"}'


async def test_a_lone_output_around_the_answer_is_taken_off() -> None:
    assert (await asked(Agent(json.dumps({"output": GOOD})))).value == GOOD


def test_an_output_that_belongs_to_the_schema_is_left_where_it_is() -> None:
    assert read_answer('{"output": "x"}', Boxed) == {"output": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"```json\n{json.dumps(GOOD)}\n```", "markdown fence"),
        (f"\n  ```\n{json.dumps(GOOD)}\n```", "markdown fence"),
        (f"Here it is:\n```json\n{json.dumps(GOOD)}\n```", "not JSON"),
        (f"{json.dumps(GOOD)} That is all.", "not JSON"),
        ('{"word": "fine", "score": NaN}', "NaN is not a JSON value"),
        ('{"word": "fine", "score": 1e999}', "greater than the maximum"),
        ('{"word": "fine", "score": 0.5, "mood": "good"}', "mood"),
        ('{"word": "FINE", "score": 0.5}', "do not shout"),
        ('{"output": {"output": {"word": "fine", "score": 0.5}}}', "required property"),
        ("[1, 2]", "not of type 'object'"),
        ("null", "not of type 'object'"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('"' + "x" * MAX_ANSWER_CHARS + '"', "at most"),
    ],
)
def test_what_is_not_exactly_one_value_of_the_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(AnswerRefused, match=message):
        read_answer(text, Verdict)


def test_the_errors_of_a_huge_answer_are_few_and_short() -> None:
    with pytest.raises(AnswerRefused) as refused:
        read_answer(json.dumps({f"key{number}": "y" * 10_000 for number in range(50)}), HandoffDraft)
    assert len(refused.value.errors) <= 10
    assert all(len(error) < 500 for error in refused.value.errors)


async def test_all_tries_share_one_time_limit() -> None:
    async def never(_: str) -> str:
        await asyncio.Event().wait()
        return ""

    result = await ask_structured(never, "?", Verdict, timeout_s=0.01)
    assert result.error is not None
    assert (result.error.code, result.error.retryable) == ("structured_timeout", True)


async def test_an_agent_that_fails_is_an_error_of_its_own_code() -> None:
    async def failing(_: str) -> str:
        raise StepwiseError("agent_crashed", "gone")

    result = await ask_structured(failing, "?", Verdict, timeout_s=60)
    assert result.value is None
    assert result.error is not None
    assert result.error.code == "agent_crashed"


async def test_cancelling_is_not_swallowed() -> None:
    reached = asyncio.Event()

    async def never(_: str) -> str:
        reached.set()
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(ask_structured(never, "?", Verdict, timeout_s=60))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("wrap", [str, lambda text: f"\n {text} \n"])
def test_white_space_around_the_answer_does_not_matter(wrap: Callable[[str], str]) -> None:
    assert read_answer(wrap(json.dumps(GOOD)), Verdict) == GOOD
