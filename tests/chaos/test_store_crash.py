"""A writer that is killed at any point leaves no half-written file, no gap and no broken chain."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from schemas.calls import AttemptKey, MeasureOut
from schemas.receipt import GENESIS
from schemas.run_record import RunRecord
from store.attempts import AttemptLog
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.journal import Journal
from store.receipts import Receipts
from store.redaction import Redactor
from store.results import Results
from store.runs import Runs

pytestmark = pytest.mark.chaos

ROOT: Final = Path(__file__).parents[2]
NOW: Final = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)

WRITER = '''
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path

from schemas.calls import AttemptKey, Lease, MeasureOut
from schemas.events import RunEvent, SessionOpened, ToolEnded, TranscriptHeader
from schemas.receipt import GENESIS, StepReceipt
from schemas.run_record import RunRecord
from schemas.tools import NormalizedToolCall
from store.attempts import AttemptLog
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.journal import Journal
from store.receipts import Receipts
from store.redaction import Redactor
from store.results import Results
from store.runs import Runs

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(current):
    return current or RunRecord(
        run_id="r1", workflow_id="w", execution_run_id="x", flow_key="fix", repo="/r",
        lease=Lease(worker_id="", epoch=0), created_at=NOW,
    )


def write(root, visits):
    """One attempt after the other, each write told on standard output once it has returned."""
    evidence = Evidence(FileBlobs(root / "store", fsync=False), Redactor())
    journal, receipts, results, runs = Journal(evidence), Receipts(evidence), Results(evidence), Runs(evidence)
    lease = runs.take_lease("r1", "a", make).lease
    head = GENESIS
    for visit in range(1, visits + 1):
        key = AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=visit, attempt=1)
        header = TranscriptHeader(**key.model_dump(), task_id="t", transport="stub")
        log = AttemptLog(evidence, root / "spool", key, header, lambda: NOW)
        log.append(SessionOpened(session_id="s"))
        for number in range(5):
            call = NormalizedToolCall(tool_name="t", output="x" * 1000, success=True, source="stub", timestamp=NOW)
            log.append(ToolEnded(call=call))
        transcript = log.close()["transcript"]
        results.save(key, MeasureOut(elapsed_ms=visit))
        events = [
            RunEvent(run_id="r1", seq=seq, event_id=str(seq), ts=NOW, kind="routed")
            for seq in range(3 * visit - 2, 3 * visit + 1)
        ]
        journal.flush("r1", events)
        receipt = StepReceipt(
            **key.model_dump(), iteration=1, transport="stub", execution_status="succeeded",
            verification_status="VERIFIED", started_at=NOW, completed_at=NOW, duration_ms=0,
            previous_sha256=head, transcript=transcript,
        )
        head = receipts.write(receipt).sha256
        runs.update("r1", lease, lambda held: held.model_copy(update={"savepoints": visit, "receipts_head": head}))
        print(visit, flush=True)


def killed_at(point, root):
    """Write two attempts in a child that kills itself before its ``point``-th change to the disk; say if it did."""
    pid = os.fork()
    if pid:
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = point

    def before(event, args):
        nonlocal left
        writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in {"os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir"}:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(before)
    write(root, 2)
    os._exit(0)


root = Path(sys.argv[2])
if sys.argv[1] == "points":
    point = 1
    while killed_at(point, root / str(point)):
        point += 1
    print(f"points {point - 1}")
else:
    write(root, 1_000_000)
'''


def check(root: Path, told: int) -> RunRecord | None:
    """Look at what a killed writer left, as the next worker would; ``told`` attempts were reported as written."""
    evidence = Evidence(FileBlobs(root / "store", fsync=False), Redactor())
    for path in (root / "store").rglob("*.json*"):
        data = path.read_text()
        assert data == "" or data.endswith("\n"), f"{path} is half-written"
        for text in [data] if path.suffix == ".json" else data.splitlines():
            json.loads(text)
    record = Runs(evidence).get("r1")
    head = record.receipts_head if record else None
    written = record.savepoints if record else 0
    assert written >= told
    for visit in range(1, written + 3):
        key = AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=visit, attempt=1)
        recovered = AttemptLog.recover(evidence, root / "spool", key, lambda: NOW)
        result = Results(evidence).load(key, MeasureOut)
        assert visit > written or (recovered is None and result == MeasureOut(elapsed_ms=visit))
        if recovered:
            lines = evidence.read(recovered.refs["transcript"]).splitlines()
            kinds = [json.loads(line)["kind"] for line in lines]
            assert kinds == ["header", *["event"] * (len(kinds) - 2), "footer"]
    assert not list((root / "spool").glob("r1.*/*.jsonl"))
    journal = Journal(evidence)
    assert journal.load("r1").problems == []
    assert journal.gaps("r1") == []
    assert len(journal.read("r1")) in {3 * written, 3 * written + 3}
    report = Receipts(evidence).verify_run("r1", None)
    assert not record or report.ok, report.problems
    assert len(report.receipts) in {written, written + 1}
    if head and len(report.receipts) == written:
        assert Receipts(evidence).verify_run("r1", head).ok
    return record


@pytest.mark.timeout(300)
def test_a_kill_before_any_single_change_to_the_disk_leaves_whole_evidence(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", WRITER, "points", str(tmp_path)]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    points = int(re.findall(r"points (\d+)", said.stdout)[-1])
    assert points > 60
    for point in range(1, points + 1):
        check(tmp_path / str(point), 0)
    last = check(tmp_path / str(points + 1), 2)
    assert last is not None
    assert last.savepoints == 2
    assert last.receipts_head != GENESIS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("attempts", [1, 2, 3, 5, 8, 13])
def test_a_kill_from_outside_in_the_middle_of_many_writes_leaves_whole_evidence(
    tmp_path: Path, attempts: int
) -> None:
    argv = [sys.executable, "-c", WRITER, "many", str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(attempts)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    assert check(tmp_path, told[-1]) is not None
