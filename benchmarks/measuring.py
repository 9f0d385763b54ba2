"""What is read off a set of finished histories: rate, latency, actions and bytes per step."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from temporalio.client import WorkflowHistory


@dataclass(frozen=True)
class Row:
    """One measurement. Times in milliseconds, memory in MB, all counts per step."""

    name: str
    dispatch: str
    flows: int
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    activities: float
    local: float
    other: float
    events: float
    bytes: int
    rss_mb: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as data."""
        return asdict(self)


def _time(event: Any) -> datetime:
    found: datetime = event.event_time.ToDatetime()
    return found


def _starts(history: WorkflowHistory, first_type: str, per_step: int) -> list[datetime]:
    """Return when each step's first activity was scheduled."""
    times = [
        _time(event)
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
        and event.activity_task_scheduled_event_attributes.activity_type.name == first_type
    ]
    return times[::per_step]


def measure(
    name: str,
    dispatch: str,
    histories: Sequence[WorkflowHistory],
    *,
    first_type: str,
    per_step: int,
    rss_mb: int,
) -> Row:
    """Return the row of these flows, from the first step's start to the last step's end."""
    gaps: list[float] = []
    firsts: list[datetime] = []
    lasts: list[datetime] = []
    counts = {"activity": 0, "local": 0, "other": 0, "events": 0, "bytes": 0}
    steps = 0
    for history in histories:
        starts = _starts(history, first_type, per_step)
        steps += len(starts)
        firsts.append(starts[0])
        gaps += [(b - a).total_seconds() * 1_000 for a, b in itertools.pairwise(starts)]
        inside = [event for event in history.events if _time(event) >= starts[0]]
        ends = [_time(event) for event in inside if _ends_step(event)]
        lasts.append(ends[-1])
        for event in inside:
            counts["events"] += 1
            counts["bytes"] += event.ByteSize()
            counts["activity"] += event.HasField("activity_task_scheduled_event_attributes")
            counts["local"] += event.HasField("marker_recorded_event_attributes")
            counts["other"] += event.HasField("upsert_workflow_search_attributes_event_attributes")
            counts["other"] += event.HasField("timer_started_event_attributes")
    gaps.sort()
    window = (max(lasts) - min(firsts)).total_seconds()
    return Row(
        name=name,
        dispatch=dispatch,
        flows=len(histories),
        steps_per_s=round(steps / window, 1),
        p50_ms=round(statistics.median(gaps), 1),
        p99_ms=round(gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))], 1),
        activities=round(counts["activity"] / steps, 2),
        local=round(counts["local"] / steps, 2),
        other=round(counts["other"] / steps, 2),
        events=round(counts["events"] / steps, 1),
        bytes=round(counts["bytes"] / steps),
        rss_mb=rss_mb,
    )


def _ends_step(event: Any) -> bool:
    if event.HasField("marker_recorded_event_attributes"):
        return True
    return bool(event.HasField("activity_task_completed_event_attributes"))
