"""What an agent did, streamed to the worker's disk while it works and uploaded when it stops, also after a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from schemas.attempt_event import AttemptEvent
from schemas.calls import AttemptKey
from schemas.common import AgentPhase, ArtifactRef
from schemas.envelopes import ErrorEnvelope
from schemas.errors import EvidenceConflict, StepwiseError
from schemas.events import (
    ErrorEvent,
    SessionOpened,
    ToolEnded,
    TranscriptEvent,
    TranscriptFooter,
    TranscriptHeader,
    TransportEvent,
    UsageEvent,
)
from schemas.tools import NormalizedToolCall
from store.attempt_lines import AttemptTotals, transcript_event
from store.errors import RedactionFailed
from store.evidence import Evidence, line_of
from store.keys import check_key
from store.spool import Limits, LineFile, spooling, whole_lines
from system.files import write_atomic

LogName = Literal["events", "transcript", "tool_calls"]
LOGS: Final[tuple[LogName, ...]] = ("events", "transcript", "tool_calls")
Clock = Callable[[], datetime]
"""Gives the worker's time, with its zone."""

_Line = AttemptEvent | TranscriptEvent | NormalizedToolCall
_LEFT_OUT: Final = "what follows, or was too long for a line, is left out; the totals count it"
_EVENT: Final[TypeAdapter[TransportEvent]] = TypeAdapter(TransportEvent)


@dataclass(frozen=True)
class RecoveredLog:
    """The logs of an attempt whose worker died: where they are now, and what they add up to."""

    refs: dict[LogName, ArtifactRef]
    totals: AttemptTotals


