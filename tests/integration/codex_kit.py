"""What tests of Codex share: the real program, a scripted model, and a bench for the conformance suite."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import psutil
from model_servers.openai import OpenAIServer
from model_servers.script import Ask, HandIn, Mind, Refuse, Reply, Run, Say, Seen, Write, turn
from rules_kit import is_steered, post_rules, say_rules
from session_files import file_of

from policy.commands import Verdict, judge
from schemas.events import TransportEvent
from schemas.tools import NormalizedToolCall
from system.leftovers import RUN_VARIABLE, leftovers
from transports.codex import CodexTransport
from transports.codex_program import find_program
from transports.conformance_bench import (
    DANGEROUS,
    ESCAPE,
    HUGE_CHARS,
    MARKER,
    OTHER,
    QUESTION,
    RETRY_S,
    WORDS,
    Behaviour,
)
from transports.port import SessionSpec, StepSession, Transport, WorkOutcome, WorkRequest

MODEL = "gpt-5.5"
"""A model of the program's own catalogue: others get no tool for patches."""
KEY = "not-a-key"


def asking(command: str, *, workspace: str = "") -> Verdict:
    """Judge as policy does, and leave ``touch`` to people."""
    if command.startswith("touch "):
        return Verdict("ask", "E_ASK", "the test wants to know")
    return judge(command, workspace=workspace)


def transport_for(server: OpenAIServer, command: Sequence[str] | None = None) -> CodexTransport:
    """Return the transport whose model is this server."""
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
    return CodexTransport(command, environment)


def run_of(folder: Path) -> str:
    """Return the id of the run whose sessions are in this folder."""
    return f"codex-{folder.parent.name}-{folder.name}"


