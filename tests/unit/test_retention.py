"""Retention takes the oldest ended runs, and however it is cut off, nothing is gone without a marker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.calls import AttemptKey, Lease
from schemas.events import RunEvent
from schemas.handoff import HandoffEnvelope
from schemas.pruned import Pruned
from schemas.receipt import GENESIS, StepReceipt
from schemas.run_record import RunRecord
from store.blobs import FileBlobs
from store.errors import NotStored
from store.evidence import Evidence
from store.journal import Journal
from store.keys import MAX_PART_BYTES, PRUNED
from store.receipts import Receipts
from store.redaction import Redactor
from store.retention import Retention, Rules, Use, due, is_older
from store.runs import Runs

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY = timedelta(days=1)


def ended(run_id: str, days_ago: float, size: int = 10, **more: Any) -> Use:
    return Use(run_id, NOW - days_ago * DAY, evidence=size, files=1, **more)


def chosen(rules: Rules, *uses: Use) -> list[str]:
    return [use.run_id for use in due(uses, rules, NOW)]


# Which runs.


def test_what_ended_longer_ago_than_the_rule_says_goes_oldest_first() -> None:
    uses = (ended("c", 5), ended("a", 40), ended("b", 31), ended("d", 30))
    assert chosen(Rules(older=30 * DAY), *uses) == ["a", "b"]
    assert not is_older(NOW - 30 * DAY, 30 * DAY, NOW)


def test_at_most_so_many_ended_runs_are_kept() -> None:
    uses = (ended("a", 3), ended("b", 2), ended("c", 1))
    assert chosen(Rules(keep=2), *uses) == ["a"]
    assert chosen(Rules(keep=0), *uses) == ["a", "b", "c"]
    assert chosen(Rules(keep=3), *uses) == []


def test_room_is_made_until_all_runs_fit_and_no_further() -> None:
    uses = (ended("a", 3, 50), ended("b", 2, 30), ended("c", 1, 20, clone=10), Use("live", None, evidence=40))
    assert chosen(Rules(max_bytes=150), *uses) == []
    assert chosen(Rules(max_bytes=149), *uses) == ["a"]
    assert chosen(Rules(max_bytes=70), *uses) == ["a", "b"]
    assert chosen(Rules(max_bytes=0), *uses) == ["a", "b", "c"]


def test_each_rule_that_is_given_holds() -> None:
    uses = (ended("a", 40, 10), ended("b", 20, 10), ended("c", 10, 10), ended("d", 1, 10))
    assert chosen(Rules(older=30 * DAY, keep=3, max_bytes=20), *uses) == ["a", "b"]
    assert chosen(Rules(older=15 * DAY, keep=3, max_bytes=40), *uses) == ["a", "b"]
    assert chosen(Rules(older=99 * DAY, keep=1, max_bytes=40), *uses) == ["a", "b", "c"]


def test_what_was_begun_is_completed_whatever_the_rules_and_an_empty_run_is_none() -> None:
    uses = (
        ended("half", 1, begun=True),
        ended("done", 9, 0, begun=True),
        ended("empty", 9, 0),
        ended("a", 2),
    )
    assert chosen(Rules(older=30 * DAY), *uses) == ["half"]
    assert chosen(Rules(keep=1), *uses) == ["half"]


@given(
    st.lists(
        st.builds(
            Use,
            run_id=st.text("abc", min_size=1, max_size=3),
            ended_at=st.none() | st.integers(0, 60).map(lambda days: NOW - days * DAY),
            evidence=st.integers(0, 100),
            clone=st.integers(0, 100),
        ),
        unique_by=lambda use: use.run_id,
    ),
    st.none() | st.integers(0, 60),
    st.none() | st.integers(0, 5),
    st.none() | st.integers(0, 500),
)
def test_afterwards_the_rules_hold_as_far_as_ended_runs_can_make_them(
    uses: list[Use], older: int | None, keep: int | None, max_bytes: int | None
) -> None:
    rules = Rules(older * DAY if older is not None else None, keep, max_bytes)
    gone = due(uses, rules, NOW)
    left = [use for use in uses if use not in gone]
    kept = [use for use in left if use.ended_at is not None and use.total]
    assert all(use.ended_at is not None for use in gone)
    assert older is None or all(NOW - use.ended_at <= older * DAY for use in kept if use.ended_at)
    assert keep is None or len(kept) <= keep
    assert max_bytes is None or not kept or sum(use.total for use in left) <= max_bytes
    assert due(left, rules, NOW) == []
    newest_gone = max((use.ended_at for use in gone if use.ended_at), default=None)
    assert newest_gone is None or all(use.ended_at >= newest_gone for use in kept if use.ended_at)


# How they go.


class Dying(FileBlobs):
    """A store whose process dies before its ``after``-th change."""

    after: int | None = None

    def _change(self) -> None:
        if self.after is not None:
            self.after -= 1
            if self.after < 0:
                raise KeyboardInterrupt

    def create(self, key: str, data: bytes, media_type: str) -> Any:
        self._change()
        return super().create(key, data, media_type)

    def remove(self, key: str) -> None:
        self._change()
        super().remove(key)


class Stored:
    """One ended run with three receipts, envelopes, gates' output and a journal; ``blobs`` can die."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = Dying(root, fsync=False)
        self.evidence = Evidence(self.blobs, Redactor())
        self.runs = Runs(self.evidence)
        self.retention = Retention(self.evidence)
        self.runs.take_lease("r1", "w", lambda _: self._record())
        Journal(self.evidence).flush("r1", [RunEvent(seq=1, ts=NOW, kind="run_created")])
        self.head = GENESIS
        receipts = Receipts(self.evidence)
        for visit in (1, 2, 3):
            key = AttemptKey(run_id="r1", flow_key="fix", step_id="build", visit=visit, attempt=1)
            output = self.evidence.put_text(f"{key.path}/gates/tests.txt", f"output {visit}")
            envelope = receipts.write_envelope(
                HandoffEnvelope(
                    **key.model_dump(),
                    iteration=1,
                    status="VERIFIED",
                    summary="",
                    timestamp=NOW,
                    source="agent",
                    artifacts={"out": output},
                )
            )
            receipt = StepReceipt(
                **key.model_dump(), iteration=1, transport="stub", execution_status="succeeded",
                verification_status="VERIFIED", started_at=NOW, completed_at=NOW, duration_ms=0, envelope=envelope,
                previous_sha256=self.head,
            )  # fmt: skip
            self.head = receipts.write(receipt).sha256
        self.files = self.retention.used()["r1"]

    @staticmethod
    def _record() -> RunRecord:
        return RunRecord(
            run_id="r1", workflow_id="w", execution_run_id="x", flow_key="fix", repo="/repo",
            lease=Lease(worker_id="w", epoch=1), created_at=NOW, outcome="verified", released=True, ended_at=NOW,
        )  # fmt: skip

    def prune(self) -> int:
        return self.retention.prune("r1", self.retention.used().get("r1", {}), NOW)

    def problems(self) -> list[str]:
        return [problem.what for problem in Receipts(self.evidence).verify_run("r1", self.head).problems]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path / "store")


