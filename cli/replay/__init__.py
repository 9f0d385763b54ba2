"""``stepwise replay``: histories run again offline, or decided again under a changed flow."""

from __future__ import annotations

from cli.replay.command import replay
from cli.replay.offline import replay_history
from cli.replay.sources import load_history

__all__ = ["load_history", "replay", "replay_history"]
