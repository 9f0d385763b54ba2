"""The closed sets of names a flow file may use."""

from __future__ import annotations

from schemas.common import STEP_ID_PATTERN

NAME_PATTERN = STEP_ID_PATTERN
"""What names of flows, agents and scenarios look like: never a path."""

REPORTS_COST: dict[str, bool] = {
    "stub": True,
    "claude-sdk": True,
    "claude-cli": True,
    "gemini-cli": False,
    "codex": False,
    "gemini-api": False,
    "openai-api": False,
    "anthropic-api": False,
}
"""Every transport there is, and whether it says what its calls cost in US dollars."""

COUNTS_CYCLES = frozenset({"gemini-api", "openai-api", "anthropic-api"})
"""Transports with a tool loop of the engine's own, whose cycles a budget can bound. An agent's program keeps its to itself."""

TRANSPORTS = frozenset(REPORTS_COST)
POLICIES = frozenset({"read-only", "test", "full"})
SCORERS: frozenset[str] = frozenset()
"""No scorer exists in this version: loops are ended by gates."""

MAX_CHAIN = 5
"""How many flows may follow one another, the first one counted."""
