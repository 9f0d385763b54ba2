"""Runs that wait for a person's consent to a call, and what the call left."""

from __future__ import annotations

from pathlib import Path

from conftest import Rig
from flow_kit import flow, gate, linear, step
from run_kit import READ_ONLY, Played

SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))
CALL = {"do": "run", "argv": ["sh", "-c", "echo made >> made"], "ask": True, "reason": "it writes"}


async def parked(rig: Rig, name: str, attempt: int = 1) -> None:
    """Wait until a run waits for a person's word on a call, and no agent works."""
    await rig.until(
        name,
        lambda now: (
            (now["waiting"] or {}).get("kind") == "approval"
            and now.get("phase") != "work"
            and now["attempt"] == attempt
        ),
    )


def made(result: Played) -> list[str]:
    """Return what the calls of a run left, a word for each that was made."""
    assert result.git is not None
    path = Path(result.git.workspace) / "made"
    return path.read_text().split() if path.exists() else []
