"""``stepwise prune`` where no server answers, and the times and sizes people type."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hand_kit import Hand, Said, by_hand, key, whole

from cli.words import brief_span, read_size, read_span, size, span
from schemas.errors import BadInput
from schemas.fork import ForkRef


@pytest.fixture
def hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    return by_hand(own_place, monkeypatch)


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
    whole(hand)
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
