"""A worker that sleeps while another takes its run over, and one that dies while its agent waits for a person."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chaos_kit import Link, happens
from conftest import Rig
from flow_kit import (
    OK,
    files_at,
    flow,
    gate,
    hold,
    linear,
    make_repository,
    partial_of,
    script,
    step,
    turn,
    write,
)
from run_kit import READ_ONLY, Played, ended, start, update, waiting

from schemas.run_state import RunStatus
from system.leftovers import leftovers

pytestmark = pytest.mark.chaos

SPEC = flow(
    step("only", linear("end"), gates=[gate("there")], interrupt={"grace_s": 0.5}), step("end", **READ_ONLY)
)
ASK: dict[str, Any] = {
    "do": "ask",
    "question": "Red or blue?",
    "options": ["red", "blue"],
    "save_to": "answer",
}
LATE = {"envelope.json", "handoff_partial.json", "receipt.json", "work.json"}
"""What is stored of an attempt whose worker was lost with its disk: all of it by the worker that took over."""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one file."""
    return make_repository(tmp_path / "repo")


async def heard(rig: Rig, disk: str, text: str) -> None:
    """Return once the agent of the worker on a disk has said or done something."""
    spool = rig.folder / disk / "spool"
    await happens(lambda: any(text in path.read_text() for path in spool.rglob("events.jsonl")), rig)


async def asleep(worker: subprocess.Popen[bytes], link: Link) -> None:
    """Stop a worker where it stands; its connections break, so that the server gives its tasks to others at once."""
    worker.send_signal(signal.SIGSTOP)
    await link.cut()


async def awake(worker: subprocess.Popen[bytes], link: Link) -> None:
    """Let it go on, with a server to talk to."""
    await link.mend()
    worker.send_signal(signal.SIGCONT)


def check(rig: Rig, result: Played, files: list[str]) -> None:
    """Assert that the second attempt alone counts, and that nothing of the first was written by who lost it."""
    lost, done = [one for one in result.receipts if one.step_id == "only"]
    assert [one.execution_status for one in (lost, done)] == ["failed", "succeeded"]
    path = f"runs/{result.run_id}/small/only/1/1/"
    assert {key.removeprefix(path) for key in rig.evidence.blobs.keys(path)} == LATE
    assert partial_of(rig, lost).reason == "crash"
    assert result.git is not None
    assert files_at(result.git) == files
    assert str(rig.folder / "another") in result.git.workspace


@pytest.mark.parametrize("end", ["finishes its turn", "hangs"])
async def test_a_worker_that_sleeps_through_a_takeover_changes_nothing_when_it_wakes(
    rig: Rig, repo: Path, tmp_path: Path, end: str
) -> None:
    go = tmp_path / "go"
    middle = hold(go)
    work = turn(write("half", "x"), middle, OK)
    if end == "hangs":
        # Only the first attempt hangs: the second finds the file there.
        argv = ["sh", "-c", f"test -f {go} || (trap '' TERM; while :; do sleep 1; done)"]
        work = turn(write("half", "x"), {"do": "run", "argv": argv, "timeout": 3_600}, OK)
    async with Link(rig.server.address) as link:
        first = rig.worker(TEMPORAL_ADDRESS=link.address)
        start(rig, "sleeps", repo, SPEC, script(only=work))
        run_id = await rig.run_id("sleeps")
        await heard(rig, "disk", "half")
        if end == "hangs":
            await happens(lambda: leftovers(run_id, home=rig.folder / "disk"), rig)
        await asleep(first, link)
        if end == "hangs":
            go.touch()
        rig.worker("another")
        await heard(rig, "another", "half")
        go.touch()
        await awake(first, link)

        result = await ended(rig, "sleeps", "verified")

        await happens(lambda: "LeaseLost" in rig.log(), rig)
        await happens(lambda: not leftovers(run_id), rig)
    check(rig, result, ["README.md", "half", "ok"])


async def test_a_question_of_a_worker_that_sleeps_is_asked_again_by_who_takes_over(
    rig: Rig, repo: Path
) -> None:
    async with Link(rig.server.address) as link:
        first = rig.worker(TEMPORAL_ADDRESS=link.address)
        start(rig, "asks", repo, SPEC, script(only=turn(ASK, OK)))
        await waiting(rig, "asks", "answer")
        await asleep(first, link)
        rig.worker("another")
        await heard(rig, "another", "Red or blue?")
        await awake(first, link)
        await happens(lambda: "LeaseLost" in rig.log(), rig)
        status = RunStatus.model_validate(await waiting(rig, "asks", "answer"))
        assert status.attempt == 2, "what the first one settles on waking is not the second one's question"

        verdict = await update(rig, "asks", "answer", {"answers": {"1": "blue"}})

        assert verdict["message"] == "the agent has it"
        result = await ended(rig, "asks", "verified")
        check(rig, result, ["README.md", "answer", "ok"])


@pytest.mark.parametrize("disk", ["disk", "another"])
async def test_a_question_outlives_the_worker_of_the_agent_that_asked_it(
    rig: Rig, repo: Path, disk: str
) -> None:
    first = rig.worker()
    start(rig, "dies", repo, SPEC, script(only=turn(write("half", "x"), ASK, OK)))
    await waiting(rig, "dies", "answer")
    first.kill()
    rig.worker(disk)
    await rig.until(
        "dies", lambda now: now["attempt"] == 2 and (now["waiting"] or {}).get("kind") == "answer"
    )

    await update(rig, "dies", "answer", {"answers": {"1": "blue"}})

    result = await ended(rig, "dies", "verified")
    lost, done = [one for one in result.receipts if one.step_id == "only"]
    partial = partial_of(rig, lost)
    assert (partial.reason, partial.stop_method) == ("crash", "killed")
    assert partial.done == (["created half"] if disk == "disk" else [])
    assert done.session == ("resumed" if disk == "disk" else "cold")
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "answer", "half", "ok"]
