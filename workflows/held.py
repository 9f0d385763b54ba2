"""What a run stands on once it has begun: its flow, and the workspace it holds."""

from __future__ import annotations

from schemas.calls import AcquireOut, ResolveOut
from schemas.run_state import RunState


class Refused(Exception):
    """Raised when an activity says that the run cannot go on at all; ``type`` is the error's wire name."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(message)
        self.type = type_
        self.message = message


def resolved(state: RunState) -> ResolveOut:
    """Return the resolved flow. Raises Refused before there is one."""
    if state.resolved is None:
        raise Refused("InternalError", "no flow was resolved")
    return state.resolved


def acquired(state: RunState) -> AcquireOut:
    """Return the workspace. Raises Refused before there is one."""
    if state.acquired is None:
        raise Refused("InternalError", "no workspace was acquired")
    return state.acquired
