"""One history run again offline: its routing decisions, or the first event at which the code differs."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner

from cli.replay.identity import Identified, run_id_of
from schemas.converter import build_data_converter
from workflows.flow import Flow
from workflows.log import DECISION, logger
from workflows.runner import build_runner
from workflows.unknown import UnknownType

NON_DETERMINISM: Final = 1
OTHER_FAILURE: Final = 3
Closed = Literal["completed", "failed", "cancelled", "terminated", "timed out", "continued as new"]

_CLOSED_BY: Final[dict[str, Closed]] = {
    "workflow_execution_completed_event_attributes": "completed",
    "workflow_execution_failed_event_attributes": "failed",
    "workflow_execution_canceled_event_attributes": "cancelled",
    "workflow_execution_terminated_event_attributes": "terminated",
    "workflow_execution_timed_out_event_attributes": "timed out",
    "workflow_execution_continued_as_new_event_attributes": "continued as new",
}
_TURN: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()
_CORE_MESSAGE: Final = re.compile(r'message: "(\[TMPRL\d+\] )?(.*?)", source:', re.DOTALL)


@dataclass(frozen=True)
class Divergence:
    """Where a replay first differs: the event's number, what the history has there, what the code did."""

    event: int
    expected: str
    got: str


@dataclass(frozen=True)
class Heard:
    """One decision as the workflow logged it (see ``workflows.log``), and the time it was made as of."""

    decision: dict[str, Any]
    at: datetime


@dataclass
class Report:
    """What the replay of one history showed; ``closed`` is None for a run whose history has no end yet."""

    workflow_id: str
    run_id: str
    events: int
    closed: Closed | None = None
    heard: list[Heard] = field(default_factory=list)
    failure: str | None = None
    non_deterministic: bool = False
    divergence: Divergence | None = None

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """Each decision with its inputs, in the order they were made."""
        return [heard.decision for heard in self.heard]

    @property
    def exit_code(self) -> int:
        """0 for a clean replay, 1 for a non-determinism, 3 for any other failure of the workflow's code."""
        if self.failure is None:
            return 0
        return NON_DETERMINISM if self.non_deterministic else OTHER_FAILURE


async def replay_history(history: WorkflowHistory, *, debug: bool = False) -> Report:
    """Replay one history as far as it goes; report its decisions and, if the code diverges, where first.

    With ``debug`` the workflow runs in this thread, without sandbox and deadlock detector, so that ``breakpoint()``
    in it works; the first divergence is not looked for, since that replays again and again.
    """
    report = Report(history.workflow_id, run_id_of(history), len(history.events), closed_by(history))
    # One after another: the workflow's log is one, and would tell each replay the decisions of all.
    async with _TURN.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        with _listening(report.heard):
            failure = await _replay(history, debug=debug)
    if failure is not None:
        report.failure = _words(str(failure))
        report.non_deterministic = isinstance(failure, workflow.NondeterminismError)
    if report.non_deterministic and not debug:
        report.divergence = await _first_divergence(history, str(failure))
    return report


def closed_by(history: WorkflowHistory) -> Closed | None:
    """Return how the history ends, or None if the run goes on."""
    kind = history.events[-1].WhichOneof("attributes")
    return _CLOSED_BY.get(kind or "")


def describe_event(event: HistoryEvent) -> str:
    """Return an event in a few words: its type and, where it has them, the activity's id and type."""
    name = EventType.Name(event.event_type)
    words = [name.removeprefix("EVENT_TYPE_")]
    if event.HasField("activity_task_scheduled_event_attributes"):
        scheduled = event.activity_task_scheduled_event_attributes
        words.append(f"{scheduled.activity_type.name} ({scheduled.activity_id})")
    if event.HasField("timer_started_event_attributes"):
        words.append(f"timer {event.timer_started_event_attributes.timer_id}")
    if event.HasField("marker_recorded_event_attributes"):
        words.append(f"marker {event.marker_recorded_event_attributes.marker_name}")
    return " ".join(words)


@cache
def _silent_runtime() -> Runtime:
    """Return a runtime whose core does not log: it would do so on stdout, and the report says it better."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


@cache
def _runner(*, debug: bool) -> WorkflowRunner:
    return UnsandboxedWorkflowRunner() if debug else build_runner(replay=True)


def _replayer(run_id: str, *, debug: bool) -> Replayer:
    return Replayer(
        workflows=[Flow, UnknownType],
        data_converter=build_data_converter(),
        workflow_runner=Identified(_runner(debug=debug), run_id),
        runtime=_silent_runtime(),
        debug_mode=debug,
    )


async def _replay(history: WorkflowHistory, *, debug: bool = False) -> Exception | None:
    if len(history.events) == 1:
        # A run that has not begun, as after a delayed start: a replay would wait for its first task for ever.
        return None
    replayer = _replayer(run_id_of(history), debug=debug)
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure


async def _first_divergence(history: WorkflowHistory, message: str) -> Divergence:
    """Find the shortest beginning of the history that already diverges, by halving."""
    good, bad = 1, len(history.events)
    while bad - good > 1:
        middle = (good + bad) // 2
        failure = await _replay(WorkflowHistory(history.workflow_id, history.events[:middle]))
        if isinstance(failure, workflow.NondeterminismError):
            bad, message = middle, str(failure)
        else:
            good = middle
    event = history.events[bad - 1]
    return Divergence(event=event.event_id, expected=describe_event(event), got=_words(message))


def _words(message: str) -> str:
    """Return what the SDK's core says, without the wrapping it comes in."""
    found = _CORE_MESSAGE.search(message)
    return found.group(2).removeprefix("Nondeterminism error: ") if found else message


class _Listener(logging.Handler):
    def __init__(self, heard: list[Heard]) -> None:
        super().__init__(logging.DEBUG)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        said = record.__dict__
        decision, decided_at = said.get("decision"), said.get("decided_at")
        if (
            record.getMessage().startswith(DECISION)
            and isinstance(decision, dict)
            and isinstance(decided_at, datetime)
        ):
            self._heard.append(Heard(decision, decided_at))


@contextmanager
def _listening(heard: list[Heard]) -> Iterator[None]:
    """Let the workflow's log speak during a replay, to us alone."""
    target, listener = logger.logger, _Listener(heard)
    before = (target.level, target.propagate, logger.log_during_replay)
    target.addHandler(listener)
    target.setLevel(logging.DEBUG)
    target.propagate = False
    logger.log_during_replay = True
    try:
        yield
    finally:
        target.removeHandler(listener)
        level, target.propagate, logger.log_during_replay = before
        target.setLevel(level)
