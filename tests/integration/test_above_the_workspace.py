"""What lies in the folders above a workspace reaches no agent, whoever put it there and whether the repository is trusted."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from claude_kit import make_spec, point_at
from codex_kit import spec_in, transport_for
from conftest import eventually
from gemini_kit import GeminiBench, serving
from model_servers.anthropic import AnthropicServer
from model_servers.openai import OpenAIServer
from model_servers.script import Reply, Seen, turn
from model_servers.server import ModelServer

from schemas.events import TransportEvent
from system import processes
from transports import registry
from transports.port import SessionSpec, Transport, WorkRequest

_MARK: Final = re.compile(r"MARK-\w+")
_ODD: Final = "runs (a) {b,c} [d] !e*"
"""A name with all that patterns are made of."""


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@dataclass
class Agent:
    """A transport with the spec of a session; what is told to its model is in ``server.seen``."""

    transport: Transport
    server: ModelServer
    spec: SessionSpec


@contextmanager
def _claude(name: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Agent]:
    with AnthropicServer(lambda _: turn("Well.")) as server:
        point_at(server, patch)
        yield Agent(registry.open(name), server, make_spec(folder))


@contextmanager
def _codex(folder: Path, _: pytest.MonkeyPatch) -> Iterator[Agent]:
    with OpenAIServer(lambda _: turn("Well.")) as server:
        yield Agent(transport_for(server), server, spec_in(folder))


@contextmanager
def _gemini(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Agent]:
    bench = GeminiBench(folder)
    with serving(lambda _: turn("Well."), patch) as server:
        yield Agent(bench.transport, server, bench.spec("idle"))


AGENTS: Final[Mapping[str, Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[Agent]]]] = {
    "claude-sdk": lambda folder, patch: _claude("claude-sdk", folder, patch),
    "claude-cli": lambda folder, patch: _claude("claude-cli", folder, patch),
    "codex": _codex,
    "gemini-cli": _gemini,
}


def lay_out(root: Path, folder: Path, word: str) -> None:
    """Put all that an agent may look for into a folder; what is run of it leaves a file in ``root``."""

    def runs(what: str) -> list[str]:
        return ["-c", f"touch '{root}/{what}-{word}'; cat"]

    hook = {"type": "command", "command": f"touch '{root}/hooked-{word}'"}
    served = {"mcpServers": {f"of-{word.lower()}": {"command": "/bin/sh", "args": runs("served")}}}
    hooks = {"UserPromptSubmit": [{"hooks": [hook]}], "SessionStart": [{"hooks": [hook]}]}
    texts = ("CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", ".claude/rules/house.md")
    others = ("AGENTS.md", "AGENTS.override.md", "GEMINI.md", "stepwise.md", ".gemini/system.md")
    for name, text in {
        **dict.fromkeys((*texts, *others), f"MARK-{word}\n"),
        ".claude/settings.json": json.dumps({"hooks": hooks}),
        ".mcp.json": json.dumps(served),
        ".gemini/settings.json": json.dumps({**served, "hooks": hooks}),
        ".codex/config.toml": f'developer_instructions = "MARK-{word}"\n',
        f".agents/skills/{word}/SKILL.md": f"---\nname: {word}\ndescription: MARK-{word}\n---\nx\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("trusted", [False, True], ids=["stranger", "trusted"])
@pytest.mark.parametrize("name", AGENTS)
async def test_what_lies_above_a_workspace_is_neither_told_to_an_agent_nor_started(
    name: str, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = trusted and name.startswith("claude")
    # Codex takes such a name for a pattern of what commands may not read.
    above = tmp_path / ("runs" if name == "codex" else _ODD)
    above.mkdir()
    with AGENTS[name](above, monkeypatch) as agent:
        subprocess.run(["git", "init", "-q", str(agent.spec.workspace)], check=True)
        for word, folder in (("TOP", tmp_path), ("UP", above), ("OWN", agent.spec.workspace)):
            lay_out(tmp_path, folder, word)
        told = agent.spec.workspace / "CLAUDE.md"
        told.write_text(f"{told.read_text()}\n@../MARK.md\n@{tmp_path}/MARK.md\n")
        (tmp_path / "MARK.md").write_text("MARK-IMPORTED")
        agent.server.mind = _waiting_for(tmp_path / "served-OWN") if serves else agent.server.mind
        await _work(agent, trusted=trusted)
    seen = {mark for request in agent.server.seen for mark in _MARK.findall(json.dumps(request.raw))}
    assert seen == ({"MARK-OWN"} if trusted else set())
    assert _run_in(tmp_path) == ({"served-OWN", "hooked-OWN"} if serves else set())


def _run_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if path.name.partition("-")[0] in {"served", "hooked"}}


def _waiting_for(path: Path) -> Callable[[Seen], Reply]:
    """Return a mind that answers once a file is there: the server that was to be started has been."""

    def answer(_: Seen) -> Reply:
        eventually(path.exists)
        return turn("Well.")

    return answer


async def _work(agent: Agent, *, trusted: bool) -> None:
    events: list[TransportEvent] = []
    session = await agent.transport.open_session(replace(agent.spec, trusted=trusted), events.append)
    try:
        outcome = await session.work(WorkRequest("Go on."), events.append)
    finally:
        await session.aclose()
    assert outcome.end == "completed", outcome
