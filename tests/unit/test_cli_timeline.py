"""A run's timeline: journal, logs, receipts and hand-offs as one line of events, whatever was torn or altered."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hand_kit import NOON, Hand, Said, after, by_hand, key, whole

from cli.history.events import Entry, Sources
from cli.history.lines import Lines
from cli.words import printable
from schemas.attempt_event import AttemptEvent
from schemas.events import RunEventKind, TextEvent
from store.attempts import AttemptLog

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    return by_hand(own_place, monkeypatch)


def test_journal_logs_receipts_and_handoffs_are_one_timeline_whatever_the_workers_clock(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    whole(hand)
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
    whole(hand)
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


def test_a_question_that_journal_and_log_both_have_is_shown_once_and_again_where_it_is_asked_again() -> None:
    asked = {"question": {"question_id": "q-1", "items": [{"question": "A?"}]}}
    logged = Entry(NOON, "agent", "question", data=asked)
    journaled = Entry(NOON, "journal", "question_asked", data={"id": "q-1", "text": "A?", "live": True})
    for order in ((logged, journaled), (journaled, logged)):
        lines = Lines()
        shown = [lines.of(entry) for entry in (*order, *order)]
        assert [line is not None for line in shown] == [True, False, True, False]


def test_the_line_of_a_receipt_names_outputs_that_were_not_kept() -> None:
    said = {"execution_status": "succeeded", "outputs_not_kept": {"a.md": "it is not there"}}
    line = Lines().of(Entry(NOON, "receipt", "receipt", attempt=1, data=said))
    assert line is not None
    assert line.endswith("; output a.md is not kept: it is not there")


def test_tokens_have_no_line_and_a_call_that_only_began_has_one_while_it_is_live() -> None:
    assert Lines(live=True).of(Entry(NOON, "agent", "usage", data={"usage": {}})) is None
    assert Lines().of(Entry(NOON, "agent", "tool_started", data={"tool_name": "run"})) is None


def _written() -> set[str]:
    """Return the kinds of journal events that workflow code adds, as its source has them."""
    found = set()
    for path in (ROOT / "workflows").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="add", value=journal), args=[ast.Constant(str(kind))]):
                    assert ast.unparse(journal).endswith("journal"), ast.unparse(node)
                    found.add(kind)
    return found


def test_every_kind_of_event_that_the_workflow_journals_has_a_line_of_its_own() -> None:
    written = _written()
    assert written <= set(get_args(RunEventKind))
    assert {"run_created", "gate_measured", "question_answered", "run_completed"} <= written
    raw = []
    for kind in sorted(written):
        line = Lines().of(Entry(NOON, "journal", kind, step="mend", visit=1, attempt=1))
        if line is not None and kind in line:
            raw.append(line)
    assert raw == []


@pytest.mark.parametrize(("by", "line"), [("ann", "is answered by ann"), (None, "is answered")])
def test_the_line_of_an_answer_says_who_gave_it_and_no_internals(by: str | None, line: str) -> None:
    said = {"id": "stub-0123.mend.1", "by": by}
    shown = Lines().of(Entry(NOON, "journal", "question_answered", step="mend", data=said))
    assert shown is not None
    assert shown.split("  mend  ")[1].strip() == line


def test_each_receipt_of_a_visit_that_ends_more_than_once_stands_at_its_own_end(hand: Hand) -> None:
    hand.record("r-1", "r")
    place = {"step": "build", "visit": 1}
    attempts = [(1, 10.0), (2, 20.0), (3, 30.0)]
    hand.journal(
        "r-1",
        (0, "run_created", {"flow": "fix"}),
        (0, "step_started", {**place, "iteration": 1}),
        *(
            event
            for attempt, end in attempts
            for event in (
                (end - 9, "phase_started", {**place, "attempt": attempt, "phase": "work"}),
                (end - 1, "phase_ended", {**place, "attempt": attempt, "phase": "work", "ms": 8_000}),
                (end, "step_ended", {**place, "status": "VERIFIED"}),
                (end, "waiting", {"waiting_for": "approval", "step": "build"}),
            )
        ),
    )
    for attempt, end in attempts:
        hand.receipt(key("r-1", attempt=attempt), end - 1)
    seen = [
        (one.attempt, ((one.at or one.ts) - NOON).total_seconds())
        for one in Sources(hand.evidence, "r-1").new()
        if one.source == "receipt"
    ]
    assert seen == attempts


def test_a_receipt_whose_visit_names_no_attempt_stands_at_the_next_end_of_the_visit(hand: Hand) -> None:
    """So it is with the last measurement, and where a run is followed faster than its journal is written."""
    hand.record("r-1", "r")
    place = {"step": "_final", "visit": 1}
    hand.journal(
        "r-1",
        (0, "run_created", {"flow": "fix"}),
        (5, "step_ended", {**place, "status": "PARTIAL"}),
        (9, "step_ended", {**place, "status": "VERIFIED"}),
    )
    sources = Sources(hand.evidence, "r-1")
    for attempt, seconds in enumerate((4, 6, 12), 1):
        hand.receipt(key("r-1", step="_final", attempt=attempt), seconds)
    seen = [((one.at or one.ts) - NOON).total_seconds() for one in sources.new() if one.source == "receipt"]
    assert seen == [5, 9, 12]


# Sums.


def test_a_visit_is_counted_when_it_begins_whether_or_not_it_leaves_a_receipt(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r")
    hand.journal(
        "r-1",
        (0, "run_created", {"flow": "fix"}),
        (0, "step_started", {"step": "build", "visit": 1}),
        (2, "step_started", {"step": "build", "visit": 2}),
        (3, "routed", {"step": "build", "visit": 2, "decision": "goto", "next": "review"}),
        (3, "step_started", {"step": "review", "visit": 1}),
    )
    hand.receipt(key("r-1"), 1)
    rows = {
        cells[0]: cells
        for line in Said(capsys, "show", "r").lines
        if (cells := re.split(r"\s{2,}", line))[0] in {"step", "build", "review"}
    }
    assert rows["step"] == [
        "step", "visits", "attempts", "status", "gates before -> after", "elapsed", "tokens", "cost"
    ]  # fmt: skip
    assert rows["build"][1:4] == ["2", "1", "VERIFIED"]
    assert rows["review"][1:4] == ["1", "0", "-"]
    steps = Said(capsys, "show", "r", "--json").data["steps"]
    assert [(one["step"], one["visits"], one["attempts"]) for one in steps] == [
        ("build", 2, 1),
        ("review", 1, 0),
    ]


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


def test_what_the_agent_did_when_it_was_asked_for_its_hand_off_stands_in_that_phase(hand: Hand) -> None:
    hand.record("r-1", "r")
    place = {"step": "build", "visit": 1, "attempt": 1}
    hand.journal(
        "r-1",
        (0, "run_created", {"flow": "fix"}),
        (0, "phase_started", {**place, "phase": "work"}),
        (5, "phase_ended", {**place, "phase": "work", "ms": 5_000}),
        (6, "phase_started", {**place, "phase": "finalize"}),
        (8, "phase_ended", {**place, "phase": "finalize", "ms": 2_000}),
    )
    hand.log(key("r-1"), 1).close()
    # Of a worker whose clock is behind.
    growing = hand.log(key("r-1"), 2, phase="finalize")
    sources = Sources(hand.evidence, "r-1", hand.spool)
    seen = [(entry.kind, entry.phase, (entry.at or entry.ts) - NOON) for entry in sources.new()][1:]
    assert [(kind, phase, moved.total_seconds()) for kind, phase, moved in seen] == [
        ("phase_started", None, 0),
        ("text", "work", 1),
        ("phase_ended", None, 5),
        ("phase_started", None, 6),
        ("text", "finalize", 6),
        ("phase_ended", None, 8),
    ]
    growing.append(TextEvent(text="last"))
    growing.close()
    assert [entry.data["text"] for entry in sources.new()] == ["last"], "each event comes once"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"phase": "finalize", "ms": 5, "ended": "finished"}, "finalize took 5 ms"),
        (
            {"phase": "finalize", "ms": 5, "ended": "finished", "error": "structured_timeout"},
            "finalize took 5 ms: no answer (structured_timeout)",
        ),
        (
            {"phase": "route", "ms": 5, "ended": "rate_limited", "error": "rate_limited"},
            "route took 5 ms: rate_limited",
        ),
        (
            {"phase": "route", "ms": 5, "ended": "agent_failed", "error": "auth_failed"},
            "route took 5 ms: agent_failed (auth_failed)",
        ),
        ({"phase": "work", "ms": 5, "ended": "budget"}, "work took 5 ms: budget"),
    ],
)
def test_the_line_of_a_phase_says_why_it_brought_nothing(said: dict[str, Any], line: str) -> None:
    shown = Lines().of(Entry(NOON, "journal", "phase_ended", data=said))
    assert shown is not None
    assert shown.endswith(f"  {line}")


def test_the_line_of_a_receipt_names_how_each_phase_found_its_session() -> None:
    phases = [
        {"phase": "work", "session": "cold"},
        {"phase": "measure"},
        {"phase": "route", "session": "hot"},
    ]
    line = Lines().of(Entry(NOON, "receipt", "receipt", attempt=1, data={"phases": phases}))
    assert line is not None
    assert line.endswith("session cold in work, hot in route")


def test_an_attempt_that_is_uploaded_between_two_looks_is_seenwhole(hand: Hand) -> None:
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
    whole(hand)
    folder = hand.store / key("r-1").path
    (folder / "receipt.json").write_text("{")
    (folder / "events.jsonl").write_bytes(b"\xff\n[1]\n")
    said = Said(capsys, "show", "r")
    assert said.code == 0
    assert any("receipt of attempt 2" in line for line in said.lines)


def test_a_run_that_waits_shows_for_what_until_when_and_how_to_answer(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r")
    wait = {"waiting_for": "pause", "reason": "", "deadline": after(3_600).isoformat()}
    hand.journal("r-1", (1, "waiting", {**wait, "on_silence": "it goes on by itself"}))
    lines = Said(capsys, "show", "r").lines
    assert "waits for   pause" in lines
    assert "until       2026-01-02 13:00:00 UTC; then it goes on by itself" in lines
    (how,) = [line for line in lines if line.startswith("answer ")]
    assert "temporal workflow query --workflow-id r --type pending" in how
    assert any(line.endswith("waits for pause") for line in lines), "no reason, no colon"
    hand.journal("r-1", (2, "resumed", {"action": "continue"}))
    assert not [line for line in Said(capsys, "show", "r").lines if line.startswith(("until", "answer"))]


def test_a_step_that_a_person_skipped_is_shown_so_until_it_is_done_again(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r")
    hand.journal("r-1", (0, "run_created", {"flow": "fix"}))
    hand.receipt(key("r-1"), 1, verification_status="PARTIAL")
    hand.journal("r-1", (2, "routed", {"step": "build", "decision": "skip"}))

    def status() -> str:
        (row,) = [line for line in Said(capsys, "show", "r").lines if line.startswith("build ")]
        return re.split(r"\s{2,}", row)[3]

    assert status() == "skipped"
    (step,) = Said(capsys, "show", "r", "--json").data["steps"]
    assert (step["status"], step["skipped"]) == ("PARTIAL", True)
    hand.receipt(key("r-1", visit=2), 3)
    assert status() == "VERIFIED"
