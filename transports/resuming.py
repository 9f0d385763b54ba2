"""What keeps a session from being resumed: nobody knows it, or its file has lost some of what it held when it was let go.

Programs take what is left of a torn file for the whole. An agent would then be told only what is new, and know nothing
of its task; so how far a file had come is noted beside it, and one that falls short of that is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.common import Durable
from schemas.envelopes import ErrorEnvelope
from system.files import write_atomic
from transports.port import SESSION_LOST, TransportError

_TAIL_BYTES: Final = 65_536


class _Mark(Durable):
    """How long a file was, and the digest of the bytes before its end: what is lost is what was written last."""

    bytes: int
    tail: str


def refused(session_id: str, reason: str, *, code: str = SESSION_LOST) -> TransportError:
    """Return the error of a session that cannot be gone on with, for which a new one is to be begun."""
    message = f"cannot resume {session_id!r}: {reason}"
    return TransportError(ErrorEnvelope(code=code, message=message), resume_refused=True)


def unknown(session_id: str) -> TransportError:
    """Return the error of a session that nobody knows."""
    return refused(session_id, "there is no such session", code="unknown_session")


def keep_mark(state: Path, session_id: str, file: Path | None) -> None:
    """Note how far a session's file has come; where that fails, nothing of it is known later."""
    with contextlib.suppress(OSError):
        if file is not None:
            size = file.stat().st_size
            mark = _Mark(bytes=size, tail=_tail(file, size))
            write_atomic(_place(state, session_id), mark.model_dump_json().encode(), fsync=False)


def drop_mark(state: Path, session_id: str) -> None:
    """Forget how far a session's file had come, before it is written anew."""
    with contextlib.suppress(OSError):
        _place(state, session_id).unlink()


def require_whole(state: Path, session_id: str, file: Path) -> None:
    """Raise TransportError, as refused, for a file that falls short of its mark; without one it passes."""
    try:
        mark = _Mark.model_validate_json(_place(state, session_id).read_bytes())
    except (OSError, ValidationError):
        return
    try:
        whole = file.stat().st_size >= mark.bytes and _tail(file, mark.bytes) == mark.tail
    except OSError as error:
        raise refused(session_id, f"its file cannot be read: {error}") from error
    if not whole:
        raise refused(session_id, "its file has lost some of what it held")


def _tail(file: Path, end: int) -> str:
    begin = max(0, end - _TAIL_BYTES)
    with file.open("rb") as opened:
        opened.seek(begin)
        return hashlib.sha256(opened.read(end - begin)).hexdigest()


def _place(state: Path, session_id: str) -> Path:
    return state / "marks" / f"{session_id}.json"
