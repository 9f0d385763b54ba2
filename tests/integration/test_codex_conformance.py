"""Codex, the real program with a scripted model, holds every check of the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from codex_kit import CodexBench, hanging_command, killing, run_of
from model_servers.openai import OpenAIServer

from policy import commands
from policy.commands import Verdict
from system import processes
from transports.codex import CAPABILITIES
from transports.conformance import CHECKS, Check, prove, unproved


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


@pytest.fixture(autouse=True)
def policy_asks_about_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = commands.judge

    def asking(command: str, *, workspace: str = "") -> Verdict:
        if command.startswith("touch "):
            return Verdict("ask", "E_ASK", "the test wants to know")
        return judge(command, workspace=workspace)

    monkeypatch.setattr(commands, "judge", asking)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_codex_holds(check: Check, tmp_path: Path) -> None:
    with OpenAIServer(killing(run_of(tmp_path))) as server:
        hangs = check.needs == "hang"
        bench = CodexBench(tmp_path, server, hanging_command(tmp_path) if hangs else None)
        if not check.applies(bench):
            assert check.needs == "subagent", "Codex is started without sub-agents"
            return
        await prove(check, bench)


def test_codex_claims_nothing_that_is_not_proved() -> None:
    assert unproved(CAPABILITIES) == frozenset()
