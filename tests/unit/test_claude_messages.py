"""Frames of Claude Code as events: calls, words, sub-agents, and every token once."""

from __future__ import annotations

from typing import Any

from schemas.common import Usage
from schemas.events import TransportEvent
from transports.claude_messages import Reader, is_piece


def all_of(reader: Reader, *frames: dict[str, Any]) -> list[TransportEvent]:
    return [event for frame in frames for event in reader.take(frame)]


def assistant(*blocks: dict[str, Any], parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"content": list(blocks)}, "parent_tool_use_id": parent, **more}


def use(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result_of(call_id: str, content: Any = "out", *, failed: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return {"type": "user", "message": {"content": [block]}}


def streamed(prompt: int, output: int, parent: str | None = None) -> list[dict[str, Any]]:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": prompt, "output_tokens": 1}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": output}}
    return [
        {"type": "stream_event", "event": event, "parent_tool_use_id": parent} for event in (start, delta)
    ]


def ended(prompt: int, output: int, cost: float) -> dict[str, Any]:
    models = {"m": {"inputTokens": prompt, "outputTokens": output}}
    return {"type": "result", "subtype": "success", "modelUsage": models, "total_cost_usd": cost}


def used(events: list[TransportEvent]) -> Usage:
    total = Usage()
    for event in events:
        if event.kind == "usage":
            total = total.plus(event.usage)
    return total


def test_a_call_begins_and_ends_under_one_id_with_its_words() -> None:
    events = all_of(
        Reader("sdk"),
        assistant(use("1", command="ls")),
        result_of("1", [{"type": "text", "text": "a"}, {"type": "image"}], failed=True),
    )
    began, end = events
    assert began.kind == "tool_started"
    assert end.kind == "tool_ended"
    assert (began.call_id, end.call.call_id) == ("1", "1")
    assert (end.call.output, end.call.success, end.call.blocked) == ("a\n[image]", False, False)
    assert end.call.input == '{"command": "ls"}'


def test_what_was_not_let_through_is_blocked_whatever_the_result_says() -> None:
    reader = Reader("sdk")
    reader.blocked["1"] = "E_X: not that"
    *_, end = all_of(reader, assistant(use("1")), result_of("1"))
    assert end.kind == "tool_ended"
    assert (end.call.blocked, end.call.success, end.call.blocked_reason) == (True, False, "E_X: not that")


def test_what_the_program_itself_denies_is_blocked_too() -> None:
    denied = {
        "type": "system",
        "subtype": "permission_denied",
        "tool_use_id": "1",
        "decision_reason_type": "rule",
        "message": "no",
    }
    *_, end = all_of(Reader("sdk"), assistant(use("1")), denied, result_of("1", failed=True))
    assert end.kind == "tool_ended"
    assert end.call.blocked_reason == "rule: no"


def test_our_own_tools_are_no_calls_of_the_agent_and_unknown_frames_are_nothing() -> None:
    reader = Reader("sdk", hidden=("mcp__stepwise__finalize",))
    assert all_of(reader, assistant(use("1", "mcp__stepwise__finalize")), result_of("1")) == []
    assert all_of(reader, {"type": "something_new"}, {}, {"type": "system", "subtype": "init"}) == []


def test_calls_of_a_subagent_are_its_own() -> None:
    events = all_of(
        Reader("sdk"),
        assistant(use("1", "Agent", subagent_type="helper")),
        assistant({"type": "text", "text": "its own words"}, use("2"), parent="1"),
        result_of("2"),
        result_of("1"),
    )
    kinds = [event.kind for event in events]
    assert kinds == [
        "tool_started",
        "subagent_started",
        "tool_started",
        "tool_ended",
        "subagent_ended",
        "tool_ended",
    ]
    inner = events[3]
    assert inner.kind == "tool_ended"
    assert inner.call.agent_id == "1"


def test_only_what_the_model_says_is_a_piece_of_it() -> None:
    said = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    assert is_piece({"type": "stream_event", "event": said})
    others: list[dict[str, Any]] = [
        {"type": "stream_event", "event": {"type": "ping"}},
        {"type": "stream_event", "event": None},
        {"type": "system", "subtype": "status", "status": "requesting"},
        {"type": "system", "subtype": "api_retry"},
        {"type": "tool_progress", "elapsed_time_seconds": 30},
    ]
    assert [each for each in others if is_piece(each)] == []


def test_every_token_is_counted_once_over_turns() -> None:
    reader = Reader("sdk")
    first = all_of(reader, *streamed(100, 10), *streamed(50, 5, parent="1"), ended(150, 15, 1.0))
    reader.begin()
    # The second turn had an answer that was not streamed.
    second = all_of(reader, *streamed(100, 10), ended(290, 31, 1.5))
    assert used(first) == Usage(prompt=150, completion=15, cost_usd=1.0)
    assert used(second) == Usage(prompt=140, completion=16, cost_usd=0.5)


def test_a_resumed_session_goes_on_counting_where_it_was() -> None:
    frames = [*streamed(100, 10), ended(400, 40, 4.0)]
    known = Reader("sdk", base=Usage(prompt=300, completion=30, cost_usd=3.0))
    assert used(all_of(known, *frames)) == Usage(prompt=100, completion=10, cost_usd=1.0)
    unknown = Reader("sdk", base=None)
    assert used(all_of(unknown, *frames)) == Usage(prompt=100, completion=10)
    anew = Reader("sdk", base=Usage(prompt=900, completion=90, cost_usd=9.0))
    assert used(all_of(anew, *frames)) == Usage(prompt=400, completion=40, cost_usd=4.0)


def test_an_error_in_the_place_of_words_is_no_words() -> None:
    reader = Reader("sdk")
    text = {"type": "text", "text": "API Error: 401"}
    assert all_of(reader, assistant(text, error="authentication_failed")) == []
    assert reader.failure({"api_error_status": None}).assistant_error == "authentication_failed"


def test_the_last_words_are_those_after_the_last_call() -> None:
    reader = Reader("sdk")
    words = [{"type": "text", "text": text} for text in ("before", "after")]
    all_of(reader, assistant(words[0], use("1")), result_of("1"), assistant(words[1]))
    assert reader.words == ["after"]


def test_calls_without_a_result_end_with_their_turn() -> None:
    reader = Reader("cli-observed")
    all_of(reader, assistant(use("1"), use("2")), result_of("1"))
    (left,) = reader.left_open()
    assert left.kind == "tool_ended"
    assert (left.call.call_id, left.call.success, left.call.source) == ("2", False, "cli-observed")
    assert list(reader.left_open()) == []


def test_a_refusal_that_lasts_is_not_waited_out() -> None:
    retry = {"type": "system", "subtype": "api_retry", "error_status": 429, "retry_delay_ms": 3_000}
    reader = Reader("sdk")
    all_of(reader, retry)
    assert (reader.waits_long, reader.reset_at) == (False, None)
    all_of(reader, {**retry, "retry_delay_ms": 120_000})
    assert reader.waits_long
    assert reader.reset_at is not None
    told = Reader("sdk")
    all_of(told, {"type": "rate_limit_event", "rate_limit_info": {"status": "rejected", "resetsAt": 1_800}})
    assert told.reset_at == 1_800
