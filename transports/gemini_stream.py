"""What Gemini CLI prints while it works, line by line, as events; and what of it decides how a turn ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from policy.commands import Verdict
from schemas.common import Usage
from schemas.cutting import cut
from schemas.events import TextEvent, ToolEnded, ToolStarted, UsageEvent
from schemas.json_text import parse_json
from schemas.tools import NormalizedToolCall
from transports.gemini_log import Tail, usage_of
from transports.gemini_policy import BUILT_IN, SHELL
from transports.port import Emit

_BLOCKED_HEAD: Final = re.compile(r"\ATool execution (?:denied by policy\.|blocked:)\s*")
_CODE: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9_]*: ")
_UNASKED: Final = frozenset({"invalid_tool_params", "tool_not_registered"})
"""Errors of calls that the program finds before it asks its hook."""
_OUTSIDE: Final = "Path not in workspace"
_BUILD_FILE: Final = "build configuration files"
_LABEL: Final = re.compile(r"(Exit Code|Signal|Background PIDs|Process Group PGID): (.*)")
_CANCELLED: Final = ("Command was automatically cancelled", "Command was cancelled")
_FENCED: Final = re.compile(r"\A<untrusted_context>\n(.*)\n</untrusted_context>\Z", re.DOTALL)


@dataclass
class _Open:
    """A call that has begun."""

    tool: str
    arguments: Mapping[str, Any]
    begun: float


@dataclass
class Stream:
    """Takes the lines of one process. ``on_made`` hears of each call that was made, and whether it succeeded.

    ``result`` is the terminal event, None while there is none; ``warned`` the last error or warning that was said;
    ``answered`` says that the model said or called something; ``garbage`` counts lines that are no events.
    """

    emit: Emit
    tail: Tail
    on_usage: Callable[[Usage], None]
    on_made: Callable[[str, Mapping[str, Any], bool], None]
    judge: Callable[[str, Mapping[str, Any]], Verdict]
    result: Mapping[str, Any] | None = None
    warned: str = ""
    answered: bool = False
    garbage: int = 0
    started: bool = False
    _open: dict[str, _Open] = field(default_factory=dict)
    _unsettled: dict[str, str] = field(default_factory=dict)
    _silent: bool = False

    def take(self, line: bytes) -> None:
        """Take one line."""
        try:
            event = parse_json(line)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.garbage += bool(line.strip())
            return
        self.started = True
        match event.get("type"):
            case "message" if event.get("role") == "assistant" and event.get("content"):
                self.answered, self._silent = True, False
                self.emit(TextEvent(text=str(event["content"])))
            case "tool_use":
                self.answered = True
                self._tool_use(event)
            case "tool_result":
                self._silent = True
                self._tool_result(event)
            case "error":
                self.warned = str(event.get("message", ""))
            case "result":
                self.result = event
            case _:
                pass
        self.count()

    @property
    def unsettled(self) -> bool:
        """Whether calls have ended of which only the session's file can tell how, or what they said."""
        return bool(self._unsettled)

    @property
    def unread(self) -> bool:
        """Whether calls have ended and the model was not asked again: it said nothing, and no answer is on record."""
        return self._silent and self.tail.waiting

    def count(self, *, settle: bool = False) -> None:
        """Report what the session's file says is new; with ``settle`` also calls of which it says nothing."""
        self._used(self.tail.look())
        for call_id, printed in list(self._unsettled.items()):
            recorded = self.tail.outputs.get(call_id)
            if recorded is not None or settle:
                del self._unsettled[call_id]
                told = of_command if self._open[call_id].tool == SHELL else of_tool
                success, output = told(recorded, printed)
                self._report(call_id, success=success, output=output)

    def call_id(self, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the id of a call that has begun and not ended."""
        found = (key for key, call in self._open.items() if (call.tool, call.arguments) == (tool, arguments))
        return next(found, None)

    def end(self) -> None:
        """Report what is left after the last line: calls without an end, and what the totals say beyond the file."""
        self.count(settle=True)
        for call_id in list(self._open):
            self._report(call_id, success=False, output="ended with its turn")
        stats = (self.result or {}).get("stats")
        if isinstance(stats, dict):
            self._used(_beyond(_total(stats), self.tail.used))

    def _used(self, usage: Usage) -> None:
        if usage.total:
            self.emit(UsageEvent(usage=usage))
            self.on_usage(usage)

    def _tool_use(self, event: Mapping[str, Any]) -> None:
        call_id, tool = str(event.get("tool_id", "")), str(event.get("tool_name", ""))
        arguments = event.get("parameters")
        arguments = arguments if isinstance(arguments, dict) else {}
        self._open[call_id] = _Open(tool, arguments, time.monotonic())
        self.emit(ToolStarted(call_id=call_id, tool_name=tool, input=cut(_as_text(arguments))))

    def _tool_result(self, event: Mapping[str, Any]) -> None:
        call_id = str(event.get("tool_id", ""))
        call = self._open.get(call_id)
        if call is None:
            return
        error = event.get("error")
        kind = str(error.get("type", "")) if isinstance(error, dict) else ""
        said = str(error.get("message", "")) if isinstance(error, dict) else ""
        blocked = blocked_reason(kind, said, call.tool, lambda: self.judge(call.tool, call.arguments))
        if blocked is not None:
            self._report(call_id, success=False, output="", blocked=blocked)
            return
        success, output = event.get("status") == "success", str(event.get("output") or said)
        if kind not in _UNASKED:
            self.on_made(call.tool, call.arguments, success)
        # Of a file that was read the stream says nothing.
        if success and (call.tool == SHELL or not output):
            self._unsettled[call_id] = output
        else:
            self._report(call_id, success=success, output=output)

    def _report(self, call_id: str, *, success: bool, output: str, blocked: str | None = None) -> None:
        call = self._open.pop(call_id)
        ended = NormalizedToolCall(
            tool_name=call.tool,
            input=_as_text(call.arguments),
            output=output,
            success=success,
            duration_ms=round((time.monotonic() - call.begun) * 1000),
            blocked=blocked is not None,
            blocked_reason=blocked,
            source="cli-observed",
            timestamp=datetime.now(UTC),
            call_id=call_id,
        )
        self.emit(ToolEnded(call=ended))


def blocked_reason(kind: str, said: str, tool: str, judge: Callable[[], Verdict]) -> str | None:
    """Return ``code: reason`` of a call that was not allowed, None for one that was made or is an error.

    Where the program refuses before it asks, in words of its own, ``judge`` says what our policy would have said.
    """
    if said.startswith(_OUTSIDE) or (kind == "tool_not_registered" and tool in BUILT_IN):
        verdict = judge()
        return (
            f"{verdict.code}: {verdict.reason}" if verdict.decision == "deny" else f"policy_violation: {said}"
        )
    if kind != "policy_violation":
        return None
    reason = _BLOCKED_HEAD.sub("", said).strip() or "no reason was given"
    if _CODE.match(reason):
        return reason
    return f"{'build_file' if _BUILD_FILE in reason else 'policy_violation'}: {reason}"


def of_command(recorded: str | None, printed: str) -> tuple[bool, str]:
    """Return whether a command succeeded and what it printed: only what the model is told has the exit code.

    It stands in lines of the program's own behind the output, so the last of each kind counts.
    """
    if recorded is None:
        return True, printed
    inner = _FENCED.match(recorded)
    lines = (inner[1] if inner else recorded).splitlines()
    if lines and lines[0].startswith(_CANCELLED):
        return False, printed
    said: dict[str, str] = {}
    for line in reversed(lines):
        label = _LABEL.match(line)
        if label is None:
            break
        said.setdefault(label[1], label[2])
    code, signal = said.get("Exit Code", "0"), said.get("Signal")
    if signal is not None:
        return False, f"signal {signal}\n{printed}"
    return code == "0", printed if code == "0" else f"exit code {code}\n{printed}"


def of_tool(recorded: str | None, printed: str) -> tuple[bool, str]:
    """Return that a tool succeeded, and what it said: what the model was told, where the stream has no words of it."""
    if recorded is None:
        return True, printed
    inner = _FENCED.match(recorded)
    return True, inner[1] if inner else recorded


def _as_text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)


def _total(stats: Mapping[str, Any]) -> Usage:
    named = {
        "input": stats.get("input_tokens"),
        "cached": stats.get("cached"),
        "output": stats.get("output_tokens"),
    }
    found = usage_of(named)
    total = stats.get("total_tokens")
    missing = total - found.total if isinstance(total, int) else 0
    return found.model_copy(update={"completion": found.completion + max(0, missing)})


def _beyond(total: Usage, counted: Usage) -> Usage:
    """Return what of a total is not counted yet: calls of the program's own that no message stands for."""
    return Usage(
        prompt=max(0, total.prompt - counted.prompt),
        completion=max(0, total.completion - counted.completion),
        cache_read=max(0, total.cache_read - counted.cache_read),
    )
