"""The real Gemini CLI holds every check of the conformance suite that applies to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from gemini_kit import HANGING, GeminiBench, asking_about, killing, needs_gemini, serving

from system import processes
from transports.conformance import CHECKS, Check, prove, unproved
from transports.gemini_cli import CAPABILITIES, GeminiCliTransport
from transports.programs import AGENTS

pytestmark = needs_gemini
HANGS = {check.name for check in CHECKS if check.needs == "hang"}


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    await processes.shutdown()


def applicable() -> list[Check]:
    bench = GeminiBench(Path())
    return [check for check in CHECKS if check.applies(bench)]


@pytest.mark.parametrize("check", applicable(), ids=lambda check: check.name)
async def test_gemini_cli_holds(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = GeminiBench(tmp_path)
    if check.name in HANGS:
        bench.transport = GeminiCliTransport(program=hanging(tmp_path))
    monkeypatch.setattr("transports.gemini_policy.judge", asking_about)
    with serving(killing(bench.spec("idle").run_id), monkeypatch):
        await prove(check, bench)


def hanging(folder: Path) -> Path:
    """Return a program that runs Gemini CLI, and neither ends with it nor obeys."""
    script = folder / "gemini"
    script.write_text(HANGING.replace("$GEMINI", str(AGENTS / "node_modules" / ".bin" / "gemini")))
    script.chmod(0o755)
    return script


def test_what_does_not_apply_is_what_the_program_cannot_do() -> None:
    left_out = {check.name for check in CHECKS} - {check.name for check in applicable()}
    assert left_out == {
        "is_hot",  # a process takes one prompt
        "passes_questions_on",  # its question tool does not exist without a terminal
        "parks_on_questions",
        "goes_on_with_an_answer",
        "stops_while_it_asks",
        "reports_subagents",  # they are not among the tools a session has
    }


def test_gemini_cli_claims_nothing_that_is_not_proved() -> None:
    assert unproved(CAPABILITIES) == frozenset()
    assert os.access(AGENTS, os.R_OK)
