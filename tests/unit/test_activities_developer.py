"""The developer model: whatever its transport does, the agent that asked gets an answer, or people are asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from activities import developer as module
from activities.developer import LAST_MESSAGES, Developer, History
from activities.sessions import SessionRegistry
from schemas.common import SessionMode, Usage
from schemas.events import TextEvent, ToolEnded, ToolStarted, UsageEvent
from schemas.questions import Question, QuestionItem
from schemas.tools import NormalizedToolCall
from transports.port import (
    Availability,
    Emit,
    SessionSpec,
    StopReport,
    StructuredResult,
    TransportCapabilities,
    WorkOutcome,
    WorkRequest,
)

QUESTION = Question(question_id="q", items=[QuestionItem(question="Which?", options=["red", "blue"])])
BLUE = {"answers": [{"number": 1, "answer": ["blue"]}]}


@dataclass
class Scripted:
    """A transport, and its sessions: says ``value``, or breaks or hangs ``at`` one of its calls."""

    value: Any
    at: str = ""
    breaks: bool = False
    open: int = 0
    most: int = 0
    closed: int = 0
    hung: asyncio.Event = field(default_factory=asyncio.Event)

    name = "scripted"
    capabilities = TransportCapabilities()
    reports_cost = False
    session_id: str | None = None
    mode: SessionMode = "cold"
    resumable = False

    def is_available(self) -> Availability:
        return Availability(ok=True)

    async def _come_to(self, place: str) -> None:
        if place == self.at:
            if self.breaks:
                raise RuntimeError("broken")
            await self.hung.wait()
        await asyncio.sleep(0)

    async def open_session(self, spec: SessionSpec, emit: Emit) -> Scripted:
        del spec, emit
        await self._come_to("open")
        self.open += 1
        self.most = max(self.most, self.open)
        return self

    async def structured(
        self, prompt: str, schema: type[BaseModel], emit: Emit, *, timeout_s: float
    ) -> StructuredResult:
        del prompt, schema, emit, timeout_s
        await self._come_to("ask")
        return StructuredResult(value=self.value)

    async def aclose(self) -> None:
        self.open -= 1
        await self._come_to("close")
        self.closed += 1

    async def work(self, request: WorkRequest, emit: Emit) -> WorkOutcome:
        raise NotImplementedError

    async def steer(self, text: str) -> bool:
        raise NotImplementedError

    async def interrupt(self, grace_s: float) -> StopReport:
        raise NotImplementedError


def developer(folder: Path, transport: Scripted) -> Developer:
    """Return who asks the model behind a scripted transport, and waits for it hardly at all."""
    spec = SessionSpec(
        run_id="r",
        place={},
        workspace=folder / "ws",
        private=folder / "private",
        environment={},
        state=folder / "state",
        system="",
        model=None,
        read_only=True,
        command_timeout_s=1.0,
        no_output_s=1.0,
    )
    start = SessionRegistry(park_s=1.0).start
    return Developer(transport, spec, None, limit_s=0.01, task="t", emit=lambda _: None, start=start)


async def test_an_answer_to_what_nobody_asked_is_none_and_not_the_defaults(tmp_path: Path) -> None:
    beside = Scripted({"answers": [{"number": 2, "answer": ["blue"]}]})
    assert await developer(tmp_path, beside).answer(QUESTION, everything=False) is None
    answer = await developer(tmp_path, Scripted(BLUE)).answer(QUESTION, everything=False)
    assert answer is not None
    assert answer.answers == {"Which?": "blue"}


@pytest.mark.parametrize("breaks", [True, False], ids=["breaks", "hangs"])
@pytest.mark.parametrize("at", ["open", "ask"])
async def test_a_model_that_breaks_or_hangs_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, breaks: bool
) -> None:
    monkeypatch.setattr(module, "_SLACK_S", 0.01)
    transport = Scripted(BLUE, at, breaks)
    assert await developer(tmp_path, transport).answer(QUESTION, everything=False) is None
    assert transport.open == 0
    assert transport.closed == (at != "open")


@pytest.mark.parametrize("breaks", [True, False], ids=["breaks", "hangs"])
async def test_a_session_that_does_not_close_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    monkeypatch.setattr("activities.closing.CLOSE_LIMIT_S", 0.01)
    answer = await developer(tmp_path, Scripted(BLUE, "close", breaks)).answer(QUESTION, everything=False)
    assert answer is not None


async def test_a_value_that_does_not_fit_the_schema_is_none(tmp_path: Path) -> None:
    assert await developer(tmp_path, Scripted({"answers": 7})).answer(QUESTION, everything=True) is None


async def test_it_is_asked_one_thing_at_a_time(tmp_path: Path) -> None:
    transport = Scripted(BLUE)
    one = developer(tmp_path, transport)
    answers = await asyncio.gather(*(one.answer(QUESTION, everything=False) for _ in range(5)))
    assert all(answers)
    assert (transport.most, transport.closed) == (1, 5)


def test_what_an_agent_says_piece_by_piece_is_one_message() -> None:
    call = NormalizedToolCall(
        tool_name="look",
        input="a.txt",
        output="red",
        success=True,
        source="cli-observed",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    )
    history = History()
    history.hear(TextEvent(role="user", text="Go."))
    history.hear(TextEvent(role="user", text="Begin with a.txt."))
    for piece in ("I lo", "ok at ", "a.txt."):
        history.hear(TextEvent(text=piece))
    history.hear(ToolStarted(call_id="1", tool_name="look"))
    history.hear(ToolEnded(call=call))
    history.hear(TextEvent(text="It says "))
    history.hear(TextEvent(text="red."))
    history.hear(UsageEvent(usage=Usage(prompt=1)))
    words = [str(number) for number in range(3 * LAST_MESSAGES)]
    for word in words:
        history.hear(TextEvent(text=word))
        assert history.last(1)[0].endswith(word)
    assert history.last(LAST_MESSAGES) == [
        "[user] Go.",
        "[user] Begin with a.txt.",
        "[assistant] I look at a.txt.",
        "[tool look, done] a.txt\nred",
        "[assistant] It says red.",
        f"[assistant] {''.join(words)}",
    ]
    history.hear(UsageEvent(usage=Usage(prompt=1)))
    assert history.last(1) == [f"[assistant] {''.join(words)}"]
