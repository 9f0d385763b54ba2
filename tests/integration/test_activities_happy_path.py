"""A run's phases in their order, on a real repository with the scripted agent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from activities_kit import RUN, Driver, make_worker
from flow_kit import git, make_repository

from schemas.facts import StepFacts
from schemas.handoff import HandoffEnvelope
from schemas.receipt import StepReceipt


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(make_worker(tmp_path), make_repository(tmp_path / "repo"))


async def test_a_step_goes_from_its_flow_to_a_branch_that_can_be_fetched(driver: Driver) -> None:
    resolved = await driver.resolve()
    acquired = await driver.acquire()
    work = await driver.work()
    measure = await driver.measure()
    finalize = await driver.finalize()
    facts = StepFacts(status="VERIFIED", claimed_status="VERIFIED", tree=finalize.tree)
    recorded = await driver.record(
        facts,
        work=work,
        work_attempt=1,
        measure=measure,
        measure_attempt=1,
        finalize=finalize,
        finalize_attempt=1,
    )
    released = await driver.release()

    assert resolved.transports == {"implement": ["stub"], "finish": ["stub"]}
    assert acquired.branch == f"stepwise/{RUN}"
    assert acquired.base_gates["implement"][0].fact.passed is False
    assert work.ended == "finished"
    assert work.changes.created == 2
    assert work.usage.total == 110
    assert measure.gates[0].fact.passed
    assert measure.tree_before == measure.tree_after == work.tree == finalize.tree
    assert finalize.session_mode == "hot"
    assert finalize.headline == "It is made."
    evidence = driver.ctx.evidence
    envelope = HandoffEnvelope.model_validate_json(evidence.read(recorded.envelope))
    assert envelope.source == "agent"
    assert envelope.file_changes.created == ["made.txt", "notes.md"]
    assert list(envelope.artifacts) == ["notes.md"]
    receipt = StepReceipt.model_validate_json(evidence.read(recorded.receipt))
    assert receipt.gates[0].passed
    assert receipt.gates[0].before is not None
    assert receipt.gates[0].before.passed is False
    assert receipt.git is not None
    assert released.git is not None
    assert receipt.git.commit_after == released.git.head
    assert driver.ctx.receipts.verify_run(RUN, recorded.receipt.sha256).ok
    assert [event.seq for event in driver.ctx.journal.read(RUN)] == [1, 2]

    subprocess.run(released.git.fetch.split(), cwd=driver.repo, check=True, capture_output=True)
    assert git(driver.repo, "show", f"stepwise/{RUN}:made.txt") == "made"
    assert git(driver.repo, "log", "-1", "--format=%s", f"stepwise/{RUN}") == "small/implement #1"
    assert git(driver.repo, "status", "--porcelain") == ""