def test_a_pruned_run_leaves_its_record_and_a_marker_that_says_when(stored: Stored) -> None:
    assert stored.prune() == sum(stored.files.values())
    assert stored.blobs.keys("runs/") == ["runs/r1.pruned", "runs/r1/run.json"]
    assert stored.evidence.pruned_run("r1") == Pruned(pruned_at=NOW, files=stored.files)
    assert [record.run_id for record in stored.runs.list()] == ["r1"]
    assert stored.evidence.pruned_run("r2") is None


def test_a_pruned_reference_says_when_it_was_removed_and_another_one_is_missing(stored: Stored) -> None:
    ref = stored.evidence.put_text("runs/r1/fix/build/1/1/note.txt", "x")
    stored.prune()
    with pytest.raises(NotStored, match=r"note\.txt was pruned on 2026-01-02") as pruned:
        stored.evidence.read(ref)
    assert pruned.value.code == "E_PRUNED"
    for key in ("runs/r1/fix/build/1/1/other.txt", "runs/r2/fix/build/1/1/note.txt"):
        with pytest.raises(NotStored) as missing:
            stored.evidence.read_key(key)
        assert missing.value.code == "E_NOT_STORED"


def test_pruning_again_finds_nothing(stored: Stored) -> None:
    stored.prune()
    marker = (stored.root / "runs/r1.pruned").read_bytes()
    assert stored.retention.used() == {"r1": {}}
    assert stored.prune() == 0
    assert (stored.root / "runs/r1.pruned").read_bytes() == marker


def test_a_pruned_run_cannot_be_verified_and_says_so(stored: Stored) -> None:
    assert stored.problems() == []
    stored.prune()
    report = Receipts(stored.evidence).verify_run("r1", stored.head)
    assert not report.ok
    assert [(one.path, one.what) for one in report.problems] == [
        ("runs/r1", "pruned on 2026-01-02, with 3 of its receipts: there is no chain to check")
    ]


