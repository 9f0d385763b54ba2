"""Why Gemini CLI's model stopped: its stream calls an answer that was cut off a success, its telemetry says it was not.

The program writes that to a file, which leaves the machine no more than its sessions do, and holds what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from schemas.envelopes import ErrorEnvelope

# A key stands alone at the beginning of its line: in a text of a model its quotes would be escaped.
_REASONS: Final = re.compile(rb'^\s*"finish_reasons": \[([^\]]*)\],\s*"role": "main"', re.MULTILINE)
_CUT: Final[Mapping[bytes, ErrorEnvelope]] = {
    b"length": ErrorEnvelope(
        code="answer_incomplete",
        message="Gemini CLI: the answer was cut off: the model had no room for more",
        retryable=True,
    ),
    b"content_filter": ErrorEnvelope(
        code="refused_by_provider",
        message="Gemini CLI: the answer was cut off: the provider would not let the model say more",
    ),
}


def settings(file: Path) -> dict[str, Any]:
    """Return the settings with which the program writes of its requests to a file, and to nobody else."""
    return {"enabled": True, "target": "local", "outfile": str(file), "logPrompts": False, "traces": False}


def cut_short(file: Path) -> ErrorEnvelope | None:
    """Return why the last answer of the agent's model is not whole; None where it is, or nothing is known."""
    try:
        found = _REASONS.findall(file.read_bytes())
    except OSError:
        return None
    reasons = re.findall(rb'"(\w+)"', found[-1]) if found else []
    return _CUT.get(reasons[-1]) if reasons else None
