"""Retention: which ended runs are due, and how their evidence goes: a marker first, then file after file.

Killed anywhere in between, a run is either as it was, or its marker names every file that is gone or still to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from schemas.errors import EvidenceConflict
from schemas.pruned import Pruned
from store.evidence import Evidence
from store.keys import PRUNED, RECEIPT, RUN

_RUNS: Final = "runs/"


@dataclass(frozen=True)
class Rules:
    """What must hold of ended runs; None: no such rule.

    None of them ended longer ago than ``older``, there are at most ``keep`` of them, and all runs together, also
    those that have not ended, use at most ``max_bytes``.
    """

    older: timedelta | None = None
    keep: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class Use:
    """What a run uses, in bytes: evidence in the store, and its clone on this machine.

    ``ended_at`` is None unless the run is known to be over. ``begun``: its pruning was begun and is to be completed.
    """

    run_id: str
    ended_at: datetime | None
    evidence: int = 0
    files: int = 0
    clone: int = 0
    begun: bool = False

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.evidence + self.clone


def is_older(ended_at: datetime, kept_for: timedelta, now: datetime) -> bool:
    """Whether what ended then was kept for long enough."""
    return now - ended_at > kept_for


def due(uses: Iterable[Use], rules: Rules, now: datetime) -> list[Use]:
    """Return the runs to prune: those begun, then the oldest ended ones, until the rules hold or none is left."""
    all_of_them = list(uses)
    chosen = [use for use in all_of_them if use.begun and use.total]
    ended = sorted(
        (use.ended_at, use.run_id, use)
        for use in all_of_them
        if use.ended_at is not None and use.total and not use.begun
    )
    used = sum(use.total for use in all_of_them) - sum(use.total for use in chosen)
    for number, (ended_at, _, use) in enumerate(ended):
        if not (
            (rules.older is not None and is_older(ended_at, rules.older, now))
            or (rules.keep is not None and len(ended) - number > rules.keep)
            or (rules.max_bytes is not None and used > rules.max_bytes)
        ):
            break
        chosen.append(use)
        used -= use.total
    return chosen


class Retention:
    """The evidence of all runs, as something that takes room. Calls block; they raise StoreUnavailable."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def used(self) -> dict[str, dict[str, int]]:
        """Return what can be pruned of each run: its files (keys within the run's folder) with sizes in bytes.

        A run of which nothing can be pruned is there too, with no files.
        """
        found: dict[str, dict[str, int]] = {}
        for key, size in self._evidence.blobs.sizes(_RUNS).items():
            run_id, _, name = key.removeprefix(_RUNS).partition("/")
            if not name:
                continue
            files = found.setdefault(run_id, {})
            if name != RUN and not self._is_marker(key):
                files[name] = size
        return found

    def prune(self, run_id: str, files: dict[str, int], now: datetime) -> int:
        """Remove ``files`` of a run that is over, as ``used`` gave them; return how many bytes that freed.

        The caller knows that nobody writes for the run any more. What a late writer has stored all the same since
        the marker was made is marked file by file.
        """
        if not files:
            return 0
        marker = self._marked(run_id, Pruned(pruned_at=now, files=files))
        for name in files.keys() - marker.files.keys():
            self._create(f"{_RUNS}{run_id}/{name}", Pruned(pruned_at=now))
        # A chain that is whole can be verified for as long as possible.
        for name in sorted(files, key=lambda name: (name.endswith(f"/{RECEIPT}"), name)):
            self._evidence.blobs.remove(f"{_RUNS}{run_id}/{name}")
        return sum(files.values())

    def _marked(self, run_id: str, marker: Pruned) -> Pruned:
        """Return the run's marker: ``marker``, once it is stored, or the one that was there before."""
        known = self._evidence.pruned_run(run_id)
        if known is None and not self._create(f"{_RUNS}{run_id}", marker):
            known = self._evidence.pruned_run(run_id)
        return known or marker

    def _create(self, key: str, marker: Pruned) -> bool:
        """Store a marker; False where another one is there, which says as much."""
        try:
            self._evidence.put_model(key + PRUNED, marker)
        except EvidenceConflict:
            return False
        return True

    def _is_marker(self, key: str) -> bool:
        """Whether a file within a run is a marker, and not something of that name which an agent made."""
        if not key.endswith(PRUNED):
            return False
        marker = self._evidence.pruned(key.removesuffix(PRUNED))
        return marker is not None and marker.pruned_at is not None
