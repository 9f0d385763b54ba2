"""What Codex writes of a session: the file that holds each tool call with the arguments the model gave it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.json_text import parse_json

_EXITED: Final = re.compile(r"^(?:Process exited with|Exit) code:? (-?\d+)$", re.MULTILINE)
_RUNS_ON: Final = re.compile(r"^Process running with session ID", re.MULTILINE)
_REFUSED: Final = re.compile(r"failed|rejected|aborted|unsupported", re.IGNORECASE)
_LOOKED_AT: Final = 200
_LOOK_S: Final = 0.01
_LIMIT_S: Final = 3.0
_PROMPT: Final = "UserMessage"
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})


@dataclass
class Made:
    """A tool call as the model made it: ``arguments`` of a function, or the one text ``input``; its output later."""

    name: str
    arguments: Mapping[str, Any]
    output: str | None = None


def end_of(made: Made) -> tuple[bool, str] | None:
    """Return whether a call succeeded and what it printed, by what the model was told; None while that is not known."""
    if made.output is None:
        return None
    head, found, body = made.output.partition("\nOutput:\n")
    if _RUNS_ON.search(head):
        return None
    exited = _EXITED.search(head)
    if found and exited is not None:
        return exited[1] == "0", with_exit_code(int(exited[1]), body)
    return _REFUSED.search(made.output[:_LOOKED_AT]) is None, made.output


def with_exit_code(code: int | None, output: str) -> str:
    """Return what a command printed, behind its exit code where it failed: as the other transports show it."""
    return f"exit code {code}\n{output}" if code else output


class Rollout:
    """The calls of one session, read from its file as it grows.

    The app-server does not say with which arguments a command was asked for, so that a request to leave the sandbox
    looks like any other; the file does, and has a call before its approval is asked.
    """

    def __init__(self, path: Path) -> None:
        self.calls: dict[str, Made] = {}
        self.prompts: list[str] = []
        """What was said to the agent, as far as its model has it."""
        self.path = path
        self._read = 0
        self._reading = asyncio.Lock()

    async def call(self, call_id: str) -> Made | None:
        """Return a call; None when the file does not come to hold it."""
        until = time.monotonic() + _LIMIT_S
        while call_id not in self.calls:
            await self.catch_up()
            if call_id in self.calls or time.monotonic() >= until:
                break
            await asyncio.sleep(_LOOK_S)
        return self.calls.get(call_id)

    async def catch_up(self) -> None:
        """Read what is new in the file."""
        async with self._reading:
            for line in await asyncio.to_thread(self._new_lines):
                self._take(line)

    async def skip(self) -> None:
        """Leave out what the file holds so far, of earlier turns."""
        async with self._reading:
            await asyncio.to_thread(self._new_lines)
            self.calls.clear()
            self.prompts.clear()

    def _new_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.splitlines()

    def _take(self, line: bytes) -> None:
        try:
            item = parse_json(line).get("payload")
        except (ValueError, AttributeError):
            return
        if not isinstance(item, dict):
            return
        self.prompts += _prompts(item.get("item")) or []
        if not isinstance(item.get("call_id"), str):
            return
        kind, call_id = item.get("type"), item["call_id"]
        if kind == "function_call":
            self.calls[call_id] = Made(str(item.get("name")), _object(item.get("arguments")))
        elif kind == "custom_tool_call":
            self.calls[call_id] = Made(str(item.get("name")), {"input": item.get("input")})
        elif kind in _OUTPUTS and call_id in self.calls:
            output = item.get("output")
            self.calls[call_id].output = output if isinstance(output, str) else json.dumps(output)


def holds_a_turn(path: Path) -> bool:
    """Tell whether a session's file has anything that was said to the agent; raises OSError."""
    with path.open("rb") as file:
        return any(map(_is_prompt, file))


def _is_prompt(line: bytes) -> bool:
    if _PROMPT.encode() not in line:
        return False
    try:
        item = parse_json(line)["payload"]["item"]
    except (ValueError, KeyError, TypeError):
        return False
    return _prompts(item) is not None


def _prompts(item: object) -> list[str] | None:
    """Return the texts with which an item says something to the agent; None for an item of any other kind."""
    if not isinstance(item, dict) or item.get("type") != _PROMPT:
        return None
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return [str(part.get("text", "")) for part in parts if isinstance(part, dict)]


def _object(text: object) -> Mapping[str, Any]:
    try:
        value = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