def test_cut_off_anywhere_every_file_is_there_or_explained_and_the_next_prune_completes_it(
    tmp_path: Path,
) -> None:
    files = len(Stored(tmp_path / "whole").files)
    # One change for the marker, one for each file.
    for after in range(files + 1):
        stored = Stored(tmp_path / f"cut-{after}")
        stored.blobs.after = after
        with pytest.raises(KeyboardInterrupt):
            stored.prune()
        stored.blobs.after = None

        gone = [name for name in stored.files if not stored.blobs.exists(f"runs/r1/{name}")]
        assert len(gone) == max(0, after - 1)
        for name in gone:
            with pytest.raises(NotStored) as pruned:
                stored.evidence.read_key(f"runs/r1/{name}")
            assert pruned.value.code == "E_PRUNED"
        assert all("pruned on 2026-01-02" in what for what in stored.problems())
        assert (stored.evidence.pruned_run("r1") is not None) == (after > 0)

        stored.prune()
        assert stored.retention.used() == {"r1": {}}
        assert stored.evidence.pruned_run("r1") == Pruned(pruned_at=NOW, files=stored.files)


def test_receipts_go_last_so_that_their_chain_can_be_checked_as_long_as_possible(stored: Stored) -> None:
    stored.blobs.after = len(stored.files) - 2
    with pytest.raises(KeyboardInterrupt):
        stored.prune()
    report = Receipts(stored.evidence).verify_run("r1", stored.head)
    assert (report.ok, len(report.receipts), report.pruned_on) == (True, 3, "2026-01-02")
    assert [Path(path).name for path in report.pruned] == ["envelope.json"] * 3


def test_what_a_late_writer_stores_after_the_marker_is_marked_by_itself(stored: Stored) -> None:
    stored.prune()
    late = stored.evidence.put_text("runs/r1/fix/build/4/1/gates/late.txt", "late")
    Journal(stored.evidence).flush("r1", [RunEvent(seq=2, ts=NOW, kind="step_started")])
    assert stored.prune() > 0
    with pytest.raises(NotStored, match="was pruned on 2026-01-02"):
        stored.evidence.read(late)
    assert stored.retention.used() == {"r1": {}}
    content = Journal(stored.evidence).load("r1")
    assert (content.events, content.problems) == ([], [])


def test_two_prunes_at_once_agree_on_the_first_marker(stored: Stored) -> None:
    stored.evidence.put_model(f"runs/r1{PRUNED}", Pruned(pruned_at=NOW - DAY, files=stored.files))
    stored.prune()
    assert stored.evidence.pruned_run("r1") == Pruned(pruned_at=NOW - DAY, files=stored.files)


@pytest.mark.parametrize(
    "name", ["fix/build/1/1/outputs/" + "x" * MAX_PART_BYTES, "fix/build/1/1/outputs/notes.pruned"]
)
def test_a_file_with_an_odd_name_is_pruned_like_any_other(stored: Stored, name: str) -> None:
    stored.evidence.put_text(f"runs/r1/{name}", "an agent's own")
    stored.prune()
    late = stored.evidence.put_text(f"runs/r1/{name}", "an agent's own")
    stored.prune()
    with pytest.raises(NotStored, match="was pruned on"):
        stored.evidence.read(late)
    assert stored.retention.used() == {"r1": {}}


def test_a_marker_that_cannot_be_read_still_says_that_it_was_no_accident(stored: Stored) -> None:
    (stored.root / "runs/r1/fix/build/1/1/envelope.json").unlink()
    (stored.root / "runs/r1/fix/build/1/1/envelope.json.pruned").write_text("{")
    with pytest.raises(NotStored, match="was removed by retention") as pruned:
        stored.evidence.read_key("runs/r1/fix/build/1/1/envelope.json")
    assert pruned.value.code == "E_PRUNED"
    assert stored.problems() == []


def test_evidence_without_a_record_is_counted_too(stored: Stored) -> None:
    stored.evidence.put_text("runs/r2/base/task.json", "{}")
    assert stored.retention.used()["r2"] == {"base/task.json": 2}
    stored.retention.prune("r2", {"base/task.json": 2}, NOW)
    assert stored.blobs.keys("runs/r2") == ["runs/r2.pruned"]
    assert list(stored.retention.used()) == ["r1"]


def test_sizes_are_those_of_the_files_under_the_prefix(stored: Stored) -> None:
    stored.evidence.put_text("runs/r2/a", "1234")
    assert stored.blobs.sizes("runs/r2/") == {"runs/r2/a": 4}
    assert stored.blobs.sizes("runs/r3/") == {}
    assert list(stored.blobs.sizes("")) == stored.blobs.keys("")
