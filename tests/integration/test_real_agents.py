"""Flows through the real programs and the stub: the same steps, gates, decisions and calls, whichever agent works."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agents_kit import AGENTS, agents
from conftest import UNITTEST, Rig
from flow_kit import script, turn
from model_servers.minds import BUGGY, RIGHT, WRONG, Player, mends
from model_servers.script import Reply, Seen, Write
from model_servers.script import turn as turn_of

from schemas.run import FlowResult

STUB = script(
    implement=[
        turn({"do": "edit", "path": BUGGY, "content": WRONG}),
        turn({"do": "edit", "path": BUGGY, "content": RIGHT}),
    ]
)
EXPECTED = {
    "outcome": "verified",
    "decisions": [
        ("implement", 1, "loop", "implement"),
        ("implement", 2, "advance", "review"),
        ("review", 1, "advance", "finish"),
        ("finish", 1, "terminate", None),
    ],
    "receipts": [
        ("implement", 1, "succeeded", "UNVERIFIED", [("tests", False)], [("write", True, False)]),
        ("implement", 2, "succeeded", "VERIFIED", [("tests", True)], [("write", True, False)]),
        ("review", 1, "succeeded", "UNVERIFIED", [], []),
        ("finish", 1, "succeeded", "UNVERIFIED", [], []),
    ],
}


def mend(repo: Path, **more: Any) -> dict[str, Any]:
    """Return the input of a run that mends the demo repository."""
    return {
        "flow": "fix",
        "repo": str(repo),
        "task": "The mean is wrong.",
        "params": {"test": UNITTEST},
        **more,
    }


def told(rig: Rig, result: FlowResult) -> Mapping[str, Any]:
    """Return what a run and its evidence say, but for names, times and tokens."""
    receipts = []
    for one in rig.receipts(result.run_id):
        lines = rig.evidence.read(one.tool_calls.ref).splitlines() if one.tool_calls.ref else []
        calls = [json.loads(line) for line in lines]
        receipts.append(
            (
                one.step_id,
                one.visit,
                one.execution_status,
                one.verification_status,
                [(gate.name, gate.passed) for gate in one.gates],
                [(call["operation"], call["success"], call.get("blocked", False)) for call in calls],
            )
        )
    return {
        "outcome": result.outcome,
        "decisions": [(one.step_id, one.visit, one.decision, one.next_step_id) for one in result.decisions],
        "receipts": receipts,
    }


@pytest.mark.parametrize("name", [*AGENTS, "stub"])
async def test_a_defect_is_mended_in_the_same_way_through_every_transport(
    rig: Rig, demo_repo: Path, name: str
) -> None:
    minds = {name: Player(mends)} if name != "stub" else {}
    with agents(minds) as env:
        rig.worker(**env)
        rig.start(
            f"mend-{name}", mend(demo_repo, transport=name, **({"scenario": STUB} if name == "stub" else {}))
        )
        result = await rig.result(f"mend-{name}")
    assert told(rig, result) == EXPECTED, rig.log()
    receipts = rig.receipts(result.run_id)
    assert {one.transport for one in receipts} == {name}
    assert name == "stub" or all(one.token_counts.total > 0 for one in receipts)
    rig.check_evidence(result)


@pytest.mark.parametrize("name", AGENTS)
async def test_a_plan_is_approved_and_carried_out_through_every_transport(
    rig: Rig, demo_repo: Path, name: str
) -> None:
    def plays(seen: Seen) -> Sequence[Reply]:
        return [turn_of(Write(BUGGY, RIGHT))] if "Carry out the approved plan" in seen.asked else []

    with agents({name: Player(plays)}) as env:
        rig.worker(**env)
        given = mend(demo_repo, transport=name, approval="developer") | {"flow": "plan-then-implement"}
        rig.start(f"planned-{name}", given)
        result = await rig.result(f"planned-{name}")
    assert result.outcome == "verified", result.summary
    steps = [one.step_id for one in rig.receipts(result.run_id)]
    assert (steps[0], steps[-1]) == ("plan", "finish")
    said = [event.model_extra or {} for event in rig.journal(result.run_id) if event.kind == "human_message"]
    assert [(one["name"], one["by"]) for one in said] == [("approve", "developer")]


async def test_a_transport_that_cannot_is_passed_over_with_its_reason(rig: Rig, demo_repo: Path) -> None:
    with agents({}) as env:
        rig.worker(**{**env, "STEPWISE_TRANSPORTS": "codex,stub"}, OPENAI_API_KEY="")
        rig.start("fallen", mend(demo_repo, transport=["codex", "stub"], scenario=STUB))
        result = await rig.result("fallen")
    assert told(rig, result) == EXPECTED
    for one in rig.receipts(result.run_id):
        assert one.transport == "stub"
        ((passed_over),) = one.fallbacks
        assert (passed_over.transport, passed_over.code) == ("codex", "sdk_error_message")
        assert "set OPENAI_API_KEY" in passed_over.reason
        assert one.transcript is not None
        header = json.loads(rig.evidence.read(one.transcript).splitlines()[0])
        assert header["transport"] == "stub"
