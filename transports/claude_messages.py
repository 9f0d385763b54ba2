"""What Claude Code says while it works, read into events: one reader for each session, whichever way it is driven."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from schemas.common import Usage
from schemas.cutting import cut
from schemas.events import (
    SubagentEnded,
    SubagentStarted,
    TextEvent,
    ToolEnded,
    ToolStarted,
    TransportEvent,
    UsageEvent,
)
from schemas.tools import NormalizedToolCall
from transports.claude_errors import Failure
from transports.claude_policy import SUBAGENT
from transports.claude_usage import counted

Source = Literal["sdk", "cli-observed"]
Frame = Mapping[str, Any]

LONG_WAIT_S: Final = 20.0
"""Longer than this, in seconds, a rate limit is not waited out within a turn."""

_NOTHING: Final = Usage()
_TOO_MANY: Final = 429


def is_piece(frame: Frame) -> bool:
    """Tell whether a frame is a piece of what the model says: of a text, a thought or a call's arguments.

    Others come of a model that says nothing, too: a ping, or that a request is made or tried again.
    """
    return (
        frame.get("type") == "stream_event"
        and (frame.get("event") or {}).get("type") == "content_block_delta"
    )


@dataclass(frozen=True)
class Open:
    """A tool call that was made and has no result yet."""

    name: str
    arguments: Mapping[str, Any]
    begun: float
    agent_id: str | None


@dataclass
class Reader:
    """Turns frames into events.

    ``base`` is what the program had counted when the session's last turn ended (None: not known), since it counts on
    over turns and resumptions; ``blocked`` holds, by call id, why a call was not let through; calls of the tools named
    in ``hidden`` are ours, not the agent's work. ``reset_at`` is until when the provider refuses, in seconds since the
    epoch, and ``waits_long`` that the program waits for it.
    """

    source: Source
    base: Usage | None = _NOTHING
    hidden: Collection[str] = ()
    blocked: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    assistant_error: str | None = None
    reset_at: float | None = None
    waits_long: bool = False
    _open: dict[str, Open] = field(default_factory=dict)
    _prompts: dict[str | None, Mapping[str, Any]] = field(default_factory=dict)
    _counted: Usage = _NOTHING

    def begin(self) -> None:
        """Forget what belongs to the turn before."""
        self.words.clear()
        self.blocked.clear()
        self._open.clear()
        self.assistant_error = self.reset_at = None
        self.waits_long = False
        self._counted = _NOTHING

    def failure(self, result: Frame) -> Failure:
        """Return the facts of a turn that ended badly."""
        return Failure.of(result, assistant_error=self.assistant_error, reset_at=self.reset_at)

    def take(self, frame: Frame) -> Iterator[TransportEvent]:
        """Yield the events a frame stands for; one of an unknown kind stands for none."""
        match frame.get("type"):
            case "assistant":
                yield from self._assistant(frame)
            case "user":
                yield from self._user(frame)
            case "stream_event":
                yield from self._streamed(frame)
            case "rate_limit_event":
                info = frame.get("rate_limit_info") or {}
                if info.get("status") == "rejected" and isinstance(info.get("resetsAt"), int | float):
                    self.reset_at = float(info["resetsAt"])
            case "system" if frame.get("subtype") == "api_retry":
                self._retried(frame)
            case "system" if frame.get("subtype") == "permission_denied":
                call_id = str(frame.get("tool_use_id"))
                reason = f"{frame.get('decision_reason_type') or 'permission'}: {frame.get('message')}"
                self.blocked.setdefault(call_id, reason)
            case "result":
                yield from self._settled(frame)

    def _retried(self, frame: Frame) -> None:
        """Note when the provider is asked again, where that is so far off that the turn is better ended."""
        delay_s = (frame.get("retry_delay_ms") or 0) / 1000
        if frame.get("error_status") == _TOO_MANY and delay_s > LONG_WAIT_S:
            self.reset_at = time.time() + delay_s
            self.waits_long = True

    def left_open(self) -> Iterator[TransportEvent]:
        """Yield the ends of the calls that will have no result, since their turn is over."""
        for call_id in list(self._open):
            yield from self._ended(call_id, "ended with its turn", success=False)

    def _assistant(self, frame: Frame) -> Iterator[TransportEvent]:
        parent = frame.get("parent_tool_use_id")
        if frame.get("error"):
            self.assistant_error = str(frame["error"])
            return
        for block in frame.get("message", {}).get("content") or []:
            if block.get("type") == "text" and parent is None and block.get("text"):
                self.words.append(block["text"])
                yield TextEvent(text=block["text"])
            elif block.get("type") == "tool_use" and block["name"] not in self.hidden:
                yield from self._began(block, parent)

    def _began(self, block: Frame, parent: str | None) -> Iterator[TransportEvent]:
        call_id, name, arguments = block["id"], block["name"], block.get("input") or {}
        self._open[call_id] = Open(name, arguments, time.monotonic(), parent)
        # Later texts are the answer; what was said before a call is not.
        self.words.clear()
        yield ToolStarted(call_id=call_id, tool_name=name, input=cut(_text(arguments)))
        if name in SUBAGENT:
            yield SubagentStarted(agent_id=call_id, name=str(arguments.get("subagent_type") or ""))

    def _user(self, frame: Frame) -> Iterator[TransportEvent]:
        content = frame.get("message", {}).get("content")
        for block in content if isinstance(content, list) else []:
            if block.get("type") == "tool_result":
                output = _text_of_result(block.get("content"))
                yield from self._ended(block["tool_use_id"], output, success=not block.get("is_error"))

    def _ended(self, call_id: str, output: str, *, success: bool) -> Iterator[TransportEvent]:
        call = self._open.pop(call_id, None)
        blocked = self.blocked.pop(call_id, None)
        if call is None:
            return
        if call.name in SUBAGENT:
            yield SubagentEnded(agent_id=call_id, name=str(call.arguments.get("subagent_type") or ""))
        yield ToolEnded(
            call=NormalizedToolCall(
                tool_name=call.name,
                input=_text(call.arguments),
                output=output,
                success=success and blocked is None,
                duration_ms=round((time.monotonic() - call.begun) * 1000),
                blocked=blocked is not None,
                blocked_reason=blocked,
                source=self.source,
                timestamp=datetime.now(UTC),
                call_id=call_id,
                agent_id=call.agent_id,
            )
        )

    def _streamed(self, frame: Frame) -> Iterator[TransportEvent]:
        """Count an answer of the model when it is complete: only the stream has its true numbers, while it runs."""
        event, parent = frame.get("event") or {}, frame.get("parent_tool_use_id")
        if event.get("type") == "message_start":
            self._prompts[parent] = event.get("message", {}).get("usage") or {}
        elif event.get("type") == "message_delta":
            numbers = {**self._prompts.pop(parent, {}), **(event.get("usage") or {})}
            used = Usage(
                prompt=numbers.get("input_tokens") or 0,
                completion=numbers.get("output_tokens") or 0,
                cache_read=numbers.get("cache_read_input_tokens") or 0,
                cache_write=numbers.get("cache_creation_input_tokens") or 0,
            )
            self._counted = self._counted.plus(used)
            yield UsageEvent(usage=used)

    def _settled(self, frame: Frame) -> Iterator[TransportEvent]:
        """Report what the program counted in this turn beyond what was seen of it, and what it cost."""
        total = counted(frame.get("modelUsage"), frame.get("total_cost_usd"))
        base, self.base = self.base, total
        if base is None:
            return
        if total.total < base.total:
            base = _NOTHING  # it began to count anew
        seen = self._counted
        rest = Usage(
            prompt=max(0, total.prompt - base.prompt - seen.prompt),
            completion=max(0, total.completion - base.completion - seen.completion),
            cache_read=max(0, total.cache_read - base.cache_read - seen.cache_read),
            cache_write=max(0, total.cache_write - base.cache_write - seen.cache_write),
            cost_usd=max(0.0, (total.cost_usd or 0.0) - (base.cost_usd or 0.0)),
        )
        if rest != Usage(cost_usd=0.0):
            yield UsageEvent(usage=rest)


def _text(arguments: object) -> str:
    return json.dumps(arguments, ensure_ascii=False, sort_keys=True)


def _text_of_result(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text") or f"[{block.get('type')}]") for block in blocks)
