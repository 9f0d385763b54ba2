"""The session files of Gemini CLI: which there are, what happened since, and how one is made fit to be resumed.

Each is a log in JSON lines: a header, messages (a later line with the same id replaces an earlier one), and changes of
the whole (``$set``, ``$rewindTo``). They tell what the program's stream does not: the tokens of each model call, the
exit codes of commands, and which text was the answer when a stream broke and was tried again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.common import Usage
from schemas.json_text import parse_json

Record = dict[str, Any]

_PREFIX: Final = "session-"
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OWN_WORDS: Final = "<session_context>"
_CALL: Final = "functionCall"
_RESPONSE: Final = "functionResponse"
_LOST: Final = "the call was interrupted; whether it took effect is not known"
MAX_FILE_BYTES: Final = 256 * 1024 * 1024
"""Longer session files are not resumed."""


class SessionLost(Exception):
    """Raised when a session file is there and cannot be gone on with."""


def session_file(chats: Path, session_id: str) -> Path | None:
    """Return the file of a session, or None if there is none; its id is a UUID, nothing else is looked for.

    The program begins a file whenever it starts, and leaves it when it goes on with another: the longest is the one.
    """
    files = _files_of(chats, session_id)
    return max(files, key=lambda path: path.stat().st_size, default=None)


def _files_of(chats: Path, session_id: str) -> list[Path]:
    if _ID.fullmatch(session_id) is None:
        return []
    found: list[Path] = []
    for path in sorted(chats.glob(f"{_PREFIX}*{session_id[:8]}.jsonl")):
        with suppress(OSError), path.open("rb") as file:
            header = _parsed(file.readline())
            if header is not None and header.get("sessionId") == session_id:
                found.append(path)
    return found


def make_resumable(chats: Path, session_id: str) -> Path | None:
    """Return the file of a session once it is the only one and fit to be gone on with; None if there is none.

    Raises SessionLost, or OSError.
    """
    chosen = session_file(chats, session_id)
    if chosen is not None:
        sanitize(chosen)
        for path in _files_of(chats, session_id):
            if path != chosen:
                path.unlink()
    return chosen


def sanitize(path: Path) -> None:
    """Write a session file anew, so that resuming it sends each call once and each result once.

    The program as it is repeats every result on resume, and leaves calls that were interrupted without one: both are
    refused by the server. Raises SessionLost, or OSError.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        message = f"the session has more than {MAX_FILE_BYTES} bytes"
        raise SessionLost(message)
    header, messages = folded(path)
    if header is None:
        raise SessionLost("the session's file has no header")
    lines = [header, *_answered(messages)]
    if not any(_is_said(message) for message in messages):
        raise SessionLost("the session's file holds nothing that was said in it")
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")
    fresh.replace(path)


def folded(path: Path) -> tuple[Record | None, list[Record]]:
    """Return the header of a session and its messages as they stand at the end of the log."""
    header: Record | None = None
    messages: dict[str, Record] = {}
    with path.open("rb") as file:
        for record in filter(None, map(_parsed, file)):
            if isinstance(whole := record.get("$set"), dict):
                replaced = whole.get("messages")
                if isinstance(replaced, list):
                    messages = {one["id"]: one for one in replaced if isinstance(one, dict) and "id" in one}
            elif "$rewindTo" in record:
                kept = list(messages)
                if (target := record["$rewindTo"]) in messages:
                    messages = {one: messages[one] for one in kept[: kept.index(target)]}
            elif "sessionId" in record:
                header = header or record
            elif isinstance(record.get("id"), str):
                messages[record["id"]] = record
    return header, list(messages.values())


def _is_said(message: Record) -> bool:
    """Tell whether a message is of the user or the agent, and no more than the program's own first words."""
    texts = [str(part.get("text", "")) for part in _parts(message)]
    own = bool(texts) and all(text.lstrip().startswith(_OWN_WORDS) for text in texts)
    return message.get("type") in {"user", "gemini"} and bool(texts) and not own


def _answered(messages: list[Record]) -> Iterator[Record]:
    """Yield the messages with each call in the content of one, and its one result in the message after it."""
    results = {
        response["id"]: part
        for message in messages
        for part in _parts(message)
        if isinstance(response := part.get(_RESPONSE), dict) and "id" in response
    }
    seen: set[str] = set()
    for message in messages:
        calls = {one: part for one, part in _calls(message).items() if one not in seen}
        seen |= calls.keys()
        said = [part for part in _parts(message) if _RESPONSE not in part and _CALL not in part]
        if message.get("type") == "gemini" and (said or calls):
            plain = {name: value for name, value in message.items() if name != "toolCalls"}
            yield plain | {"content": [*said, *calls.values()]}
        elif said or message.get("type") not in {"user", "gemini"}:
            yield message | ({"content": said} if said else {})
        if calls:
            answers = [_result(one, calls[one], results, message) for one in calls]
            when = message.get("timestamp")
            yield {"id": f"{message['id']}-results", "timestamp": when, "type": "user", "content": answers}


