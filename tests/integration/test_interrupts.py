"""Interrupt: in every phase and between them, what is kept, what is recorded, and each way to go on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Rig, eventually
from flow_kit import (
    OK,
    envelope_of,
    files_at,
    flow,
    gate,
    git,
    linear,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from interrupt_kit import begun, holding, interrupted, phases_of, until_there
from run_kit import (
    READ_ONLY,
    TWO_STEPS,
    ended,
    refused,
    resume,
    said,
    signal,
    start,
    update,
    waiting,
    working,
)

from schemas.handoff import PartialHandoff

# In work.


async def test_an_interrupt_in_work_keeps_what_was_done_and_waits_for_a_person(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    sleep = {"do": "run", "argv": ["sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"], "timeout": 1000}
    start(
        desk,
        "work",
        repo,
        TWO_STEPS,
        script(only={"turns": [turn(write("half", "x"), sleep)], "resumed": turn(OK)}),
    )
    pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text().strip()))

    verdict = await update(desk, "work", "interrupt", {"reason": "wrong file", "by": "ann"})

    assert (verdict["verdict"], verdict["message"]) == (
        "accepted",
        "work is asked to stop; then the run waits for a resume",
    )
    status = await interrupted(desk, "work")
    assert not psutil.pid_exists(pid)
    assert status["waiting"]["reason"] == "interrupted by ann: wrong file"
    assert (status["needs_human"], status["legal"]) == (True, ["resume", "abort"])
    assert status["next_command"] == "temporal workflow update execute --workflow-id work --name resume"

    (receipt,) = desk.receipts(status["run_id"])
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert receipt.stop is not None
    assert (receipt.stop.reason, receipt.stop.method, receipt.stop.requested_by) == (
        "interrupt",
        "cooperative",
        "ann",
    )
    assert [(one.measured, one.passed) for one in receipt.gates] == [(False, None)]
    envelope = envelope_of(desk, receipt)
    assert (envelope.status, envelope.source) == ("PARTIAL", "engine")
    assert phases_of(desk, status["run_id"], 1) == ["work"], "no phase but record runs after an interrupt"

    assert receipt.handoff_partial is not None
    stored = json.loads(desk.evidence.read(receipt.handoff_partial))
    partial = PartialHandoff.model_validate(stored)
    assert set(stored) <= set(PartialHandoff.model_fields)
    assert (partial.reason, partial.stop_method, partial.phase) == ("interrupt", "cooperative", "work")
    assert partial.done == ["created half"]
    assert partial.savepoint is not None
    assert git(status["workspace"], "show", f"{partial.savepoint.commit}:half") == "x"
    assert git(status["workspace"], "rev-parse", partial.savepoint.ref) == partial.savepoint.commit
    assert git(status["workspace"], "status", "--porcelain") == "?? half", "the branch is as it was"

    handle = desk.client.get_workflow_handle("work")
    view = await handle.query("partial_handoff")
    assert (view["step_id"], view["visit"], view["attempt"]) == ("only", 1, 1)
    assert (view["ended"], view["reason"], view["stop_method"], view["requested_by"]) == (
        "interrupted",
        "interrupt",
        "cooperative",
        "ann",
    )
    assert view["ref"]["sha256"] == receipt.handoff_partial.sha256
    assert view["savepoint"]["commit"] == partial.savepoint.commit
    (item,) = await handle.query("pending")
    assert (item["kind"], item["reason"]) == ("human", "interrupted by ann: wrong file")
    assert [(one["message"], one["help"]) for one in item["legal"]] == [
        ("resume", "go on from what is there"),
        ("resume", "start the step again"),
        ("resume", "leave the step out; edits stay in a savepoint"),
        ("abort", "end the run"),
    ]

    await resume(desk, "work", note="Mind the other file.", by="bob")
    result = await ended(desk, "work", "verified")
    first, second, _ = result.receipts
    assert (first.attempt, second.attempt, second.session) == (1, 2, "resumed")
    told = transcript_of(desk, second)
    assert "You were stopped in the middle of this step." in told
    assert "Done: created half" in told
    assert "Mind the other file." in told
    assert files_at(result.git) == ["README.md", "half", "ok"]
    assert [(one["name"], one["verdict"]) for one in said(desk, result.run_id, "human_message")] == [
        ("interrupt", "accepted"),
        ("resume", "accepted"),
    ]
    (stop,) = said(desk, result.run_id, "interrupted")
    assert (stop["ended"], stop["method"], stop["by"]) == ("interrupted", "cooperative", "ann")
    assert stop["savepoint"] == partial.savepoint.ref
    assert await handle.query("partial_handoff") is None, "the attempt that went on has ended well"


@pytest.mark.parametrize(
    ("action", "files", "attempts", "outcome"),
    [
        ({"action": "continue"}, ["README.md", "half", "ok"], [(1, 1), (1, 2)], "verified"),
        ({"action": "retry"}, ["README.md", "ok"], [(1, 1), (1, 2)], "verified"),
        ({"action": "skip"}, ["README.md"], [(1, 1)], "nothing_to_do"),
        ({"action": "goto", "step": "end"}, ["README.md"], [(1, 1)], "unverified"),
        ({"action": "goto", "step": "only"}, ["README.md", "ok"], [(1, 1), (2, 1)], "verified"),
        ({"action": "abort"}, ["README.md"], [(1, 1)], "stopped"),
    ],
)
async def test_each_way_to_go_on_from_an_interrupt(
    desk: Rig,
    repo: Path,
    tmp_path: Path,
    action: dict[str, Any],
    files: list[str],
    attempts: list[tuple[int, int]],
    outcome: str,
) -> None:
    name = f"go-on-{'-'.join(action.values())}"
    go = tmp_path / "go"
    half = write("half", "x")
    # A fresh session plays the same turn again: what it finds there tells whether it began anew.
    look = {"do": "run", "argv": ["sh", "-c", f"ls half >> {tmp_path}/seen 2>/dev/null; true"]}
    held = {"do": "run", "argv": until_there(go)}
    once = {"do": "run", "argv": ["sh", "-c", f"test -e {go} || echo x > half"]}
    play = script(only={"turns": [turn(look, once, held, OK)] * 2, "resumed": turn(look, OK)})
    start(desk, name, repo, TWO_STEPS, play)
    begun(go)
    assert half["path"] == "half"
    await signal(desk, name, "interrupt")
    status = await interrupted(desk, name)
    assert status["waiting"]["reason"] == "interrupted"
    (receipt,) = desk.receipts(status["run_id"])
    savepoint = partial_of(desk, receipt).savepoint
    assert savepoint is not None
    go.touch()

    await resume(desk, name, note="As I said.", **action)

    result = await ended(desk, name, outcome)
    assert [(one.visit, one.attempt) for one in result.receipts if one.step_id == "only"] == attempts
    assert result.git is not None
    assert files_at(result.git) == files
    seen = (tmp_path / "seen").read_text()
    assert seen == ("half\n" if action["action"] == "continue" else ""), "only one goes on in that tree"
    assert git(result.git.workspace, "show", f"{savepoint.ref}:half") == "x", "what was done is never lost"
    if action["action"] != "abort":
        following = result.receipts[1]
        assert "As I said." in transcript_of(desk, following), "the note is the next agent's, whoever it is"


async def test_an_interrupted_agent_goes_on_where_only_offered_transports_may(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    start(desk, "transport", repo, TWO_STEPS, script(only=holding("work", go)))
    begun(go)
    await update(desk, "transport", "interrupt")
    await interrupted(desk, "transport")
    assert "transport 'clod' is not offered; offered: stub" in await refused(
        desk, "transport", "resume", {"transport": "clod"}
    )
    assert "belongs to the actions continue and retry" in await refused(
        desk, "transport", "resume", {"action": "skip", "transport": "stub"}
    )
    go.touch()
    await resume(desk, "transport", transport="stub")
    result = await ended(desk, "transport", "verified")
    assert result.receipts[1].transport == "stub"


@pytest.mark.parametrize(
    ("actions", "method"),
    [
        ([{"do": "hang"}], "killed"),
        (
            [
                {
                    "do": "run",
                    "argv": ["sh", "-c", "trap '' TERM; touch b; sleep 0.4; touch c"],
                    "finish": True,
                }
            ],
            "agent_finished_write",
        ),
        ([{"do": "stall", "seconds": 1000}], "cooperative"),
    ],
)
async def test_the_receipt_says_which_rung_of_the_ladder_stopped_the_agent(
    desk: Rig, repo: Path, actions: list[dict[str, Any]], method: str
) -> None:
    name = f"ladder-{method.replace('_', '-')}"
    spec = flow(
        step("only", linear("end"), interrupt={"grace_s": 0.3 if method == "killed" else 10}),
        step("end", **READ_ONLY),
    )
    start(desk, name, repo, spec, script(only={"turns": [turn(write("half", "x"), *actions)]}))
    await working(desk, name)
    spool = desk.folder / "disk" / "spool"
    mark = "stub.hang" if method == "killed" else "touch b" if "finished" in method else "half"
    run_id = (await desk.status(name))["run_id"]
    eventually(lambda: any(mark in path.read_text() for path in spool.glob(f"{run_id}*/**/events.jsonl")))
    await update(desk, name, "interrupt", {"by": "ann"})
    status = await interrupted(desk, name)
    (receipt,) = desk.receipts(status["run_id"])
    assert receipt.stop is not None
    assert (receipt.stop.method, receipt.stop.requested_by) == (method, "ann")
    assert partial_of(desk, receipt).stop_method == method
    await resume(desk, name, action="abort")
    await ended(desk, name, "stopped")


# In the other phases, and where none runs.


async def test_an_interrupt_in_measure_ends_the_gates_and_measures_again_when_it_goes_on(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slow = gate("slow", *until_there(go, "test -f ok"), before=False)
    spec = flow(step("only", linear("end"), gates=[slow, gate("there")]), step("end", **READ_ONLY))
    start(desk, "measure", repo, spec, script(only=turn(OK)))
    begun(go)
    verdict = await update(desk, "measure", "interrupt", {"by": "ann"})
    assert verdict["message"] == "measure is asked to stop; then the run waits for a resume"
    status = await interrupted(desk, "measure")
    assert status["next_command"].endswith("--name resume"), "there is something to go on from"
    (receipt,) = desk.receipts(status["run_id"])
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert [(one.name, one.measured, one.passed) for one in receipt.gates] == [
        ("slow", False, None),
        ("there", False, None),
    ]
    assert receipt.stop is not None
    assert receipt.stop.requested_by == "ann"
    assert phases_of(desk, status["run_id"], 1) == ["work", "measure"]
    go.touch()
    await resume(desk, "measure")
    result = await ended(desk, "measure", "verified")
    second = result.receipts[1]
    assert (second.attempt, second.from_attempt) == (2, 1)
    assert [(one.measured, one.passed) for one in second.gates] == [(True, True)] * 2
    assert phases_of(desk, result.run_id, 2) == ["measure", "finalize"], "the work is not done again"


@pytest.mark.parametrize("phase", ["finalize", "route"])
async def test_an_interrupt_in_finalize_or_route_lets_the_phase_end_and_then_waits(
    desk: Rig, repo: Path, tmp_path: Path, phase: str
) -> None:
    go = tmp_path / "go"
    branch = {"kind": "branch", "decided_by": "agent", "default": "end", "when": []}
    spec = flow(step("only", branch, gates=[gate("there")]), step("end", **READ_ONLY))
    held = holding(phase, go)
    held["route"] = {**held.get("route", {}), "value": {"decision": "advance", "next_step_id": "end"}}
    start(desk, phase, repo, spec, script(only=held))
    begun(go)
    verdict = await update(desk, phase, "interrupt", {"by": "ann"})
    assert verdict["message"] == f"the run waits for a resume when {phase} has ended"
    assert (await desk.status(phase))["state"] == "stopping"
    go.touch()
    status = await interrupted(desk, phase)
    await resume(desk, phase)
    result = await ended(desk, phase, "verified")
    assert phases_of(desk, status["run_id"], 1) == ["work", "measure", "finalize", "route"]
    assert [(one.step_id, one.execution_status) for one in result.receipts] == [
        ("only", "succeeded"),
        ("end", "succeeded"),
    ]
    assert result.receipts[0].stop is None, "nothing was stopped"


async def test_an_interrupt_while_the_workspace_is_acquired_waits_before_the_first_work(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    spec = flow(
        step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY), setup=[until_there(go)]
    )
    start(desk, "acquire", repo, spec, script(only=turn(OK)))
    begun(go)
    verdict = await update(desk, "acquire", "interrupt")
    assert verdict["message"] == "the run waits for a resume when acquire has ended"
    assert (await update(desk, "acquire", "interrupt"))["verdict"] == "already"
    go.touch()
    status = await interrupted(desk, "acquire")
    assert desk.receipts(status["run_id"]) == []
    await resume(desk, "acquire")
    result = await ended(desk, "acquire", "verified")
    assert [one.attempt for one in result.receipts] == [1, 1]


@pytest.mark.parametrize("approval", ["none", "before"])
async def test_an_interrupt_sent_with_the_start_holds_before_anything_is_done(
    desk: Rig, repo: Path, approval: str
) -> None:
    name = f"early-{approval}"
    spec = flow(
        step("only", linear("end"), gates=[gate("there")], approval=approval), step("end", **READ_ONLY)
    )
    done = desk.temporal(
        *("workflow", "signal-with-start", "--signal-name", "interrupt", "--signal-input", '{"by":"ann"}'),
        *("--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", name, "--input"),
        json.dumps({"spec": spec, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}),
    )
    assert done.returncode == 0, done.stderr
    status = await interrupted(desk, name)
    assert status["waiting"]["reason"] == "interrupted by ann"
    assert desk.receipts(status["run_id"]) == []
    await resume(desk, name)
    if approval == "before":
        await waiting(desk, name, "approval")
        await update(desk, name, "approve")
    await ended(desk, name, "verified")


async def test_an_interrupt_in_the_final_measurement_measures_it_again(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    late = f"if [ -e late ]; then touch {go}.begun; until [ -e {go} ]; do sleep 0.02; done; fi; test -f ok"
    spec = flow(
        step("only", linear("end"), gates=[gate("there", "sh", "-c", late, before=False)]), step("end")
    )
    start(desk, "final", repo, spec, script(only=turn(OK), end=turn(write("late", "x"))))
    begun(go)
    status = await desk.status("final")
    assert (status["step"], status["phase"]) == (None, "measure")
    await update(desk, "final", "interrupt", {"by": "ann"})
    status = await interrupted(desk, "final")
    assert status["next_command"].endswith("--name resume")
    assert "no step runs that retry could mean" in await refused(desk, "final", "resume", {"action": "retry"})
    go.touch()
    await resume(desk, "final")
    result = await ended(desk, "final", "verified")
    finals = [one for one in result.receipts if one.step_id == "_final"]
    assert [(one.attempt, one.execution_status) for one in finals] == [(1, "interrupted"), (2, "succeeded")]
    assert finals[0].stop is None or finals[0].stop.requested_by == "ann"


async def test_an_interrupt_while_a_rate_limit_is_waited_for_waits_for_a_person_instead(
    desk: Rig, repo: Path
) -> None:
    play = script(only=turn(write("half", "x"), {"do": "rate_limit", "seconds": 3_600}, OK))
    start(desk, "limited", repo, TWO_STEPS, play)
    status = await waiting(desk, "limited", "rate_limit")
    assert status["legal"] == ["interrupt", "resume", "abort"]
    verdict = await update(desk, "limited", "interrupt", {"by": "ann"})
    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the run waits for a resume")
    status = await interrupted(desk, "limited")
    assert (status["needs_human"], status["waiting"]["reason"]) == (True, "interrupted by ann")
    await resume(desk, "limited")
    result = await ended(desk, "limited", "verified")
    assert [(one.attempt, one.execution_status) for one in result.receipts[:2]] == [
        (1, "interrupted"),
        (2, "succeeded"),
    ]
    assert files_at(result.git) == ["README.md", "half", "ok"]
