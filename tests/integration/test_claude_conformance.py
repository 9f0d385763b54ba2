"""Claude Code holds every check of the conformance suite, whichever way it is driven, with the real program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from claude_kit import NAMES, ClaudeBench, Freezing, ask_people, point_at
from model_servers.anthropic import AnthropicServer

from system import processes
from transports import registry
from transports.conformance import CHECKS, Check, prove, unproved


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_claude_holds(name: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ClaudeBench(tmp_path, Freezing(registry.open(name)))
    assert check.applies(bench)
    with AnthropicServer(bench.mind) as server:
        point_at(server, monkeypatch)
        ask_people(monkeypatch)
        await prove(check, bench)


@pytest.mark.parametrize("name", NAMES)
def test_claude_claims_nothing_that_is_not_proved(name: str) -> None:
    assert unproved(registry.open(name).capabilities) == frozenset()
