"""Every transport with an agent that can be told how to behave: the real programs with scripted models, and the stub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from claude_kit import ClaudeBench, Freezing, ask_people, point_at
from codex_kit import CodexBench, hanging_command, killing, run_of
from codex_kit import asking as asking_codex
from gemini_kit import GeminiBench, asking_about, hanging, serving
from gemini_kit import killing as killing_gemini
from model_servers.anthropic import AnthropicServer
from model_servers.openai import OpenAIServer
from stub_bench import StubBench

from transports import registry
from transports.conformance import Check
from transports.conformance_bench import Bench
from transports.gemini_cli import GeminiCliTransport


@contextmanager
def _stub(_check: Check, folder: Path, _patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield StubBench(folder)


async def _fails(*_: object, **__: object) -> None:
    message = "what judges calls is broken"
    raise RuntimeError(message)


def _claude(name: str) -> Callable[[Check, Path, pytest.MonkeyPatch], AbstractContextManager[Bench]]:
    @contextmanager
    def bench(check: Check, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
        made = ClaudeBench(folder, Freezing(registry.open(name)))
        with AnthropicServer(made.mind) as server:
            point_at(server, patch)
            ask_people(patch)
            if check.needs == "unjudged":
                patch.setattr("transports.claude_gate.Gate.hook", _fails)
            yield made

    return bench


@contextmanager
def _gemini(check: Check, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = GeminiBench(folder)
    if check.needs == "hang":
        made.transport = GeminiCliTransport(program=hanging(folder))
    if check.needs == "unjudged":
        patch.setattr("transports.gemini_gate.INTERPRETER", "/bin/false")
    patch.setattr("transports.gemini_policy.judge", asking_about)
    with serving(killing_gemini(made.run_id), patch):
        yield made


@contextmanager
def _codex(check: Check, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Bench]:
    patch.setattr("policy.commands.judge", asking_codex)
    with OpenAIServer(killing(run_of(folder))) as server:
        yield CodexBench(folder, server, hanging_command(folder) if check.needs == "hang" else None)


BENCHES: Final[Mapping[str, Callable[[Check, Path, pytest.MonkeyPatch], AbstractContextManager[Bench]]]] = {
    "stub": _stub,
    "claude-sdk": _claude("claude-sdk"),
    "claude-cli": _claude("claude-cli"),
    "gemini-cli": _gemini,
    "codex": _codex,
}
"""The bench of each transport, for one check in a folder of its own."""
NAMES: Final = tuple(BENCHES)
