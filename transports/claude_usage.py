"""What a session had counted when its last turn ended: kept beside it, since the program counts on when it is resumed."""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from schemas.common import Usage
from system.files import write_atomic
from transports.claude_program import Folders


def keep_total(folders: Folders, session_id: str, total: Usage | None) -> None:
    """Keep what a session has used in all; where that fails, its next attempt does not know what it cost."""
    if total is not None:
        with contextlib.suppress(OSError):
            write_atomic(
                folders.config / f"usage-{session_id}.json", total.model_dump_json().encode(), fsync=False
            )


def kept_total(folders: Folders, session_id: str) -> Usage | None:
    """Return what a session had used in all, if that is known."""
    try:
        return Usage.model_validate_json((folders.config / f"usage-{session_id}.json").read_bytes())
    except (OSError, ValidationError):
        return None
