"""The example of the page for people: who types the first command that a run shows comes to its verified end."""

from __future__ import annotations

import shlex
from pathlib import Path

from conftest import ROOT, Rig
from run_kit import ended, said

EXAMPLES = ROOT / "examples"


async def test_the_first_command_that_is_shown_each_time_leads_to_the_end(desk: Rig, demo_repo: Path) -> None:
    play = (EXAMPLES / "talk-scenario.yaml").read_text().replace("stall, seconds: 30", "stall, seconds: 0.1")
    desk.start(
        "talk",
        {
            "spec": {"name": "talk.yaml", "text": (EXAMPLES / "talk.yaml").read_text()},
            "scenario": {"name": "talk-scenario.yaml", "text": play},
            "repo": str(demo_repo),
            "task": "mean() is wrong",
        },
    )
    handle = desk.client.get_workflow_handle("talk")
    answered: list[str] = []
    while not (await desk.until("talk", lambda now: bool(now.get("waiting") or now.get("outcome"))))[
        "outcome"
    ]:
        pending = await handle.query("pending")
        if not pending or pending[0]["since"] in answered:
            continue
        program, *argv = shlex.split(pending[0]["legal"][0]["command"])
        assert program == "temporal"
        done = desk.temporal(*argv)
        assert done.returncode == 0, done.stderr
        answered.append(pending[0]["since"])
    result = await ended(desk, "talk", "verified")
    assert [one["name"] for one in said(desk, result.run_id, "human_message")] == [
        "answer",
        "approve",
        "extend_budget",
    ]
