"""Flows through the real programs: the same steps, gates and decisions, whichever agent does the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from agents_kit import AGENTS, agents
from conftest import UNITTEST, Rig
from model_servers.minds import Player, mends


@pytest.mark.parametrize("name", AGENTS)
async def test_a_defect_is_mended_through_each_real_program(rig: Rig, demo_repo: Path, name: str) -> None:
    with agents({name: Player(mends)}) as env:
        rig.worker(**env)
        rig.start(
            "mend",
            {
                "flow": "fix",
                "repo": str(demo_repo),
                "task": "The mean is wrong.",
                "params": {"test": UNITTEST},
                "transport": name,
            },
        )
        result = await rig.result("mend")
    assert result.outcome == "verified", result.summary
    decided = [(one.step_id, one.decision) for one in result.decisions]
    assert decided == [
        ("implement", "loop"),
        ("implement", "advance"),
        ("review", "advance"),
        ("finish", "terminate"),
    ]
    receipts = rig.receipts(result.run_id)
    assert {one.transport for one in receipts} == {name}
    assert [[gate.passed for gate in one.gates] for one in receipts[:2]] == [[False], [True]]
    assert all(one.token_counts.total > 0 for one in receipts)
    assert [one.tool_calls.count for one in receipts] == [1, 1, 0, 0]
