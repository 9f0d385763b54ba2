"""The run's journal: numbered events in segments that are created and never changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pydantic import ValidationError

from schemas.errors import BadInput, EvidenceConflict
from schemas.events import RunEvent
from store.errors import EvidenceCorrupt
from store.evidence import Evidence, line_of
from store.keys import PRUNED
from system.logs import logger

_SEGMENT: Final = re.compile(r"(\d{6,})-(\d{6,})\.jsonl\Z")
_MAX_KNOWN: Final = 1_000
_log = logger("store")


@dataclass(frozen=True)
class JournalProblem:
    """A line of a segment that cannot be read or contradicts another one: where, and what is wrong."""

    path: str
    what: str


@dataclass(frozen=True)
class JournalContent:
    """The events by number, and what was wrong with the segments they came from."""

    events: list[RunEvent]
    problems: list[JournalProblem]


class Journal:
    """The journals of all runs. Calls block; they raise StoreUnavailable."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._last: dict[str, int] = {}

    def flush(self, run_id: str, events: list[RunEvent]) -> int:
        """Store those events that are not stored yet; return the last sequence number that now is (0: none).

        Raises EvidenceConflict if a number is stored with other content, BadInput if an event is another run's.
        """
        numbers = [event.seq for event in events]
        known_last = self._last.get(run_id)
        # What follows what this process stored last cannot overlap anything: no need to look.
        fresh = known_last is not None and bool(numbers) and min(numbers) == known_last + 1
        keys = [] if fresh else self._segments(run_id)
        overlapping = [key for key in keys if numbers and _overlaps(key, min(numbers), max(numbers))]
        stored = {event.seq: event for event in self._load(overlapping).events}
        new: dict[int, RunEvent] = {}
        for event in (self._evidence.redacted(_named(run_id, event)) for event in events):
            if event.run_id != run_id:
                raise BadInput(
                    "E_JOURNAL_RUN", f"event {event.seq} belongs to run {event.run_id}, not {run_id}"
                )
            known = stored.get(event.seq) or new.get(event.seq)
            if known is None:
                new[event.seq] = event
            elif known != event:
                raise EvidenceConflict(
                    "E_JOURNAL_CONFLICT", f"event {event.seq} of run {run_id} is stored with other content"
                )
        for segment in _segments(sorted(new.values(), key=lambda event: event.seq)):
            key = f"{_folder(run_id)}{segment[0].seq:06d}-{segment[-1].seq:06d}.jsonl"
            lines = b"".join(line_of(event.model_dump(mode="json")) for event in segment)
            self._evidence.put_redacted_lines(key, lines)
        last = max((*map(_last, keys), *stored, *new), default=0)
        if len(self._last) >= _MAX_KNOWN:
            self._last.clear()
        self._last[run_id] = last
        return last

    def read(self, run_id: str) -> list[RunEvent]:
        """Return all events, sorted by number, each once; what cannot be read is logged and left out."""
        content = self.load(run_id)
        for problem in content.problems:
            _log.warning("journal: %s: %s", problem.path, problem.what, extra={"run_id": run_id})
        return content.events

    def load(self, run_id: str) -> JournalContent:
        """Return all events, and what was wrong: a torn last line, a broken one, two contents for one number."""
        return self._load(self._segments(run_id))

    def _segments(self, run_id: str) -> list[str]:
        return [key for key in self._evidence.blobs.keys(_folder(run_id)) if not key.endswith(PRUNED)]

    def _load(self, keys: list[str]) -> JournalContent:
        events: dict[int, RunEvent] = {}
        problems: list[JournalProblem] = []
        for key in keys:
            try:
                *lines, rest = self._evidence.blobs.read(key).split(b"\n")
            except EvidenceCorrupt as error:
                problems.append(JournalProblem(key, error.message))
                continue
            if rest:
                problems.append(JournalProblem(key, "the last line is torn"))
            for number, line in enumerate(lines, 1):
                try:
                    event = RunEvent.model_validate_json(line)
                except ValidationError:
                    problems.append(JournalProblem(key, f"line {number} is no event"))
                    continue
                if events.setdefault(event.seq, event) != event:
                    problems.append(
                        JournalProblem(key, f"event {event.seq} stands elsewhere with other content")
                    )
        return JournalContent([events[seq] for seq in sorted(events)], problems)

    def gaps(self, run_id: str) -> list[tuple[int, int]]:
        """Return the first and last number of each stretch that is missing before the last event."""
        numbers = [0, *(event.seq for event in self.load(run_id).events)]
        return [(low + 1, high - 1) for low, high in pairwise(numbers) if high > low + 1]


def _named(run_id: str, event: RunEvent) -> RunEvent:
    """Fill in what an event does not say of itself."""
    names = {"run_id": event.run_id or run_id, "event_id": event.event_id or f"{run_id}.{event.seq}"}
    return event.model_copy(update=names)


def _folder(run_id: str) -> str:
    return f"runs/{run_id}/events/"


def _overlaps(key: str, low: int, high: int) -> bool:
    name = _SEGMENT.search(key)
    return name is None or (int(name[1]) <= high and int(name[2]) >= low)


def _last(key: str) -> int:
    name = _SEGMENT.search(key)
    return int(name[2]) if name else 0


def _segments(events: list[RunEvent]) -> list[list[RunEvent]]:
    """Split sorted events where a number is missing."""
    found: list[list[RunEvent]] = []
    for event in events:
        if found and found[-1][-1].seq + 1 == event.seq:
            found[-1].append(event)
        else:
            found.append([event])
    return found
