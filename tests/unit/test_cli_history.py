"""The commands over past runs, on a store that was written by hand and with no server."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.history.events import Entry, Sources
from cli.history.lines import Lines
from cli.main import run
from cli.words import brief_span, printable, read_size, read_span, size, span
from schemas.attempt_event import AttemptEvent
from schemas.calls import AttemptKey, Lease
from schemas.errors import BadInput
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

    def log(self, key: AttemptKey, *at: float) -> AttemptLog:
        """Log one text per moment; the log is open."""
        times = iter(at)
        header = TranscriptHeader(**key.model_dump(), task_id="t", transport="stub")
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


@pytest.fixture
def hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
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


# runs


def test_without_a_server_the_store_is_listed_and_that_is_said_in_one_line(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("old-1", "old")
    hand.record("new-1", "new", 5)
    hand.record("asks-1", "asks", 6)
    hand.journal("asks-1", (360, "waiting", {"waiting_for": "approval", "reason": "?"}))
    hand.record("limited-1", "limited", 7)
    hand.journal("limited-1", (420, "waiting", {"waiting_for": "rate_limit", "reason": "?"}))

    said = Said(capsys, "runs")

    assert said.code == 0
    (line,) = said.err.splitlines()
    assert f"no Temporal server answers at {NO_SERVER}" in line
    assert [one.split()[:2] for one in said.lines[1:]] == [
        ["limited-1", "waiting:rate_limit"],
        ["asks-1", "waiting:approval"],
        ["new-1", "running"],
        ["old-1", "verified"],
    ]
    assert [row["run_id"] for row in Said(capsys, "runs", "--waiting", "--json").data] == ["asks-1"]


def test_runs_are_chosen_by_outcome_flow_and_repository(
    hand: Hand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.ended("a-1", "a", 1)
    hand.ended("b-1", "b", 2, outcome="failed", flow_key="build", repo="https://example.org/team/calc.git")
    hand.ended("c-1", "c", 3, repo="/src/other")
    monkeypatch.chdir("/")

    def listed(*options: str) -> list[str]:
        return [row["run_id"] for row in Said(capsys, "runs", "--json", *options).data]

    assert listed() == ["c-1", "b-1", "a-1"]
    assert listed("--outcome", "failed") == ["b-1"]
    assert listed("--flow", "fix") == ["c-1", "a-1"]
    assert listed("--repo", "calc") == ["b-1", "a-1"]
    assert listed("--repo", "team/calc") == ["b-1"]
    assert listed("--repo", "/src/other/") == ["c-1"]
    assert listed("--repo", "src/other") == ["c-1"]
    assert listed("--repo", "alc") == []
    assert listed("--limit", "1") == ["c-1"]
    assert listed("--limit", "0") == ["c-1", "b-1", "a-1"]
    assert "2 more: --limit 3 shows them" in Said(capsys, "runs", "--limit", "1").err
    assert "no such run" in Said(capsys, "runs", "--flow", "none").err


def test_a_word_that_is_no_outcome_is_refused_with_those_there_are(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hand
    said = Said(capsys, "runs", "--outcome", "verfied")
    assert said.code == 2
    assert "say one of verified, nothing_to_do" in said.err


# Which run is meant.


def test_a_run_is_found_by_its_id_its_workflow_or_the_beginning_of_one(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    for minutes, run_id in enumerate(["mend-aaa1", "mend-bbb2"]):
        hand.ended(run_id, "Mend", minutes)
    hand.ended("other-ccc3", "other", 9)

    def found(word: str) -> str:
        run_id: str = Said(capsys, "show", word, "--json").data["run"]["run_id"]
        return run_id

    assert found("mend-aaa1") == "mend-aaa1"
    assert found("mend-a") == "mend-aaa1"
    assert found("Mend") == "mend-bbb2"
    assert found("Me") == "mend-bbb2"
    assert found("o") == "other-ccc3"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("mend-", "'mend-' is the beginning of 2 runs -> say more of one of them: mend-bbb2, mend-aaa1"),
        ("otter", "there is no run 'otter' -> did you mean other"),
        (
            "zzz",
            "there is no run 'zzz' -> `stepwise runs` lists them; the newest: other-ccc3, mend-bbb2, mend-aaa1",
        ),
        ("", "there is no run ''"),
    ],
)
def test_a_run_that_is_not_there_is_one_clear_error(
    hand: Hand, capsys: pytest.CaptureFixture[str], word: str, says: str
) -> None:
    for minutes, run_id in enumerate(["mend-aaa1", "mend-bbb2"]):
        hand.ended(run_id, "Mend", minutes)
    hand.ended("other-ccc3", "other", 9)
    for command in ("show", "tail", "verify"):
        said = Said(capsys, command, word)
        assert said.code == 2
        assert said.out == ""
        assert says in said.err.splitlines()[-1]


def test_verify_finds_a_run_as_show_does_and_one_that_lost_its_record_by_its_whole_id(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("mend-aaa1", "Mend")
    hand.receipt(key("mend-aaa1"), 1)

    def verified(word: str) -> tuple[int, str]:
        said = Said(capsys, "verify", word, "--json")
        return said.code, said.data["receipts"][0]

    whole = (0, "runs/mend-aaa1/fix/build/1/1/receipt.json")
    assert verified("Mend") == whole
    assert verified("mend-a") == whole
    (hand.store / "runs/mend-aaa1/run.json").unlink()
    assert verified("mend-aaa1") == whole


def test_a_store_without_runs_and_a_store_that_is_not_there_are_told_apart(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the store has no runs" in Said(capsys, "show", "x").err
    shutil.rmtree(hand.store)
    for arguments in (["runs"], ["show", "x"], ["tail", "x"], ["prune", "--keep", "1"]):
        assert "there is no store at " in Said(capsys, *arguments).err
    assert not hand.store.exists()


# The timeline.


def _whole(hand: Hand) -> None:
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


def test_journal_logs_receipts_and_handoffs_are_one_timeline_whatever_the_workers_clock(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    _whole(hand)
    events = Said(capsys, "show", "r", "--json").data["events"]
    order = [(one["source"], one["kind"], one["attempt"]) for one in events]
    assert order == [
        ("journal", "run_created", None),
        ("journal", "step_started", None),
        ("journal", "phase_started", 1),
        ("agent", "text", 1),
        ("agent", "text", 1),
        ("handoff", "partial_handoff", 1),
        ("journal", "phase_ended", 1),
        ("journal", "interrupted", 1),
        ("receipt", "receipt", 1),
        ("journal", "waiting", None),
        ("journal", "message_refused", None),
        ("journal", "human_message", None),
        ("journal", "resumed", None),
        ("journal", "phase_started", 2),
        ("agent", "text", 2),
        ("agent", "text", 2),
        ("journal", "phase_ended", 2),
        ("journal", "gate_measured", None),
        ("journal", "routed", None),
        ("journal", "step_ended", None),
        ("receipt", "receipt", 2),
        ("journal", "savepoint", None),
        ("journal", "run_completed", None),
    ]


def test_the_timeline_says_who_stopped_what_and_how_and_what_was_kept(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    _whole(hand)
    said = Said(capsys, "show", "r")
    assert said.code == 0
    assert said.err == ""
    for words in (
        "fork        f-1, before step build, visit 1",
        "work took 4.0 s: interrupted",
        "partial hand-off: interrupt in work (killed); 0 files changed; savepoint abcdef0123 (refs/stepwise/r-1/1)",
        "; not kept: node_modules; left to do: the tests",
        "receipt of attempt 1: interrupted, PARTIAL; 64.0 s, 0 tokens, 0 tool calls; stopped by interrupt by mia (killed)",
        "waits for human: you stopped it",
        "REFUSED approve: not now",
        "message resume by mia: accepted (note go on)",
        "gate tests passed (exit 0); before the run it FAILED",
        "route advance -> end: Done. [fast_path]",
        "work took 14 ms",
        "savepoint odd a kind that has no line of its own",
        "14.0 s                verified: all gates passed",
    ):
        assert any(words in line for line in said.lines), words
    (row,) = [line for line in said.lines if line.startswith("build ")]
    assert re.split(r"\s{2,}", row) == [
        "build", "1", "2", "VERIFIED", "tests FAILED -> passed", "66.0 s", "1,234", "$0.50"
    ]  # fmt: skip
    assert said.lines[-1].split() == ["total", "2", "66.0", "s", "1,234", "$0.50"]
    brief = Said(capsys, "show", "r", "--brief").lines
    assert len(brief) == len(said.lines) - 4
    assert not any("says: at" in line for line in brief)


def test_what_an_agent_writes_cannot_take_over_the_terminal() -> None:
    event = Entry(
        NOON, "agent", "text", data={"role": "assistant", "text": "a\x1b[2J\x9b1m\u202eb\nc" + "x" * 500}
    )
    line = Lines().of(event)
    assert line is not None
    assert line.isprintable()
    assert len(line) < 200
    assert printable("\ud800 a\tb\r\n", 10) == "a b"


@pytest.mark.parametrize(
    ("kind", "said", "line"),
    [
        ("tool_started", {"tool_name": "run", "input": "make"}, "run make …"),
        ("tool_ended", {"call": {"tool_name": "run", "input": "rm", "blocked": True, "blocked_reason": "no"}},
         "run rm: BLOCKED: no, 0 ms"),
        ("tool_ended", {"call": {"tool_name": "run", "success": False, "duration_ms": 5}}, "run : FAILED, 5 ms"),
        ("question", {"question": {"items": [{"question": "A?"}, {"question": "B?"}]}}, "asks: A?; B?"),
        ("rate_limited", {"message": "busy"}, "is rate limited until ?: busy"),
        ("error", {"error": {"code": "E", "message": "m"}}, "error E: m"),
        ("permission_changed", {"mode": "plan"}, "permission_changed mode plan"),
        ("text", {"role": "user", "text": "x" * 1_500}, "is told by the user: 1,500 characters"),
    ],
)  # fmt: skip
def test_what_an_agent_does_has_one_line_each(kind: str, said: dict[str, Any], line: str) -> None:
    shown = Lines(live=True).of(Entry(NOON, "agent", kind, data=said))
    assert shown is not None
    assert shown.endswith(f"    {line}")


def test_tokens_have_no_line_and_a_call_that_only_began_has_one_while_it_is_live() -> None:
    assert Lines(live=True).of(Entry(NOON, "agent", "usage", data={"usage": {}})) is None
    assert Lines().of(Entry(NOON, "agent", "tool_started", data={"tool_name": "run"})) is None


# Logs that still grow.


def test_a_growing_log_is_read_without_its_torn_end_and_each_event_once(hand: Hand) -> None:
    hand.record("r-1", "r")
    sources = Sources(hand.evidence, "r-1", hand.spool)
    log = hand.log(key("r-1"), 1, 2)
    assert [entry.data["text"] for entry in sources.new()] == ["at 1", "at 2"]
    assert sources.new() == []

    path = hand.spool / "r-1.fix.build.1.1" / "events.jsonl"
    line = AttemptEvent(seq=3, ts=after(3), event=TextEvent(text="at 3")).model_dump_json() + "\n"
    with path.open("a") as file:
        file.write(line[:40])
    assert sources.new() == []
    with path.open("a") as file:
        file.write(line[40:] + "no json\n")
    assert [entry.data["text"] for entry in sources.new()] == ["at 3"]

    with path.open("a") as file:
        file.write('{"seq": 4, "ts"')
    log.abandon()
    AttemptLog.recover(hand.evidence, hand.spool, key("r-1"), lambda: after(9))
    assert sources.new() == [], "what was uploaded was seen already"
    assert [entry.seq for entry in Sources(hand.evidence, "r-1").new()] == [1, 2, 3]


def test_an_attempt_that_is_uploaded_between_two_looks_is_seen_whole(hand: Hand) -> None:
    hand.record("r-1", "r")
    sources = Sources(hand.evidence, "r-1", hand.spool)
    log = hand.log(key("r-1"), 1)
    assert len(sources.new()) == 1
    log.append(TextEvent(text="last"))
    log.close()
    assert [entry.data["text"] for entry in sources.new()] == ["last"]
    hand.log(key("r-1", attempt=2), 5).close()
    assert [entry.attempt for entry in sources.new()] == [2]
    assert sources.new() == []


def test_evidence_that_was_altered_does_not_break_the_timeline(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    _whole(hand)
    folder = hand.store / key("r-1").path
    (folder / "receipt.json").write_text("{")
    (folder / "events.jsonl").write_bytes(b"\xff\n[1]\n")
    said = Said(capsys, "show", "r")
    assert said.code == 0
    assert any("receipt of attempt 2" in line for line in said.lines)


# tail, where it needs no server


def test_tail_prints_what_there_is_and_ends_when_the_run_is_over(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    _whole(hand)
    there = Said(capsys, "tail", "r", "--no-follow")
    assert "says: at 62" in there.out
    assert there.lines[-1].endswith("verified: all gates passed")
    followed = Said(capsys, "tail", "r-1")
    assert followed.lines == [*there.lines, "the run is over: verified"]
    assert f"no Temporal server answers at {NO_SERVER}" in followed.err
    as_json = Said(capsys, "tail", "r-1", "--json").lines
    assert json.loads(as_json[-1]) == {"kind": "over", "outcome": "verified"}
    assert json.loads(as_json[0])["kind"] == "run_created"


def test_tail_says_that_another_worker_has_the_agents_log(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r", host="far")
    hand.journal("r-1", (0, "run_created", {"flow": "fix"}))
    hand.data.mkdir(exist_ok=True)
    (hand.data / "worker_id").write_text("w2\n")
    assert "worker w1 on far holds the run" in Said(capsys, "tail", "r", "--no-follow").err
    (hand.data / "worker_id").write_text("w1\n")
    assert "holds the run" not in Said(capsys, "tail", "r", "--no-follow").err


# prune


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no rule says what to prune -> give --older 30d"),
        (["--older", "-1"], "--older '-1' is no length of time"),
        (["--older", "30"], "--older '30' is no length of time"),
        (["--older", "9999999w"], "is no length of time"),
        (["--keep", "-1"], "--keep -1 is less than no run at all"),
        (["--keep", "many"], "Invalid value for '--keep'"),
        (["--max-bytes", "-5GB"], "--max-bytes '-5GB' is no size"),
        (["--max-bytes", "5 apples"], "--max-bytes '5 apples' is no size"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_and_nothing_goes(
    hand: Hand, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    hand.ended("r-1", "r")
    hand.journal("r-1", (0, "run_created", {}))
    said = Said(capsys, "prune", *arguments)
    assert said.code == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert (hand.store / "runs/r-1/events").is_dir()


def _clone(hand: Hand, run_id: str) -> Path:
    folder = hand.data / "runs" / run_id
    (folder / "ws" / ".git").mkdir(parents=True)
    (folder / "ws" / ".git" / "pack").write_bytes(b"x" * 5_000)
    (folder / "held.json").write_text("{}")
    return folder


def test_prune_takes_evidence_clones_and_leftover_logs_and_says_what_it_freed(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    _whole(hand)
    folder = _clone(hand, "r-1")
    left = hand.spool / "r-1.fix.build.1.1"
    left.mkdir(parents=True)
    log = left / "events.jsonl"
    log.write_text("")
    os.utime(log, (0, 0))

    planned = Said(capsys, "prune", "--older", "1d", "--dry-run")
    assert planned.lines[0].startswith("would prune r-1 (verified 2026-01-02 12:00:30 UTC): ")
    assert folder.is_dir()
    done = Said(capsys, "prune", "--older", "1d")

    assert done.code == 0
    assert re.fullmatch(
        r"pruned r-1 \(verified 2026-01-02 12:00:30 UTC\): [\d.]+ kB of evidence in \d+ files and a clone of 5\.0 kB",
        done.lines[0],
    )
    assert re.fullmatch(r"[\d.]+ kB freed of 1 run; 0 B are left in use", done.lines[1])
    assert not folder.exists()
    assert not left.exists()
    assert Said(capsys, "prune", "--older", "1d").lines == ["nothing to prune; 0 B in use"]

    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert f"pruned on {today}" in Said(capsys, "show", "r-1").out
    assert f"verified (pruned {today})" in Said(capsys, "runs").out
    assert Said(capsys, "runs", "--json").data[0]["pruned_at"].startswith(today)
    verified = Said(capsys, "verify", "r-1")
    assert verified.code == 1
    assert f"runs/r-1: pruned on {today}, with 2 of its receipts" in verified.out
    assert Said(capsys, "tail", "r-1").lines == ["the run is over: verified"]


def test_without_a_server_only_runs_whose_record_says_so_have_ended(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("ended-1", "ended")
    hand.record("open-1", "open")
    for run_id in ("ended-1", "open-1"):
        hand.journal(run_id, (0, "run_created", {}))
    _clone(hand, "open-1")
    _clone(hand, "stranger-1")

    said = Said(capsys, "prune", "--keep", "0", "--forgotten", "--json")

    assert "only runs whose record says that they ended are pruned" in said.err
    assert [one["run_id"] for one in said.data["pruned"]] == ["ended-1"]
    assert (hand.store / "runs/open-1/events").is_dir()
    assert sorted(path.name for path in (hand.data / "runs").iterdir()) == ["open-1", "stranger-1"]


def test_a_run_that_a_living_fork_goes_on_from_is_kept_with_its_own_parents(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    def fork_of(parent: str) -> ForkRef:
        return ForkRef(run_id=parent, flow_key="fix", step_id="build", visit=1, commit="c")

    hand.ended("first-1", "first", 1)
    hand.ended("second-1", "second", 2, forked_from=fork_of("first-1"))
    hand.record("third-1", "third", 3, forked_from=fork_of("second-1"))
    hand.ended("other-1", "other", 4, forked_from=fork_of("first-1"))
    for run_id in ("first-1", "second-1", "third-1", "other-1"):
        hand.journal(run_id, (0, "run_created", {}))

    said = Said(capsys, "prune", "--keep", "0", "--json")

    assert [one["run_id"] for one in said.data["pruned"]] == ["other-1"]


def test_a_run_whose_log_has_just_grown_here_is_left_alone_and_that_is_said(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("r-1", "r")
    hand.log(key("r-1"), 1).abandon()
    hand.journal("r-1", (0, "run_created", {}))
    said = Said(capsys, "prune", "--keep", "0")
    assert said.lines[0].startswith("nothing to prune")
    assert "r-1 is left alone" in said.err


def test_room_that_running_runs_take_cannot_be_made_and_the_exit_code_says_so(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("open-1", "open")
    hand.evidence.put_text("runs/open-1/base/task.json", "x" * 2_000)
    said = Said(capsys, "prune", "--max-bytes", "1kB")
    assert said.code == 1
    assert "2.0 kB are used by runs that cannot be pruned, more than --max-bytes" in said.err
    assert Said(capsys, "prune", "--max-bytes", "2kB").code == 0


# Words.


def test_lengths_of_time_and_sizes_read_as_people_write_them() -> None:
    assert [span(seconds) for seconds in (0, 9.96, 99.4, 100, 3_700, 90_000, 864_000)] == [
        "0.0 s", "10.0 s", "99.4 s", "1m40s", "1h01m", "1d01h", "10d00h"
    ]  # fmt: skip
    assert [brief_span(ms) for ms in (0, 999, 1_000, 61_000)] == ["0 ms", "999 ms", "1.0 s", "61.0 s"]
    assert [size(count) for count in (0, 999, 1_000, 999_960, 5_200_000_000, 7 * 10**12)] == [
        "0 B", "999 B", "1.0 kB", "1.0 MB", "5.2 GB", "7.0 TB"
    ]  # fmt: skip
    assert [read_span("--older", text).total_seconds() for text in ("30d", "1.5h", " 2W ", "0s")] == [
        2_592_000, 5_400, 1_209_600, 0
    ]  # fmt: skip
    assert [read_size("--max-bytes", text) for text in ("5GB", "1.5 MiB", "10k", "7", "8B")] == [
        5 * 10**9, 1_572_864, 10_000, 7, 8
    ]  # fmt: skip
    for text in ("", "1", "d", "-1d", "1y", "1d2h", "nan d"):
        with pytest.raises(BadInput):
            read_span("--older", text)
