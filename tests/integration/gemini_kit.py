"""A Gemini CLI that can be told how to behave: the real program, and a model server that plays its model."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
from model_servers.gemini import GeminiServer
from model_servers.script import (
    Call,
    HandIn,
    Mind,
    Part,
    Refuse,
    Reply,
    Run,
    Say,
    Seen,
    Turn,
    Write,
    turn,
)
from rules_kit import post_rules, say_rules
from session_files import file_of

from policy.commands import Verdict, judge
from schemas.events import ToolEnded, TransportEvent
from schemas.tools import NormalizedToolCall
from system.leftovers import RUN_VARIABLE, leftovers
from transports.conformance_bench import (
    DANGEROUS,
    ESCAPE,
    HUGE_CHARS,
    MARKER,
    OTHER,
    RETRY_S,
    WORDS,
    Behaviour,
)
from transports.gemini_cli import PROGRAM, GeminiCliTransport
from transports.port import SessionSpec, Transport
from transports.programs import AGENTS

AVAILABLE = GeminiCliTransport().is_available()
needs_gemini = pytest.mark.skipif(not AVAILABLE.ok, reason=f"no Gemini CLI: {AVAILABLE.reason}")
"""Leaves a test out where the program is not installed, and says why."""

ASKED = f"touch {MARKER}"
"""A command that is left to people."""
DRAFT: dict[str, Any] = {
    "status": "UNVERIFIED",
    "summary": "done",
    "proposed_next_step": None,
    "notes_for_next_step": "",
    "confidence": 0.5,
    "can_further_iteration_help": "unsure",
    "assumptions": [],
    "decisions": [],
    "blockers": [],
    "evidence_names": [],
}
HANGING = """#!/bin/sh
trap '' INT TERM
"$GEMINI" "$@"
while :; do sleep 600; done
"""


def asking_about(command: str, *, workspace: str = "") -> Verdict:
    """Judge as policy does, and leave ``ASKED`` to people."""
    return (
        Verdict("ask", "asked", "a person decides")
        if command == ASKED
        else judge(command, workspace=workspace)
    )


def is_asked_for_json(seen: Seen) -> bool:
    """Tell whether a request is one for a structured answer."""
    return "Answer with one JSON object" in seen.asked


def write(seen: Seen, path: str, content: str) -> Part:
    """Return a write, also where the tool for it was not declared: models try."""
    if "write_file" in seen.tools:
        return Write(path, content)
    return Call("write_file", {"file_path": path, "content": content})


def behaving(seen: Seen) -> Reply:
    """Behave as the name of the model says: ``gemini-<behaviour>``."""
    behaviour = seen.model.removeprefix("gemini-").replace("-", "_")
    if is_asked_for_json(seen):
        again = "not accepted" in seen.asked
        if behaviour == "bad_always" or (behaviour == "bad_once" and not again):
            return turn("It went well.")
        wrote = [str(call.arguments.get("file_path")) for call in seen.calls if not call.failed]
        return turn(HandIn(DRAFT | {"notes_for_next_step": " ".join(wrote)}))
    if behaviour == "bad_key":
        return Refuse(401)
    first = WORK.get(behaviour)
    if first is not None and not seen.calls:
        return first(seen)
    return Turn((), hang_after=0) if behaviour == "hold" else turn("Done.")


def running(command: str) -> Callable[[Seen], Reply]:
    return lambda _: turn(Run(command))


WORK: dict[str, Callable[[Seen], Reply]] = {
    "write": lambda seen: turn(write(seen, MARKER, "here\n")),
    "hold": lambda seen: turn(write(seen, MARKER, "here\n")),
    "call": running(ASKED),
    "say": lambda _: turn(WORDS),
    "command": lambda _: turn(Write(MARKER, "here\n"), Run(f"cat {MARKER}")),
    "parallel": lambda _: turn(Write(MARKER, "here\n"), Write(OTHER, "there\n")),
    "dangerous": running(DANGEROUS),
    "stream": lambda _: Turn((Say(WORDS), Say("And more.")), hang_after=1),
    "piecemeal": lambda _: Turn((Say(WORDS, pieces=5),), hang_after=4),
    "tool": running("sleep 3600"),
    "background": running("setsid sleep 3600 >/dev/null 2>&1 & echo started"),
    "limited": lambda _: Refuse(429, retry_after=RETRY_S),
    "cut": lambda _: turn(WORDS, "And more.", cut_after=1),
    "limited_untold": lambda _: Refuse(429),
    "broken": lambda _: Refuse(500),
    "overloaded": lambda _: Refuse(529),
    "unjudged": lambda seen: turn(write(seen, MARKER, "here\n")),
    "escape": running(f"python3 {ESCAPE}"),
    "project": say_rules,
    "huge": running(f"head -c {HUGE_CHARS} /dev/zero | tr '\\0' x"),
}
"""What the model says first, by behaviour."""


def end_program(run_id: str) -> None:
    """Kill the program itself, as a crash would end it; its guard and its children go on."""
    for pid in leftovers(run_id):
        with suppress(psutil.NoSuchProcess):
            words = psutil.Process(pid).cmdline()
            # The guard has the program's words, too, after its own.
            if any(word.endswith("gemini.js") for word in words[:4]):
                os.kill(pid, signal.SIGKILL)


def killing(run_id: str) -> Mind:
    """Return a mind that ends the program in the middle of its turn, and else behaves."""

    def answer(seen: Seen) -> Reply:
        if seen.model == "gemini-crash":
            end_program(run_id)
        return behaving(seen)

    return answer


def hanging(folder: Path) -> Path:
    """Return a program that runs Gemini CLI, and neither ends with it nor obeys."""
    script = folder / "gemini"
    script.write_text(HANGING.replace("$GEMINI", str(AGENTS / "node_modules" / ".bin" / PROGRAM)))
    script.chmod(0o755)
    return script


@dataclass
class GeminiBench:
    """A Gemini CLI whose model behaves."""

    folder: Path
    run_id: str = field(default_factory=lambda: f"gemini-{uuid.uuid4().hex[:12]}")
    transport: Transport = field(default_factory=lambda: GeminiCliTransport(client_attempts=1))
    behaviours: frozenset[Behaviour] = frozenset(set(get_args(Behaviour)) - {"ask", "subagent", "heed"})

    def spec(self, behaviour: Behaviour, *, step: str = "build", **more: Any) -> SessionSpec:
        workspace = self.folder / "workspace"
        workspace.mkdir(exist_ok=True)
        if behaviour == "project":
            post_rules(workspace, "GEMINI.md")
        run_id = self.run_id
        environment = {"PATH": os.environ["PATH"], RUN_VARIABLE: run_id}
        given: dict[str, Any] = {
            "run_id": run_id,
            "place": {"step": step, "visit": 1, "attempt": 1, "iteration": 1},
            "workspace": workspace,
            "private": self.folder / "private" / step,
            "environment": environment,
            "state": self.folder / "state",
            "system": "You build things.",
            "model": f"gemini-{behaviour.replace('_', '-')}",
            "read_only": False,
            "command_timeout_s": 60,
            "no_output_s": 600,
        }
        return SessionSpec(**{**given, **more})

    def kept(self, session_id: str) -> Path:
        return file_of(self.folder / "state", session_id)


@contextmanager
def serving(mind: Mind, monkeypatch: pytest.MonkeyPatch) -> Iterator[GeminiServer]:
    """Hold a model server, at whose address the program finds its model."""
    with GeminiServer(mind) as server:
        monkeypatch.setenv("GEMINI_API_KEY", "secret-of-the-worker")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield server


def calls_of(events: list[TransportEvent]) -> list[NormalizedToolCall]:
    """Return the calls that ended, in their order."""
    return [event.call for event in events if isinstance(event, ToolEnded)]
