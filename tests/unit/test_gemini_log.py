"""Session files of Gemini CLI: found, counted, and made fit to be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.common import Usage
from transports.gemini_log import SessionLost, Tail, folded, make_resumable, sanitize, session_file

SESSION = "11111111-2222-4333-8444-555555555555"
HEADER = {"sessionId": SESSION, "kind": "main"}


def said(text: str, message_id: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"id": message_id, "type": role, "content": [{"text": text}], **more}


def response(call_id: str, output: str = "ok") -> dict[str, Any]:
    return {"functionResponse": {"id": call_id, "name": "t", "response": {"output": output}}}


def made(call_id: str, *, result: bool = True) -> dict[str, Any]:
    call: dict[str, Any] = {"id": call_id, "name": "t", "args": {"a": 1}}
    return call | ({"result": [response(call_id)]} if result else {})


def file_of(folder: Path, *records: Any) -> Path:
    path = folder / f"session-2026-01-01T00-00-{SESSION[:8]}.jsonl"
    lines = (record if isinstance(record, str) else json.dumps(record) for record in (HEADER, *records))
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def parts(path: Path, kind: str) -> list[str]:
    """Return the ids of all calls or responses that a resumed session would send, in their order."""
    _, messages = folded(path)
    found = [part for message in messages for part in message["content"] if kind in part]
    assert not any("toolCalls" in message for message in messages)
    return [part[kind]["id"] for part in found]


def test_each_call_and_each_result_is_kept_once(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        said("go", "1"),
        said("I call", "2", "gemini"),
        said("I call", "2", "gemini", toolCalls=[made("a"), made("b")]),
        {"id": "3", "type": "user", "content": [response("a"), response("b")]},
        said("done", "4", "gemini"),
    )
    for _ in range(2):
        sanitize(path)
        assert parts(path, "functionCall") == parts(path, "functionResponse") == ["a", "b"]
    _, messages = folded(path)
    assert [message["type"] for message in messages] == ["user", "gemini", "user", "gemini"]


def test_results_that_resuming_doubled_are_folded(tmp_path: Path) -> None:
    call = {"functionCall": {"id": "a", "name": "t", "args": {}}}
    path = file_of(
        tmp_path,
        said("go", "1"),
        {"$set": {"messages": [said("go", "1"), {"id": "2", "type": "gemini", "content": [call]}]}},
        {"id": "2_response", "type": "user", "content": [response("a")]},
        {"id": "3", "type": "user", "content": [response("a"), {"text": "more"}]},
    )
    sanitize(path)
    assert parts(path, "functionCall") == parts(path, "functionResponse") == ["a"]
    assert "more" in path.read_text()


def test_a_call_that_was_interrupted_gets_a_result(tmp_path: Path) -> None:
    path = file_of(tmp_path, said("go", "1"), said("", "2", "gemini", toolCalls=[made("a", result=False)]))
    sanitize(path)
    assert parts(path, "functionResponse") == ["a"]
    assert "interrupted" in path.read_text()


def test_a_result_that_stands_in_its_call_alone_is_kept(tmp_path: Path) -> None:
    path = file_of(tmp_path, said("go", "1"), said("x", "2", "gemini", toolCalls=[made("a")]))
    sanitize(path)
    assert parts(path, "functionResponse") == ["a"]
    assert "interrupted" not in path.read_text()


def test_a_torn_line_and_a_rewind_are_understood(tmp_path: Path) -> None:
    path = file_of(tmp_path, said("one", "1"), said("two", "2"), {"$rewindTo": "2"}, '{"id": "3", "ty')
    sanitize(path)
    assert [message["id"] for message in folded(path)[1]] == ["1"]


def test_a_file_without_a_header_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "session-x.jsonl"
    path.write_text("garbage\n")
    with pytest.raises(SessionLost):
        sanitize(path)


def test_a_session_is_found_by_its_whole_id(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    assert session_file(tmp_path, SESSION) == path
    assert session_file(tmp_path, SESSION[:-1] + "6") is None
    assert session_file(tmp_path, "unknown") is None
    assert session_file(tmp_path, "*") is None
    assert session_file(tmp_path / "none", SESSION) is None


def test_a_file_that_the_program_began_and_left_is_not_the_session(tmp_path: Path) -> None:
    path = file_of(tmp_path, said("context", "0"), said("go", "1"), said("done", "2", "gemini"))
    left = tmp_path / path.name.replace("00-00", "00-01")
    left.write_text("".join(f"{json.dumps(line)}\n" for line in (HEADER, said("context", "0"))))
    other = tmp_path / f"session-2026-01-01T00-02-{SESSION[:8]}.jsonl"
    other.write_text(json.dumps({"sessionId": SESSION[:-1] + "6"}) + "\n")
    assert make_resumable(tmp_path, SESSION) == path
    assert (left.exists(), other.exists()) == (False, True)
    assert len(folded(path)[1]) == 3
    assert make_resumable(tmp_path / "none", SESSION) is None


def test_what_is_new_is_counted_once(tmp_path: Path) -> None:
    tokens = {"input": 100, "cached": 40, "output": 10, "thoughts": 5, "tool": 1}
    path = file_of(tmp_path, said("old", "0", "gemini", tokens=tokens))
    tail = Tail(tmp_path, SESSION)
    tail.skip(path)
    assert tail.look() == Usage()
    with path.open("a") as file:
        for record in (
            said("new", "1", "gemini", tokens=tokens),
            said("new", "1", "gemini", tokens=tokens, toolCalls=[made("a")]),
        ):
            file.write(json.dumps(record) + "\n")
        file.write('{"id": "2", "type": "gem')
    assert tail.look() == Usage(prompt=61, completion=15, cache_read=40)
    assert tail.look() == Usage()
    assert (tail.answer, tail.outputs) == ("new", {"a": "ok"})


def test_the_answer_is_the_last_text_whatever_broke_before_it(tmp_path: Path) -> None:
    tail = Tail(tmp_path, SESSION)
    assert (tail.look(), tail.answer) == (Usage(), None)
    thought = {"text": "hm", "thought": True}
    file_of(
        tmp_path,
        said("half", "1", "gemini"),
        {"id": "2", "type": "gemini", "content": [thought, {"text": "whole"}]},
    )
    tail.look()
    assert tail.answer == "whole"


def test_a_file_in_which_nothing_was_said_is_lost(tmp_path: Path) -> None:
    path = file_of(tmp_path, said("<session_context>This is the Gemini CLI.", "0"))
    with pytest.raises(SessionLost, match="nothing that was said"):
        sanitize(path)
