"""``run.json``: one holder at a time, older leases are stale, nothing a newer worker wrote is lost."""

from __future__ import annotations

import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from schemas.calls import Lease
from schemas.errors import LeaseLost
from schemas.run_record import RunRecord
from store.blobs import FileBlobs
from store.errors import EvidenceCorrupt, NotStored
from store.evidence import Evidence
from store.redaction import Redactor
from store.runs import Runs

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def record(current: RunRecord | None = None, *, run_id: str = "r1", at: datetime = NOW) -> RunRecord:
    return current or RunRecord(
        run_id=run_id, workflow_id="w", execution_run_id="x", flow_key="fix", repo="/repo",
        lease=Lease(worker_id="nobody", epoch=0), created_at=at,
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(Evidence(FileBlobs(tmp_path, fsync=False), Redactor(["correct-horse"])))


def test_the_first_lease_has_epoch_one_and_the_same_worker_keeps_it(runs: Runs) -> None:
    assert runs.get("r1") is None
    assert runs.take_lease("r1", "a", record).lease == Lease(worker_id="a", epoch=1)
    assert runs.take_lease("r1", "a", record).lease == Lease(worker_id="a", epoch=1)
    assert runs.get("r1") == record().model_copy(update={"lease": Lease(worker_id="a", epoch=1)})


def test_another_worker_or_force_makes_every_older_lease_stale(runs: Runs) -> None:
    first = runs.take_lease("r1", "a", record).lease
    second = runs.take_lease("r1", "b", record).lease
    third = runs.take_lease("r1", "b", record, force_new_epoch=True).lease
    assert [first.epoch, second.epoch, third.epoch] == [1, 2, 3]
    for stale in (first, second, Lease(worker_id="a", epoch=3)):
        with pytest.raises(LeaseLost) as lost:
            runs.check("r1", stale)
        assert lost.value.details["holder"] == "b"
        with pytest.raises(LeaseLost):
            runs.update("r1", stale, lambda held: held.model_copy(update={"host": "a"}))
    assert runs.check("r1", third).host == ""


def test_an_update_changes_everything_but_the_lease(runs: Runs) -> None:
    lease = runs.take_lease("r1", "a", record).lease
    ended = {"outcome": "verified", "released": True, "ended_at": NOW, "lease": Lease(worker_id="z", epoch=9)}
    updated = runs.update("r1", lease, lambda held: held.model_copy(update=ended))
    assert updated == runs.get("r1")
    assert (updated.outcome, updated.released, updated.lease) == ("verified", True, lease)


def test_a_run_nobody_took_cannot_be_checked_or_updated(runs: Runs) -> None:
    with pytest.raises(NotStored):
        runs.check("r1", Lease(worker_id="a", epoch=1))
    with pytest.raises(NotStored):
        runs.update("r1", Lease(worker_id="a", epoch=1), lambda held: held)


def test_what_is_stored_of_a_run_nobody_took_can_be_forgotten(tmp_path: Path) -> None:
    evidence = Evidence(FileBlobs(tmp_path, fsync=False), Redactor())
    runs = Runs(evidence)
    for run_id in ("r1", "r2"):
        evidence.put_text(f"runs/{run_id}/base/task.json", "{}")
    runs.take_lease("r2", "a", record)
    runs.forget("r1")
    runs.forget("r2")
    runs.forget("r3")
    assert not (tmp_path / "runs" / "r1").exists()
    assert evidence.blobs.keys("runs/") == ["runs/r2/base/task.json", "runs/r2/run.json"]


def test_a_refusal_while_taking_the_lease_stores_nothing(runs: Runs) -> None:
    def refuse(current: RunRecord | None) -> RunRecord:
        raise LeaseLost("E_FULL", f"no room for {current}")

    with pytest.raises(LeaseLost):
        runs.take_lease("r1", "a", refuse)
    assert runs.get("r1") is None


def test_updates_at_once_are_all_kept(runs: Runs) -> None:
    lease = runs.take_lease("r1", "a", record).lease

    def count() -> None:
        for _ in range(10):
            runs.update("r1", lease, lambda held: held.model_copy(update={"savepoints": held.savepoints + 1}))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs.check("r1", lease).savepoints == 40


def test_workers_that_take_a_run_at_once_get_different_epochs(runs: Runs) -> None:
    leases: list[Lease] = []

    def take(name: str) -> None:
        leases.append(runs.take_lease("r1", name, record).lease)

    threads = [threading.Thread(target=take, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lease.epoch for lease in leases) == [1, 2, 3, 4, 5, 6]
    last = max(leases, key=lambda lease: lease.epoch)
    assert runs.check("r1", last).lease == last


def test_a_field_of_a_newer_worker_survives_an_older_one(runs: Runs, tmp_path: Path) -> None:
    lease = runs.take_lease("r1", "a", record).lease
    path = tmp_path / "runs/r1/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "from_the_future": {"x": 1}}))
    runs.update("r1", lease, lambda held: held.model_copy(update={"host": "h"}))
    assert json.loads(path.read_text())["from_the_future"] == {"x": 1}


def test_runs_are_listed_by_age_and_a_broken_one_is_left_out(
    runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, run_id in enumerate(["c", "a", "b"]):
        at = NOW + timedelta(hours=number)
        runs.take_lease(run_id, "w", partial(record, run_id=run_id, at=at))
    (tmp_path / "runs/d").mkdir()
    (tmp_path / "runs/e").mkdir()
    (tmp_path / "runs/e/run.json").write_text("{")
    with caplog.at_level(logging.WARNING, "stepwise.store"):
        assert [found.run_id for found in runs.list()] == ["c", "a", "b"]
    assert "cannot be read" in caplog.text
    with pytest.raises(EvidenceCorrupt):
        runs.get("e")


def test_the_record_as_returned_and_as_stored_hold_no_secret(runs: Runs) -> None:
    url = "https://me:correct-horse@host/x.git"
    taken = runs.take_lease("r1", "a", lambda current: record(current).model_copy(update={"repo": url}))
    assert "correct-horse" not in taken.model_dump_json()
    assert taken == runs.get("r1")
