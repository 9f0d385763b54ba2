"""What tests of commands over past runs share: a store and a worker's folder that are written by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from schemas.calls import AttemptKey, Lease
from schemas.common import AgentPhase
from schemas.events import RunEvent, TextEvent, TranscriptHeader
from schemas.fork import ForkRef
from schemas.handoff import PartialHandoff, Savepoint
from schemas.receipt import GENESIS, GateBefore, GateReceipt, StepReceipt, StopRecord, TokenCounts
from schemas.run_record import RunRecord
from store.attempts import AttemptLog
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.journal import Journal
from store.receipts import Receipts
from store.redaction import Redactor
from store.runs import Runs

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
NO_SERVER = "127.0.0.1:1"


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


class Hand:
    """Writes a store and a worker's folder by hand."""

    def __init__(self, root: Path) -> None:
        self.store = root / "store"
        self.data = root / "data"
        self.spool = self.data / "spool"
        self.evidence = Evidence(FileBlobs(self.store, fsync=False), Redactor())
        self.runs = Runs(self.evidence)

    def record(self, run_id: str, workflow_id: str, minutes: int = 0, **more: Any) -> RunRecord:
        made = RunRecord.model_validate(
            {
                "run_id": run_id,
                "workflow_id": workflow_id,
                "execution_run_id": "x",
                "flow_key": "fix",
                "repo": "/src/calc",
                "lease": Lease(worker_id="w1", epoch=1),
                "created_at": after(60 * minutes),
                **more,
            }
        )
        return self.runs.take_lease(run_id, "w1", lambda _: made)

    def ended(
        self, run_id: str, workflow_id: str, minutes: int = 0, outcome: str = "verified", **more: Any
    ) -> None:
        end = {"released": True, "outcome": outcome, "ended_at": after(60 * minutes + 30)}
        self.record(run_id, workflow_id, minutes, **end, **more)

    def journal(self, run_id: str, *events: tuple[float, str, dict[str, Any]]) -> None:
        first = 1 + max((event.seq for event in Journal(self.evidence).read(run_id)), default=0)
        made = [
            RunEvent.model_validate({"seq": number, "ts": after(seconds), "kind": kind, **said})
            for number, (seconds, kind, said) in enumerate(events, first)
        ]
        Journal(self.evidence).flush(run_id, made)

    def log(self, key: AttemptKey, *at: float, phase: AgentPhase = "work") -> AttemptLog:
        """Log one text per moment; the log is open."""
        times = iter(at)
        header = TranscriptHeader(**key.model_dump(), phase=phase, task_id="t", transport="stub")
        log = AttemptLog(self.evidence, self.spool, key, header, lambda: after(next(times, 999)))
        for seconds in at:
            log.append(TextEvent(text=f"at {seconds:g}"))
        return log

    def receipt(self, key: AttemptKey, seconds: float, **more: Any) -> None:
        made = {
            **key.model_dump(), "iteration": 1, "transport": "stub", "execution_status": "succeeded",
            "verification_status": "VERIFIED", "started_at": NOON, "completed_at": after(seconds),
            "duration_ms": int(1_000 * seconds), "previous_sha256": GENESIS,
        }  # fmt: skip
        Receipts(self.evidence).write(StepReceipt.model_validate(made | more))


def key(run_id: str, visit: int = 1, attempt: int = 1, step: str = "build") -> AttemptKey:
    return AttemptKey(run_id=run_id, flow_key="fix", step_id=step, visit=visit, attempt=attempt)


def by_hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Return what commands find in this place: a store, a worker's folder, and no server."""
    made = Hand(own_place)
    monkeypatch.setenv("STEPWISE_STORE", made.store.as_uri())
    monkeypatch.setenv("STEPWISE_DATA_DIR", str(made.data))
    monkeypatch.setenv("STEPWISE_FSYNC", "false")
    monkeypatch.setenv("TEMPORAL_ADDRESS", NO_SERVER)
    return made


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code = run(arguments)
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        self.lines = self.out.splitlines()

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def whole(hand: Hand) -> None:
    """Write a run that has all there is: two attempts, one of them stopped, messages, hand-off, receipts, a fork."""
    hand.ended(
        "r-1", "r", forks=[ForkRef(run_id="f-1", flow_key="fix", step_id="build", visit=1, commit="c")]
    )
    place = {"step": "build", "visit": 1}
    hand.journal(
        "r-1",
        (0, "run_created", {"flow": "fix", "repo": "/src/calc"}),
        (1, "step_started", {**place, "iteration": 1}),
        (1, "phase_started", {**place, "attempt": 1, "phase": "work"}),
        (5, "phase_ended", {**place, "attempt": 1, "phase": "work", "ms": 4_000, "ended": "interrupted"}),
        (5, "interrupted", {**place, "attempt": 1, "ended": "interrupted"}),
        (6, "waiting", {"waiting_for": "human", "reason": "you stopped it", "step": "build"}),
        (8, "message_refused", {"name": "approve", "reason": "not now"}),
        (9, "human_message", {"name": "resume", "verdict": "accepted", "by": "mia", "note": "go on"}),
        (9, "resumed", {"waited_for": "human", "action": "continue"}),
        (9, "phase_started", {**place, "attempt": 2, "phase": "work"}),
        (11, "phase_ended", {**place, "attempt": 2, "phase": "work", "ms": 14, "ended": "finished"}),
        (12, "gate_measured", {**place, "gate": "tests", "passed": True, "exit_code": 0}),
        (12, "routed", {**place, "decision": "advance", "next": "end", "reason": "Done.", "source": "fast_path"}),
        (12, "step_ended", {**place, "status": "VERIFIED"}),
        (13, "savepoint", {"odd": "a kind that has no line of its own"}),
        (14, "run_completed", {"outcome": "verified", "summary": "all gates passed"}),
    )  # fmt: skip
    # The worker's clock is a minute ahead, then a minute behind.
    hand.log(key("r-1"), 62, 63).close()
    hand.log(key("r-1", attempt=2), -50, -49).close()
    gate = {"name": "tests", "before": GateBefore(passed=False, exit_code=1)}
    hand.receipt(
        key("r-1"), 64, execution_status="interrupted", verification_status="PARTIAL",
        gates=[GateReceipt(**gate, measured=False, reason="stopped")],
        stop=StopRecord(reason="interrupt", method="killed", requested_by="mia"),
    )  # fmt: skip
    hand.receipt(
        key("r-1", attempt=2), -48, duration_ms=2_000, cost_usd=0.5, token_counts=TokenCounts(prompt=1_000, total=1_234),
        gates=[GateReceipt(**gate, measured=True, passed=True, exit_code=0)],
    )  # fmt: skip
    Receipts(hand.evidence).write_partial(
        PartialHandoff(
            **key("r-1").model_dump(),
            phase="work",
            reason="interrupt",
            stopped_at=after(64),
            stop_method="killed",
            savepoint=Savepoint(ref="refs/stepwise/r-1/1", commit="abcdef0123456", not_kept=["node_modules"]),
            remaining=["the tests"],
        )
    )
