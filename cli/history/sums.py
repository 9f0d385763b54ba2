"""What a run adds up to: visits, time, tokens, cost and gates of each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cli.history.events import Entry
from schemas.receipt import StepReceipt


@dataclass
class StepSum:
    """What one step of a flow took in all its visits, and how its gates went: before the run, and last.

    ``duration_ms`` is from the beginning of each attempt to its end, with what it waited for people meanwhile.
    """

    visits: set[int] = field(default_factory=set)
    attempts: int = 0
    status: str = ""
    skipped: bool = False
    duration_ms: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    gates: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, receipt: StepReceipt) -> None:
        """Count one attempt."""
        self.visits.add(receipt.visit)
        self.attempts += 1
        self.status, self.skipped = receipt.verification_status, False
        self.duration_ms += receipt.duration_ms
        self.tokens += receipt.token_counts.total
        self.cost_usd = _plus(self.cost_usd, receipt.cost_usd)
        for gate in receipt.gates:
            before = _verdict(gate.before.passed if gate.before else None)
            known = self.gates.get(gate.name)
            # A stopped attempt measures nothing, which says nothing about what was measured earlier.
            after = _verdict(gate.passed) if gate.measured or known is None else known[1]
            self.gates[gate.name] = (before, after)

    def as_data(self) -> dict[str, Any]:
        """Return the sums as JSON has them."""
        return {
            "visits": len(self.visits),
            "attempts": self.attempts,
            "status": self.status,
            "skipped": self.skipped,
            "duration_ms": self.duration_ms,
            "tokens": self.tokens,
            "cost_usd": self.cost_usd,
            "gates": {
                name: {"before": before, "after": after} for name, (before, after) in self.gates.items()
            },
        }


@dataclass
class Sums:
    """What a run adds up to, by flow and step, in the order of the first visits."""

    steps: dict[tuple[str, str], StepSum] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Sums:
        """Return the sums of a run's events: of its receipts, and of the visits it began, which may have left none.

        A step that a person skipped is marked so.
        """
        sums = cls()
        for entry in entries:
            if entry.source == "receipt":
                receipt = StepReceipt.model_validate(entry.data)
                sums.steps.setdefault((receipt.flow_key, receipt.step_id), StepSum()).add(receipt)
            elif entry.source != "journal":
                continue
            elif entry.kind == "step_started" and entry.flow and entry.visit:
                sums.steps.setdefault((entry.flow, entry.step), StepSum()).visits.add(entry.visit)
            elif entry.kind == "routed" and entry.data.get("decision") == "skip":
                sums.steps.setdefault((entry.flow, entry.step), StepSum()).skipped = True
        return sums

    @property
    def total(self) -> StepSum:
        """All steps together."""
        total = StepSum()
        for step in self.steps.values():
            total.attempts += step.attempts
            total.duration_ms += step.duration_ms
            total.tokens += step.tokens
            total.cost_usd = _plus(total.cost_usd, step.cost_usd)
        return total

    def before(self) -> dict[tuple[str, str], bool]:
        """Return what the gates of each step said before the first step, where they were measured then."""
        return {
            (step, name): before == "passed"
            for (_, step), one in self.steps.items()
            for name, (before, _) in one.gates.items()
            if before != "-"
        }

    def as_data(self) -> dict[str, Any]:
        """Return the sums as JSON has them."""
        total = self.total
        return {
            "steps": [
                {"flow": flow, "step": step, **one.as_data()} for (flow, step), one in self.steps.items()
            ],
            "total": {
                "attempts": total.attempts,
                "duration_ms": total.duration_ms,
                "tokens": total.tokens,
                "cost_usd": total.cost_usd,
            },
        }


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


def _verdict(passed: bool | None) -> str:
    return "-" if passed is None else "passed" if passed else "FAILED"
