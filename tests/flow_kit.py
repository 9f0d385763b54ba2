"""Small flows, scripts of agents and looks at the evidence, for tests that drive the engine as people do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from schemas.handoff import HandoffEnvelope, PartialHandoff
from schemas.receipt import StepReceipt

TERMINAL = {"kind": "terminal"}


def linear(to: str) -> dict[str, Any]:
    """Return the rule that goes to one step."""
    return {"kind": "linear", "next": to}


def loop(target: str, to: str, **more: Any) -> dict[str, Any]:
    """Return the rule of a microloop."""
    return {"kind": "microloop", "loop_target": target, "next": to, **more}


def step(name: str, routing: Mapping[str, Any] = TERMINAL, **more: Any) -> dict[str, Any]:
    """Return a step of a flow."""
    return {"id": name, "agent": "implementer", "objective": f"Do {name}.", "routing": routing, **more}


def gate(name: str, *argv: str, **more: Any) -> dict[str, Any]:
    """Return a gate; without a command it passes where the file ``ok`` is."""
    return {"name": name, "argv": list(argv) or ["test", "-f", "ok"], **more}


def flow(*steps: Mapping[str, Any], name: str = "small", **more: Any) -> dict[str, Any]:
    """Return a flow to be sent whole. JSON is YAML."""
    spec = {"id": name, "version": 1, "title": "Small", "steps": list(steps), **more}
    return {"name": f"{name}.yaml", "text": json.dumps(spec, indent=1)}


def script(**steps: Any) -> dict[str, Any]:
    """Return a scenario: per step a turn, a list of turns, or a whole step script (with ``turns``)."""
    scripts = {}
    for name, given in steps.items():
        turns = given if isinstance(given, list) else [given]
        scripts[name] = given if isinstance(given, dict) and "turns" in given else {"turns": turns}
    return {"name": "script.yaml", "text": json.dumps({"version": 1, "steps": scripts})}


def turn(*work: Mapping[str, Any], status: str = "UNVERIFIED", **draft: Any) -> dict[str, Any]:
    """Return a turn: what the agent does, and what it claims."""
    return {"work": list(work), "finalize": {"value": {"status": status, **draft}}}


def write(path: str, content: str) -> dict[str, Any]:
    """Return the action that writes a file."""
    return {"do": "edit", "path": path, "content": content}


def hold(path: Path) -> dict[str, Any]:
    """Return the action that waits until a file is there."""
    return {"do": "wait_for_file", "path": str(path)}


OK = write("ok", "yes\n")


def git(repo: Path | str, *argv: str) -> str:
    """Run git as its user would, and return what it prints."""
    command = ["git", "-C", str(repo), "-c", "user.name=T", "-c", "user.email=t@example.invalid", *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(path: Path, files: Mapping[str, str] | None = None) -> Path:
    """Make a repository with one commit."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    for name, text in (files or {"README.md": "A repository.\n"}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "-m", "first")
    return path


async def failure(rig: Rig, workflow_id: str) -> ApplicationError:
    """Return the error a run failed with; a run that ended otherwise fails the test."""
    with pytest.raises(WorkflowFailureError) as raised:
        await rig.client.get_workflow_handle(workflow_id).result()
    cause = raised.value.cause
    assert isinstance(cause, ApplicationError), repr(cause)
    return cause


async def event_types(rig: Rig, workflow_id: str, run_id: str | None = None) -> list[str]:
    """Return the types of a history's events, without the common prefix."""
    history = await rig.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    return [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in history.events]


def left_on_disk(rig: Rig, workflow_id: str) -> list[str]:
    """Return every path of the workers' disks and of the store that names this run."""
    return sorted(str(path.relative_to(rig.folder)) for path in rig.folder.rglob(f"*{workflow_id}*"))


def envelope_of(rig: Rig, receipt: StepReceipt) -> HandoffEnvelope:
    """Return the envelope a receipt names."""
    assert receipt.envelope is not None
    return HandoffEnvelope.model_validate_json(rig.evidence.read(receipt.envelope))


def partial_of(rig: Rig, receipt: StepReceipt) -> PartialHandoff:
    """Return the partial handoff a receipt names."""
    assert receipt.handoff_partial is not None
    return PartialHandoff.model_validate_json(rig.evidence.read(receipt.handoff_partial))


def transcript_of(rig: Rig, receipt: StepReceipt) -> str:
    """Return the transcript a receipt names."""
    assert receipt.transcript is not None
    return rig.evidence.read(receipt.transcript).decode()


def kinds(rig: Rig, run_id: str) -> list[str]:
    """Return the kinds of the journal's events in their order."""
    return [event.kind for event in rig.journal(run_id)]


def file_at(result_git: Any, path: str) -> str:
    """Return a file of the run's branch."""
    return git(result_git.workspace, "show", f"{result_git.branch}:{path}")


def files_at(result_git: Any) -> Sequence[str]:
    """Return the files of the run's branch."""
    return git(result_git.workspace, "ls-tree", "-r", "--name-only", result_git.branch).splitlines()