def spec_in(folder: Path, **more: Any) -> SessionSpec:
    """Return the spec of a session in a folder of its own; all of one folder are of one run."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    run_id = run_of(folder)
    step = more.pop("step", "build")
    given: dict[str, Any] = {
        "run_id": run_id,
        "place": {"step": step, "visit": 1, "attempt": 1, "iteration": 1},
        "workspace": workspace,
        "private": folder / "private" / step,
        "state": folder / "state",
        "environment": {RUN_VARIABLE: run_id, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        "system": "You are tidy.",
        "model": MODEL,
        "read_only": False,
        "command_timeout_s": 60,
        "no_output_s": 600,
    }
    return SessionSpec(**(given | more))


DRAFT: Mapping[str, Any] = {
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
"""A well-formed handoff."""
_BEHAVE = re.compile(r"Behave: (\w+)")
_ANSWER = "blue"


def behave(seen: Seen) -> Reply:
    """Be the model of the bench: what is to be done stands in the last system text."""
    behaviour = _BEHAVE.findall(seen.system)[-1]
    if seen.schema is not None:
        refused = any(text.startswith("Your answer was not accepted") for _, text in seen.texts)
        if behaviour == "bad_always" or (behaviour == "bad_once" and not refused):
            return turn("It went well.")
        patches = [str(call.arguments["input"]) for call in seen.calls if call.tool == "apply_patch"]
        return turn(HandIn({**DRAFT, "notes_for_next_step": "\n".join(patches)}))
    if behaviour == "project":
        return say_rules(seen)
    if behaviour == "heed":
        return turn(WORDS) if is_steered(seen) else turn(Run("echo again"))
    if behaviour == "ask" and seen.calls:
        return turn(f"I was answered: {seen.calls[-1].result}")
    first = FIRST.get(behaviour)
    if behaviour == "bad_key":
        return Refuse(401)
    if first is not None and not seen.calls and _ANSWER not in seen.asked:
        return first
    return turn("I think.", hang_after=1) if behaviour == "hold" else turn("Done.")


FIRST: Mapping[str, Reply] = {
    "write": turn(Write(MARKER, "here\n")),
    "hold": turn(Write(MARKER, "here\n")),
    "ask": turn(Ask(QUESTION, ("red", _ANSWER))),
    "call": turn(Run(f"touch {MARKER}")),
    "say": turn(WORDS),
    "command": turn(Write(MARKER, "here\n"), Run(f"cat {MARKER}")),
    "parallel": turn(Write(MARKER, "here\n"), Write(OTHER, "there\n")),
    "dangerous": turn(Run(DANGEROUS)),
    "stream": turn(WORDS, "And more.", hang_after=5),
    "piecemeal": turn(Say(WORDS, pieces=5), hang_after=6),
    "tool": turn(Run("sleep 3600")),
    "background": turn(Run("setsid sleep 3600 >/dev/null 2>&1 & echo started")),
    "limited": Refuse(429, retry_after=RETRY_S),
    "cut": turn(WORDS, cut_after=3),
    "limited_untold": Refuse(429),
    "broken": Refuse(500),
    "overloaded": Refuse(529),
    "escape": turn(Run(f"python3 {ESCAPE}")),
    "unjudged": turn(Write(MARKER, "here\n")),
    "huge": turn(Run(f"head -c {HUGE_CHARS} /dev/zero | tr '\\0' x")),
}
"""What the model says first, by behaviour."""


def killing(run_id: str) -> Mind:
    """Return a mind that ends the program in the middle of its turn where it is to crash, and else behaves."""

    def answer(seen: Seen) -> Reply:
        if _BEHAVE.findall(seen.system)[-1] == "crash":
            for pid in leftovers(run_id):
                if "app-server" in psutil.Process(pid).cmdline() and psutil.Process(pid).name() == "codex":
                    os.kill(pid, signal.SIGKILL)
        return behave(seen)

    return answer


@dataclass
class CodexBench:
    """Codex with a model that behaves as its system text says; ``command`` may stand in front of the real program."""

    folder: Path
    server: OpenAIServer
    command: Sequence[str] | None = None
    behaviours: frozenset[Behaviour] = frozenset(set(get_args(Behaviour)) - {"subagent"})

    def __post_init__(self) -> None:
        self.transport: Transport = transport_for(self.server, self.command)

    def spec(self, behaviour: Behaviour, *, step: str = "build") -> SessionSpec:
        spec = spec_in(self.folder, step=step, system=f"Behave: {behaviour}")
        if behaviour == "project":
            post_rules(spec.workspace, "AGENTS.md")
        return spec

    def kept(self, session_id: str) -> Path:
        return file_of(self.folder / "state", session_id)


def hangs(folder: Path) -> Path:
    """Return the file that is there once the program of `hanging_command` hangs."""
    return folder / "hangs"


def hanging_command(folder: Path) -> list[str]:
    """Return a program in front of the real one that obeys nothing any more once a turn is begun."""
    program = folder / "hanging.py"
    program.write_text(f"REAL, HANGS = {str(find_program())!r}, {str(hangs(folder))!r}\n{_HANGING}")
    return [sys.executable, "-I", "-S", str(program)]


_HANGING = """
import os, signal, subprocess, sys, threading
if sys.argv[1] != "app-server":
    os.execv(REAL, [REAL, *sys.argv[1:]])
real = subprocess.Popen([REAL, *sys.argv[1:]], stdin=subprocess.PIPE)
for line in sys.stdin.buffer:
    if b'"turn/start"' in line:
        break
    real.stdin.write(line)
    real.stdin.flush()
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
subprocess.Popen(["/bin/sleep", "600"])
open(HANGS, "w").close()
while True:
    signal.pause()
"""


@contextlib.asynccontextmanager
async def session_of(
    transport: CodexTransport, spec: SessionSpec
) -> AsyncIterator[tuple[StepSession, list[TransportEvent]]]:
    """Hold a session open for the block, with the events that were heard of it."""
    events: list[TransportEvent] = []
    session = await transport.open_session(spec, events.append)
    try:
        yield session, events
    finally:
        await session.aclose()


async def one_turn(server: OpenAIServer, spec: SessionSpec, **bounds: Any) -> Turned:
    """Open a session, let it work one turn and close it."""
    async with session_of(transport_for(server), spec) as (session, events):
        outcome = await session.work(WorkRequest("Do it.", **bounds), events.append)
    return Turned(outcome, events)


@dataclass
class Turned:
    """How a turn ended, and what was heard of it."""

    outcome: WorkOutcome
    events: list[TransportEvent]

    @property
    def calls(self) -> list[NormalizedToolCall]:
        """The calls that ended, in their order."""
        return [event.call for event in self.events if event.kind == "tool_ended"]

    @property
    def code(self) -> str | None:
        """The code of its error."""
        return None if self.outcome.error is None else self.outcome.error.code
