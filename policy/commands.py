"""Which command lines an agent may run, judged by their text alone before anything runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["allow", "deny", "ask"]


@dataclass(frozen=True)
class Verdict:
    """What policy says of a call, with a stable code and a reason in words where it is not ``allow``."""

    decision: Decision
    code: str = ""
    reason: str = ""


ALLOWED = Verdict("allow")
