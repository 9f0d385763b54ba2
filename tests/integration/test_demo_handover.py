"""``make demo-handover`` as people run it: the work is kept and gone on with, and what it proposes next works."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from demo_kit import ROOT, check_next, environment, one_demo, run, working_in
from flow_kit import git
from model_servers.minds import BUGGY, RIGHT, WRONG

from schemas.handoff import PartialHandoff
from schemas.receipt import StepReceipt

HANDOVER = [sys.executable, str(ROOT / "examples" / "handover.py")]
FOLDER = ".stepwise/handover/1"


def own(folder: Path) -> dict[str, str]:
    """Return the variables of somebody whose temporary files are their own, so that what is left is seen."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return {"TMPDIR": str(temporary)}


def typed(said: str) -> list[list[str]]:
    """Return the words of the Temporal commands that were shown as typed."""
    return [line.split() for line in said.splitlines() if line.startswith("$ temporal ")]


def file_of(said: str, workspace: Path, commit: str) -> str:
    assert commit in said
    return git(workspace, "show", f"{commit}:{BUGGY}")


def test_make_runs_what_is_tested_here() -> None:
    shown = run(["make", "--dry-run", "--directory", str(ROOT), "demo-handover"], ROOT)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-2:][0].endswith("bin/python examples/handover.py")


def test_the_handover_keeps_the_first_agents_work_and_ends_verified(tmp_path: Path) -> None:
    asked = own(tmp_path)
    said = one_demo(tmp_path, asked, HANDOVER)

    assert [words[3] for words in typed(said)] == ["start", "signal", "query", "update"]
    for line in (
        "message interrupt by ann: accepted",
        "attempt 1 was stopped: interrupted",
        "message resume by ann: accepted (note No values have no mean: raise ValueError., transport codex)",
        "gate tests passed (exit 0)",
        "outcome          verified: every required gate passed on the final tree",
        "tests FAILED -> passed",
        '+        raise ValueError("no values have no mean")',
    ):
        assert line in said

    receipts = [
        StepReceipt.model_validate_json(Path(line.strip()).read_bytes())
        for line in said.splitlines()
        if line.endswith("/receipt.json")
    ]
    assert [(one.step_id, one.attempt, one.transport) for one in receipts] == [
        ("implement", 1, "claude-sdk"),
        ("implement", 2, "codex"),
        ("review", 1, "claude-sdk"),
        ("finish", 1, "claude-sdk"),
    ]
    first, second = receipts[:2]
    assert (first.execution_status, second.execution_status) == ("interrupted", "succeeded")
    handed = partial(tmp_path, first)
    assert handed.savepoint is not None
    assert handed.file_changes.modified == [BUGGY]
    (workspace,) = (tmp_path / FOLDER / "worker" / "runs").glob("*/ws")
    assert file_of(said, workspace, handed.savepoint.commit) == WRONG.strip()
    assert (workspace / BUGGY).read_text() == RIGHT

    check_next(said, tmp_path, f"{FOLDER}/worker")
    assert working_in(tmp_path) == []
    assert list(Path(asked["TMPDIR"]).iterdir()) == []


def partial(folder: Path, receipt: StepReceipt) -> PartialHandoff:
    """Return the partial handoff a receipt names."""
    assert receipt.handoff_partial is not None
    stored = folder / FOLDER / "worker" / "store" / receipt.handoff_partial.uri
    found: dict[str, Any] = json.loads(stored.read_bytes())
    return PartialHandoff.model_validate(found)


def test_a_handover_that_is_ended_by_its_person_leaves_nothing_running(tmp_path: Path) -> None:
    asked = own(tmp_path)
    with subprocess.Popen(
        HANDOVER,
        cwd=tmp_path,
        env=environment(tmp_path) | asked,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any("implement       work" in line for line in demo.stdout)
            demo.send_signal(signal.SIGINT)
            _, complaint = demo.communicate(timeout=100)
        finally:
            demo.kill()
    assert (demo.returncode, complaint) == (
        130,
        "demo-handover: ended before its run was; server and worker are stopped\n",
    )
    assert working_in(tmp_path) == []
    assert list(Path(asked["TMPDIR"]).iterdir()) == []
