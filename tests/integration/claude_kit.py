"""What tests of the Claude transports share: a scripted model, specs of sessions, and agents that behave as told."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from model_servers.anthropic import AnthropicServer
from model_servers.script import Ask, Call, HandIn, Refuse, Reply, Run, Say, Seen, Tokens, Turn, Write, turn
from rules_kit import is_steered, post_rules, say_rules
from session_files import file_of

from policy.commands import Verdict, judge
from system.leftovers import RUN_VARIABLE
from transports.claude_session import ClaudeSession
from transports.conformance_bench import (
    DANGEROUS,
    ESCAPE,
    HUGE_CHARS,
    MARKER,
    OTHER,
    QUESTION,
    RETRY_S,
    STEERED,
    WORDS,
    Behaviour,
)
from transports.port import Availability, Emit, SessionSpec, Transport, TransportCapabilities

ASKED_ABOUT: Final = f"touch {MARKER}"
"""A command that policy leaves to people, where a test says so."""
KEY: Final = "test-key-local"
TASK: Final = {
    "description": "write a file",
    "prompt": "You are the helper.",
    "subagent_type": "general-purpose",
}
"""What a sub-agent is told."""
DRAFT: Final[Mapping[str, Any]] = {
    "status": "UNVERIFIED",
    "summary": "done",
    "proposed_next_step": None,
    "notes_for_next_step": "",
    "confidence": 0.5,
    "can_further_iteration_help": "no",
    "assumptions": [],
    "decisions": [],
    "blockers": [],
    "evidence_names": [],
}


NAMES: Final = ("claude-sdk", "claude-cli")
"""The transports that drive Claude Code."""


def make_spec(folder: Path, **changes: Any) -> SessionSpec:
    """Return the spec of a session in a folder of its own."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    run_id = f"claude-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    spec = SessionSpec(
        run_id=run_id,
        place={"step": "build", "visit": 1, "attempt": 1, "iteration": 1},
        workspace=workspace,
        private=folder / "private" / "build",
        state=folder / "state",
        environment={RUN_VARIABLE: run_id, "PATH": os.environ["PATH"]},
        system="",
        model=None,
        read_only=False,
        command_timeout_s=60,
        no_output_s=600,
    )
    return replace(spec, **changes)


