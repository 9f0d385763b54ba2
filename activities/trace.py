"""A note in the attempt's private folder of which session it opened, for whoever has to recover it."""

from __future__ import annotations

from pydantic import ValidationError

from activities.folder import RunFolder
from activities.sessions import HeldSession
from schemas.calls import AttemptKey
from schemas.common import Durable, SessionMode

_FILE = "session.json"


class Trace(Durable):
    """Which transport an attempt was given, and the session it has there."""

    transport: str
    provider: str = ""
    model: str | None = None
    session_id: str | None = None
    session_mode: SessionMode | None = None


def trace_of(held: HeldSession, model: str | None) -> Trace:
    """Return the note of a session that was opened with this model."""
    return Trace(
        transport=held.transport.name,
        provider=held.transport.capabilities.provider_name,
        model=model,
        session_id=held.session.session_id,
        session_mode=held.session.mode,
    )


def write_trace(folder: RunFolder, key: AttemptKey, trace: Trace) -> None:
    """Write the note; a torn one is as good as none."""
    path = folder.attempt(key) / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace.model_dump_json())


def read_trace(folder: RunFolder, key: AttemptKey) -> Trace | None:
    """Return the note, or None if there is none that can be read."""
    try:
        return Trace.model_validate_json((folder.attempt(key) / _FILE).read_bytes())
    except (OSError, ValidationError):
        return None
