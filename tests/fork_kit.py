"""Forks as people make them, for tests: the command, how a fork ended, and what must hold of it and its parent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import Rig
from flow_kit import OK, flow, gate, git, linear, loop, script, step, turn, write
from run_kit import READ_ONLY, Played, ended, said, start

from cli.main import run
from schemas.receipt import GENESIS, StepReceipt
from schemas.run import FlowResult
from schemas.run_record import RunRecord
from store.journal import Journal
from store.receipts import Receipts
from store.runs import Runs

LOOPING = flow(
    step("implement", loop("implement", "polish", max_iterations=3), gates=[gate("there")]),
    step("polish", linear("end")),
    step("end", **READ_ONLY),
)
"""A loop whose gate wants the file ``ok``; after it a step that may change anything."""
TWO_TRIES = script(
    implement=[
        turn(write("first", "1\n"), summary="What the first try says."),
        turn(OK, summary="What the second try says."),
    ]
)


async def command(*argv: str) -> tuple[int, str, str]:
    """Run a command beside this test's own event loop; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = await asyncio.to_thread(run, argv)
    return code, out.getvalue(), err.getvalue()


async def fork(*argv: str) -> dict[str, Any]:
    """Start a fork; return the ids that the command prints."""
    code, out, err = await command("fork", *argv, "--json")
    assert code == 0, err
    ids: dict[str, Any] = json.loads(out)
    return ids


async def refused(*argv: str) -> str:
    """Have a fork refused; return the one line that says why."""
    code, out, err = await command("fork", *argv)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    return line


async def forked(rig: Rig, ids: Mapping[str, Any], outcome: str) -> Played:
    """Wait for a fork's end; its evidence is sound, and both runs name each other."""
    result = await rig.result(ids["workflow_id"])
    assert result.outcome == outcome, result
    assert result.run_id == ids["run_id"]
    check(rig, result)
    return Played(**result.model_dump(), receipts=rig.receipts(result.run_id))


def check(rig: Rig, result: FlowResult) -> None:
    """Assert what holds after every fork."""
    run_id = result.run_id
    assert Journal(rig.evidence).gaps(run_id) == []
    report = Receipts(rig.evidence).verify_run(run_id, result.receipts_head)
    assert report.ok, report
    point = record(rig, run_id).forked_from
    assert point is not None
    links = [one for one in record(rig, point.run_id).forks if one.run_id == run_id]
    assert links == [point.model_copy(update={"run_id": run_id})]
    created = said(rig, run_id, "run_created")[0]
    assert created["forked_from"] == {
        "run_id": point.run_id, "flow": point.flow_key, "step": point.step_id, "visit": point.visit
    }  # fmt: skip
    receipts = rig.receipts(run_id)
    assert receipts[0].previous_sha256 == GENESIS
    assert {one.run_id for one in receipts} == {run_id}
    if result.git is not None:
        assert result.git.branch == f"stepwise/{run_id}"
        assert git(result.git.workspace, "status", "--porcelain") == ""


def record(rig: Rig, run_id: str) -> RunRecord:
    """Return a run's record."""
    found = Runs(rig.evidence).get(run_id)
    assert found is not None
    return found


def visits(receipts: Sequence[StepReceipt]) -> list[tuple[str, int]]:
    """Return step and visit of each receipt."""
    return [(one.step_id, one.visit) for one in receipts]


async def looped(rig: Rig, name: str, repo: Path) -> Played:
    """Return a run of the loop that took two tries."""
    start(rig, name, repo, LOOPING, TWO_TRIES)
    return await ended(rig, name, "verified")


def to_file(folder: Path, sent: Mapping[str, Any]) -> str:
    """Write a flow or a scenario into a file and return its path."""
    path = folder / sent["name"]
    path.write_text(sent["text"])
    return str(path)
