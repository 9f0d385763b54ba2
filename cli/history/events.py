"""A run's history as one line of events: its journal, what its agents did, and what was recorded of each attempt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import ValidationError

from cli.words import iso
from schemas.attempt_event import AttemptEvent
from schemas.common import AgentPhase
from schemas.events import RunEvent
from schemas.handoff import PartialHandoff
from schemas.receipt import StepReceipt
from store.errors import EvidenceCorrupt, NotStored
from store.evidence import Evidence
from store.journal import Journal
from store.keys import PARTIAL, RECEIPT
from store.spool import whole_lines

Source = Literal["journal", "agent", "receipt", "handoff"]

_LOG: Final = "events.jsonl"
_PLACE_PARTS: Final = 5
"""Run, flow, step, visit, attempt."""
_PHASES: Final[Mapping[str, AgentPhase]] = {"finalize": "finalize", "route": "route"}
"""The phases whose logs have a folder of their own in the attempt's."""


class Place(NamedTuple):
    """Which attempt of a run."""

    flow: str
    step: str
    visit: int
    attempt: int


class LogPlace(NamedTuple):
    """Which log of an attempt: that of one phase of its agent."""

    of: Place
    phase: AgentPhase


@dataclass(frozen=True)
class Entry:
    """One event of a run: when, from which of its records, of which attempt (as far as it says), and what it says.

    ``ts`` is as its writer's clock had it, ``at`` its time among all events of the run. ``seq`` numbers the events of
    one source: the run's journal, or the log of one ``phase`` of an attempt.
    """

    ts: datetime
    source: Source
    kind: str
    seq: int = 0
    flow: str = ""
    step: str = ""
    visit: int | None = None
    attempt: int | None = None
    phase: AgentPhase | None = None
    data: dict[str, Any] = field(default_factory=dict)
    at: datetime | None = None

    @property
    def place(self) -> Place:
        """The attempt, where the event names one."""
        return Place(self.flow, self.step, self.visit or 0, self.attempt or 0)

    def as_data(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return {
            "ts": iso(self.ts),
            "at": iso(self.at or self.ts),
            "source": self.source,
            "kind": self.kind,
            "seq": self.seq,
            "flow": self.flow,
            "step": self.step,
            "visit": self.visit,
            "attempt": self.attempt,
            "phase": self.phase,
            "data": self.data,
        }


@dataclass
class _Window:
    """When an attempt's agent was asked in one phase, in the workflow's time."""

    began: datetime | None = None
    ended: datetime | None = None


class Sources:
    """What is stored of one run, read as it grows: each event comes once. Calls block; they raise StoreUnavailable.

    ``spool`` is the folder in which this machine's worker keeps the logs of attempts under way, if it is to be read.
    """

    def __init__(self, evidence: Evidence, run_id: str, spool: Path | None = None) -> None:
        self._evidence = evidence
        self._run_id = run_id
        self._spool = spool
        self._journal = Journal(evidence)
        self._segments: list[str] = []
        self._last_seq = 0
        self._flow = ""
        self._cursors: dict[LogPlace, _Cursor] = {}
        self._read: set[str] = set()
        self._windows: dict[tuple[Place, str], _Window] = {}
        self._newest: dict[tuple[str, str, int], Place] = {}
        self._over: dict[Place, datetime] = {}
        self._ended: dict[tuple[str, str, int], list[datetime]] = {}

    def new(self) -> list[Entry]:
        """Return the events that were not returned before, in their order."""
        fresh = [*self._of_journal(), *self._of_attempts()]
        # A worker's clock may differ from the server's: what an agent did is shown while it worked.
        placed = [(*self._order(entry), entry) for entry in fresh]
        placed.sort(key=lambda one: one[:2])
        return [replace(entry, at=at) for at, _, entry in placed]

    def spooled(self) -> list[Path]:
        """Return the folders of attempts that this machine's worker has under way."""
        return sorted(self._spool.glob(f"{escape(self._run_id)}.*")) if self._spool else []

    def _of_journal(self) -> Iterator[Entry]:
        segments = self._evidence.blobs.keys(f"runs/{self._run_id}/events/")
        if segments == self._segments:
            return
        self._segments = segments
        for event in self._journal.load(self._run_id).events:
            if event.seq > self._last_seq:
                self._last_seq = event.seq
                yield self._journaled(event)

    def _journaled(self, event: RunEvent) -> Entry:
        said = dict(event.model_extra or {})
        if event.kind == "run_created":
            self._flow = str(said.get("flow", ""))
        entry = Entry(
            ts=event.ts,
            source="journal",
            kind=event.kind,
            seq=event.seq,
            flow=self._flow,
            step=str(said.pop("step", "")),
            visit=_number(said.pop("visit", None)),
            attempt=_number(said.pop("attempt", None)),
            data=said,
        )
        self._note(entry)
        return entry

    def _note(self, entry: Entry) -> None:
        """Remember when an attempt's phases began and ended, and when it was over."""
        phase = str(entry.data.get("phase"))
        visit = entry.place[:3]
        if entry.kind == "phase_started":
            self._newest[visit] = entry.place
            self._window(entry.place, phase).began = entry.ts
        elif entry.kind == "phase_ended":
            self._window(entry.place, phase).ended = entry.ts
        elif entry.kind == "interrupted":
            self._over[entry.place] = entry.ts
        elif entry.kind == "step_ended":
            # It names no attempt, and a visit whose result is rejected ends more than once.
            self._ended.setdefault(visit, []).append(entry.ts)
            if visit in self._newest:
                self._over[self._newest[visit]] = entry.ts

    def _window(self, place: Place, phase: str) -> _Window:
        return self._windows.setdefault((place, phase), _Window())

    def _of_attempts(self) -> Iterator[Entry]:
        spooled = {log: folder for folder in self.spooled() if (log := _log_place(folder.name.split(".")))}
        for log, folder in spooled.items():
            yield from self._logged(log, self._cursor(log).lines(folder / _LOG))
        for key in self._evidence.blobs.keys(f"runs/{self._run_id}/"):
            *parts, name = key.removeprefix("runs/").split("/")
            stored = _log_place(parts)
            if stored is None or key in self._read or name not in {_LOG, RECEIPT, PARTIAL}:
                continue
            if name == _LOG and stored in spooled:
                # On its way: whatever this machine still has of it comes first.
                continue
            try:
                data = self._evidence.read_key(key)
            except (NotStored, EvidenceCorrupt):
                continue
            self._read.add(key)
            yield from self._stored(stored, name, data)

    def _stored(self, log: LogPlace, name: str, data: bytes) -> Iterator[Entry]:
        place = log.of
        try:
            if name == _LOG:
                yield from self._logged(log, whole_lines(data))
            elif name == RECEIPT:
                receipt = StepReceipt.model_validate_json(data)
                said = receipt.model_dump(mode="json")
                yield Entry(receipt.completed_at, "receipt", "receipt", 0, *place, data=said)
            else:
                handoff = PartialHandoff.model_validate_json(data)
                said = handoff.model_dump(mode="json")
                yield Entry(handoff.stopped_at, "handoff", "partial_handoff", 0, *place, data=said)
        except ValidationError:
            # `stepwise verify` names what is altered; the rest of the history can still be read.
            return

    def _logged(self, log: LogPlace, lines: Iterable[dict[str, Any]]) -> Iterator[Entry]:
        cursor = self._cursor(log)
        for line in lines:
            try:
                event = AttemptEvent.model_validate(line)
            except ValidationError:
                continue
            if event.seq > cursor.last_seq:
                cursor.last_seq = event.seq
                said = event.event.model_dump(mode="json", exclude={"kind"})
                yield Entry(event.ts, "agent", event.event.kind, event.seq, *log.of, log.phase, said)

    def _cursor(self, log: LogPlace) -> _Cursor:
        return self._cursors.setdefault(log, _Cursor())

    def _next_end(self, entry: Entry) -> datetime:
        """Return when the visit of an event ended next, or the time of the event itself where it did not."""
        ends = self._ended.get(entry.place[:3], [])
        return min((end for end in ends if end >= entry.ts), default=entry.ts)

    def _order(self, entry: Entry) -> tuple[datetime, int]:
        window = self._windows.get((entry.place, entry.phase or "work"), _Window())
        if entry.source == "journal":
            return entry.ts, 0
        if entry.source == "receipt":
            return self._over.get(entry.place) or self._next_end(entry), 1
        if window.began and entry.ts <= window.began:
            return window.began, 1
        if window.ended and entry.ts >= window.ended:
            return window.ended, -1
        return entry.ts, 0


def _number(said: object) -> int | None:
    return said if isinstance(said, int) else None


class _Cursor:
    """How far one log was read: in bytes of the file on this machine, and in events."""

    def __init__(self) -> None:
        self.last_seq = 0
        self._file = 0
        self._offset = 0

    def lines(self, path: Path) -> list[dict[str, Any]]:
        """Return the whole lines that were added; a torn last one is left for the next time."""
        try:
            with path.open("rb") as file:
                # A recovered log is another file, which may lack what was torn.
                number = os.fstat(file.fileno()).st_ino
                if number != self._file:
                    self._file, self._offset = number, 0
                file.seek(self._offset)
                added = file.read()
        except OSError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole_lines(whole)


def _log_place(parts: list[str]) -> LogPlace | None:
    """Return the attempt, and the phase of it, that a path within ``runs/`` is of, or None if it is of none."""
    phase = _PHASES.get(parts[-1]) if len(parts) > _PLACE_PARTS else None
    place = _place(parts[:-1] if phase else parts)
    return LogPlace(place, phase or "work") if place else None


def _place(parts: list[str]) -> Place | None:
    if len(parts) != _PLACE_PARTS or not (parts[3].isdigit() and parts[4].isdigit()):
        return None
    return Place(parts[1], parts[2], int(parts[3]), int(parts[4]))
