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


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of all lies (0.99: the 99th percentile)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _time(event: Any) -> datetime:
    found: datetime = event.event_time.ToDatetime()
    return found


def _is_local(event: Any) -> bool:
    """Tell whether an event is the end of a local activity."""
    return bool(event.marker_recorded_event_attributes.marker_name == "core_local_activity")


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
    last_type: str,
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
        end = _end(history, last_type)
        lasts.append(end)
        for event in (one for one in history.events if starts[0] <= _time(one) <= end):
            counts["events"] += 1
            counts["bytes"] += event.ByteSize()
            counts["activity"] += event.HasField("activity_task_scheduled_event_attributes")
            counts["local"] += _is_local(event)
            counts["other"] += event.HasField("upsert_workflow_search_attributes_event_attributes")
            counts["other"] += event.HasField("timer_started_event_attributes")
    window = (max(lasts) - min(firsts)).total_seconds()
    return Row(
        name=name,
        dispatch=dispatch,
        flows=len(histories),
        steps_per_s=round(steps / window, 1),
        p50_ms=round(statistics.median(gaps), 1),
        p99_ms=round(quantile(gaps, 0.99), 1),
        activities=round(counts["activity"] / steps, 2),
        local=round(counts["local"] / steps, 2),
        other=round(counts["other"] / steps, 2),
        events=round(counts["events"] / steps, 1),
        bytes=round(counts["bytes"] / steps),
        rss_mb=rss_mb,
    )


def _end(history: WorkflowHistory, last_type: str) -> datetime:
    """Return when the last activity of the last step ended."""
    scheduled = {
        event.event_id
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
        and event.activity_task_scheduled_event_attributes.activity_type.name == last_type
    }
    times = [
        _time(event)
        for event in history.events
        if _is_local(event) or event.activity_task_completed_event_attributes.scheduled_event_id in scheduled
    ]
    return times[-1]
