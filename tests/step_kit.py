"""One step of any agent, as the engine takes it: a session, a turn that writes a file, hand-off, advice, the end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from model_servers.minds import DRAFT, is_structured
from model_servers.script import HandIn, Mind, Part, Reply, Seen, Write, turn
from pydantic import BaseModel

from schemas.events import TransportEvent
from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from system.leftovers import RUN_VARIABLE
from transports.port import SessionSpec, StepSession, Transport, WorkRequest

WRITTEN: Final = "written.txt"
"""The file the agent writes, and the only one."""
TASK: Final = "Write the file."
SUM_UP: Final = "Say how the step went."
WHERE_TO: Final = "Say where to go next."
SIGNAL: Final[Mapping[str, Any]] = {
    "decision": "advance",
    "next_step_id": "end",
    "route": None,
    "reason": "it is done",
    "confidence": 1,
    "needs_human": False,
    "factors_considered": [],
    "risks_identified": [],
}
ASKED: Final[Sequence[tuple[str, type[BaseModel]]]] = ((SUM_UP, HandoffDraft), (WHERE_TO, RoutingSignal))
"""What is asked for once the work is done, each with its schema."""

_LIMIT_S: Final = 60.0
_CONTENT: Final = "here\n"


def doing(*calls: Part) -> Mind:
    """Return a mind that answers at once, by the request alone: make these calls, say that it is done, hand in."""

    def answer(seen: Seen) -> Reply:
        if is_structured(seen):
            wanted = json.dumps(seen.schema) if seen.schema is not None else seen.asked
            return turn(HandIn(SIGNAL if '"factors_considered"' in wanted else DRAFT))
        return turn("I do it.", calls[len(seen.calls)]) if len(seen.calls) < len(calls) else turn("Done.")

    return answer


mind: Final = doing(Write(WRITTEN, _CONTENT))
"""Writes the file."""


def make_spec(folder: Path, run_id: str, *, state: Path) -> SessionSpec:
    """Return the spec of a session with a workspace and a private folder in ``folder``."""
    workspace, private = folder / "workspace", folder / "private"
    own = {"HOME": private / "home", "TMPDIR": private / "tmp"}
    for made in (workspace, *own.values()):
        made.mkdir(parents=True, exist_ok=True)
    edit = {"do": "edit", "path": WRITTEN, "content": _CONTENT}
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps({"version": 1, "steps": {"build": {"turns": [{"work": [edit]}]}}}))
    given = {name: str(path) for name, path in own.items()}
    return SessionSpec(
        run_id=run_id,
        place={"step": "build", "visit": 1, "attempt": 1, "iteration": 1},
        workspace=workspace,
        private=private,
        state=state,
        environment={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", RUN_VARIABLE: run_id, **given},
        system="You build things.",
        model=None,
        read_only=False,
        command_timeout_s=60,
        no_output_s=600,
        scenario=str(scenario),
    )


async def hot_step(transport: Transport, spec: SessionSpec) -> None:
    """Take a step in one session; raises AssertionError when it is not as it must be."""
    session = await transport.open_session(spec, _ignore)
    try:
        await _work(session)
        for prompt, schema in ASKED:
            await _ask(session, prompt, schema)
    finally:
        await session.aclose()
    _check(spec)


async def cold_step(transport: Transport, spec: SessionSpec) -> None:
    """Take a step in three sessions, each of which goes on with the one before; raises AssertionError."""
    session = await transport.open_session(spec, _ignore)
    try:
        await _work(session)
    finally:
        await session.aclose()
    for prompt, schema in ASKED:
        session = await transport.open_session(replace(spec, resume=session.session_id), _ignore)
        try:
            await _ask(session, prompt, schema)
        finally:
            await session.aclose()
    _check(spec)


async def _work(session: StepSession) -> None:
    outcome = await session.work(WorkRequest(TASK), _ignore)
    assert outcome.end == "completed", outcome


async def _ask(session: StepSession, prompt: str, schema: type[BaseModel]) -> None:
    result = await session.structured(prompt, schema, _ignore, timeout_s=_LIMIT_S)
    assert result.value is not None, result
    assert result.reprompts == 0, result


def _check(spec: SessionSpec) -> None:
    assert [path.name for path in spec.workspace.iterdir()] == [WRITTEN]
    assert (spec.workspace / WRITTEN).read_text() == _CONTENT


def _ignore(event: TransportEvent) -> None:
    del event
