"""The run's journal as the workflow keeps it: numbered events that wait to be stored."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from schemas.events import RunEvent, RunEventKind
from schemas.run_state import RunState

MESSAGES: frozenset[RunEventKind] = frozenset({"human_message", "message_refused"})
MAX_PENDING = 500
"""Events that wait to be stored, from which on messages are kept no more: all of them travel in one payload."""


class Journal:
    """Numbers events from 1 without gaps; they leave with the next call that can store them."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def add(self, kind: RunEventKind, **payload: Any) -> None:
        """Append an event; its payload's keys stand beside the fixed ones. Of too many messages at once a note remains."""
        state = self._state
        if kind in MESSAGES and len(state.pending) >= MAX_PENDING:
            if len(state.pending) > MAX_PENDING:
                return
            payload = {"name": "…", "reason": "more messages came than are kept"}
        state.seq += 1
        event = RunEvent.model_validate(
            {
                "seq": state.seq,
                "ts": workflow.now(),
                "kind": kind,
                **{key: value for key, value in payload.items() if value is not None},
            }
        )
        state.pending = [*state.pending, event]

    def batch(self) -> list[RunEvent]:
        """Return the events that are not known to be stored."""
        return list(self._state.pending)

    def stored(self, batch: list[RunEvent]) -> None:
        """Forget the events of a batch that a call has stored."""
        if batch:
            last = batch[-1].seq
            self._state.pending = [event for event in self._state.pending if event.seq > last]
