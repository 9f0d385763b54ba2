"""Flows through the real programs and the stub: the same steps, gates, decisions and calls, whichever agent works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agents_kit import AGENTS, KEY, agents
from conftest import UNITTEST, Rig
from flow_kit import script
from flow_kit import turn as played
from model_servers.minds import BUGGY, DRAFT, RIGHT, Player, is_structured
from model_servers.script import Edit, HandIn, Part, Read, Reply, Run, Seen, Write, turn
from run_kit import said, update, waiting
from same_kit import told
from trace_kit import Collected, attributes_of, collecting

from schemas.receipt import StepReceipt
from transports.credentials import KEYS

pytestmark = pytest.mark.timeout(300)
WITHIN_S = 240.0
"""Only a bound: a dozen processes of the real programs, one after the other, on a machine that does other things, too."""

KEY_OF = {
    "claude-sdk": "ANTHROPIC_API_KEY",
    "claude-cli": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "gemini-cli": "GEMINI_API_KEY",
}
TESTS = " ".join(UNITTEST)
COUNTS_ALL = Edit(BUGGY, "    for value in values[1:]:\n", "    for value in values:\n")
REFUSES_NONE = Edit(
    BUGGY,
    "    total = 0.0\n",
    '    if not values:\n        raise ValueError("no values have no mean")\n    total = 0.0\n',
)
PAGE = Write("docs/mean.md", "# Mean\n\nNo values have no mean.\n")
VISITS: Sequence[Sequence[Part]] = (
    (Read(BUGGY), Run(TESTS), COUNTS_ALL, Run("git push --force")),
    (Read(BUGGY), REFUSES_NONE, PAGE, Run(TESTS)),
)
"""What the agent does in each visit of the loop, one call after the other: half of the mending, and the rest."""
EXPECTED_CALLS = [
    [
        ("read", BUGGY, True, None, None),
        ("run", TESTS, False, None, 1),
        ("write", BUGGY, True, None, None),
        ("run", "git push --force", False, "E_GIT_FORCE_PUSH", None),
    ],
    [
        ("read", BUGGY, True, None, None),
        ("write", BUGGY, True, None, None),
        ("write", PAGE.path, True, None, None),
        ("run", TESTS, True, None, 0),
    ],
    [],
    [],
]
"""By receipt: what was done, to what, whether it went well, by which code it was blocked, the exit code."""
EXPECTED_DECISIONS = [
    ("implement", 1, "loop", "implement"),
    ("implement", 2, "advance", "review"),
    ("review", 1, "advance", "finish"),
    ("finish", 1, "terminate", None),
]
EXPECTED_RECEIPTS = [
    ("implement", 1, "UNVERIFIED", [("tests", 1)], {"modified": [BUGGY]}),
    ("implement", 2, "VERIFIED", [("tests", 0)], {"created": [PAGE.path], "modified": [BUGGY]}),
    ("review", 1, "UNVERIFIED", [], {}),
    ("finish", 1, "UNVERIFIED", [], {}),
]
"""Step, visit, verification, the exit code of each gate, the changed files."""
WORDS = {"summary": "It is done.", "notes_for_next_step": ""}
"""What every agent hands in of its own."""


def mends(seen: Seen) -> Reply:
    """Be a model that makes the calls of a visit, each once the one before has its result."""
    if is_structured(seen):
        return turn(HandIn({**DRAFT, **WORDS}))
    prompts = "\n".join(text for role, text in seen.texts if role == "user")
    if "Find the cause" not in prompts:
        return turn("Done.")
    calls = VISITS["Gates that failed" in prompts]
    return turn(calls[len(seen.calls)]) if len(seen.calls) < len(calls) else turn("Done.")


def action(part: Part) -> dict[str, Any]:
    """Return a call as the scenario of a stub has it."""
    match part:
        case Read(path=path):
            return {"do": "run", "argv": ["cat", path]}
        case Run(command=command):
            return {"do": "run", "argv": command.split()}
        case Edit(path=path, old=old, new=new):
            return {"do": "edit", "path": path, "replace": old, "with": new}
        case Write(path=path, content=content):
            return {"do": "edit", "path": path, "content": content}
    message = f"the stub has no call for {part}"
    raise AssertionError(message)


MENDS = script(
    implement=[played(*map(action, visit), **WORDS) for visit in VISITS],
    review=played(**WORDS),
    finish=played(**WORDS),
)


def given(flow: str, repo: Path, **more: Any) -> dict[str, Any]:
    """Return the input of a run that mends the demo repository."""
    return {
        "flow": flow,
        "repo": str(repo),
        "task": "The mean is wrong.",
        "params": {"test": UNITTEST},
        **more,
    }


def check_expected(evidence: dict[str, Any]) -> None:
    """Assert what is expected of the flow whoever works."""
    assert evidence["result"]["outcome"] == "verified"
    decisions = [
        tuple(one[key] for key in ("step_id", "visit", "decision", "next_step_id"))
        for one in evidence["result"]["decisions"]
    ]
    assert decisions == EXPECTED_DECISIONS
    calls = [
        [
            (
                one["did"],
                one["to"],
                one["success"],
                (one["blocked_reason"] or ":").partition(":")[0] or None,
                one.get("exit_code"),
            )
            for one in visit
        ]
        for visit in evidence["calls"]
    ]
    assert calls == EXPECTED_CALLS
    receipts = [
        (
            receipt["step_id"],
            receipt["visit"],
            receipt["verification_status"],
            [(gate["name"], gate["exit_code"]) for gate in receipt["gates"]],
            {kind: paths for kind, paths in envelope["file_changes"].items() if paths},
        )
        for receipt, envelope in zip(evidence["receipts"], evidence["envelopes"], strict=True)
    ]
    assert receipts == EXPECTED_RECEIPTS
    assert "values[1:]" in evidence["calls"][0][0]["shows"], "it shows what was read"
    assert "FAILED" in evidence["calls"][0][1]["shows"]


def check_spans(traced: Collected, rig: Rig, receipts: Sequence[StepReceipt], *, has_model: bool) -> None:
    """Assert that each session, model turn and tool call of a run is a span, from an activity, and says no word."""
    first = receipts[0]
    name, calls_ref = first.transport, first.tool_calls.ref
    assert calls_ref is not None
    turns_of = {
        phase: [
            one for one in traced.named(f"invoke_agent {name}") if f"RunActivity:{phase}" in traced.above(one)
        ]
        for phase in ("work", "finalize")
    }
    session, closing = turns_of["work"]
    about = attributes_of(session)
    assert about["gen_ai.operation.name"] == "invoke_agent"
    assert (about["gen_ai.provider.name"], about["stepwise.transport"]) == (first.provider, name)
    assert (about["stepwise.run_id"], about["stepwise.step"]) == (first.run_id, "implement")
    assert about["gen_ai.conversation.id"] not in {"", attributes_of(closing)["gen_ai.conversation.id"]}
    assert traced.above(session)[1:4] == ["RunActivity:work", "StartActivity:work", "step implement"]
    assert [attributes_of(one)["stepwise.step"] for one in turns_of["finalize"]] == ["implement", "finish"]

    below = [one for one in traced.spans if one.parent_span_id == session.span_id]
    calls = [json.loads(line) for line in rig.evidence.read(calls_ref).splitlines()]
    tools = [attributes_of(one) for one in below if one.name.startswith("execute_tool")]
    assert [(one["gen_ai.tool.name"], one["gen_ai.tool.call.id"]) for one in tools] == [
        (call["tool_name"], call["call_id"]) for call in calls
    ]
    turns = [attributes_of(one) for one in below if one.name == "chat"]
    assert len(turns) == (3 if has_model else 0)
    for kind in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
        assert sum(one[kind] for one in turns) == about[kind]
        assert not has_model or about[kind] > 0

    (run,) = traced.named("RunWorkflow")
    assert {one.name for one in traced.spans if one.trace_id != run.trace_id} == set()
    for one in traced.spans:
        if any(key.startswith("gen_ai.") for key in attributes_of(one)):
            assert {"RunActivity:work", "RunActivity:finalize"} & set(traced.above(one)), one.name
    exported = "".join(map(str, traced.spans))
    for secret in ("mean is wrong", "Do the task", "mean of no values", "no values have", KEY):
        assert secret not in exported


@pytest.mark.parametrize("name", AGENTS)
async def test_a_defect_is_mended_in_the_same_way_through_every_transport(
    rig: Rig, demo_repo: Path, name: str
) -> None:
    with agents({name: mends}) as env:
        rig.worker(**env)
        rig.start(f"by-{name}", given("fix", demo_repo, transport=name))
        rig.start("by-stub", given("fix", demo_repo, transport="stub", scenario=MENDS))
        by_stub, result = await rig.result("by-stub"), await rig.result(f"by-{name}", within_s=WITHIN_S)
    expected, found = told(rig, by_stub), told(rig, result)
    check_expected(expected)
    assert found == expected, rig.log()
    for one in (by_stub, result):
        rig.check_evidence(one)
    receipts = rig.receipts(result.run_id)
    assert {one.transport for one in receipts} == {name}
    assert all(one.token_counts.total > 0 for one in receipts)


@pytest.mark.parametrize("name", [*AGENTS, "stub"])
async def test_a_task_is_done_in_one_go_through_every_transport(rig: Rig, demo_repo: Path, name: str) -> None:
    def plays(seen: Seen) -> Sequence[Reply]:
        return [turn(Write(BUGGY, RIGHT)), turn(Run(TESTS))] if "Do the task in one go" in seen.asked else []

    own = {"scenario": "direct"} if name == "stub" else {}
    with agents({} if own else {name: Player(plays)}) as env, collecting() as traced:
        worker = rig.worker(**env, **traced.environment)
        rig.start(f"direct-{name}", given("direct", demo_repo, transport=name, **own))
        result = await rig.result(f"direct-{name}", within_s=WITHIN_S)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 60) == 0
    assert result.outcome == "verified", result.summary
    receipts = rig.receipts(result.run_id)
    assert [(one.step_id, one.transport, one.tool_calls.count) for one in receipts] == [
        ("implement", name, 2),
        ("finish", name, 0),
    ]
    assert [one.decision for one in result.decisions] == ["advance", "terminate"]
    rig.check_evidence(result)
    check_spans(traced, rig, receipts, has_model=name != "stub")


@pytest.mark.parametrize("name", [*AGENTS, "stub"])
async def test_a_plan_is_approved_and_carried_out_through_every_transport(
    rig: Rig, demo_repo: Path, name: str
) -> None:
    def plays(seen: Seen) -> Sequence[Reply]:
        return [turn(Write(BUGGY, RIGHT))] if "Carry out the approved plan" in seen.asked else []

    by = "ann" if name == "stub" else "developer"
    own = {"scenario": "plan-then-implement"} if name == "stub" else {"approval": "developer"}
    workflow_id = f"planned-{name}"
    with agents({} if name == "stub" else {name: Player(plays)}) as env:
        rig.worker(**env)
        rig.start(workflow_id, given("plan-then-implement", demo_repo, transport=name, **own))
        if name == "stub":
            # It has no model that could decide.
            await waiting(rig, workflow_id, "approval")
            await update(rig, workflow_id, "approve", {"by": by})
        result = await rig.result(workflow_id, within_s=WITHIN_S)
    assert result.outcome == "verified", result.summary
    receipts = rig.receipts(result.run_id)
    assert {one.transport for one in receipts} == {name}
    assert (receipts[0].step_id, receipts[-1].step_id) == ("plan", "finish")
    messages = said(rig, result.run_id, "human_message")
    assert [(one["name"], one["by"]) for one in messages] == [("approve", by)]
    rig.check_evidence(result)


@pytest.mark.parametrize(("name", "key"), KEY_OF.items())
async def test_a_transport_without_a_key_is_passed_over_with_its_reason(
    rig: Rig, demo_repo: Path, name: str, key: str
) -> None:
    with agents({}) as env:
        keys = {key: "" for keys in KEYS.values() for key in keys}
        rig.worker(**{**env, **keys, "STEPWISE_TRANSPORTS": f"{name},stub"})
        rig.start("fallen", given("fix", demo_repo, transport=[name, "stub"], scenario=MENDS))
        result = await rig.result("fallen")
    check_expected(told(rig, result))
    for one in rig.receipts(result.run_id):
        assert one.transport == "stub"
        ((passed_over),) = one.fallbacks
        assert (passed_over.transport, passed_over.code) == (name, "sdk_error_message")
        assert f"set {key}" in passed_over.reason
        assert one.transcript is not None
        header = json.loads(rig.evidence.read(one.transcript).splitlines()[0])
        assert header["transport"] == "stub"
