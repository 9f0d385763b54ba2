"""What is done to a fresh clone before anybody works in it: set-up commands, then the gates as they stand."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from temporalio.exceptions import ApplicationError

from activities.context import OpenRun, WorkerContext
from activities.errors import refused
from activities.gates import Place, run_gate
from activities.heartbeat import Beat
from activities.running import Stop
from activities.timeouts import seconds
from schemas.calls import GateRun
from schemas.flow import FlowSpec, Gate, StepSpec
from system.processes import LOST, Finished, SpawnFailed, how_ended, run
from system.savepoints import restore_tree

SETUP_TIMEOUT_S: Final = 1_800.0
_TAIL_CHARS: Final = 4_000
_LOCK_FILES: Final = (
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "requirements.txt",
    "pyproject.toml",
    "package-lock.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "Cargo.lock",
    "go.sum",
    "Gemfile.lock",
    "composer.lock",
)


async def set_up(ctx: WorkerContext, opened: OpenRun, spec: FlowSpec, beat: Beat) -> None:
    """Run the flow's set-up commands, unless this very set-up was done here; the tree is put back afterwards.

    Raises ApplicationError ``SetupFailed`` with the end of the output, and ProcessError where the machine has no process
    for it: that is no word on the set-up.
    """
    folder = ctx.folder(opened.held.run_id)
    digest = await asyncio.to_thread(_digest, spec.setup, folder.workspace)
    if opened.held.setup == digest:
        return
    before = (await opened.repository.tree_id()).tree if spec.setup else ""
    environment = folder.environment(folder.private / "setup", ctx.settings.environment)
    for argv in spec.setup:
        beat.say(f"set-up: {argv[0]}")
        try:
            finished = await run(argv, cwd=folder.workspace, env=environment, timeout_s=SETUP_TIMEOUT_S)
        except SpawnFailed as error:
            if error.retryable:
                raise
            raise refused("SetupFailed", f"set-up: {error}") from error
        if finished.stopped_by == "lost":
            raise SpawnFailed("E_SPAWN", argv[0], LOST)
        if not finished.ok:
            raise _failed(ctx, argv, finished)
    if spec.setup:
        await _put_back(opened, before)
    opened.held = opened.held.model_copy(update={"setup": digest})


async def measure_base(
    ctx: WorkerContext, opened: OpenRun, spec: FlowSpec, beat: Beat, *, measure: bool
) -> dict[str, list[GateRun]]:
    """Return what each step's gates said before the first step; with ``measure``, run those not yet stored."""
    folder = ctx.folder(opened.held.run_id)
    base = f"runs/{opened.held.run_id}/base"
    known: dict[str, GateRun] = {}
    found: dict[str, list[GateRun]] = {}
    before: str | None = None
    for step, gate in _before(spec):
        key = f"{base}/gates-{step.id}-{gate.name}.json"
        done = await asyncio.to_thread(ctx.evidence.get_model, key, GateRun)
        if done is None and not measure:
            continue
        if done is None:
            done = known.get(_identity(gate))
            if done is None:
                if before is None:
                    before = (await opened.repository.tree_id()).tree
                beat.say(f"gate before the run: {gate.name}")
                home = folder.private / "base"
                place = Place(
                    folder.workspace,
                    gate_environment(folder.environment(home, ctx.settings.environment)),
                    home / "reports",
                )
                timeout_s = seconds(spec, step, "gate", own=gate.timeout)
                measured = await run_gate(gate, place, timeout_s=timeout_s, stop=Stop())
                evidence = None
                if measured.fact.measured:
                    shown = f"{base}/gates/{step.id}-{gate.name}.txt"
                    evidence = await asyncio.to_thread(ctx.evidence.put_text, shown, measured.output)
                done = ctx.evidence.redacted(
                    GateRun(fact=measured.fact, elapsed_ms=measured.elapsed_ms, evidence=evidence)
                )
            fact = done.fact.model_copy(update={"name": gate.name, "required": gate.required})
            done = done.model_copy(update={"fact": fact})
            # What could not be measured is asked for again by whoever comes here again.
            if fact.measured:
                await asyncio.to_thread(ctx.evidence.put_model, key, done)
        known.setdefault(_identity(gate), done)
        found.setdefault(step.id, []).append(done)
    if before is not None:
        await _put_back(opened, before)
    return found


def gate_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a gate: it must leave nothing behind, and ask nobody."""
    return {**environment, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}


async def _put_back(opened: OpenRun, tree: str) -> None:
    if (await opened.repository.tree_id()).tree != tree:
        await restore_tree(opened.repository, tree)


def _before(spec: FlowSpec) -> list[tuple[StepSpec, Gate]]:
    return [(step, gate) for step in spec.steps for gate in step.gates if gate.before]


def _identity(gate: Gate) -> str:
    return json.dumps([gate.argv, gate.parse, gate.timeout])


def _digest(setup: Sequence[Sequence[str]], workspace: Path) -> str:
    found = hashlib.sha256(json.dumps([list(argv) for argv in setup]).encode())
    for name in _LOCK_FILES if setup else ():
        path = workspace / name
        if path.is_file() and not path.is_symlink():
            found.update(name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _failed(ctx: WorkerContext, argv: Sequence[str], finished: Finished) -> ApplicationError:
    how = "timed out" if finished.timed_out else how_ended(finished.exit_code, finished.signal)
    output = (finished.stdout + finished.stderr).decode("utf-8", "replace").strip()
    # cut again, since the end of a secret whose beginning was cut off would not be known for one
    shown = ctx.evidence.redactor.text(output[-2 * _TAIL_CHARS :])[-_TAIL_CHARS:]
    return refused("SetupFailed", f"set-up {' '.join(argv)}: {how}\n{shown}")
