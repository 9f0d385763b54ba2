"""The same checks against the live services, as far as a model can be asked to behave: off by default, needs a key.

``ANTHROPIC_API_KEY=… python -m pytest -m live tests/conformance``, or with ``GEMINI_API_KEY`` or ``OPENAI_API_KEY``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from session_files import file_of

from system.leftovers import RUN_VARIABLE
from system.processes import shutdown
from transports import registry
from transports.conformance import CHECKS, Check, prove
from transports.conformance_bench import DANGEROUS, MARKER, OTHER, QUESTION, WORDS, Behaviour
from transports.credentials import KEYS
from transports.port import SessionSpec, Transport

pytestmark = pytest.mark.live

LIVE: Final = ("claude-sdk", "claude-cli", "gemini-cli", "codex")
ASKED: Final[Mapping[Behaviour, str]] = {
    "idle": "Use no tool. Answer with the one word OK.",
    "write": f"Create the file {MARKER} with the content 'here', then answer OK. If you may not, answer OK.",
    "hold": f"Create the file {MARKER} with the content 'here', then write a story of 5,000 words as your answer.",
    "ask": f"Ask the user exactly this with your question tool: {QUESTION!r}, options red and blue. Then answer OK.",
    "say": f"Use no tool. Answer with exactly this: {WORDS}",
    "command": f"Create the file {MARKER} with the content 'here'; then run the command `cat {MARKER}`; then answer OK.",
    "parallel": f"Create {MARKER} and {OTHER} with one call each, both in the same message; then answer OK.",
    "dangerous": f"Run the command `{DANGEROUS}` once. Whatever comes of it, answer OK.",
    "stream": "Use no tool. Write a story of 5,000 words as your answer.",
    "piecemeal": "Use no tool. Write a story of 5,000 words as your answer.",
    "tool": "Run the command `sleep 3600` in the foreground, and wait for its end.",
    "background": "Run the command `setsid sleep 3600 > /dev/null 2>&1 &` once, then answer OK.",
}
"""What a model is asked to do, by behaviour; the others need one that can be scripted."""
SYSTEM: Final = """\
You are tested. When you are told to work ("do it", "go on", "write", "ask", "call" or the like), do exactly this: {}

When you are asked to sum up, to say what you did, or for a value in a given form, answer that as you are asked, with the
tool or in the format that is named there, and do the work not again.
"""


@dataclass
class LiveBench:
    """A transport with its real model, which is asked to behave."""

    folder: Path
    transport: Transport
    behaviours: frozenset[Behaviour] = field(default=frozenset(ASKED))

    def spec(self, behaviour: Behaviour, *, step: str = "build") -> SessionSpec:
        workspace = self.folder / "workspace"
        workspace.mkdir(exist_ok=True)
        run_id = f"live-{self.folder.parent.name}-{self.folder.name}"
        return SessionSpec(
            run_id=run_id,
            place={"step": step, "visit": 1, "attempt": 1, "iteration": 1},
            workspace=workspace,
            private=self.folder / "private" / step,
            state=self.folder / "state",
            environment={RUN_VARIABLE: run_id, "PATH": os.environ["PATH"]},
            system=SYSTEM.format(ASKED[behaviour]),
            model=None,
            read_only=False,
            command_timeout_s=60,
            no_output_s=600,
        )

    def kept(self, session_id: str) -> Path:
        return file_of(self.folder / "state", session_id)


@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_a_live_agent_holds(name: str, check: Check, tmp_path: Path) -> None:
    transport = registry.open(name)
    keys = KEYS[transport.capabilities.provider_name]
    if not any(os.environ.get(key) for key in keys):
        pytest.skip(f"no key: set {keys[0]}")
    bench = LiveBench(tmp_path, transport)
    if not check.applies(bench):
        pytest.skip("a live model cannot be asked for this")
    try:
        await prove(check, bench)
    finally:
        await shutdown()
