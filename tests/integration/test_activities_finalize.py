"""What the agent says of its work: asked in its own session, recorded beside what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from activities_kit import FLOW, RUN, SCENARIO, Driver, make_worker, nothing_outlives_a_test
from flow_kit import make_repository
from temporalio.exceptions import ApplicationError

from schemas.calls import ProposeOut, SessionPhaseIn
from schemas.facts import StepFacts
from schemas.handoff import HandoffDraft, HandoffEnvelope
from schemas.receipt import StepReceipt

__all__ = ["nothing_outlives_a_test"]  # a fixture of each test here


async def worked(root: Path, scenario: str = SCENARIO) -> Driver:
    driver = Driver(make_worker(root), make_repository(root / "repo"), FLOW, scenario)
    await driver.acquire()
    await driver.work()
    return driver


async def test_a_draft_is_asked_for_once_in_the_hot_session(tmp_path: Path) -> None:
    driver = await worked(tmp_path)

    first, second = await driver.finalize(), await driver.finalize()

    assert first == second
    assert first.session_mode == "hot"
    assert first.claimed_status == "VERIFIED"
    assert first.draft is not None
    draft = HandoffDraft.model_validate_json(driver.ctx.evidence.read(first.draft))
    assert draft.summary == "It is made."


async def test_a_new_process_resumes_the_session_by_its_id(tmp_path: Path) -> None:
    driver = await worked(tmp_path)
    fresh = Driver(make_worker(tmp_path), driver.repo, resolved=driver.resolved, acquired=driver.acquired)

    out = await fresh.finalize()

    assert out.session_mode == "resumed"
    assert out.headline == "It is made."


async def test_without_its_session_a_cold_one_is_told_what_was_done(tmp_path: Path) -> None:
    driver = await worked(tmp_path)
    await driver.ctx.sessions.close_all()
    for file in (driver.ctx.folder(RUN).private / "sessions").iterdir():
        file.unlink()

    out = await driver.finalize()

    assert out.session_mode == "cold"
    assert out.draft is not None


NEVER = SCENARIO.replace(
    "value: {status: VERIFIED, summary: It is made.}", "raw: ['no', 'no', 'no', 'no', 'no']"
)


async def test_an_agent_without_a_valid_draft_gets_an_envelope_from_the_engine(tmp_path: Path) -> None:
    driver = await worked(tmp_path, NEVER)
    out = await driver.finalize()

    assert out.draft is None
    assert out.error is not None
    assert out.error.code == "structured_output_invalid"
    assert out.reprompts == 3
    work = await driver.work()
    recorded = await driver.record(
        StepFacts(status="UNVERIFIED"), work=work, work_attempt=1, finalize=out, finalize_attempt=1
    )
    envelope = HandoffEnvelope.model_validate_json(driver.ctx.evidence.read(recorded.envelope))
    assert envelope.source == "engine"
    assert envelope.status == "UNVERIFIED"
    assert envelope.reason is not None
    assert "structured_output_invalid" in envelope.reason
    assert envelope.file_changes.created == ["made.txt", "notes.md"]


async def test_bad_answers_before_a_good_one_are_counted(tmp_path: Path) -> None:
    once = SCENARIO.replace(
        "finalize:\n          value:", "finalize:\n          raw: ['no']\n          value:"
    )
    driver = await worked(tmp_path, once)

    out = await driver.finalize()

    assert out.reprompts == 1
    assert out.claimed_status == "VERIFIED"


async def test_a_false_claim_stands_beside_what_was_measured(tmp_path: Path) -> None:
    driver = await worked(tmp_path, SCENARIO.replace("path: made.txt", "path: other.txt"))
    work, measure, finalize = await driver.work(), await driver.measure(), await driver.finalize()

    recorded = await driver.record(
        StepFacts(status="UNVERIFIED", claimed_status="VERIFIED"),
        work=work,
        work_attempt=1,
        measure=measure,
        measure_attempt=1,
        finalize=finalize,
        finalize_attempt=1,
    )

    receipt = StepReceipt.model_validate_json(driver.ctx.evidence.read(recorded.receipt))
    assert receipt.claimed["status"] == "VERIFIED"
    assert receipt.verification_status == "UNVERIFIED"
    assert receipt.gates[0].passed is False
    envelope = HandoffEnvelope.model_validate_json(driver.ctx.evidence.read(recorded.envelope))
    assert (envelope.status, envelope.claimed_status) == ("UNVERIFIED", "VERIFIED")


async def test_an_edit_while_the_agent_is_asked_shows_in_the_tree_and_is_undone(tmp_path: Path) -> None:
    sly = SCENARIO.replace(
        "finalize:\n          value:",
        "finalize:\n          actions: [{do: run, argv: [touch, late.txt]}]\n          value:",
    )
    driver = await worked(tmp_path, sly)
    measure = await driver.measure()

    out = await driver.finalize()

    assert measure.tree_after != out.tree
    assert not (driver.ctx.folder(RUN).workspace / "late.txt").exists()


async def test_a_route_is_asked_for_in_the_same_session(tmp_path: Path) -> None:
    advising = f"{SCENARIO}        route:\n          value: {{decision: branch, next_step_id: finish}}\n"
    driver = await worked(tmp_path, advising)
    await driver.finalize()
    call = SessionPhaseIn(**driver.phase(driver.key()), work_attempt=1, candidates=["finish"])

    first: ProposeOut = await driver.call("propose_route", call)
    second: ProposeOut = await driver.call("propose_route", call)

    assert first == second
    assert first.session_mode == "hot"
    assert first.signal is not None
    assert first.signal.next_step_id == "finish"


async def test_an_attempt_after_a_loss_asks_the_session_of_the_attempt_that_worked(tmp_path: Path) -> None:
    driver = await worked(tmp_path)

    out = await driver.finalize(driver.key(attempt=2), work_attempt=1)

    assert out.session_mode == "hot"
    assert out.headline == "It is made."


async def test_a_phase_on_a_worker_without_the_run_is_lost(tmp_path: Path) -> None:
    driver = await worked(tmp_path)
    other = Driver(
        make_worker(tmp_path, data="other"), driver.repo, resolved=driver.resolved, acquired=driver.acquired
    )

    with pytest.raises(ApplicationError) as lost:
        await other.finalize()

    assert lost.value.type == "WorkspaceGone"