def _calls(message: Record) -> dict[str, Record]:
    """Return the calls a message makes, by their ids, as parts of a content."""
    calls = {
        call["id"]: {_CALL: {"id": call["id"], "name": call.get("name", ""), "args": call.get("args") or {}}}
        for call in message.get("toolCalls") or []
        if isinstance(call, dict) and isinstance(call.get("id"), str)
    }
    for part in _parts(message):
        call = part.get(_CALL)
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            calls[call["id"]] = part
    return calls


def _result(call_id: str, call: Record, results: Mapping[str, Record], message: Record) -> Record:
    if call_id in results:
        return results[call_id]
    for made in message.get("toolCalls") or []:
        own = made.get("result") if isinstance(made, dict) and made.get("id") == call_id else None
        if isinstance(own, list) and own and isinstance(own[0], dict) and _RESPONSE in own[0]:
            return dict(own[0])
    return {_RESPONSE: {"id": call_id, "name": call[_CALL].get("name", ""), "response": {"error": _LOST}}}


def _parts(message: Record) -> list[Record]:
    """Return the parts of a message; a text is one part."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"text": content}] if content else []
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _parsed(line: bytes) -> Record | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@dataclass
class Tail:
    """What a session file says that is new: read on with each ``look``, which costs only that.

    ``waiting`` says that the last answer of the model made calls: it has not been asked since they ended.
    """

    chats: Path
    session_id: str
    used: Usage = field(default_factory=Usage)
    outputs: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    waiting: bool = False

    def __post_init__(self) -> None:
        self._path: Path | None = None
        self._offset = 0
        self._counted: set[str] = set()

    def skip(self, path: Path | None) -> None:
        """Begin behind what the file has by now; None where there is no file yet."""
        self._path = path
        self._offset = 0 if path is None else path.stat().st_size

    def look(self) -> Usage:
        """Read what is new; return what was used by model calls that were not seen before. Never raises."""
        self._path = self._path or session_file(self.chats, self.session_id)
        if self._path is None:
            return Usage()
        fresh = Usage()
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    if (record := _parsed(line)) is not None:
                        fresh = fresh.plus(self._take(record))
        except OSError:
            return fresh
        self.used = self.used.plus(fresh)
        return fresh

    @property
    def answer(self) -> str | None:
        """The text of the last model call that was recorded, or None if there was none."""
        return next(reversed(self.said.values()), None)

    def _take(self, record: Record) -> Usage:
        message_id = record.get("id")
        if record.get("type") != "gemini" or not isinstance(message_id, str):
            return Usage()
        for call in record.get("toolCalls") or []:
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                self.outputs[call["id"]] = _output_of(call)
        self.waiting = bool(_calls(record))
        self.said[message_id] = "".join(
            str(part.get("text", "")) for part in _parts(record) if not part.get("thought")
        )
        tokens = record.get("tokens")
        if message_id in self._counted or not isinstance(tokens, dict):
            return Usage()
        self._counted.add(message_id)
        return usage_of(tokens)


def usage_of(tokens: Record) -> Usage:
    """Return what one model call used; what came from the cache is part of ``input``."""
    count = {name: value for name, value in tokens.items() if isinstance(value, int) and value >= 0}
    cached = count.get("cached", 0)
    return Usage(
        prompt=max(0, count.get("input", 0) - cached) + count.get("tool", 0),
        completion=count.get("output", 0) + count.get("thoughts", 0),
        cache_read=cached,
    )


def _output_of(call: Record) -> str:
    for part in call.get("result") or []:
        response = part.get(_RESPONSE, {}).get("response", {}) if isinstance(part, dict) else {}
        if isinstance(response, dict):
            return str(response.get("output", response.get("error", "")))
    return ""


def chats_in(home: Path, slug: str) -> Path:
    """Return where the program looks for the sessions of a project, below its home."""
    return home / ".gemini" / "tmp" / slug / "chats"


def link_chats(home: Path, slug: str, chats: Path) -> None:
    """Keep the sessions of a home in ``chats``, which outlives it."""
    chats.mkdir(parents=True, exist_ok=True)
    place = chats_in(home, slug)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() and os.readlink(place) == str(chats):  # noqa: PTH115 - a Path is no different here
        return
    place.symlink_to(chats)
