"""What tests of the stub share: a workspace, a script, and what was heard of the sessions that play it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.events import TransportEvent
from schemas.tools import NormalizedToolCall
from system import processes
from system.leftovers import RUN_VARIABLE
from transports.port import SessionSpec, WorkOutcome, WorkRequest
from transports.stub import StubTransport
from transports.stub_session import StubSession

PYTHON = [sys.executable, "-I", "-S", "-c"]
EDIT = {"do": "edit", "path": "a.txt", "content": "one\n"}
Script = dict[str, Any]


class Stage:
    """A workspace, a script, and what was heard of the sessions that play it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.events: list[TransportEvent] = []
        self._news = asyncio.Event()
        self.transport = StubTransport()
        self.sessions: list[StubSession] = []

    def emit(self, event: TransportEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def heard(self, kind: str) -> None:
        while all(event.kind != kind for event in self.events):
            self._news.clear()
            await self._news.wait()

    def spec(
        self, *turns: Script, resumed: Script | None = None, attempt: int = 1, **more: Any
    ) -> SessionSpec:
        step: Script = {"turns": list(turns)} | ({"resumed": resumed} if resumed else {})
        scenario = self.folder / "scenario.json"
        scenario.write_text(json.dumps({"version": 1, "steps": {"build": step} if turns else {}}))
        spec = SessionSpec(
            run_id="run-1",
            place={"step": "build", "visit": 1, "attempt": attempt, "iteration": 1},
            workspace=self.workspace,
            private=self.folder / "private" / f"attempt-{attempt}",
            environment={RUN_VARIABLE: self.folder.name, "COLOUR": "blue"},
            state=self.folder / "state",
            system="",
            model=None,
            read_only=False,
            command_timeout_s=60,
            no_output_s=600,
            scenario=str(scenario),
        )
        return replace(spec, **more)

    async def open(self, spec: SessionSpec) -> StubSession:
        session = await self.transport.open_session(spec, self.emit)
        self.sessions.append(session)
        return session

    async def play(self, *actions: Script, **more: Any) -> WorkOutcome:
        session = await self.open(self.spec({"work": list(actions)}, **more))
        return await session.work(WorkRequest("go"), self.emit)

    def signal_file(self) -> Path:
        """Return a pipe: who reads it waits until somebody else has opened it."""
        path = self.folder / "up"
        os.mkfifo(path)
        return path

    def calls(self) -> list[NormalizedToolCall]:
        return [event.call for event in self.events if event.kind == "tool_ended"]

    def texts(self) -> list[str]:
        return [event.text for event in self.events if event.kind == "text"]

    def file(self, name: str) -> str:
        return (self.workspace / name).read_text()


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    """Hold a stage for the block; no session and no process is left of it."""
    made = Stage(folder)
    try:
        yield made
    finally:
        for session in made.sessions:
            await session.aclose()
        await processes.shutdown()


def code_of(outcome: WorkOutcome) -> str | None:
    return None if outcome.error is None else outcome.error.code
