"""One turn of Codex: what the app-server says of it becomes events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from schemas.common import Usage
from schemas.cutting import cut
from schemas.events import TextEvent, ToolEnded, ToolStarted, UsageEvent
from schemas.tools import NormalizedToolCall
from transports.codex_errors import Failure, classify
from transports.codex_policy import COMMAND, PATCH, relative, script_of
from transports.codex_rollout import Made, end_of, with_exit_code
from transports.port import Emit, unwatched

QUESTION: Final = "request_user_input"
"""The tool of Codex that asks people; its calls are questions, no tool calls."""

_TOOL_ITEMS: Final = frozenset({"commandExecution", "fileChange", "mcpToolCall", "dynamicToolCall"})
_PIECES: Final = frozenset(
    {
        "item/agentMessage/delta",
        "item/reasoning/summaryTextDelta",
        "item/reasoning/textDelta",
        "item/fileChange/patchUpdated",
        "item/commandExecution/outputDelta",
    }
)
_RAN: Final = frozenset({"completed", "failed"})
_COUNTS: Final = ("inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens")


@dataclass
class Running:
    """A tool call that has begun: its item, when it began, when it was accepted, and what is to be said of its end."""

    item: Mapping[str, Any]
    tool: str
    given: str
    begun: float = field(default_factory=time.monotonic)
    accepted: float | None = None
    note: str = ""


class Meter:
    """Tokens of a session as deltas, from totals that are told again when it is resumed."""

    def __init__(self, *, new: bool) -> None:
        self._told: dict[str, int] | None = dict.fromkeys(_COUNTS, 0) if new else None

    def delta(self, usage: Mapping[str, Any], *, current: bool) -> Usage | None:
        """Return what was used since the last call; None for totals of no turn of this process."""
        total = _counts(usage.get("total"))
        last = _counts(usage.get("last"))
        told = self._told if self._told is not None else {name: total[name] - last[name] for name in _COUNTS}
        self._told = total
        if not current:
            return None
        used = {name: max(0, total[name] - told[name]) for name in _COUNTS}
        if not any(used.values()):
            return None
        cached, written = used["cachedInputTokens"], used["cacheWriteInputTokens"]
        return Usage(
            prompt=max(0, used["inputTokens"] - cached - written),
            completion=used["outputTokens"],
            cache_read=cached,
            cache_write=written,
        )


class Turn:
    """A turn from its request to its end; ``started`` and ``over`` are set when the server says so.

    ``text`` is the last thing the agent said, ``status`` and ``failure`` are how the turn ended, ``limited`` is a rate
    limit that the program would wait for by itself, ``unasked`` is what ran although nobody had allowed it. ``changed``
    is set whenever something happens; ``answered`` says that the model has heard of every call it had made, so that
    what is still open runs on its own. ``stir`` is called for each piece of what is told only once it is whole.
    """

    def __init__(
        self, emit: Emit, meter: Meter, workspace: Path, stir: Callable[[], None] = unwatched
    ) -> None:
        self.id: str | None = None
        self.started = asyncio.Event()
        self.over = asyncio.Event()
        self.changed = asyncio.Event()
        self.text = ""
        self.status = ""
        self.failure: Failure | None = None
        self.limited: Failure | None = None
        self.tokens = 0
        self.answered = False
        self.running: dict[str, Running] = {}
        self.blocked: dict[str, str] = {}
        self.allowed: set[str] = set()
        self.unasked: str | None = None
        self.emit = emit
        self._stir = stir
        self._meter = meter
        self._workspace = workspace
        self._reported: set[str] = set()
        self._said: dict[str, str] = {}

    def take(self, method: str, params: Mapping[str, Any]) -> None:
        """Take a notification about the session; what is not known is left alone."""
        if method in _PIECES:
            self._stir()
        match method:
            case "turn/started":
                self._on_started(params)
            case "turn/completed":
                self._on_completed(params)
            case "error":
                self._on_error(params)
            case "item/agentMessage/delta":
                self._on_delta(params)
            case "item/started":
                self._on_item_started(params)
            case "item/completed":
                self._on_item_completed(params)
            case "thread/tokenUsage/updated":
                self._on_usage(params)
            case _:
                return
        self.changed.set()

    def lost(self) -> None:
        """Note that nothing more will come."""
        self.started.set()
        self.over.set()
        self.changed.set()

    def accepted(self, call_id: str) -> None:
        """Note that a call was allowed: from now on its time counts."""
        self.allowed.add(call_id)
        if call_id in self.running:
            self.running[call_id].accepted = time.monotonic()
            self.changed.set()

    def settle(self, calls: Mapping[str, Made]) -> None:
        """Report the calls whose end is known from what the model was told: of some the server says nothing."""
        self.answered = False
        for call_id in list(self.running):
            ended = end_of(calls[call_id]) if call_id in calls else None
            if ended is not None:
                self._ended(call_id, success=ended[0], output=ended[1])

    def flush(self, calls: Mapping[str, Made]) -> None:
        """Report what was left open: half an answer, calls that did not end, calls that never began."""
        for text in self._said.values():
            self.emit(TextEvent(text=text))
        self._said.clear()
        self.settle(calls)
        for call_id in list(self.running):
            self._ended(call_id, success=False, output="it did not end before its turn")
        for call_id, made in calls.items():
            if call_id not in self._reported and made.name != QUESTION:
                self._begin(call_id, {}, made.name, json.dumps(made.arguments, ensure_ascii=False))
                success, output = end_of(made) or (made.output is not None, made.output or "")
                # A command or patch without an item never came to run.
                self._ended(call_id, success=success and made.name not in {COMMAND, PATCH}, output=output)

    def _on_started(self, params: Mapping[str, Any]) -> None:
        self.id = params["turn"]["id"]
        self.started.set()

    def _on_completed(self, params: Mapping[str, Any]) -> None:
        turn = params["turn"]
        self.status = str(turn.get("status"))
        error = turn.get("error")
        if error is not None:
            self.failure = _failure(error)
        self.lost()

    def _on_error(self, params: Mapping[str, Any]) -> None:
        if not params.get("willRetry"):
            return
        # What was said so far is said anew, whole.
        self._said.clear()
        failure = _failure(params.get("error") or {})
        if failure.rate_limited:
            self.limited = failure

    def _on_delta(self, params: Mapping[str, Any]) -> None:
        item_id = str(params["itemId"])
        self._said[item_id] = self._said.get(item_id, "") + str(params.get("delta", ""))

    def _on_item_started(self, params: Mapping[str, Any]) -> None:
        item = params["item"]
        if item["type"] in _TOOL_ITEMS:
            tool, given = self._described(item)
            self._begin(item["id"], item, tool, given)

    def _on_item_completed(self, params: Mapping[str, Any]) -> None:
        item = params["item"]
        call_id = item["id"]
        if item["type"] == "agentMessage":
            self._said.pop(call_id, None)
            self.text = item.get("text") or ""
            if self.text:
                self.emit(TextEvent(text=self.text))
        elif item["type"] in _TOOL_ITEMS:
            tool, given = self._described(item)
            if item.get("status") in _RAN and call_id not in self.allowed:
                self.unasked = given
            if call_id in self._reported and call_id not in self.running:
                # Its end was known before, from what the model was told.
                return
            if call_id not in self.running:
                self._begin(call_id, item, tool, given)
            success = item.get("status") == "completed" and (item.get("exitCode") or 0) == 0
            self._ended(call_id, success=success, output=_output(item))

    def _on_usage(self, params: Mapping[str, Any]) -> None:
        used = self._meter.delta(params["tokenUsage"], current=params.get("turnId") == self.id)
        if used is not None:
            self.tokens += used.total
            self.answered = bool(self.running)
            self.emit(UsageEvent(usage=used))

    def _begin(self, call_id: str, item: Mapping[str, Any], tool: str, given: str) -> None:
        self._reported.add(call_id)
        self.running[call_id] = Running(item, tool, given)
        self.emit(ToolStarted(call_id=call_id, tool_name=tool, input=cut(given)))

    def _ended(self, call_id: str, *, success: bool, output: str) -> None:
        running = self.running.pop(call_id)
        reason = self.blocked.get(call_id)
        call = NormalizedToolCall(
            tool_name=running.tool,
            input=running.given,
            output=f"{output}{running.note}",
            success=success and reason is None,
            duration_ms=round((time.monotonic() - running.begun) * 1000),
            blocked=reason is not None,
            blocked_reason=reason,
            source="cli-observed",
            timestamp=datetime.now(UTC),
            call_id=call_id,
        )
        self.emit(ToolEnded(call=call))

    def _described(self, item: Mapping[str, Any]) -> tuple[str, str]:
        """Return the tool of an item, and what it was given."""
        if item["type"] == "commandExecution":
            command = str(item.get("command") or "")
            return COMMAND, script_of(command) or command
        if item["type"] == "fileChange":
            changes = [
                {
                    "path": relative(change["path"], self._workspace),
                    "kind": change["kind"]["type"],
                    "diff": change["diff"],
                }
                for change in item.get("changes") or []
            ]
            return PATCH, json.dumps(changes, ensure_ascii=False)
        return str(item.get("tool") or item["type"]), json.dumps(item.get("arguments"), ensure_ascii=False)


def _output(item: Mapping[str, Any]) -> str:
    if item["type"] == "commandExecution":
        return with_exit_code(item.get("exitCode"), str(item.get("aggregatedOutput") or ""))
    if item["type"] == "fileChange":
        return ""
    return json.dumps(item.get("result") or item.get("contentItems") or item.get("error"), ensure_ascii=False)


def _failure(error: Mapping[str, Any]) -> Failure:
    details = error.get("additionalDetails")
    return classify(error.get("codexErrorInfo"), str(error.get("message") or ""), str(details or ""))


def _counts(part: object) -> dict[str, int]:
    given = part if isinstance(part, Mapping) else {}
    return {name: int(given.get(name) or 0) for name in _COUNTS}
