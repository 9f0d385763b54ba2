"""What a run ends as, from the trees and the gates alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from schemas.common import Durable
from schemas.flow import GateParser

RunOutcome = Literal["verified", "nothing_to_do", "unverified", "blocked", "stopped", "failed"]
TerminalOutcome = Literal["blocked", "stopped", "exhausted"]


class RequiredGate(Durable):
    """A gate that must pass: one of a step the run visited and nobody skipped."""

    step: str
    gate: str
    argv: list[str]
    parse: GateParser = "exit_code"

    @property
    def key(self) -> str:
        """How it is named to be measured: ``<step>/<gate>``."""
        return f"{self.step}/{self.gate}"


class Measurement(Durable):
    """What a gate said of a tree; ``passed`` is False also where it ran but could not be read."""

    step: str
    gate: str
    tree: str
    passed: bool


def run_outcome(
    *,
    base_tree: str,
    final_tree: str,
    terminal_outcome: TerminalOutcome | None,
    required: Sequence[RequiredGate],
    measurements: Sequence[Measurement],
) -> RunOutcome | list[str]:
    """Return what the run ends as, or the ``<step>/<gate>`` that must first be measured on the final tree.

    ``measurements`` are in the order they were made, those of the base tree among them; of several on the final
    tree the last counts. Gates with the same command and parser are one gate: measured once, for all.
    """
    if terminal_outcome is not None:
        return "failed" if terminal_outcome == "exhausted" else terminal_outcome
    seen = [found for found in measurements if found.tree == final_tree]
    missing: list[str] = []
    for group in _alike(required):
        names = [(gate.step, gate.gate) for gate in group]
        results = [found.passed for found in seen if (found.step, found.gate) in names]
        if not results:
            missing.append(group[0].key)
        elif not results[-1]:
            return "unverified"
    if missing:
        return missing
    if final_tree == base_tree:
        return "nothing_to_do"
    return "verified" if required else "unverified"


def _alike(required: Sequence[RequiredGate]) -> list[list[RequiredGate]]:
    groups: dict[tuple[tuple[str, ...], str], list[RequiredGate]] = {}
    for gate in required:
        groups.setdefault((tuple(gate.argv), gate.parse), []).append(gate)
    return list(groups.values())