def point_at(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have agents talk to a scripted model."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def ask_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have policy leave one command to people."""

    def asking(command: str, *, workspace: str = "") -> Verdict:
        if command == ASKED_ABOUT:
            return Verdict("ask", "asked_about", "the test says so")
        return judge(command, workspace=workspace)

    monkeypatch.setattr("transports.claude_policy.judge", asking)


def behave(seen: Seen) -> Reply:
    """Answer as the behaviour says that is named in the system prompt."""
    if _is_helper(seen):
        return turn("Done.") if seen.calls else turn(Write(MARKER, "here\n"))
    behaviour = seen.system.rpartition("Behaviour: ")[2].split()[0]
    if _is_to_answer(seen):
        return _answer(behaviour, seen)
    done = [call for call in seen.calls if call.result is not None]
    match behaviour:
        case "write" | "hold" if not done:
            # Without words: what is heard first of it is that the file is written.
            return turn(Write(MARKER, "here\n"))
        case "hold" if STEERED not in seen.asked:
            return turn("I go on.", "And on.", hang_after=4)
        case "say":
            return turn(WORDS)
        case "command" if len(done) < 2:
            return turn(Run(f"cat {MARKER}")) if done else turn(Write(MARKER, "here\n"))
        case "parallel" if not done:
            return turn(Write(MARKER, "here\n"), Write(OTHER, "there\n"))
        case "dangerous" if not done:
            return turn(Run(DANGEROUS))
        case "stream":
            return turn(WORDS, "And on.", hang_after=4)
        case "piecemeal":
            return turn(Say(WORDS, pieces=5), hang_after=6)
        case "tool" if not done:
            return turn(Run("tail -f /dev/null"))
        case "background" if not done:
            return turn(Run("setsid tail -f /dev/null > /dev/null 2>&1 &"))
        case "subagent" if not done:
            return turn(Call("Agent", TASK))
        case "limited":
            return Refuse(429, retry_after=RETRY_S)
        case "bad_key":
            return Refuse(401)
        case "cut":
            return turn("I begin.", cut_after=3)
        case "huge" if not done:
            return turn(Run(f"printf '%0{HUGE_CHARS}d' 0"))
        case "limited_untold":
            return Refuse(429)
        case "broken":
            return Refuse(500)
        case "overloaded":
            return Refuse(529)
        case "unjudged" if not done:
            return turn(Write(MARKER, "here\n"))
        case "escape" if not done:
            return turn(Run(f"python3 {ESCAPE}"))
        case "project":
            return say_rules(seen)
        case "heed":
            return turn(WORDS) if is_steered(seen) else turn(Run("echo again"))
        case "ask" if not done and "blue" not in seen.asked:
            return turn(Ask(QUESTION, ("red", "blue")))
        case "ask" if done:
            return turn(f"I was answered: {done[-1].result}")
        case "call" if not done:
            return turn(Run(ASKED_ABOUT))
        case _:
            return turn("Done.", tokens=Tokens())


def _is_helper(seen: Seen) -> bool:
    return any(TASK["prompt"] in text for role, text in seen.texts if role == "user")


def _is_to_answer(seen: Seen) -> bool:
    return seen.schema is not None or "must validate against" in seen.asked


def _answer(behaviour: str, seen: Seen) -> Turn:
    bad = "It went well."
    said = sum(text == bad for role, text in seen.texts if role == "assistant")
    if behaviour == "schema" and seen.schema is None:
        return turn(bad)
    if behaviour == "bad_always" or (behaviour == "bad_once" and not said):
        return turn(bad)
    written = [str(call.arguments) for call in seen.calls if MARKER in str(call.arguments)]
    return turn(HandIn({**DRAFT, "summary": " ".join(["I wrote:", *written])}))


@dataclass
class Freezing:
    """A transport whose program is stopped before its first turn where the spec says ``hang``: it hears no order.

    ``last`` is the session that was opened last.
    """

    inner: Transport
    last: ClaudeSession | None = None
    name: str = "freezing"
    reports_cost: bool = True

    @property
    def capabilities(self) -> TransportCapabilities:
        return self.inner.capabilities

    def is_available(self) -> Availability:
        return self.inner.is_available()

    async def open_session(self, spec: SessionSpec, emit: Emit) -> ClaudeSession:
        session = await self.inner.open_session(spec, emit)
        assert isinstance(session, ClaudeSession)
        self.last = session
        if spec.system.endswith("hang"):
            os.kill(session.pid, signal.SIGSTOP)
        return session


@dataclass
class ClaudeBench:
    """A Claude agent whose model makes it behave."""

    folder: Path
    transport: Freezing
    behaviours: frozenset[Behaviour] = field(default=frozenset(get_args(Behaviour)))

    def mind(self, seen: Seen) -> Reply:
        """Answer as the model; where the spec says ``crash``, the program is killed instead."""
        if "Behaviour: crash" in seen.system and self.transport.last is not None:
            os.kill(self.transport.last.pid, signal.SIGKILL)
        return behave(seen)

    def spec(self, behaviour: Behaviour, *, step: str = "build") -> SessionSpec:
        spec = make_spec(
            self.folder,
            place={"step": step, "visit": 1, "attempt": 1, "iteration": 1},
            private=self.folder / "private" / step,
            system=f"Behaviour: {behaviour}",
        )
        if behaviour == "project":
            post_rules(spec.workspace, "CLAUDE.md")
        return spec

    def kept(self, session_id: str) -> Path:
        return file_of(self.folder / "state", session_id)
