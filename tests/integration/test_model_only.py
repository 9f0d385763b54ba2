"""No network but the model's address, as far as a program lets us say so: of the programs, and of what agents run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from agents_kit import AGENTS, agents
from model_servers.minds import is_structured
from model_servers.script import Mind, Run, Seen, Turn, Write, turn
from step_kit import hot_step, make_spec, mind

from schemas.events import ToolEnded, TransportEvent
from system import processes
from transports import registry
from transports.port import WorkOutcome, WorkRequest

ADDRESSES = ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ELSEWHERE = "model.invalid"
DIAL = """\
import socket

socket.create_connection(("127.0.0.1", {port}), timeout=10).sendall(b"called\\n")
print("connected")
"""


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[tuple[int, list[str]]]:
    """Hold a server of one's own; yield its port and the first line of each call."""
    calls: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append((await reader.readline()).decode().strip())
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], calls


@asynccontextmanager
async def behind_a_proxy(
    name: str, answers: Mind, monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> AsyncIterator[list[str]]:
    """Have an agent send all but loopback through a proxy; yield what it heard. ``elsewhere``: so is its model."""
    async with listening(REFUSED) as (port, calls):
        with agents({name: answers}) as env:
            for key, value in env.items():
                moved = elsewhere and key in ADDRESSES
                monkeypatch.setenv(key, value.replace("127.0.0.1", ELSEWHERE) if moved else value)
            for key in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(key, f"http://127.0.0.1:{port}")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            yield calls


async def work(name: str, folder: Path) -> tuple[WorkOutcome, list[TransportEvent]]:
    """Take one turn."""
    events: list[TransportEvent] = []
    spec = make_spec(folder, f"alone-{name}", state=folder / "state")
    session = await registry.open(name).open_session(spec, events.append)
    try:
        return await session.work(WorkRequest("Do it."), events.append), events
    finally:
        await session.aclose()


@pytest.mark.parametrize("name", AGENTS)
async def test_a_program_calls_nobody_but_its_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_a_proxy(name, mind, monkeypatch, elsewhere=False) as calls:
        await hot_step(registry.open(name), make_spec(tmp_path, "alone", state=tmp_path / "state"))
    assert calls == []


@pytest.mark.parametrize("name", AGENTS)
async def test_what_a_program_sends_elsewhere_would_be_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with behind_a_proxy(name, mind, monkeypatch, elsewhere=True) as calls:
        outcome, _ = await work(name, tmp_path)
    assert outcome.end == "failed"
    assert calls
    assert all(ELSEWHERE in call for call in calls), calls


@pytest.mark.parametrize(
    ("name", "reaches"), [("codex", False), ("claude-sdk", True), ("claude-cli", True), ("gemini-cli", True)]
)
async def test_a_command_of_the_agent_reaches_no_port_where_it_has_a_sandbox(
    name: str, reaches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have none, as docs/transports.md says."""
    async with listening(b"") as (port, calls):

        def dials(seen: Seen) -> Turn:
            assert not is_structured(seen)
            done = len(seen.calls)
            parts = (Write("dial.py", DIAL.format(port=port)), Run("python3 dial.py"))
            return turn(parts[done]) if done < len(parts) else turn("Done.")

        with agents({name: dials}) as env:
            for key, value in env.items():
                monkeypatch.setenv(key, value)
            outcome, events = await work(name, tmp_path)
        assert outcome.end == "completed", outcome
        written, ran = [event.call for event in events if isinstance(event, ToolEnded)]
        assert written.success, written
        assert not ran.blocked, ran
        assert (calls, ran.success) == (["called"] if reaches else [], reaches), ran.output
