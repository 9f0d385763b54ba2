"""Makes recorded histories and receipts say nothing of the machine and the moment they were recorded on.

What is equal stays equal, so that a scrubbed history replays as the recorded one does.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from schemas.receipt import StepReceipt

NEUTRAL: Final = "/tmp/stepwise-golden"
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT: Final = "2026-01-01T00:00:00Z"
LATER: Final = "2026-01-02T00:00:00Z"
"""Takes the place of a moment that was waited for: it must stay ahead of every event, or nothing is waited for."""
_AHEAD: Final = frozenset({"retry_at"})
EVENT_APART: Final = timedelta(milliseconds=10)
_UUID: Final = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
# digests in text, commits and trees, build ids, sessions, signatures of failures
_HEX: Final = re.compile(r"\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{24}|[0-9a-f]{16})\b")
_MEASURED: Final = frozenset({"elapsed_ms", "ms", "duration_ms", "bytes"})
"""Numbers of payloads that differ from one recording to the next."""
_DIGESTS: Final = frozenset({"sha256", "previous_sha256", "receipts_head"})
DIGEST: Final = "d" * 64


class Scrubber:
    """Scrubs one run's data; equal values are replaced by equal ones, numbered as they are met."""

    def __init__(self, replace: dict[str, str], *, drop_measured: bool = False) -> None:
        self._replace = replace
        self._dropped = _MEASURED if drop_measured else frozenset()
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return a string without paths, names, ids, digests and moments of the recording."""
        for old, new in self._replace.items():
            text = text.replace(old, new)
        text = _TIME.sub(MOMENT, text)
        text = _UUID.sub(lambda found: self._numbered(found.group(), _uuid), text)
        return _HEX.sub(lambda found: self._numbered(found.group(), _hex), text)

    def value(self, value: Any, key: str = "") -> Any:
        """Return a JSON value, scrubbed in all its strings and in the numbers that measure the machine."""
        match value:
            case dict():
                kept = {name: inner for name, inner in value.items() if name not in self._dropped}
                return {self.text(name): self.value(inner, name) for name, inner in kept.items()}
            case list():
                return [self.value(inner, key) for inner in value]
            case str() if key == "host":
                return "host"
            case str() if key in _DIGESTS:
                return DIGEST
            case str() if key in _AHEAD:
                return LATER
            case str():
                return self.text(value)
            case int() if key in _MEASURED and not isinstance(value, bool):
                return 0
            case _:
                return value

    def _numbered(self, found: str, make: Callable[[int, str], str]) -> str:
        if set(found) == {"0"} or found in self._known.values():
            return found
        return self._known.setdefault(found, make(len(self._known) + 1, found))


def _uuid(number: int, _found: str) -> str:
    return f"00000000-0000-7000-8000-{number:012d}"


def _hex(number: int, found: str) -> str:
    # not a row of zeros: it must stay distinct from the first receipt's predecessor
    return f"{number:04d}".rjust(len(found), "f")


def scrubbed_history(history: dict[str, Any], *, folder: str) -> dict[str, Any]:
    """Return a history in the JSON of the Temporal CLI, scrubbed; ``folder`` is where everything lay."""
    events = history["events"]
    first = events[0]["workflowExecutionStartedEventAttributes"]
    suffix = first["firstExecutionRunId"].replace("-", "")[-12:]
    names = {folder: NEUTRAL, suffix: _uuid(1, "")[-12:]}
    names |= dict.fromkeys(sorted(_found(events, "identity"), key=len, reverse=True), "worker@host")
    names |= dict.fromkeys(_found(events, "worker_id"), "worker")
    scrubber = Scrubber(names)
    # met first, so that it gets the number its last digits were given above
    scrubber.text(first["firstExecutionRunId"])
    return {"events": [_event(event, scrubber) for event in events]}


def scrubbed_decisions(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the decisions of a replay without what differs from run to run: events, times, trees, digests."""
    scrubber = Scrubber({}, drop_measured=True)
    return [scrubber.value({name: one[name] for name in one if name != "event"}) for one in decisions]


def scrubbed_receipts(receipts: list[StepReceipt]) -> list[dict[str, Any]]:
    """Return receipts as stored JSON without what differs from run to run and from release to release."""
    scrubber = Scrubber({receipts[0].run_id: "RUN", receipts[0].engine: "stepwise"})
    return [scrubber.value(one.model_dump(mode="json")) for one in receipts]


def _found(value: Any, key: str) -> set[str]:
    """Return every string that stands under ``key``, payloads included."""
    match value:
        case {"data": str(), "metadata": {"encoding": _}}:
            return _found(_decoded(value), key)
        case dict():
            inner = [_found(each, key) for each in value.values()]
            own = {value[key]} if isinstance(value.get(key), str) and value[key] else set()
            return own.union(*inner)
        case list():
            return set().union(*(_found(each, key) for each in value))
        case _:
            return set()


def _event(event: dict[str, Any], scrubber: Scrubber) -> dict[str, Any]:
    number = int(event["eventId"])
    at = BEGAN + number * EVENT_APART
    scrubbed: dict[str, Any] = _plain(event, scrubber, at)
    return scrubbed | {
        "eventTime": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "taskId": str(number),
    }


def _plain(value: Any, scrubber: Scrubber, at: datetime, key: str = "") -> Any:
    match value:
        case {"data": str(), "metadata": {"encoding": _}}:
            inside = scrubber.value(_moment_of_marker(_decoded(value), at))
            text = json.dumps(inside, ensure_ascii=False, separators=(",", ":"))
            return value | {"data": base64.b64encode(text.encode()).decode()}
        case dict():
            return {name: _plain(inner, scrubber, at, name) for name, inner in value.items()}
        case list() if key.endswith("UsedFlags"):
            return sorted(value)
        case list():
            return [_plain(inner, scrubber, at, key) for inner in value]
        case str() if key == "stackTrace":
            return ""
        case str() if key == "historySizeBytes":
            return "0"
        case str() if key == "startToFireTimeout":
            # what is left of a wait when its timer starts differs by milliseconds
            return f"{round(float(value.removesuffix('s')))}s"
        case str():
            return scrubber.text(value)
        case _:
            return value


def _decoded(payload: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(payload["data"]))


def _moment_of_marker(inside: Any, at: datetime) -> Any:
    """Return a local activity's marker with the moment of its event: the workflow's time comes from it."""
    if not isinstance(inside, dict) or "complete_time" not in inside:
        return inside
    moment = {"seconds": int(at.timestamp()), "nanos": at.microsecond * 1_000}
    return inside | {"complete_time": moment, "original_schedule_time": moment}
