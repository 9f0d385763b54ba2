"""What ends a turn of Claude Code, by the frames of its program: a result, or that nothing is left to be begun."""

from __future__ import annotations

from typing import Any

from schemas.events import TransportEvent
from transports.claude_turn import Turn


def _ignore(event: TransportEvent) -> None:
    del event


def made(*said: str, words: str = "") -> Turn:
    """Return a turn to which something was said: a prompt, and perhaps words behind it."""
    turn = Turn(_ignore)
    for prompt_id in said:
        turn.said(prompt_id)
    if words:
        turn.said("words", words)
    return turn


def moved(said: str, *states: str) -> list[dict[str, Any]]:
    return [{"type": "command_lifecycle", "command_uuid": said, "state": state} for state in states]


def result(*ids: str) -> dict[str, Any]:
    return {"type": "result", "user_message_uuids": list(ids), "user_message_uuid": ids[0] if ids else None}


async def test_a_turn_goes_on_until_the_words_said_in_it_are_answered_too() -> None:
    turn = made("prompt", words="mind the gap")
    turn.take(result("prompt"))
    assert not turn.done.done()
    turn.take(result("words"))
    assert turn.done.result() == result("words")


async def test_words_that_are_dropped_are_kept_and_not_waited_for() -> None:
    turn = made("prompt", words="mind the gap")
    for frame in [*moved("prompt", "queued", "started"), *moved("words", "queued")]:
        turn.take(frame)
    assert turn.waiting == ["words"]
    turn.take(moved("words", "cancelled")[0])
    assert turn.waiting == []
    assert turn.unheard == ["mind the gap"]
    assert not turn.done.done()
    turn.take(result("prompt"))
    assert turn.done.done()


async def test_words_that_the_agent_has_heard_when_it_is_stopped_are_not_said_again() -> None:
    turn = made("prompt", words="mind the gap")
    turn.ended_by = "interrupted"
    for frame in [*moved("prompt", "started"), *moved("words", "queued", "started", "cancelled")]:
        turn.take(frame)
    assert not turn.done.done(), "the program still owes the result"
    turn.take(result("prompt", "words"))
    assert turn.done.done()
    assert turn.unheard == []


async def test_a_turn_that_is_stopped_before_it_has_begun_ends_without_a_result() -> None:
    turn = made("prompt")
    turn.ended_by = "interrupted"
    for frame in moved("prompt", "queued", "cancelled"):
        turn.take(frame)
    assert turn.done.done()


async def test_what_was_said_in_an_earlier_turn_moves_nothing() -> None:
    turn = made("prompt")
    turn.ended_by = "interrupted"
    for frame in [*moved("earlier", "started", "cancelled"), result("earlier")]:
        turn.take(frame)
    assert not turn.done.done()
