"""Attacks on the store: what is put in the place of evidence is found out, and nothing outside is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hand_kit import Hand, Said, by_hand, whole

from schemas.errors import EvidenceConflict
from store.errors import EvidenceCorrupt, StoreUnavailable
from store.file_blobs import FileBlobs
from store.journal import Journal


@pytest.fixture
def hand(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    return by_hand(own_place, monkeypatch)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody else, with files from long ago."""
    path = tmp_path / "outside"
    (path / "sub").mkdir(parents=True)
    for name in ("precious", "held.json", "sub/deep", f".{'0' * 16}.tmp"):
        (path / name).write_text("kept")
        os.utime(path / name, (1, 1))
    return path


def intact(outside: Path) -> bool:
    found = {str(one.relative_to(outside)) for one in outside.rglob("*") if one.is_file()}
    return found == {"precious", "held.json", "sub/deep", f".{'0' * 16}.tmp"}


PLACED: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "dangling": lambda path: path.symlink_to("/nowhere"),
}


@pytest.mark.parametrize("kind", PLACED)
def test_what_takes_the_place_of_a_file_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    blobs = FileBlobs(tmp_path, fsync=False)
    (tmp_path / "runs").mkdir()
    PLACED[kind](tmp_path / "runs" / "x")
    for attempt in (
        lambda: blobs.read("runs/x"),
        lambda: blobs.create("runs/x", b"1", "text/plain"),
        lambda: blobs.swap("runs/x", b"1", None),
    ):
        with pytest.raises((EvidenceCorrupt, EvidenceConflict)):
            attempt()
    blobs.remove("runs/x")
    assert not os.path.lexists(tmp_path / "runs" / "x")


@pytest.mark.parametrize("name", [".tmp", ".locks"])
def test_a_store_whose_own_folders_lead_away_is_not_opened(tmp_path: Path, outside: Path, name: str) -> None:
    root = tmp_path / "store"
    FileBlobs(root, fsync=False)
    (root / name).rmdir()
    (root / name).symlink_to(outside)
    with pytest.raises(StoreUnavailable, match="leads out of the store"):
        FileBlobs(root, fsync=False)
    assert intact(outside)


def test_looking_into_a_folder_that_is_no_store_changes_nothing_in_it(
    hand: Hand, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hand
    (outside / ".tmp").mkdir()
    said = Said(capsys, "runs", "--store", outside.as_uri())
    assert said.code == 2
    assert "there is no store at" in said.err
    assert sorted(one.name for one in outside.iterdir()) == sorted(
        [".tmp", f".{'0' * 16}.tmp", "held.json", "precious", "sub"]
    )


def test_a_folder_of_a_run_that_leads_away_is_no_run(tmp_path: Path, outside: Path) -> None:
    blobs = FileBlobs(tmp_path / "store", fsync=False)
    blobs.create("runs/true/x", b"1", "text/plain")
    (tmp_path / "store" / "runs" / "false").symlink_to(outside)
    (tmp_path / "store" / "runs" / "true" / "sub").symlink_to(outside)

    assert blobs.folders("runs/") == ["true"]
    assert blobs.keys("runs/") == ["runs/true/x"]
    assert blobs.keys("runs/false/") == []
    blobs.remove("runs/false/precious")
    blobs.remove("runs/true/sub/precious")
    assert intact(outside)


def test_a_first_folder_on_another_disk_is_the_operators_own_choice(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "runs").symlink_to(tmp_path / "disk")
    blobs = FileBlobs(tmp_path / "store", fsync=False)
    blobs.create("runs/r/x", b"1", "text/plain")
    assert blobs.keys("runs/") == ["runs/r/x"]
    blobs.remove("runs/r/x")
    assert blobs.keys("runs/") == []


def test_names_that_no_key_can_have_are_not_the_stores(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, fsync=False)
    blobs.create("runs/r/x", b"1", "text/plain")
    for name in (b"a\nb", b"\xff", b"esc\x1b[31m", b"back\\slash"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / "runs" / "r"), name))).write_bytes(b"")  # noqa: PTH118
    assert blobs.keys("runs/") == ["runs/r/x"]


def test_the_record_of_another_run_is_none(hand: Hand) -> None:
    hand.ended("ended-1", "ended")
    hand.record("lives-1", "lives")
    shutil.copytree(hand.store / "runs" / "ended-1", hand.store / "runs" / "copy")
    lie = json.loads((hand.store / "runs" / "copy" / "run.json").read_text())
    (hand.store / "runs" / "copy" / "run.json").write_text(json.dumps({**lie, "run_id": "lives-1"}))

    with pytest.raises(EvidenceCorrupt, match="another run"):
        hand.runs.get("copy")
    assert [(one.run_id, one.released) for one in hand.runs.list()] == [("ended-1", True), ("lives-1", False)]


