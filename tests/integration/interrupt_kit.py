"""What tests of interrupts share: agents and commands that are held in a phase, and looks at what was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import Rig, eventually
from flow_kit import OK, turn
from run_kit import said, waiting


def until_there(path: Path, *then: str) -> list[str]:
    """Return a command that says that it runs (by a file) and ends when ``path`` is there."""
    wait = f"touch {path}.begun; until [ -e {path} ]; do sleep 0.02; done"
    return ["sh", "-c", "; ".join([wait, *then])]


def begun(path: Path) -> None:
    """Wait until a command that waits for ``path`` runs."""
    eventually(Path(f"{path}.begun").exists)


def holding(phase: str, go: Path) -> dict[str, Any]:
    """Return a turn that is held in one phase until ``go`` is there."""
    made = turn(OK)
    if phase == "work":
        made["work"] = [OK, {"do": "run", "argv": until_there(go)}]
    else:
        made.setdefault(phase, {})["actions"] = [{"do": "run", "argv": until_there(go)}]
    return made


async def interrupted(rig: Rig, name: str) -> dict[str, Any]:
    """Wait until a run waits for a person after an interrupt; return its status."""
    status = await waiting(rig, name, "human")
    assert status["waiting"]["reason"].startswith("interrupted"), status
    return status


def phases_of(rig: Rig, run_id: str, attempt: int, step_id: str = "only") -> list[str]:
    """Return the phases an attempt began, in their order."""
    return [
        one["phase"]
        for one in said(rig, run_id, "phase_started")
        if (one["step"], one["attempt"]) == (step_id, attempt)
    ]
