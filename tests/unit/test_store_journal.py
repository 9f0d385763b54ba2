"""The journal: segments that are created once, merged by readers, mended where they are torn."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.errors import BadInput, EvidenceConflict
from schemas.events import RunEvent
from store.blobs import FileBlobs
from store.evidence import Evidence
from store.journal import Journal
from store.redaction import Redactor

NOW = datetime(2025, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def event(seq: int, text: str = "", run_id: str = "r1") -> RunEvent:
    return RunEvent.model_validate(
        {"run_id": run_id, "seq": seq, "event_id": f"e{seq}", "ts": NOW + timedelta(seconds=seq), "kind": "routed",
         "text": text, "inner": {"n": [1, None]}}
    )  # fmt: skip


def events(first: int, last: int) -> list[RunEvent]:
    return [event(seq) for seq in range(first, last + 1)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(Evidence(FileBlobs(tmp_path, fsync=False), Redactor(["correct-horse"])))


def segments(root: Path) -> list[str]:
    folder = root / "runs/r1/events"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_each_flush_is_one_segment_named_by_its_numbers(journal: Journal, tmp_path: Path) -> None:
    assert journal.flush("r1", events(1, 3)) == 3
    assert journal.flush("r1", events(4, 11)) == 11
    assert segments(tmp_path) == ["000001-000003.jsonl", "000004-000011.jsonl"]
    assert journal.read("r1") == events(1, 11)
    assert journal.gaps("r1") == []


def test_nothing_to_write_makes_no_segment(journal: Journal, tmp_path: Path) -> None:
    assert journal.flush("r1", []) == 0
    assert segments(tmp_path) == []
    journal.flush("r1", events(1, 3))
    assert journal.flush("r1", []) == 3
    assert journal.flush("r1", events(1, 2)) == 3
    assert segments(tmp_path) == ["000001-000003.jsonl"]


def test_repeats_and_overlaps_are_stored_once(journal: Journal, tmp_path: Path) -> None:
    journal.flush("r1", events(1, 3))
    assert journal.flush("r1", events(1, 3)) == 3
    assert journal.flush("r1", events(2, 6)) == 6
    assert journal.flush("r1", events(5, 5) + events(5, 7)) == 7
    assert segments(tmp_path) == ["000001-000003.jsonl", "000004-000006.jsonl", "000007-000007.jsonl"]
    assert journal.read("r1") == events(1, 7)


def test_segments_that_overlap_on_disk_are_merged(journal: Journal, tmp_path: Path) -> None:
    journal.flush("r1", events(1, 3))
    second = Journal(Evidence(FileBlobs(tmp_path / "other", fsync=False), Redactor()))
    second.flush("r1", events(2, 5))
    name = "runs/r1/events/000002-000005.jsonl"
    (tmp_path / "other" / name).rename(tmp_path / name)
    assert journal.read("r1") == events(1, 5)
    assert journal.load("r1").problems == []


def test_other_content_under_a_stored_number_is_refused(journal: Journal) -> None:
    journal.flush("r1", events(1, 3))
    with pytest.raises(EvidenceConflict):
        journal.flush("r1", [event(3, "other"), event(4)])
    with pytest.raises(EvidenceConflict):
        journal.flush("r1", [event(4, "one"), event(4, "two")])
    assert journal.read("r1") == events(1, 3)


def test_an_event_of_another_run_is_refused(journal: Journal) -> None:
    with pytest.raises(BadInput):
        journal.flush("r1", [event(1, run_id="r2")])


def test_what_is_missing_is_named(journal: Journal) -> None:
    journal.flush("r1", [*events(2, 3), *events(6, 6), *events(9, 9)])
    assert journal.gaps("r1") == [(1, 1), (4, 5), (7, 8)]
    journal.flush("r1", events(1, 9))
    assert journal.gaps("r1") == []
    assert journal.read("r1") == events(1, 9)


def test_a_torn_last_line_is_left_out_reported_and_mended_by_the_next_flush(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal.flush("r1", events(1, 3))
    path = tmp_path / "runs/r1/events/000001-000003.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with caplog.at_level(logging.WARNING, "stepwise.store"):
        assert journal.read("r1") == events(1, 2)
    assert "torn" in caplog.text
    assert journal.flush("r1", events(1, 4)) == 4
    assert journal.read("r1") == events(1, 4)


def test_broken_lines_and_contradictions_are_reported(journal: Journal, tmp_path: Path) -> None:
    journal.flush("r1", events(1, 2))
    path = tmp_path / "runs/r1/events/000001-000002.jsonl"
    other = path.read_bytes().replace(b"routed", b"waiting")
    (path.parent / "000002-000003.jsonl").write_bytes(other + b"{}\n\x00\x00\n")
    content = journal.load("r1")
    assert content.events == events(1, 2)
    assert [problem.what for problem in content.problems] == [
        "event 1 stands elsewhere with other content",
        "event 2 stands elsewhere with other content",
        "line 3 is no event",
        "line 4 is no event",
    ]


def test_events_are_redacted_and_a_repeat_of_one_is_still_the_same(journal: Journal, tmp_path: Path) -> None:
    secret = [event(1, "it is correct-horse\u2028 password=hunter22")]
    journal.flush("r1", secret)
    assert journal.flush("r1", secret) == 1
    stored = (tmp_path / "runs/r1/events/000001-000001.jsonl").read_bytes()
    assert b"correct-horse" not in stored
    assert b"hunter22" not in stored
    assert len(journal.read("r1")) == 1


def test_an_event_that_does_not_say_whose_it_is_is_named_by_the_store(journal: Journal) -> None:
    unnamed = RunEvent.model_validate({"seq": 1, "ts": NOW, "kind": "routed"})
    journal.flush("r1", [unnamed])
    journal.flush("r1", [unnamed])
    (stored,) = journal.read("r1")
    assert (stored.run_id, stored.event_id) == ("r1", "r1.1")