def test_a_segment_that_is_no_file_is_a_problem_of_the_journal_and_the_others_are_read(hand: Hand) -> None:
    hand.record("r-1", "r")
    hand.journal("r-1", (1, "step_started", {"step": "a", "visit": 1}))
    hand.journal("r-1", (2, "step_ended", {"step": "a", "visit": 1}))
    first = hand.store / "runs" / "r-1" / "events" / "000001-000001.jsonl"
    first.unlink()
    os.mkfifo(first)
    content = Journal(hand.evidence).load("r-1")
    assert [event.seq for event in content.events] == [2]
    assert ["no file any more" in problem.what for problem in content.problems] == [True]


ODD = [b"", b"\0" * 100, b"\xff\xfe", b"[" * 60_000, b'{"seq": 1}', b'{"run_id": [1]}\n', b"null\n"]


@pytest.mark.parametrize("content", ODD, ids=range(len(ODD)))
def test_commands_over_a_store_that_was_tampered_with_end_in_words(
    hand: Hand, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    whole(hand)
    files = sorted(one for one in (hand.store / "runs").rglob("*") if one.is_file())
    assert len(files) > 8
    for file in files:
        before = file.read_bytes()
        file.write_bytes(content)
        for command in (["runs"], ["show", "r-1"], ["tail", "r-1", "--no-follow"], ["verify", "r-1"]):
            said = Said(capsys, *command)
            assert said.code in {0, 1, 2}, (file, command)
            assert "should not happen" not in said.err, (file, command, said.err)
        file.write_bytes(before)


def test_a_journal_whose_words_are_of_other_kinds_is_shown_as_far_as_it_goes(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.record("r-1", "r")
    odd: list[object] = [[1, "a"], {"a": [1]}, "x", -1, 10**30, True, ["\x1b[31m", None]]
    names = (
        "step",
        "visit",
        "attempt",
        "gates",
        "gate",
        "reason",
        "phase",
        "ms",
        "forked_from",
        "ended",
        "next",
    )
    kinds = ("run_created", "step_started", "phase_started", "phase_ended", "gate_measured", "routed", "waiting",
             "question_asked", "human_message", "message_refused", "interrupted", "resumed", "step_ended",
             "run_completed")  # fmt: skip
    events = [(1.0, kind, dict.fromkeys(names, value)) for kind in kinds for value in odd]
    hand.journal("r-1", *events)
    for command in (["show", "r-1"], ["show", "r-1", "--json"], ["tail", "r-1", "--no-follow"], ["runs"]):
        said = Said(capsys, *command)
        assert said.code == 0, (command, said.err)
        assert "\x1b" not in said.out


def test_a_fork_of_a_run_whose_journal_was_tampered_with_ends_in_words(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    whole(hand)
    hand.journal(
        "r-1",
        (20, "step_started", {"step": ["a", 1], "visit": 1}),
        (21, "step_started", {"step": "b", "visit": {"x": 1}}),
        (22, "routed", {"step": None, "visit": 1}),
    )
    said = Said(capsys, "fork", "r-1", "--from", "b")
    assert said.code == 2
    assert "never reached step b" in said.err


# Prune removes what is a run's, and nothing else.


def test_a_prune_among_links_removes_nothing_outside(
    hand: Hand, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clones = hand.data / "runs"
    clones.mkdir(parents=True)
    hand.spool.mkdir()
    for name in ("linked-1", "inside-1", "stored-1", "?ives-1"):
        hand.ended(name, name)
        hand.evidence.put_text(f"runs/{name}/f/s/1/1/x.txt", "evidence")
    (clones / "linked-1").symlink_to(outside)
    (clones / "inside-1").mkdir()
    for name in ("ws", "private", "scratch"):
        (clones / "inside-1" / name).symlink_to(outside)
    (hand.store / "runs" / "stored-1" / "sub").symlink_to(outside)
    (hand.store / "runs" / "away-1").symlink_to(outside)
    (clones / "?ives-1").mkdir()
    hand.record("lives-1", "lives")
    log = hand.spool / "lives-1.f.s.1.1"
    log.mkdir()
    (log / "events.jsonl").write_text("{}\n")

    said = Said(capsys, "prune", "--keep", "0")

    assert said.code == 0, said.err
    assert intact(outside)
    assert (log / "events.jsonl").exists(), "a name is no pattern: another run's log stays"
    assert sorted(one.name for one in clones.iterdir()) == ["linked-1"]
    assert "nothing to prune" in Said(capsys, "prune", "--keep", "0").out


def test_a_clone_deeper_than_a_path_is_pruned_like_any_other(
    hand: Hand, capsys: pytest.CaptureFixture[str]
) -> None:
    hand.ended("deep-1", "deep")
    clone = hand.data / "runs" / "deep-1" / "ws"
    clone.mkdir(parents=True)
    fd = os.open(clone, os.O_RDONLY)
    for _ in range(1_200):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.write(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=fd), b"12345")
    os.close(fd)
    said = Said(capsys, "prune", "--keep", "0")
    assert said.code == 0, said.err
    assert "5 B" in said.out
    assert list((hand.data / "runs").iterdir()) == []
