"""What a session had counted when it was left: the program counts on from there when it is resumed.

The program notes it in the session's file when it ends. One that was killed could not, and goes back to its note before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from schemas.common import Usage
from schemas.json_text import parse_json
from system.files import write_atomic
from transports.claude_program import Folders

_NOTE: Final = b'{"type":"cost-state"'


def counted(models: object, cost_usd: object) -> Usage:
    """Return what the program counts, of its numbers by model and its cost in US dollars."""
    each = [one for one in models.values() if isinstance(one, Mapping)] if isinstance(models, Mapping) else []

    def summed(name: str) -> int:
        return sum(int(one.get(name) or 0) for one in each)

    return Usage(
        prompt=summed("inputTokens"),
        completion=summed("outputTokens"),
        cache_read=summed("cacheReadInputTokens"),
        cache_write=summed("cacheCreationInputTokens"),
        cost_usd=float(cost_usd) if isinstance(cost_usd, int | float) else 0.0,
    )


def keep_total(folders: Folders, session_id: str, total: Usage | None) -> None:
    """Keep what a session has used in all; where that fails, its next attempt does not know what it cost."""
    if total is not None:
        with contextlib.suppress(OSError):
            write_atomic(
                folders.config / f"usage-{session_id}.json", total.model_dump_json().encode(), fsync=False
            )


def kept_total(folders: Folders, session_id: str) -> Usage | None:
    """Return what a session's program counts on from, if that is known: its own note first, then what was kept here."""
    try:
        note = _noted(folders, session_id)
        if note is not None:
            return counted(note.get("modelUsage"), note.get("totalCostUSD"))
        return Usage.model_validate_json((folders.config / f"usage-{session_id}.json").read_bytes())
    except (OSError, ValueError, TypeError, ValidationError):
        return None


def _noted(folders: Folders, session_id: str) -> Mapping[str, Any] | None:
    """Return the last note in a session's file. Raises OSError, and ValueError for one that is torn."""
    file = folders.session_file(session_id)
    data = b"" if file is None else file.read_bytes()
    at = data.rfind(b"\n" + _NOTE)
    found = None if at < 0 else parse_json(data[at + 1 :].partition(b"\n")[0])
    return found if isinstance(found, Mapping) else None
