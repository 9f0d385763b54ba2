"""``run.json``: who holds a run, replaced by compare-and-set so that two workers never both do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schemas.calls import Lease
from schemas.errors import LeaseLost
from schemas.fork import ForkRef
from schemas.run_record import RunRecord
from store.errors import EvidenceCorrupt, NotStored, StoreUnavailable
from store.evidence import Evidence
from store.keys import RUN
from system.logs import logger

MAX_TRIES: Final = 100
"""Lost races after which the store is said to be unavailable."""

_log = logger("store")


class Runs:
    """The records of all runs. Calls block; they raise StoreUnavailable."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def take_lease(
        self,
        run_id: str,
        worker_id: str,
        make: Callable[[RunRecord | None], RunRecord],
        *,
        force_new_epoch: bool = False,
    ) -> RunRecord:
        """Make ``worker_id`` the holder and return the record as stored.

        ``make`` gets the record there is and returns the one to store, whose lease is set here: the epoch grows when
        another worker held the run, or when forced, so that every older lease is stale. It may be called more than
        once, and may raise to refuse.
        """

        def taken(current: RunRecord | None) -> RunRecord:
            epoch = current.lease.epoch if current else 0
            if current is None or force_new_epoch or current.lease.worker_id != worker_id:
                epoch += 1
            lease = Lease(worker_id=worker_id, epoch=epoch)
            return make(current).model_copy(update={"run_id": run_id, "lease": lease})

        return self._replace(run_id, taken)

    def update(self, run_id: str, lease: Lease, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Store what ``change`` makes of the record and return it; the lease stays. Raises LeaseLost, NotStored.

        ``change`` may be called more than once.
        """

        def changed(current: RunRecord | None) -> RunRecord:
            held = _held(run_id, current, lease)
            return change(held).model_copy(update={"run_id": run_id, "lease": held.lease})

        return self._replace(run_id, changed)

    def check(self, run_id: str, lease: Lease) -> RunRecord:
        """Return the record if ``lease`` still holds the run; raises LeaseLost, NotStored."""
        return _held(run_id, self.get(run_id), lease)

    def get(self, run_id: str) -> RunRecord | None:
        """Return the run's record, or None; raises EvidenceCorrupt, also for a record of another run."""
        record = self._evidence.get_model(_key(run_id), RunRecord)
        if record is not None and record.run_id != run_id:
            raise EvidenceCorrupt(
                "E_EVIDENCE_CORRUPT",
                f"{_key(run_id)} speaks of another run: {record.run_id[:80]!r}",
                run_id=run_id,
            )
        return record

    def link_fork(self, run_id: str, fork: ForkRef) -> RunRecord:
        """Note in a run's record that ``fork`` goes on from it, once; whoever holds the run stays. Raises NotStored."""

        def linked(current: RunRecord | None) -> RunRecord:
            if current is None:
                raise NotStored("E_NOT_STORED", f"the store knows no run {run_id}", run_id=run_id)
            if any(known.run_id == fork.run_id for known in current.forks):
                return current
            return current.model_copy(update={"forks": [*current.forks, fork]})

        return self._replace(run_id, linked)

    def list(self) -> list[RunRecord]:
        """Return the records of all runs, oldest first; one that cannot be read is logged and left out."""
        records: list[RunRecord] = []
        for run_id in self._evidence.blobs.folders("runs/"):
            try:
                record = self.get(run_id)
            except EvidenceCorrupt as error:
                _log.warning(
                    "the record of run %s cannot be read",
                    run_id,
                    extra={"run_id": run_id, "code": error.code},
                )
                continue
            if record:
                records.append(record)
        return sorted(records, key=lambda record: (record.created_at, record.run_id))

    def forget(self, run_id: str) -> None:
        """Remove what is stored of a run that nobody ever held; does nothing to one that somebody did."""
        if self.get(run_id) is None:
            for key in self._evidence.blobs.keys(f"runs/{run_id}/"):
                self._evidence.blobs.remove(key)

    def _replace(self, run_id: str, make: Callable[[RunRecord | None], RunRecord]) -> RunRecord:
        key = _key(run_id)
        for _ in range(MAX_TRIES):
            stored = self._evidence.get_versioned(key, RunRecord)
            record = self._evidence.redacted(make(stored[0] if stored else None))
            if self._evidence.swap_model(key, record, stored[1] if stored else None):
                return record
        raise StoreUnavailable("E_STORE_CONTENDED", f"{key} changed {MAX_TRIES} times meanwhile", key=key)


def _key(run_id: str) -> str:
    return f"runs/{run_id}/{RUN}"


def _held(run_id: str, record: RunRecord | None, lease: Lease) -> RunRecord:
    if record is None:
        raise NotStored("E_NOT_STORED", f"the store knows no run {run_id}", run_id=run_id)
    if record.lease != lease:
        raise LeaseLost(
            "E_LEASE_LOST",
            f"run {run_id} is held by {record.lease.worker_id} (epoch {record.lease.epoch}), "
            f"not by {lease.worker_id} (epoch {lease.epoch})",
            run_id=run_id,
            holder=record.lease.worker_id,
        )
    return record
