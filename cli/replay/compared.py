"""How a what-if comparison is shown: each decision that differs, and where the paths part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from cli.replay.what_if import Comparison, Difference
from cli.words import many

DIFFERS: Final = 1


@dataclass(frozen=True)
class Compared:
    """One run, and what deciding it again under a flow file showed."""

    label: str
    flow_file: str
    comparison: Comparison

    @property
    def verdict(self) -> Literal["same", "changed"]:
        """Whether any decision differs."""
        return "changed" if self.comparison.differences else "same"

    @property
    def exit_code(self) -> int:
        """1 for a difference."""
        return DIFFERS if self.comparison.differences else 0

    def whole(self) -> str:
        """Return each decision that differs, recorded and new, and where the paths part."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        comparison = self.comparison
        flow = f"flow {comparison.flow} decided again under {self.flow_file}"
        yield f"{self.label}: {_decisions(comparison)} of {flow}"
        for one in comparison.differences:
            yield ""
            yield f"{one.step} #{one.visit}, iteration {one.iteration} (event {one.event})"
            yield f"   recorded  {one.recorded.to}: {one.recorded.why}"
            yield f"   new       {one.new.to}: {one.new.why}"
        if comparison.parted:
            yield f"   From here on the run would have gone another way; {_lost(comparison)}."
        yield ""
        for note in comparison.notes:
            yield f"note: {note}"
        count = len(comparison.differences)
        differ = "differs" if count == 1 else "differ"
        yield f"what-if: {many(count, 'decision') if count else 'no decision'} {differ if count else 'differs'}"

    def line(self) -> str:
        """Return how many decisions there are, and each that differs."""
        comparison = self.comparison
        notes = f", {many(len(comparison.notes), 'note')}" if comparison.notes else ""
        said = [f"{_decisions(comparison)}{notes}", *(_short(one) for one in comparison.differences)]
        if comparison.parted:
            said.append(_lost(comparison))
        return f"{self.label}: {'; '.join(said)}"

    def data(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        compared = asdict(self.comparison)
        return {
            "source": self.label,
            "verdict": self.verdict,
            "parted": self.comparison.parted,
            **compared,
        }


def _decisions(comparison: Comparison) -> str:
    return many(comparison.compared + comparison.not_compared, "decision")


def _lost(comparison: Comparison) -> str:
    if not comparison.not_compared:
        return "no later decision is in this history"
    return f"{many(comparison.not_compared, 'later decision')} cannot be compared"


def _short(one: Difference) -> str:
    return f"{one.step} #{one.visit} iteration {one.iteration}: {one.recorded.to} -> {one.new.to}"
