"""Rules that a repository has for its agents, and rules of nobody who was named; which of them a model was told."""

from __future__ import annotations

import json
from pathlib import Path

from model_servers.script import Seen, Turn, turn

from transports.conformance_bench import HOUSE_RULE, STEERED, STRANGE_RULE


def post_rules(workspace: Path, name: str) -> None:
    """Put instructions into a workspace, and others into the folder above it."""
    (workspace / name).write_text(f"{HOUSE_RULE}\n")
    (workspace.parent / name).write_text(f"{STRANGE_RULE}\n")


def say_rules(seen: Seen) -> Turn:
    """Say which of the rules stand in a request."""
    told = json.dumps(seen.raw)
    return turn(" ".join(rule for rule in (HOUSE_RULE, STRANGE_RULE) if rule in told) or "I was told none.")


def is_steered(seen: Seen) -> bool:
    """Tell whether the agent was told what agents are told while they work; programs word it in a role of their own."""
    return any(STEERED in text for role, text in seen.texts if role != "assistant")
