"""What a session had counted when it was left: the program counts on from there when it is resumed.

The program notes it in the session's file when it ends. One that was killed could not, and goes back to its note before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final

from schemas.common import Usage
from schemas.json_text import parse_json
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


def noted_total(folders: Folders, session_id: str) -> Usage | None:
    """Return what a session's program counts on from, None where that cannot be read.

    It is the last note that can be read whole, as the program has it; without one it begins to count anew.
    """
    file, total = folders.session_file(session_id), Usage(cost_usd=0.0)
    if file is None:
        return None
    try:
        with file.open("rb") as lines:
            for line in lines:
                # One that was torn when the program was killed is passed over.
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    total = _noted(line) or total
    except OSError:
        return None
    return total


def _noted(line: bytes) -> Usage | None:
    """Return what a line notes, None for any other. Raises ValueError, TypeError or KeyError for one that is torn."""
    if not line.startswith(_NOTE):
        return None
    note = parse_json(line)
    return counted(note["modelUsage"], note["totalCostUSD"]) if isinstance(note, Mapping) else None
