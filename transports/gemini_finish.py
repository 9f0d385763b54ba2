"""Why a turn that Gemini CLI calls a success is none: it was stopped, its model was not asked, or was cut off.

What of that its stream does not say stands in its telemetry. The program writes it to a file, which leaves the machine
no more than its sessions do, and holds what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.envelopes import ErrorEnvelope
from transports.gemini_errors import Failure, classify, stopped_by_itself

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
_NOT_ASKED: Final = ErrorEnvelope(
    code="context_overflow",
    message="Gemini CLI: what its model was to read is longer than it takes, so it was not asked (give it less to read, "
    "or start the session anew)",
)
_NO_ANSWER: Final = ErrorEnvelope(
    code="agent_failed",
    message="Gemini CLI: the turn was called a success, and the model had answered nothing in it",
    retryable=True,
)


@dataclass(frozen=True)
class Success:
    """What is known of a turn that the program calls a success.

    ``warned`` is the last error or warning it told, ``answered`` says that the model said or called something,
    ``unread`` that it was not asked again after its last calls had ended; ``stats`` are the totals of the end.
    """

    warned: str
    answered: bool
    unread: bool
    stats: Any = None


def not_done(success: Success) -> ErrorEnvelope | None:
    """Return why a success is none, None for one that is.

    The program asks its model nothing where the request would not fit, and says nothing of that: the turn just ends.
    """
    if stopped_by_itself(success.warned):
        return classify(Failure(success.warned)).error
    if success.unread:
        return _NOT_ASKED
    if success.answered:
        return None
    asked = not isinstance(success.stats, dict) or success.stats.get("models") != {}
    return _NO_ANSWER if asked else _NOT_ASKED


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
