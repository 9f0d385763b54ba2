"""An interrupt in the middle of an edit, then the worker is gone: another one goes on from what was done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chaos_kit import happens, killed
from conftest import UNITTEST, Rig
from flow_kit import file_at, files_at, flow, gate, git, partial_of, script, step, transcript_of, turn
from run_kit import ended, resume, said, start, update, waiting

from system.leftovers import leftovers

pytestmark = pytest.mark.chaos

STATS = "calc/stats.py"


def spec(**more: Any) -> dict[str, Any]:
    """Return the flow whose first step is interrupted."""
    mend = step(
        "mend",
        {"kind": "linear", "next": "end"},
        objective="Make the tests pass, and say in CHANGES.md what was wrong.",
        gates=[gate("tests", *UNITTEST)],
        outputs=["CHANGES.md"],
        **more,
    )
    return flow(mend, step("end", policy="read-only", agent="reviewer"))


SPEC = spec()


def edit(old: str, new: str) -> dict[str, Any]:
    """Return an edit of the module that is to be mended."""
    return {"do": "edit", "path": STATS, "replace": old, "with": new}


HALF = edit("for value in values[1:]:", "for value in values:")
"""The half of the mend that the first agent comes to: its sum is right, its error is not."""
REST = edit(
    "    total = 0.0\n",
    '    if not values:\n        raise ValueError("mean of no values")\n    total = 0.0\n',
)
NOTES = {"do": "edit", "path": "CHANGES.md", "append": "Every value counts.\n"}


async def stopped_in_the_middle(rig: Rig, name: str, repo: Path) -> tuple[dict[str, Any], Any]:
    """Interrupt an agent between two edits; return the status of the run that waits then, and the worker."""
    first = rig.worker(STEPWISE_SCHEDULE_TO_START_S="1")
    held = {"do": "wait_for_file", "path": str(rig.folder / "go")}
    # A session that goes on does so where it was; a new one does all of it, and finds what is there.
    start(
        rig, name, repo, SPEC, script(mend=turn(HALF, NOTES, {"do": "say", "text": "half-way"}, held, REST))
    )
    spool = rig.folder / "disk" / "spool"
    await happens(lambda: any("half-way" in at.read_text() for at in spool.rglob("events.jsonl")), rig)
    await update(rig, name, "interrupt", {"reason": "hold on", "by": "ann"})
    status = await waiting(rig, name, "human")
    assert leftovers(status["run_id"]) == [], "no process of the agent is left"
    return status, first


@pytest.mark.parametrize("disk", ["disk", "another"])
async def test_a_second_worker_goes_on_from_an_interrupted_edit_after_the_first_was_killed(
    rig: Rig, demo_repo: Path, disk: str
) -> None:
    status, first = await stopped_in_the_middle(rig, "edit", demo_repo)
    (receipt,) = rig.receipts(status["run_id"])
    assert (receipt.execution_status, receipt.verification_status) == ("interrupted", "PARTIAL")
    assert receipt.stop is not None
    assert (receipt.stop.method, receipt.stop.requested_by) == ("cooperative", "ann")
    left = partial_of(rig, receipt)
    assert left.done == ["created CHANGES.md", f"modified {STATS}"]
    assert left.savepoint is not None

    first.kill()
    await killed(first, rig)
    (rig.folder / "go").touch()
    rig.worker(disk)
    await resume(rig, "edit", note="The empty list is still open.", by="bob")

    result = await ended(rig, "edit", "verified")
    mends = [one for one in result.receipts if one.step_id == "mend"]
    assert mends[-1].execution_status == "succeeded"
    assert [(one.name, one.passed) for one in mends[-1].gates] == [("tests", True)]
    told = transcript_of(rig, mends[-1])
    for words in (
        "Make the tests pass, and say in CHANGES.md what was wrong.",
        "go\\non from it; do not start over",
        "Done: created CHANGES.md",
        f"Done: modified {STATS}",
        "Remaining: all that the objective asks beyond that",
        "The empty list is still open.",
    ):
        assert words in told, words
    assert result.git is not None
    mended = file_at(result.git, STATS)
    assert "for value in values:" in mended, "the work done before is there"
    assert "mean of no values" in mended
    assert mends[-1].session == ("resumed" if disk == "disk" else "cold")
    written = file_at(result.git, "CHANGES.md").splitlines()
    assert len(written) == (1 if disk == "disk" else 2), "a cold session wrote to the file that was there"
    assert files_at(result.git) == [
        ".gitignore",
        "CHANGES.md",
        "README.md",
        "calc/__init__.py",
        STATS,
        "tests/__init__.py",
        "tests/test_stats.py",
    ]
    assert git(result.git.workspace, "log", "--format=%s").splitlines()[0] == "small/mend #1"
    assert [(one["name"], one.get("by")) for one in said(rig, result.run_id, "human_message")] == [
        ("interrupt", "ann"),
        ("resume", "bob"),
    ]
    record = json.loads(rig.evidence.read_key(f"runs/{result.run_id}/run.json"))
    assert record["outcome"] == "verified"


async def test_a_retry_on_an_empty_disk_begins_anew_and_what_was_done_is_still_in_the_store(
    rig: Rig, demo_repo: Path
) -> None:
    status, first = await stopped_in_the_middle(rig, "anew", demo_repo)
    (receipt,) = rig.receipts(status["run_id"])
    left = partial_of(rig, receipt)
    assert left.savepoint is not None
    assert left.savepoint.bundle is not None
    first.kill()
    await killed(first, rig)
    rig.worker("another")
    await resume(rig, "anew", action="retry")
    await rig.until("anew", lambda now: now.get("phase") == "work" and now["attempt"] >= 2)
    spool = rig.folder / "another" / "spool"
    await happens(lambda: any("half-way" in at.read_text() for at in spool.rglob("events.jsonl")), rig)
    clone = (await rig.status("anew"))["workspace"]
    assert "another" in clone
    assert (Path(clone) / "CHANGES.md").read_text() == "Every value counts.\n", "written once: it began anew"
    assert rig.evidence.read(left.savepoint.bundle)
    await update(rig, "anew", "abort")
    await ended(rig, "anew", "stopped")


async def test_an_interrupt_of_an_agent_whose_worker_is_gone_holds_the_run_when_the_next_one_is_there(
    rig: Rig, demo_repo: Path
) -> None:
    first = rig.worker()
    held = {"do": "wait_for_file", "path": str(rig.folder / "go")}
    start(
        rig, "gone", demo_repo, SPEC, script(mend=turn(HALF, {"do": "say", "text": "half-way"}, held, REST))
    )
    spool = rig.folder / "disk" / "spool"
    await happens(lambda: any("half-way" in at.read_text() for at in spool.rglob("events.jsonl")), rig)
    first.kill()
    await killed(first, rig)
    sent = rig.temporal(
        *("workflow", "signal", "--workflow-id", "gone", "--name", "interrupt", "--input", '{"by": "ann"}')
    )
    assert sent.returncode == 0, sent.stderr
    rig.worker()
    status = await waiting(rig, "gone", "human")
    assert status["waiting"]["reason"] == "interrupted by ann"
    (receipt,) = rig.receipts(status["run_id"])
    assert receipt.stop is not None
    assert (receipt.stop.reason, receipt.stop.method) == ("crash", "killed")
    assert partial_of(rig, receipt).done == [f"modified {STATS}"]
    (rig.folder / "go").touch()
    await resume(rig, "gone")
    result = await ended(rig, "gone", "verified")
    assert result.receipts[1].session == "resumed"


async def test_an_interrupt_of_work_that_no_worker_has_taken_yet_is_an_interrupt_and_no_loss(
    rig: Rig, demo_repo: Path
) -> None:
    first = rig.worker(STEPWISE_SCHEDULE_TO_START_S="60")
    start(rig, "early", demo_repo, spec(approval="before"), script(mend=turn(HALF, NOTES, REST)))
    await waiting(rig, "early", "approval")
    first.kill()
    await killed(first, rig)
    rig.worker("another", STEPWISE_SCHEDULE_TO_START_S="60")
    await update(rig, "early", "approve")
    await rig.until("early", lambda now: now.get("phase") == "work")
    await update(rig, "early", "interrupt", {"by": "ann"})
    status = await waiting(rig, "early", "human")
    assert status["waiting"]["reason"] == "interrupted by ann"
    await resume(rig, "early")
    result = await ended(rig, "early", "verified")
    mends = [one for one in result.receipts if one.step_id == "mend"]
    assert [one.execution_status for one in mends] == ["interrupted", "succeeded"]
    assert mends[0].stop is not None
    assert (mends[0].stop.reason, mends[0].stop.requested_by) == ("interrupt", "ann")


async def test_a_step_whose_worker_is_lost_more_often_than_it_may_be_waits_for_a_person(
    own_rig: Rig, repo: Path
) -> None:
    held = {"do": "wait_for_file", "path": str(own_rig.folder / "go")}
    first = own_rig.worker(STEPWISE_SCHEDULE_TO_START_S="1")
    start(
        own_rig,
        "often",
        repo,
        spec(retries={"infrastructure": 0}),
        script(mend=turn(HALF, held, REST, NOTES)),
    )
    spool = own_rig.folder / "disk" / "spool"
    await happens(lambda: any(spool.rglob("transcript.jsonl")), own_rig)
    first.kill()
    await killed(first, own_rig)
    (own_rig.folder / "go").touch()
    own_rig.worker()
    status = await waiting(own_rig, "often", "human")
    assert status["waiting"]["reason"] == "the worker was lost 1 times"
    await resume(own_rig, "often")
    await ended(own_rig, "often", "verified")


async def test_words_to_an_agent_whose_worker_is_killed_are_said_again(rig: Rig, demo_repo: Path) -> None:
    first = rig.worker()
    held = {"do": "wait_for_file", "path": str(rig.folder / "go")}
    start(rig, "words", demo_repo, SPEC, script(mend=turn(HALF, {"do": "say", "text": "half-way"}, held)))
    spool = rig.folder / "disk" / "spool"
    await happens(lambda: any("half-way" in at.read_text() for at in spool.rglob("events.jsonl")), rig)
    verdict = await update(rig, "words", "steer", {"text": "Mind the gap."})
    assert (verdict["verdict"], verdict["message"]) == ("accepted", "the agent has it")
    first.kill()
    await killed(first, rig)
    (rig.folder / "go").touch()
    rig.worker()
    result = await ended(rig, "words")
    lost, again = [one for one in result.receipts if one.step_id == "mend"][:2]
    assert (lost.execution_status, again.attempt) == ("failed", 2)
    assert "Mind the gap." in transcript_of(rig, again)
