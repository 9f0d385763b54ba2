"""Runs as people drive them, for tests: start, wait, speak, and look at how they ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Rig
from flow_kit import flow, gate, git, kinds, linear, step
from temporalio.client import WorkflowExecutionStatus, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from cli.replay import load_history, replay_history
from schemas.events import RunEvent
from schemas.receipt import StepReceipt
from schemas.run import FlowResult

STATUS = {
    "verified": WorkflowExecutionStatus.COMPLETED,
    "nothing_to_do": WorkflowExecutionStatus.COMPLETED,
    "stopped": WorkflowExecutionStatus.COMPLETED,
}
READ_ONLY: dict[str, Any] = {"policy": "read-only", "agent": "reviewer"}
TWO_STEPS = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))


class Played(FlowResult):
    """A result with its receipts in their order."""

    receipts: list[StepReceipt]


async def ended(rig: Rig, name: str, outcome: str | None = None, *, within_s: float = 90.0) -> Played:
    """Wait for a run's end; check that status, evidence and branch are sound whatever it ended as."""
    result = await rig.result(name, within_s=within_s)
    assert outcome in (None, result.outcome), result
    described = await rig.client.get_workflow_handle(name).describe()
    assert described.status == STATUS.get(result.outcome, WorkflowExecutionStatus.FAILED)
    rig.check_evidence(result)
    assert kinds(rig, result.run_id)[-1] == "run_completed"
    if result.git is not None and outcome != "stopped":
        assert git(result.git.workspace, "status", "--porcelain") == ""
    return Played(**result.model_dump(), receipts=rig.receipts(result.run_id))


def start(rig: Rig, name: str, repo: Path, spec: Mapping[str, Any], play: Any = "noop", **more: Any) -> None:
    """Start a flow that is sent whole."""
    rig.start(name, {"spec": spec, "repo": str(repo), "task": "t", "scenario": play, **more})


async def played(
    rig: Rig, name: str, repo: Path, spec: Mapping[str, Any], play: Any = "noop", **more: Any
) -> Played:
    """Start a flow that is sent whole, and wait for its end."""
    start(rig, name, repo, spec, play, **more)
    return await ended(rig, name)


async def replays(rig: Rig, name: str, folder: Path) -> bool:
    """Tell whether a run's history replays; it is stored in ``folder``."""
    argv = "workflow", "show", "--workflow-id", name, "--output", "json"
    shown = await asyncio.to_thread(rig.temporal, *argv)
    (folder / "history.json").write_text(shown.stdout, encoding="utf-8")
    report = await replay_history(load_history(folder / "history.json"))
    return (report.failure, report.divergence) == (None, None)


async def working(rig: Rig, name: str) -> dict[str, Any]:
    """Wait until an agent works."""
    return await rig.until(name, lambda now: now.get("phase") == "work")


async def waiting(rig: Rig, name: str, kind: str) -> dict[str, Any]:
    """Wait until a run waits for ``kind``."""
    return await rig.until(name, lambda now: (now.get("waiting") or {}).get("kind") == kind)


async def signal(rig: Rig, name: str, signal_name: str, *args: Any) -> None:
    """Send a signal."""
    await rig.client.get_workflow_handle(name).signal(signal_name, args=list(args))


async def update(rig: Rig, name: str, update_name: str, *args: Any) -> dict[str, Any]:
    """Send an update; return its verdict."""
    verdict: dict[str, Any] = await rig.client.get_workflow_handle(name).execute_update(
        update_name, args=list(args)
    )
    return verdict


async def resume(rig: Rig, name: str, **payload: Any) -> None:
    """Send the update ``resume``."""
    await update(rig, name, "resume", payload)


async def refused(rig: Rig, name: str, update_name: str, *args: Any) -> str:
    """Send an update that must be refused; return the reason."""
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await update(rig, name, update_name, *args)
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "Refused"
    return cause.message


def payload(event: RunEvent) -> dict[str, Any]:
    """Return what a journal's event says beside its fixed keys."""
    return event.model_extra or {}


def said(rig: Rig, run_id: str, kind: str) -> list[dict[str, Any]]:
    """Return the payloads of the journal's events of one kind."""
    return [payload(event) for event in rig.journal(run_id) if event.kind == kind]


def approved(kind: str) -> dict[str, Any]:
    """Return a flow whose first step is approved ``before`` or ``after``."""
    return flow(step("only", linear("end"), gates=[gate("there")], approval=kind), step("end", **READ_ONLY))


@asynccontextmanager
async def tailing(rig: Rig, *argv: str, disk: str = "disk") -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `stepwise tail` while the block runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", "tail", *argv, cwd=ROOT, env=rig.env(disk),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