class AttemptLog:
    """The three logs of one phase of an attempt. Redacted before the first byte reaches the disk; safe to use from any thread.

    Opening raises EvidenceConflict where an earlier log of the phase waits to be recovered, StoreUnavailable where
    the spool cannot be written. ``clock`` is asked once per event.
    """

    def __init__(
        self,
        evidence: Evidence,
        spool: Path,
        key: AttemptKey,
        header: TranscriptHeader,
        clock: Clock,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> None:
        self._evidence = evidence
        self._folder = _folder(spool, key, header.phase)
        self._home = log_folder(key, header.phase)
        self._header = header
        self._clock = clock
        self._lock = threading.Lock()
        self._started = False
        self._ended = False
        self._refs: dict[LogName, ArtifactRef] | None = None
        self._totals = AttemptTotals()
        self.error: StepwiseError | None = None
        with spooling(self._folder):
            try:
                self._folder.mkdir(parents=True)
            except FileExistsError:
                raise EvidenceConflict(
                    "E_ATTEMPT_OPEN",
                    f"{self._folder} holds a log that was not closed: recover it",
                ) from None
        self._files = {name: LineFile(self._folder / f"{name}.jsonl", limits) for name in LOGS}

    @property
    def totals(self) -> AttemptTotals:
        """What the events so far add up to."""
        return self._totals

    def set_header(self, header: TranscriptHeader) -> None:
        """Replace the transcript's header (another transport was taken); without effect once an event was logged."""
        with self._lock:
            self._header = self._header if self._started else header

    def emit(self, event: TransportEvent) -> None:
        """Log an event and never raise: the first error is kept in ``error`` and raised by ``close``."""
        if self.error is None:
            try:
                self.append(event)
            except StepwiseError as error:
                self.error = error

    def append(self, event: TransportEvent) -> None:
        """Log an event; raises RedactionFailed or StoreUnavailable. Without effect once the log is closed."""
        with self._lock:
            if self._ended:
                return
            event = self._redacted(event)
            now = self._clock()
            self._start(event)
            totals = self._totals.plus(event)
            note = ErrorEvent(error=ErrorEnvelope(code="E_LIMIT_LOG", message=_LEFT_OUT))
            self._line(
                "events",
                AttemptEvent(seq=totals.events, ts=now, event=event),
                AttemptEvent(seq=totals.events, ts=now, event=note),
            )
            if not isinstance(event, UsageEvent):
                shown = transcript_event(event, ts=now, totals=totals, header=self._header)
                self._line(
                    "transcript",
                    shown,
                    shown.model_copy(update={"event_type": "left_out", "block": {"reason": _LEFT_OUT}}),
                )
            if isinstance(event, ToolEnded):
                left_out = {"tool_name": "stepwise.left_out", "input": "", "output": _LEFT_OUT}
                self._line("tool_calls", event.call, event.call.model_copy(update=left_out))
            self._totals = totals

    def close(self, *, complete: bool = True) -> dict[LogName, ArtifactRef]:
        """End the transcript, upload the files that have lines, remove them here; a second call returns the same.

        Raises the error that ``emit`` met, or StoreUnavailable; the spool then stays, to be recovered.
        """
        with self._lock:
            if self._refs is None:
                if self.error is not None:
                    self._abandon()
                    raise self.error
                self._end(complete=complete)
                self._refs = _upload(self._evidence, self._folder, self._home)
            return self._refs

    def abandon(self) -> None:
        """Give the log up as it is: nothing is uploaded, and the spool stays, to be recovered."""
        with self._lock:
            self._abandon()

    @classmethod
    def recover(
        cls, evidence: Evidence, spool: Path, key: AttemptKey, clock: Clock, *, phase: AgentPhase = "work"
    ) -> RecoveredLog | None:
        """Upload what a dead worker left of the logs of an attempt's phase, or return None if it left nothing.

        A torn last line is dropped and a missing footer is written with ``complete`` false. What was uploaded already
        stays as it is. May be repeated; raises StoreUnavailable.
        """
        folder, home = _folder(spool, key, phase), log_folder(key, phase)
        if not folder.is_dir():
            return None
        lines = {name: whole_lines(_left(evidence, folder, home, name)) for name in LOGS}
        totals = AttemptTotals()
        for line in lines["events"]:
            with suppress(ValidationError):
                totals = totals.plus(AttemptEvent.model_validate(line).event)
        transcript = lines["transcript"]
        if not transcript or transcript[0].get("kind") != "header":
            transcript.insert(0, _dump(_header_of(key, phase)))
        if transcript[-1].get("kind") != "footer":
            transcript.append(_footer(totals, clock(), complete=False))
        for name in LOGS:
            path = folder / f"{name}.jsonl"
            with spooling(path):
                write_atomic(path, b"".join(map(line_of, lines[name])), fsync=False)
        return RecoveredLog(_upload(evidence, folder, home), totals)

    def _redacted(self, event: TransportEvent) -> TransportEvent:
        tree = self._evidence.redactor.tree(event.model_dump(mode="json"))
        try:
            return _EVENT.validate_python(tree)
        except ValidationError:
            raise RedactionFailed(
                "E_REDACTION_INVALID", f"an event of kind {event.kind} is not valid once redacted"
            ) from None

    def _start(self, first: TransportEvent | None) -> None:
        if self._started:
            return
        if isinstance(first, SessionOpened):
            known = {"session_id": first.session_id, "server_info": first.server_info}
            self._header = self._header.model_copy(
                update={**known, "model": first.model or self._header.model}
            )
        header = self._evidence.redacted(self._header)
        self._files["transcript"].end_with(line_of(_dump(header)))
        self._started = True

    def _end(self, *, complete: bool) -> None:
        if not self._ended:
            self._start(None)
            footer = _footer(self._totals, self._clock(), complete=complete)
            self._files["transcript"].end_with(line_of(footer))
            self._abandon()

    def _abandon(self) -> None:
        for file in self._files.values():
            file.close()
        self._ended = True

    def _line(self, name: LogName, line: _Line, notice: _Line) -> None:
        self._files[name].append(_dump(line), _dump(notice))


def _dump(line: _Line | TranscriptHeader) -> dict[str, Any]:
    return line.model_dump(mode="json")


def _place(key: AttemptKey) -> str:
    return check_key(key.path.removeprefix("runs/"))


def log_folder(key: AttemptKey, phase: AgentPhase) -> str:
    """Return where the logs of an attempt's phase are stored: those of its work in the attempt's own folder."""
    return key.path if phase == "work" else f"{key.path}/{phase}"


def _folder(spool: Path, key: AttemptKey, phase: AgentPhase) -> Path:
    # One folder, not five: making and removing them would cost more than all else of a short attempt.
    place = _place(key).replace("/", ".")
    return spool / (place if phase == "work" else f"{place}.{phase}")


def _header_of(key: AttemptKey, phase: AgentPhase) -> TranscriptHeader:
    return TranscriptHeader(**key.model_dump(), phase=phase, task_id=_place(key), transport="")


def _footer(totals: AttemptTotals, now: datetime, *, complete: bool) -> dict[str, Any]:
    return TranscriptFooter(
        ts=now,
        events=totals.transcript_events,
        tool_calls=totals.tool_calls,
        blocked=totals.blocked,
        complete=complete,
    ).model_dump(mode="json")


def _left(evidence: Evidence, folder: Path, home: str, name: LogName) -> bytes:
    """Return a log as the store has it, else as the spool has it: what came through before a crash is the true one."""
    place, path = f"{home}/{name}.jsonl", folder / f"{name}.jsonl"
    if evidence.blobs.exists(place):
        return evidence.read_key(place)
    with spooling(path):
        return path.read_bytes() if path.exists() else b""


def _upload(evidence: Evidence, folder: Path, home: str) -> dict[LogName, ArtifactRef]:
    refs: dict[LogName, ArtifactRef] = {}
    for name in LOGS:
        place, path = f"{home}/{name}.jsonl", folder / f"{name}.jsonl"
        with spooling(path):
            if evidence.blobs.exists(place):
                refs[name] = evidence.put_redacted_lines(place, evidence.read_key(place))
            elif path.exists() and path.stat().st_size:
                refs[name] = evidence.adopt_redacted_lines(place, path)
            path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
    return refs
