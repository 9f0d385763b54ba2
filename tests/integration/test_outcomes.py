"""What a run ends as, whatever its agent does and says; and that the evidence says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import UNITTEST, Rig
from flow_kit import (
    OK,
    envelope_of,
    files_at,
    flow,
    gate,
    git,
    linear,
    loop,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from run_kit import READ_ONLY, ended, played, resume, start, waiting

from schemas.calls import AttemptKey, FinalizeOut, WorkResult
from schemas.receipt import StepReceipt
from store.results import Results


def key_of(receipt: StepReceipt) -> AttemptKey:
    return AttemptKey.model_validate(receipt.model_dump())


# What an agent says against what is measured.


async def test_a_claim_of_success_with_a_failing_gate_loops_and_then_asks_a_human(
    desk: Rig, repo: Path
) -> None:
    spec = flow(
        step("only", loop("only", "end", max_iterations=2), gates=[gate("there")]), step("end", **READ_ONLY)
    )
    play = script(only=turn(write("wrong", "x"), status="VERIFIED", can_further_iteration_help="yes"))
    start(desk, "claim-loop", repo, spec, play)
    status = await waiting(desk, "claim-loop", "human")
    assert status["needs_human"]
    await resume(desk, "claim-loop", action="skip", by="ann")
    result = await ended(desk, "claim-loop")
    assert result.outcome == "unverified"
    assert result.summary == "skipped: only"
    assert [(one.decision, one.source, one.exit) for one in result.decisions] == [
        ("loop", "deterministic", None),
        ("escalate", "deterministic", "max_iterations"),
        ("skip", "human", "human"),
        ("terminate", "fast_path", None),
    ]
    first, second, end = result.receipts
    for receipt in (first, second):
        assert receipt.claimed["status"] == "VERIFIED"
        assert receipt.verification_status == "UNVERIFIED"
        assert receipt.execution_status == "succeeded"
        assert [(one.measured, one.passed, one.exit_code) for one in receipt.gates] == [(True, False, 1)]
        assert envelope_of(desk, receipt).status == "UNVERIFIED"
        assert envelope_of(desk, receipt).claimed_status == "VERIFIED"
    assert second.termination_reason == "max_iterations"
    assert "Gates that failed after the last attempt" in transcript_of(desk, second)
    assert end.step_id == "end"
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "wrong"]


@pytest.mark.parametrize(
    ("exhausted", "outcome", "said"),
    [
        ("advance", "unverified", "failed on the final tree: only/there"),
        ("terminate", "failed", "Iteration 2 of 2 did not end the loop"),
    ],
)
async def test_a_loop_that_may_end_unfinished_never_ends_verified(
    desk: Rig, repo: Path, exhausted: str, outcome: str, said: str
) -> None:
    spec = flow(
        step("only", loop("only", "end", max_iterations=2, on_exhausted=exhausted), gates=[gate("there")]),
        step("end", **READ_ONLY),
    )
    play = script(only=turn(write("wrong", "x"), status="VERIFIED"))
    result = await played(desk, f"claim-{exhausted}", repo, spec, play)
    assert result.outcome == outcome
    assert said in result.summary
    assert result.receipts[1].termination_reason == "max_iterations"


async def test_a_claim_without_any_gate_is_unverified(desk: Rig, repo: Path) -> None:
    result = await played(
        desk, "claim-only", repo, flow(step("only")), script(only=turn(OK, status="VERIFIED"))
    )
    assert result.outcome == "unverified"
    assert result.summary == "no required gate was measured"
    assert result.receipts[0].claimed["status"] == "VERIFIED"
    assert result.receipts[0].verification_status == "UNVERIFIED"


async def test_an_optional_gate_that_fails_does_not_spoil_a_verified_run(desk: Rig, repo: Path) -> None:
    gates = [gate("there"), gate("nice", "false", required=False)]
    result = await played(desk, "optional", repo, flow(step("only", gates=gates)), script(only=turn(OK)))
    assert result.outcome == "verified"
    assert [(one.name, one.required, one.passed) for one in result.receipts[0].gates] == [
        ("there", True, True),
        ("nice", False, False),
    ]


@pytest.mark.parametrize("argv", [["no-such-program-here"], ["sh", "-c", "kill -9 $$"]])
async def test_a_gate_that_cannot_say_yes_is_no_pass(desk: Rig, repo: Path, argv: list[str]) -> None:
    name = f"gate-{argv[0][:2]}"
    spec = flow(step("only", gates=[gate("odd", *argv)]))
    result = await played(desk, name, repo, spec, script(only=turn(OK, status="VERIFIED")))
    assert result.outcome == "unverified"
    assert result.receipts[0].gates[0].passed is False
    assert result.receipts[0].gates[0].reason


async def test_a_gate_that_failed_before_and_passes_now_shows_both_in_the_receipt(
    desk: Rig, repo: Path
) -> None:
    gates = [gate("there"), gate("late", "test", "-f", "ok", before=False)]
    result = await played(desk, "before", repo, flow(step("only", gates=gates)), script(only=turn(OK)))
    assert result.outcome == "verified"
    assert result.summary == "every required gate passed on the final tree"
    there, late = result.receipts[0].gates
    assert there.passed
    assert there.before is not None
    assert (there.before.passed, there.before.exit_code) == (False, 1)
    assert late.passed
    assert late.before is None
    assert result.git is not None
    assert there.tree == result.git.tree
    assert there.commit == result.git.head


async def test_nothing_to_do_leaves_no_commit(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("end"), gates=[gate("readme", "test", "-f", "README.md")]), step("end"))
    result = await played(desk, "nothing", repo, spec)
    assert result.outcome == "nothing_to_do"
    assert result.git is not None
    assert result.git.head == result.git.base == git(repo, "rev-parse", "HEAD")
    assert [one.verification_status for one in result.receipts] == ["VERIFIED", "UNVERIFIED"]
    before = result.receipts[0].gates[0].before
    assert before is not None
    assert before.passed


async def test_an_unchanged_tree_with_a_failing_gate_is_not_nothing_to_do(desk: Rig, repo: Path) -> None:
    result = await played(desk, "not-nothing", repo, flow(step("only", gates=[gate("there")])))
    assert result.outcome == "unverified"
    assert result.summary == "failed on the final tree: only/there"


async def test_blocked_at_the_end_ends_the_run_blocked(desk: Rig, repo: Path) -> None:
    play = script(only=turn(status="BLOCKED", blockers=["no access"]))
    result = await played(desk, "blocked-end", repo, flow(step("only")), play)
    assert result.outcome == "blocked"
    envelope = envelope_of(desk, result.receipts[0])
    assert (envelope.status, envelope.blockers) == ("BLOCKED", ["no access"])


async def test_blocked_before_the_end_waits_for_a_human_whose_note_reaches_the_agent(
    desk: Rig, repo: Path
) -> None:
    spec = flow(step("only", linear("end")), step("end", **READ_ONLY))
    start(desk, "blocked", repo, spec, script(only=turn(status="BLOCKED")))
    status = await waiting(desk, "blocked", "human")
    assert status["waiting"]["reason"] == "Step only is BLOCKED."
    await resume(desk, "blocked", action="retry", note="The key is under the mat.")
    await desk.until(
        "blocked", lambda now: now["attempt"] == 2 and (now["waiting"] or {}).get("kind") == "human"
    )
    await resume(desk, "blocked", action="goto", step="end")
    result = await ended(desk, "blocked")
    assert result.outcome == "nothing_to_do"
    assert [(one.step_id, one.attempt, one.verification_status) for one in result.receipts] == [
        ("only", 1, "BLOCKED"),
        ("only", 2, "BLOCKED"),
        ("end", 1, "UNVERIFIED"),
    ]
    assert "The key is under the mat." not in transcript_of(desk, result.receipts[0])
    assert "The key is under the mat." in transcript_of(desk, result.receipts[1])
    assert "The key is under the mat." not in transcript_of(desk, result.receipts[2])


# Hand-offs that are no hand-offs.


async def test_an_agent_without_a_valid_handoff_is_unverified_though_its_gate_passes(
    desk: Rig, repo: Path
) -> None:
    play = script(only={"work": [OK], "finalize": {"raw": ["no", "```json\n{}\n```", "{}", "[", "{", "{"]}})
    result = await played(desk, "bad-json", repo, flow(step("only", gates=[gate("there")])), play)
    receipt = result.receipts[0]
    assert receipt.verification_status == "UNVERIFIED"
    assert receipt.claimed == {}
    assert receipt.gates[0].passed
    envelope = envelope_of(desk, receipt)
    assert (envelope.source, envelope.status, envelope.claimed_status) == ("engine", "UNVERIFIED", None)
    assert envelope.reason is not None
    assert "no valid HandoffDraft after 3 reprompts" in envelope.reason
    assert envelope.file_changes.created == ["ok"]
    stored = Results(desk.evidence).load(key_of(receipt), FinalizeOut)
    assert stored is not None
    assert (stored.reprompts, stored.draft) == (3, None)


async def test_bad_json_that_is_mended_counts_its_reprompts(desk: Rig, repo: Path) -> None:
    good = {"status": "VERIFIED", "summary": "Mended."}
    play = script(only={"work": [OK], "finalize": {"raw": ["no", "{}"], "value": good}})
    result = await played(desk, "mended-json", repo, flow(step("only", gates=[gate("there")])), play)
    assert result.outcome == "verified"
    envelope = envelope_of(desk, result.receipts[0])
    assert (envelope.source, envelope.summary, envelope.status) == ("agent", "Mended.", "VERIFIED")
    stored = Results(desk.evidence).load(key_of(result.receipts[0]), FinalizeOut)
    assert stored is not None
    assert stored.reprompts == 2


# Evidence that would be stale.


async def test_an_edit_in_finalize_makes_the_step_unverified_and_is_undone(desk: Rig, repo: Path) -> None:
    gates = [gate("there")]
    spec = flow(step("only", loop("only", "end", max_iterations=3), gates=gates), step("end", **READ_ONLY))
    play = script(
        only=[
            {"work": [OK], "finalize": {"actions": [write("late", "x")], "value": {"status": "VERIFIED"}}},
            turn(status="VERIFIED"),
        ]
    )
    result = await played(desk, "late-edit", repo, spec, play)
    first, second, _ = result.receipts
    assert first.measured["changed_after_measure"] is True
    assert first.gates[0].passed
    assert first.verification_status == "UNVERIFIED"
    assert first.routing is not None
    assert first.routing.decision == "loop"
    assert second.measured["changed_after_measure"] is False
    assert second.verification_status == "VERIFIED"
    assert result.outcome == "verified"
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "ok"]


async def test_a_gate_cannot_be_made_to_pass_after_it_was_measured(desk: Rig, repo: Path) -> None:
    play = script(only={"work": [], "finalize": {"actions": [OK], "value": {"status": "VERIFIED"}}})
    result = await played(desk, "too-late", repo, flow(step("only", gates=[gate("there")])), play)
    assert result.outcome == "unverified"
    assert result.receipts[0].measured["changed_after_measure"] is True
    assert result.git is not None
    assert files_at(result.git) == ["README.md"]


async def test_a_gate_that_changes_the_tree_proves_nothing_and_is_not_blamed_on_the_next_step(
    desk: Rig, repo: Path
) -> None:
    spec = flow(
        step("only", linear("end"), gates=[gate("junk", "sh", "-c", "echo x > junk")]),
        step("end", **READ_ONLY),
    )
    result = await played(desk, "junk", repo, spec, script(only=turn(OK)))
    assert result.outcome == "unverified"
    assert result.summary.startswith("the gates change the tree they measure")
    assert [(one.step_id, one.execution_status) for one in result.receipts] == [
        ("only", "succeeded"),
        ("end", "succeeded"),
        ("_final", "succeeded"),
    ]
    assert result.receipts[0].verification_status == "UNVERIFIED"
    assert result.receipts[0].measured["changed_after_measure"] is True
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "ok"]


async def test_gates_are_measured_once_more_where_later_work_changed_the_tree(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("more"), gates=[gate("there")]), step("more"))
    result = await played(desk, "final", repo, spec, script(only=turn(OK), more=turn(write("more", "x"))))
    assert result.outcome == "verified"
    final = result.receipts[-1]
    assert (final.step_id, final.verification_status, final.transport) == ("_final", "VERIFIED", "")
    assert [(one.name, one.passed) for one in final.gates] == [("only/there", True)]
    assert result.git is not None
    assert final.gates[0].tree == result.git.tree != result.receipts[0].gates[0].tree
    assert [one.step_id for one in result.steps] == ["only", "more", "_final"]


async def test_later_work_that_breaks_a_passed_gate_is_found_at_the_end(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", linear("more"), gates=[gate("there")]), step("more"))
    undo = {"do": "edit", "path": "ok", "delete": True}
    result = await played(
        desk, "final-broken", repo, spec, script(only=turn(OK), more=turn(undo, write("more", "x")))
    )
    assert result.outcome == "unverified"
    assert result.summary == "failed on the final tree: only/there"
    assert [one.verification_status for one in result.receipts] == ["VERIFIED", "UNVERIFIED", "UNVERIFIED"]
    assert result.receipts[-1].gates[0].passed is False


async def test_an_edit_in_a_read_only_step_is_blocked_and_counted(desk: Rig, repo: Path) -> None:
    work = [write("sneaky", "x"), {"do": "run", "argv": ["touch", "sneaky"]}]
    result = await played(desk, "read-only", repo, flow(step("only", **READ_ONLY)), script(only=turn(*work)))
    assert result.outcome == "nothing_to_do"
    assert (result.receipts[0].tool_calls.count, result.receipts[0].tool_calls.blocked) == (2, 2)
    assert result.git is not None
    assert files_at(result.git) == ["README.md"]


# The shipped flows.


@pytest.mark.parametrize(
    ("name", "more", "visits"),
    [
        ("fix", {"scenario": "demo"}, ["implement", "implement", "review", "finish"]),
        ("direct", {}, ["implement", "finish"]),
        ("plan-then-implement", {"approval": "auto"}, ["plan", "implement", "implement", "finish"]),
        (
            "build",
            {},
            [
                "load_context",
                "author_tests",
                "critique_tests",
                "implement",
                "implement",
                "critique_code",
                "self_review",
                "finish",
            ],
        ),
    ],
)
async def test_a_shipped_flow_mends_the_demo_repository(
    desk: Rig, demo_repo: Path, name: str, more: dict[str, Any], visits: list[str]
) -> None:
    sent = {"flow": name, "repo": str(demo_repo), "task": "t", "scenario": name, **more}
    desk.start(f"shipped-{name}", {**sent, "params": {"test": UNITTEST}})
    result = await ended(desk, f"shipped-{name}")
    assert result.outcome == "verified"
    assert [one.step_id for one in result.receipts] == visits
    assert result.git is not None
    git(demo_repo, *result.git.fetch.split()[1:])
    git(demo_repo, "checkout", "--quiet", result.git.branch)
    assert git(demo_repo, "status", "--porcelain") == ""
    measured = [one for receipt in result.receipts for one in receipt.gates]
    assert all(one.before is not None and not one.before.passed for one in measured)
    assert measured[-1].passed


async def test_the_work_of_a_finished_step_is_stored_with_its_commit(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", gates=[gate("there")], outputs=["ok"]))
    result = await played(desk, "commit", repo, spec, script(only=turn(OK)))
    receipt = result.receipts[0]
    assert receipt.git is not None
    assert result.git is not None
    assert receipt.git.commit_before == result.git.base
    assert receipt.git.commit_after == result.git.head
    trailers = git(result.git.workspace, "log", "-1", "--format=%(trailers:only)")
    assert f"Stepwise-Run: {result.run_id}" in trailers
    assert "Stepwise-Visit: small/only#1" in trailers
    stored = Results(desk.evidence).load(key_of(receipt), WorkResult)
    assert stored is not None
    assert desk.evidence.read(stored.outputs["ok"]) == b"yes\n"


async def test_what_policy_blocked_stands_in_the_receipt_with_code_and_reason(desk: Rig, repo: Path) -> None:
    spec = flow(step("look", **READ_ONLY))
    result = await played(desk, "was-blocked", repo, spec, script(look=turn(OK)))
    (receipt,) = desk.receipts(result.run_id)
    (blocked,) = receipt.tool_calls.blocked_calls
    assert receipt.tool_calls.blocked == 1
    assert (blocked.tool_name, blocked.code) == ("stub.edit", "read_only")
    assert "may not change files" in blocked.reason
