"""Routing: one pure driver, the rules that end loops, and what they are decided from.

Everything here is a function of its arguments, so a history alone can be decided again and explained.
"""

from __future__ import annotations

from workflows.routing.driver import decide
from workflows.routing.exits import microloop_exit
from workflows.routing.graph import (
    back_edges,
    body,
    find_unbounded,
    forward,
    no_path_to_terminal,
    successors,
    unreachable,
)
from workflows.routing.outcome import Measurement, RequiredGate, RunOutcome, TerminalOutcome, run_outcome
from workflows.routing.state import begin, current_iteration, observe, transition
from workflows.routing.status import failure_signature, verification

__all__ = [
    "Measurement",
    "RequiredGate",
    "RunOutcome",
    "TerminalOutcome",
    "back_edges",
    "begin",
    "body",
    "current_iteration",
    "decide",
    "failure_signature",
    "find_unbounded",
    "forward",
    "microloop_exit",
    "no_path_to_terminal",
    "observe",
    "run_outcome",
    "successors",
    "transition",
    "unreachable",
    "verification",
]
