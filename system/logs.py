"""Log lines: one JSON object per record, redacted, silent while a workflow is replayed, never raising.

``logger(room)`` may be used anywhere, workflow code included: the handler drops what a replay says again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from temporalio import workflow
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
Format = Literal["json", "text"]
Redact = Callable[[str], str]
"""Takes a text and returns it without secrets; if it raises, the text is not logged."""

PLACE: Final = ("run_id", "step", "visit", "attempt")
"""Fields that say where a line comes from; always in a JSON line, null where they do not apply."""
MAX_TEXT: Final = 20_000
"""Longest text of one field, in characters; more is cut, and said."""
WITHHELD: Final = "[withheld: redaction failed]"

_OWN: Final = "stepwise"
_SDK: Final = "temporalio"
_MAX_DEPTH: Final = 6
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# An object of the SDK's that says again what the message says.
_DROPPED: Final = frozenset({"temporal_log"})
_place: ContextVar[Mapping[str, Any]] = ContextVar("place", default=MappingProxyType({}))


def logger(room: str) -> logging.Logger:
    """Return the logger ``stepwise.<room>``."""
    return logging.getLogger(f"{_OWN}.{room}")


@contextlib.contextmanager
def placed(**place: str | int | None) -> Iterator[None]:
    """Give every line of this task the fields ``place`` (run_id, step, visit, attempt, …)."""
    token = _place.set({**_place.get(), **place})
    try:
        yield
    finally:
        _place.reset(token)


def set_up(
    *, level: Level = "INFO", form: Format = "json", redact: Redact = str, stream: TextIO | None = None
) -> None:
    """Send the lines of Stepwise and of Temporal's SDK (its warnings) to ``stream`` (default: stderr).

    May be called again: the newest call holds.
    """
    handler = _Lines(stream or sys.stderr, _JsonLine(redact) if form == "json" else _TextLine(redact))
    for name, threshold in ((_OWN, level), (_SDK, level if level in {"DEBUG", "ERROR"} else "WARNING")):
        target = logging.getLogger(name)
        for old in [known for known in target.handlers if isinstance(known, _Lines)]:
            target.removeHandler(old)
        target.addHandler(handler)
        target.setLevel(threshold)
        target.propagate = False


def core_runtime() -> Runtime:
    """Return a runtime for ``Client.connect`` that logs what the SDK's native part warns of, as ``set_up`` says.

    Such as a server that does not answer. One process needs one.
    """
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    forwarding = LogForwardingConfig(logger=logging.getLogger(f"{_SDK}.core"))
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines; a record that cannot be written is lost, the caller feels nothing."""

    def __init__(self, stream: TextIO, formatter: _Line) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self.addFilter(_not_replayed)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line in characters the stream can take."""
        encoding = self.stream.encoding or "utf-8"
        return super().format(record).encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name logging calls
        """Say nothing: a closed stream must not fill another one with tracebacks."""


def _not_replayed(_record: logging.LogRecord) -> bool:
    return not (workflow.in_workflow() and workflow.unsafe.is_replaying_history_events())


class _Line(logging.Formatter):
    """What both formats share: the fields of a record, redacted and cut."""

    def __init__(self, redact: Redact) -> None:
        super().__init__()
        self._redact = redact

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the record as data for JSON, in the order of the line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        extra = {**_place.get(), **{k: v for k, v in vars(record).items() if k not in _STANDARD | _DROPPED}}
        line: dict[str, Any] = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._text(_message(record)),
        }
        line |= {name: self._value(extra.pop(name, None)) for name in PLACE}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self._text("".join(traceback.format_exception(record.exc_info[1])))
        for name, value in extra.items():
            # An extra field never takes the place of one of ours.
            line[f"extra.{name}" if name in line else self._text(name)] = self._value(value)
        return line

    def _text(self, text: str) -> str:
        try:
            clean = self._redact(text)
        except Exception:  # noqa: BLE001 - fail closed, whatever the redaction trips over
            return WITHHELD
        if len(clean) > MAX_TEXT:
            return f"{clean[:MAX_TEXT]}… [{len(clean)} characters]"
        return clean

    def _value(self, value: object, depth: int = 0) -> Any:
        if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            return {self._text(str(key)): self._value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset) and depth < _MAX_DEPTH:
            return [self._value(item, depth + 1) for item in value]
        try:
            return self._text(str(value))
        except Exception:  # noqa: BLE001 - an object whose text cannot be had
            return f"<{type(value).__name__}>"


class _JsonLine(_Line):
    """For machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of ASCII JSON."""
        return json.dumps(self.fields(record))


class _TextLine(_Line):
    """For people: time, level, room, place, message; then the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one."""
        line = self.fields(record)
        head = [line.pop(name) for name in ("ts", "level", "logger", "message")]
        exception = line.pop("exception", None)
        rest = " ".join(f"{name}={value}" for name, value in line.items() if value is not None)
        text = f"{head[0][11:19]} {head[1]:<7} {head[2].removeprefix(f'{_OWN}.')}: {head[3]}"
        text = f"{text}  [{rest}]" if rest else text
        return f"{text}\n{exception}" if exception else text


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit their format
        return f"{record.msg} {record.args!r}"
