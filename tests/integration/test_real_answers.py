"""Real agents when they are asked for their hand-off: one that still wants to write, one whose provider refuses."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from agents_kit import agents
from conftest import Rig
from flow_kit import flow, gate, linear, step
from model_servers.minds import Player, is_structured
from model_servers.script import Refuse, Reply, Seen, Write, turn
from run_kit import READ_ONLY, ended, resume, start, waiting

CLAUDE = ("claude-sdk", "claude-cli")
SPEC = flow(step("only", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY))
LATER = "late.txt"
LATER_S = 50
"""Longer than the program waits within a turn, in seconds; of longer waits it does not tell how long."""


def works(seen: Seen) -> Sequence[Reply]:
    """Do what the first step asks for."""
    return [turn(Write("ok", "yes\n"))] if "Do only." in seen.asked else []


@dataclass
class FirstAsked:
    """Plays the flow, but for the first ``count`` times an answer is asked for: then it replies otherwise."""

    otherwise: Reply
    count: int = 1
    player: Player = field(default_factory=lambda: Player(works))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, seen: Seen) -> Reply:
        """Answer a request."""
        if is_structured(seen):
            with self.lock:
                self.count -= 1
                if self.count >= 0:
                    return self.otherwise
        return self.player(seen)


@pytest.mark.parametrize("name", CLAUDE)
async def test_a_write_in_the_hand_off_is_blocked_and_stands_in_receipt_and_transcript(
    rig: Rig, repo: Path, name: str
) -> None:
    with agents({name: FirstAsked(turn("One more.", Write(LATER, "x")))}) as env:
        rig.worker(**env)
        start(rig, f"sly-{name}", repo, SPEC, None, transport=name)
        result = await ended(rig, f"sly-{name}", "verified")
    only = result.receipts[0]
    (blocked,) = only.tool_calls.blocked_calls
    assert (blocked.phase, blocked.code) == ("finalize", "read_only")
    assert blocked.reason == "in this turn you may only read, and answer"
    assert blocked.tool_name in {"Write", "mcp__stepwise__write_file"}
    assert (only.tool_calls.count, only.tool_calls.blocked) == (2, 1)
    work, finalize = only.phases
    assert (work.session, finalize.session) == ("cold", "hot")
    assert (work.blocked, finalize.blocked) == (0, 1)
    assert finalize.transcript is not None
    assert finalize.calls is not None
    for ref in (finalize.transcript, finalize.calls):
        assert LATER in rig.evidence.read(ref).decode()
    assert only.claimed["headline"] == "It is done.", "it answered after that"
    assert sum(one.token_counts.total for one in result.receipts) == result.usage.total > 0


@pytest.mark.parametrize("name", CLAUDE)
async def test_a_limit_in_the_hand_off_is_waited_for_and_the_session_is_asked_again(
    rig: Rig, repo: Path, name: str
) -> None:
    mind = FirstAsked(Refuse(429, retry_after=LATER_S))
    begun = datetime.now(UTC)
    with agents({name: mind}) as env:
        rig.worker(**env)
        start(rig, f"late-{name}", repo, SPEC, None, transport=name)
        status = await waiting(rig, f"late-{name}", "rate_limit")
        until = datetime.fromisoformat(status["waiting"]["deadline"])
        assert until - begun > timedelta(seconds=LATER_S), "as long as the provider said"
        await resume(rig, f"late-{name}")
        result = await ended(rig, f"late-{name}", "verified")
    limited, again, _ = result.receipts
    assert limited.phases[-1].error is not None
    assert (limited.phases[-1].phase, limited.phases[-1].error.code) == ("finalize", "rate_limited")
    assert limited.phases[-1].transcript is not None
    assert '"rate_limited"' in rig.evidence.read(limited.phases[-1].transcript).decode()
    assert [(one.phase, one.attempt, one.session) for one in again.phases] == [
        ("work", 1, "cold"),
        ("finalize", 2, "hot"),
    ]
    assert (again.verification_status, again.claimed["headline"]) == ("VERIFIED", "It is done.")
    assert result.git is not None
    assert sum(one.token_counts.total for one in result.receipts) == result.usage.total


async def test_a_key_that_is_refused_in_the_hand_off_ends_the_run_and_says_which(
    rig: Rig, repo: Path
) -> None:
    with agents({"claude-sdk": FirstAsked(Refuse(401), count=99)}) as env:
        rig.worker(**env)
        start(rig, "no-key", repo, SPEC, None, transport="claude-sdk")
        result = await ended(rig, "no-key", "failed")
    assert result.error is not None
    assert result.error.code == "auth_failed"
    assert "ANTHROPIC_API_KEY" in result.summary


async def test_a_provider_that_is_overloaded_in_the_hand_off_is_asked_again(rig: Rig, repo: Path) -> None:
    # It is asked three times in one turn before that counts as overloaded.
    mind = FirstAsked(Refuse(529), count=3)
    with agents({"claude-sdk": mind}) as env:
        rig.worker(**env)
        start(rig, "busy", repo, SPEC, None, transport="claude-sdk")
        result = await ended(rig, "busy", "verified")
    first, again, _ = result.receipts
    assert first.phases[-1].error is not None
    assert (first.execution_status, first.phases[-1].error.code) == ("failed", "provider_overloaded")
    assert (again.attempt, again.phases[-1].session) == (2, "resumed")
