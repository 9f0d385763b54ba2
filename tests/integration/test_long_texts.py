"""Texts that are longer than one argument of a program may be (128 KiB) reach the model whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from claude_kit import make_spec, point_at
from codex_kit import spec_in, transport_for
from gemini_kit import GeminiBench, serving
from model_servers.anthropic import AnthropicServer
from model_servers.openai import OpenAIServer
from model_servers.script import in_order
from model_servers.server import ModelServer

from system import processes
from transports import registry
from transports.port import SessionSpec, Transport, WorkRequest

LINE = "Mind this, line by line, and the next one, too. "
LONG = LINE * 6_000
END = "And this at last."


@contextmanager
def served(
    name: str, folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[tuple[Transport, SessionSpec, ModelServer]]:
    system = f"{LONG}{END}"
    if name == "codex":
        with OpenAIServer(in_order()) as openai:
            yield transport_for(openai), spec_in(folder, system=system), openai
    elif name == "gemini-cli":
        with serving(in_order(), patch) as gemini:
            bench = GeminiBench(folder)
            yield bench.transport, bench.spec("idle", system=system), gemini
    else:
        with AnthropicServer(in_order()) as anthropic:
            point_at(anthropic, patch)
            yield registry.open(name), make_spec(folder, system=system), anthropic


@pytest.mark.parametrize("name", ["claude-sdk", "claude-cli", "codex", "gemini-cli"])
async def test_a_system_text_and_a_prompt_of_any_length_reach_the_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = registry.open(name).is_available()
    if not available.ok:
        pytest.skip(available.reason)
    with served(name, tmp_path, monkeypatch) as (transport, spec, server):
        session = await transport.open_session(spec, lambda _: None)
        try:
            outcome = await session.work(WorkRequest(f"{LONG}{END}"), lambda _: None)
        finally:
            await session.aclose()
            await processes.shutdown()
    assert outcome.end == "completed", outcome.error
    told = [server.seen[0].system, *(text for role, text in server.seen[0].texts if role != "assistant")]
    whole = [text for text in told if LONG.strip() in text and END in text]
    assert len(whole) >= 2, [len(text) for text in told]
