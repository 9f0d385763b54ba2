"""How commands print times, spans, sizes, counts and tables, and read those people type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from schemas.errors import BadInput

SHORT_COMMIT: Final = 10
"""Characters of a commit's id shown to people."""

_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SPAN_UNITS: Final = {"s": 1, "m": _MINUTE, "h": _HOUR, "d": _DAY, "w": 7 * _DAY}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b?)", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_STEP: Final = 1_000
_MAX_DAYS: Final = 36_500


def span(seconds: float) -> str:
    """Return a length of time: ``3.2 s``, ``4m05s``, ``2h10m``, ``3d04h``."""
    if seconds < 0:
        # a clock was put back meanwhile
        return "?"
    whole = round(seconds)
    if whole < 100:  # noqa: PLR2004 - two digits before the point
        return f"{seconds:.1f} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def brief_span(ms: int) -> str:
    """Return how long something of milliseconds took: ``14 ms``, ``3.2 s``."""
    return f"{ms} ms" if ms < _STEP else span(ms / _STEP)


def iso(when: datetime) -> str:
    """Return a time as JSON has it: RFC 3339 in UTC with ``Z``."""
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def moment(when: datetime) -> str:
    """Return a time to the second, in UTC."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def size(count: int) -> str:
    """Return a number of bytes: ``512 B``, ``1.3 MB``."""
    if count < _STEP:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= _STEP
        if round(value, 1) < _STEP:
            return f"{value:.1f} {unit}"
    return f"{value / _STEP:.1f} TB"


def many(count: int, what: str, plural: str = "") -> str:
    """Return a number of things: ``1 file``, ``2 files``; ``plural`` where an s is not enough."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def printable(text: str, limit: int) -> str:
    """Return a text as one line of at most ``limit`` characters that moves no cursor and changes no colour."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text[: 4 * limit]).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def read_span(option: str, text: str) -> timedelta:
    """Return the length of time a person typed, such as ``30d``. Raises BadInput E_SPAN."""
    found = _SPAN.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _SPAN_UNITS[found[2]] if found else 0.0
    if found is None or seconds > _MAX_DAYS * _DAY:
        raise BadInput(
            "E_SPAN",
            f"{option} {text!r} is no length of time",
            mend="write a number and s, m, h, d or w: 30d",
        )
    return timedelta(seconds=seconds)


def read_size(option: str, text: str) -> int:
    """Return the bytes a person typed: units count in thousands, those like GiB in 1024s. Raises BadInput E_SIZE."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise BadInput(
            "E_SIZE", f"{option} {text!r} is no size", mend="write a number and B, kB, MB or GB: 5GB"
        )
    number, unit, binary = found.groups()
    return int(float(number) * (1_024 if binary else _STEP) ** _POWERS[unit.lower()])
