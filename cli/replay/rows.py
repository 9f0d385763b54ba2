"""What was found of each history, whatever was asked: a line, JSON, an exit code; and the summary of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, Protocol

from cli.words import many
from schemas.errors import BadInput

BAD_INPUT: Final = 2
_CODES: Final = (1, 3, BAD_INPUT)
"""Exit codes, the one that counts most first."""


class Row(Protocol):
    """One history, or one workflow with all its executions: how it came out."""

    @property
    def verdict(self) -> str:
        """How it came out, in a word."""

    @property
    def exit_code(self) -> int:
        """What the command would exit with for this one alone."""

    def whole(self) -> str:
        """Return everything there is to say, in lines."""

    def line(self) -> str:
        """Return it in a line, as one of many."""

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""


@dataclass(frozen=True)
class LeftOut:
    """What was named and cannot be used (``bad``), or what this is not about (``skipped``), and why."""

    label: str
    verdict: Literal["bad", "skipped"]
    why: str
    mend: str | None = None

    @property
    def exit_code(self) -> int:
        """2 for what is bad; what is skipped is no fault beside others."""
        return BAD_INPUT if self.verdict == "bad" else 0

    def refuse(self) -> NoReturn:
        """Raise BadInput: nothing else was named."""
        raise BadInput("E_HISTORY", self.why, mend=self.mend)

    def whole(self) -> str:
        """Return why it is left out."""
        return self.why

    def line(self) -> str:
        """Return why it is left out."""
        return " ".join(self.why.split())

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"source": self.label, "verdict": self.verdict, "why": self.why}


def exit_code(rows: Sequence[Row]) -> int:
    """Return the exit code of all: the first of 1, 3, 2 that is one of theirs; 2 too where all were left out."""
    found = {row.exit_code for row in rows}
    if all(isinstance(row, LeftOut) for row in rows):
        found.add(BAD_INPUT)
    return next((code for code in _CODES if code in found), 0)


def summary(rows: Sequence[Row]) -> str:
    """Return how many of each verdict there were: ``3 histories: 2 ok, 1 diverged``."""
    each = ", ".join(f"{number} {word}" for word, number in _counts(rows).items())
    return f"{many(len(rows), 'history', 'histories')}: {each}"


def as_data(rows: Sequence[Row], *, is_one: bool) -> dict[str, Any]:
    """Return one row for JSON as it is, several with a summary."""
    if is_one:
        return rows[0].data()
    return {"histories": [row.data() for row in rows], "summary": _counts(rows)}


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    return dict(Counter(row.verdict for row in rows))
