"""The workflow's log: silent on replay, with every routing decision at DEBUG."""

from __future__ import annotations

import logging

from temporalio import workflow

from schemas.facts import StepFacts
from schemas.routing import RoutingOutcome, RoutingState

DECISION = "routing decision"
"""Message of the record that carries a decision with its inputs (``step``, ``visit``, ``loops``, ``facts``, ``outcome``).

Beside it stands ``decided_at``, the time of the state it was made from.
"""

logger = workflow.LoggerAdapter(logging.getLogger("stepwise.workflows"), None)


def log_decision(
    step_id: str, visit: int, state: RoutingState | None, facts: StepFacts, outcome: RoutingOutcome
) -> None:
    """Log one decision with everything it was made from."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    loops = {step: len(loop.iterations) for step, loop in state.loops.items()} if state else {}
    decision = {
        "event": workflow.info().get_current_history_length(),
        "step": step_id,
        "visit": visit,
        "loops": loops,
        "facts": facts.model_dump(mode="json", exclude_defaults=True),
        "outcome": outcome.model_dump(mode="json", exclude_defaults=True),
    }
    decided_at = state.now if state else workflow.now()
    logger.debug(DECISION, extra={"decision": decision, "decided_at": decided_at})
