"""A stub whose scenario makes it behave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from system.leftovers import RUN_VARIABLE
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
from transports.port import SessionSpec, Transport
from transports.stub import StubTransport

WRITE = {"do": "edit", "path": MARKER, "content": "here\n"}
LOST = {"do": "fail", "code": "provider_error", "message": "the provider failed"}
TURNS: Final[Mapping[Behaviour, Mapping[str, Any]]] = {
    "idle": {},
    "write": {"work": [WRITE]},
    "hold": {"work": [WRITE, {"do": "stall", "seconds": 3600}]},
    "hang": {"work": [{"do": "hang"}]},
    "ask": {"work": [{"do": "ask", "question": QUESTION, "options": ["red", "blue"]}]},
    "call": {"work": [{"do": "run", "argv": ["/bin/touch", MARKER], "ask": True}]},
    "bad_once": {"finalize": {"raw": ["It went well."]}},
    "bad_always": {"finalize": {"raw": ["It went well."] * 4}},
    "say": {"work": [{"do": "say", "text": WORDS}, {"do": "tokens", "prompt": 5, "completion": 5}]},
    "command": {"work": [WRITE, {"do": "run", "argv": ["cat", MARKER]}]},
    "dangerous": {"work": [{"do": "run", "argv": DANGEROUS.split()}]},
    "stream": {"work": [{"do": "say", "text": WORDS}, {"do": "stall", "seconds": 3600}]},
    "piecemeal": {
        "work": [*({"do": "say", "text": piece} for piece in WORDS[:-1]), {"do": "stall", "seconds": 3600}]
    },
    "tool": {"work": [{"do": "run", "argv": ["sleep", "3600"]}]},
    "background": {"work": [{"do": "run", "argv": ["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 &"]}]},
    "limited": {"work": [{"do": "rate_limit", "seconds": RETRY_S}]},
    "bad_key": {"work": [{"do": "fail", "message": "set STUB_KEY", "retryable": False}]},
    "crash": {"work": [{"do": "crash_child"}]},
    "cut": {"work": [LOST]},
    "broken": {"work": [LOST]},
    "overloaded": {"work": [LOST]},
    "limited_untold": {"work": [{"do": "rate_limit"}]},
    "parallel": {"work": [WRITE, {**WRITE, "path": OTHER}]},
    "subagent": {"work": [WRITE]},
    "schema": {"finalize": {"raw": ["It went well."] * 4}},
    "unjudged": {"work": [WRITE]},
    "escape": {"work": [{"do": "run", "argv": ["python3", ESCAPE]}]},
    "project": {"work": [{"do": "say", "text": "I was told no rules."}]},
    "heed": {"work": [WRITE, {"do": "wait_for_steer"}, {"do": "say", "text": WORDS}]},
    "huge": {"work": [{"do": "run", "argv": ["head", "-c", str(HUGE_CHARS), "/dev/zero"]}]},
}


@dataclass
class StubBench:
    """A stub whose scenario makes it behave."""

    folder: Path
    transport: Transport = field(default_factory=StubTransport)
    behaviours: frozenset[Behaviour] = frozenset(get_args(Behaviour))

    def spec(self, behaviour: Behaviour, *, step: str = "build") -> SessionSpec:
        script = {"version": 1, "steps": {step: {"turns": [TURNS[behaviour]]}}}
        scenario = self.folder / f"{behaviour}-{step}.json"
        scenario.write_text(json.dumps(script))
        workspace = self.folder / "workspace"
        workspace.mkdir(exist_ok=True)
        run_id = f"conformance-{self.folder.parent.name}-{self.folder.name}"
        return SessionSpec(
            run_id=run_id,
            place={"step": step, "visit": 1, "attempt": 1, "iteration": 1},
            workspace=workspace,
            private=self.folder / "private" / step,
            environment={RUN_VARIABLE: run_id},
            state=self.folder / "state",
            system="",
            model=None,
            read_only=False,
            command_timeout_s=60,
            no_output_s=600,
            scenario=str(scenario),
        )

    def kept(self, session_id: str) -> Path:
        del session_id  # one file holds all of a run
        return self.folder / "private" / "sessions" / "stub.jsonl"
