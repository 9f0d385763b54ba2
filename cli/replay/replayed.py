"""How a replay is shown: every decision with its inputs, then the first divergence or ``replay: ok``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cli.replay.offline import Report
from cli.words import many


@dataclass(frozen=True)
class Replayed:
    """A workflow with the report of each of its executions, the oldest first."""

    label: str
    reports: Sequence[Report]

    @property
    def verdict(self) -> Literal["ok", "diverged", "failed"]:
        """Whether the code did what the histories say."""
        if self._worst.failure is None:
            return "ok"
        return "diverged" if self._worst.non_deterministic else "failed"

    @property
    def exit_code(self) -> int:
        """That of the first execution that is not clean, else 0."""
        return self._worst.exit_code

    @property
    def _worst(self) -> Report:
        return next((report for report in self.reports if report.failure is not None), self.reports[-1])

    def whole(self) -> str:
        """Return every decision of every execution, and how each replay ended."""
        count = len(self.reports)
        blocks = []
        for number, report in enumerate(self.reports, 1):
            place = f", execution {number} of {count} ({report.run_id})" if count > 1 else ""
            blocks.append("\n".join(line.replace("\n", " ") for line in _lines(report, place)))
        return "\n\n".join(blocks)

    def line(self) -> str:
        """Return how much was replayed, or what went wrong first."""
        worst, count = self._worst, len(self.reports)
        if worst.failure is not None:
            place = f"execution {self.reports.index(worst) + 1} of {count}, " if count > 1 else ""
            return f"{self.label}: {place}{_fault(worst)}"
        executions = f"{many(count, 'execution')}, " if count > 1 else ""
        events = sum(report.events for report in self.reports)
        decisions = sum(len(report.heard) for report in self.reports)
        return f"{self.label}: {executions}{events} events, {many(decisions, 'decision')}, {_end(worst)}"

    def data(self) -> dict[str, Any]:
        """Return the report of one execution as it is, several as a list."""
        reports = [_data(report) for report in self.reports]
        both = {"source": self.label, "verdict": self.verdict}
        return {**both, **reports[0]} if len(reports) == 1 else {**both, "executions": reports}


def _fault(report: Report) -> str:
    if report.divergence is not None:
        return f"event {report.divergence.event}, expected {report.divergence.expected}"
    return " ".join((report.failure or "").split())


def _end(report: Report) -> str:
    return report.closed or "still running"


def _data(report: Report) -> dict[str, Any]:
    return {
        "workflow_id": report.workflow_id,
        "run_id": report.run_id,
        "events": report.events,
        "closed": report.closed,
        "decisions": report.decisions,
        "failure": report.failure,
        "non_deterministic": report.non_deterministic,
        "divergence": asdict(report.divergence) if report.divergence else None,
    }


def _lines(report: Report, place: str) -> Iterator[str]:
    unfinished = "" if report.closed in {"completed", "failed"} else f", {_end(report)}"
    decisions = many(len(report.heard), "routing decision")
    yield f"workflow {report.workflow_id}{place}: {report.events} events, {decisions}{unfinished}"
    for number, decision in enumerate(report.decisions, 1):
        yield from _decision_lines(number, decision)
    yield ""
    if report.divergence is not None:
        yield "Non-determinism: the code does not do what the history says."
        yield f"   event     {report.divergence.event}"
        yield f"   expected  {report.divergence.expected}"
        yield f"   got       {report.divergence.got}"
    elif report.non_deterministic:
        yield "Non-determinism: the code does not do what the history says. Where, is looked for without --debug."
        yield f"   got       {report.failure}"
    elif report.failure is not None:
        yield f"The workflow's code failed: {report.failure}"
    else:
        yield "replay: ok"


def _decision_lines(number: int, decision: dict[str, Any]) -> Iterator[str]:
    outcome, facts = decision["outcome"], decision["facts"]
    target = f" {outcome['next_step_id']}" if outcome.get("next_step_id") else ""
    place = f"{decision['step']} #{decision['visit']} (event {decision['event']})"
    left = f", exit {outcome['exit']}" if outcome.get("exit") else ""
    yield ""
    yield f"{number}. {place}: {outcome['decision']}{target}"
    yield f"   why     {outcome.get('explanation') or outcome.get('reason', '')}"
    yield f"   source  {outcome.get('source', 'deterministic')}{left}"
    yield f"   facts   {json.dumps(facts, ensure_ascii=False, sort_keys=True)}"
    yield f"   loops   {json.dumps(decision['loops'], sort_keys=True)}"
