"""The stub's session file: what of a script is done, so that a resumed session goes on behind it.

One file holds the sessions of a run. It is only appended to, one line for each change and the last one counts: that
costs a hundredth of replacing a file, and a line that is torn takes nothing away from those before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError

from schemas.common import Durable
from transports.port import SessionSpec
from transports.resuming import keep_mark, refused, require_whole, unknown

_LABELS_KEPT: Final = 10


class Progress(Durable):
    """How far a session is: the next action of each list of actions, and what was done in all.

    ``asked`` is the question the session was left with: its text, its id ``asked_id``, the list of actions it is the
    next one of, what the action is called, and where the answer is to be written.
    """

    session_id: str
    cursors: dict[str, int] = Field(default={})
    actions: int = 0
    labels: list[str] = Field(default=[])
    asked: str | None = None
    asked_id: str = ""
    asked_in: str = ""
    asked_label: str = ""
    save_to: str | None = None


class SessionFile:
    """A session's progress, on disk as soon as it changes."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self.progress = progress

    @classmethod
    def create(cls, spec: SessionSpec) -> Self:
        """Begin a session for the attempt; what an earlier opening of the same attempt left is void."""
        made = cls(_path(spec), Progress(session_id=session_id_of(spec.run_id, spec.place)))
        made._write()
        return made

    @classmethod
    def resume(cls, spec: SessionSpec, session_id: str) -> Self:
        """Go on with a session; raises TransportError (``resume_refused``) when there is none of that id."""
        path = _path(spec)
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise refused(session_id, str(error), code="unknown_session") from error
        for line in reversed(lines):
            progress = _parsed(line) if session_id.encode() in line else None
            if progress is not None and progress.session_id == session_id:
                require_whole(spec.state, session_id, path)
                return cls(path, progress)
        raise unknown(session_id)

    def leave(self, spec: SessionSpec) -> None:
        """Note how far the file has come, when the session is let go."""
        keep_mark(spec.state, self.progress.session_id, self._path)

    def cursor(self, key: str) -> int:
        """Return the index of the next action of a list."""
        return self.progress.cursors.get(key, 0)

    def advance(self, key: str, label: str) -> None:
        """Count the next action of a list as done."""
        self._replace(**self._advanced(key, label))

    def park(self, key: str, label: str, *, question: str, question_id: str, save_to: str | None) -> None:
        """Remember a question that ended the turn. It is asked again, unless its answer comes."""
        self._replace(asked=question, asked_id=question_id, asked_in=key, asked_label=label, save_to=save_to)

    def unpark(self, *, answered: bool) -> None:
        """Forget the question; an answered one counts as done."""
        done = self._advanced(self.progress.asked_in, self.progress.asked_label) if answered else {}
        self._replace(**done, asked=None, asked_id="", asked_in="", asked_label="", save_to=None)

    def _advanced(self, key: str, label: str) -> dict[str, object]:
        old = self.progress
        return {
            "cursors": old.cursors | {key: self.cursor(key) + 1},
            "actions": old.actions + 1,
            "labels": [*old.labels, label][-_LABELS_KEPT:],
        }

    def _replace(self, **changes: object) -> None:
        self.progress = self.progress.model_copy(update=changes)
        self._write()

    def _write(self) -> None:
        # No flush to disk: a session only has to outlive its process; after the loss of a machine it starts cold.
        record = f"\n{self.progress.model_dump_json()}".encode()
        try:
            _append(self._path, record)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _append(self._path, record)


def session_id_of(run_id: str, place: Mapping[str, str | int]) -> str:
    """Return the id of the session that an attempt opens: the same each time it is asked for."""
    parts = (run_id, *(str(place[name]) for name in ("step", "visit", "attempt")))
    return f"stub-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def _path(spec: SessionSpec) -> Path:
    return spec.private.parent / "sessions" / "stub.jsonl"


def _append(path: Path, record: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(record)


def _parsed(line: bytes) -> Progress | None:
    try:
        return Progress.model_validate_json(line)
    except ValidationError:
        return None
