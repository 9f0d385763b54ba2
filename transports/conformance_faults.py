"""More checks: what tools do, and what goes wrong with programs and providers."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from schemas.cutting import MAX_NOTE, MAX_TOOL_TEXT
from schemas.tools import NormalizedToolCall
from transports.conformance_bench import (
    MARKER,
    OTHER,
    RETRY_S,
    WORDS,
    Behaviour,
    Bench,
    Heard,
    NotConforming,
    child_of,
    opened,
    require,
    require_interrupted,
    said_by,
    working,
)
from transports.port import WorkOutcome, WorkRequest

_GRACE_S: Final = 30.0
_ROUNDED_S: Final = 2
# Programs wait longer by chance, so that not all of them come back at once.
_SPREAD: Final = 1.25
_VARIABLE: Final = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\b")


async def says(bench: Bench) -> None:
    """Prove that what the agent says is heard, and what it used is counted."""
    outcome, heard = await _turn(bench, "say")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    said = said_by(heard, "assistant")
    require(WORDS in said, f"it said {said!r}")
    used = sum(event.usage.total for event in heard.events if event.kind == "usage")
    require(used > 0, "no tokens were counted")


async def runs_commands(bench: Bench) -> None:
    """Prove that a command runs in the workspace, after what was written before it, and its output is seen."""
    outcome, heard = await _turn(bench, "command")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    match _ended(heard):
        case [written, printed] if written.success and printed.success:
            require("here" in (printed.output or ""), f"the command printed {printed.output!r}")
        case calls:
            raise NotConforming(f"its calls were {calls}")


async def calls_in_parallel(bench: Bench) -> None:
    """Prove that calls made at once are each seen to begin and to end once."""
    outcome, heard = await _turn(bench, "parallel")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    workspace = bench.spec("parallel").workspace
    require(all((workspace / name).is_file() for name in (MARKER, OTHER)), "not both files were written")
    began = [event.call_id for event in heard.events if event.kind == "tool_started"]
    ended = [call.call_id for call in _ended(heard)]
    twice = len(set(began)) == len(began) == len((MARKER, OTHER))
    require(twice and sorted(began) == sorted(map(str, ended)), f"begun {began}, ended {ended}")


async def blocks_dangerous_calls(bench: Bench) -> None:
    """Prove that a call that policy denies has no effect, is reported with code and reason, and the turn goes on."""
    outcome, heard = await _turn(bench, "dangerous")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    blocked = [call for call in _ended(heard) if call.blocked]
    require(len(blocked) == 1, f"its calls were {_ended(heard)}")
    reason = blocked[0].blocked_reason or ""
    require(not blocked[0].success and ": " in reason, f"the reason is {reason!r}")


async def stops_while_it_streams(bench: Bench) -> None:
    """Prove that an interrupt ends an answer in its midst."""
    async with opened(bench, bench.spec("stream")) as (session, heard), working(session, heard) as work:
        await heard.until(lambda event: event.kind == "text" and event.role == "assistant")
        await session.interrupt(_GRACE_S)
        require_interrupted(await work)


async def stops_while_a_tool_runs(bench: Bench) -> None:
    """Prove that an interrupt ends a command in its midst, with all its processes."""
    async with opened(bench, bench.spec("tool")) as (session, heard), working(session, heard) as work:
        await heard.until(lambda event: event.kind == "tool_started")
        await child_of(bench)
        await session.interrupt(_GRACE_S)
        require_interrupted(await work)


async def stops_at_the_start(bench: Bench) -> None:
    """Prove that an interrupt that comes right at the start of a turn is not lost."""
    async with opened(bench, bench.spec("stream")) as (session, heard), working(session, heard) as work:
        await asyncio.sleep(0)
        await session.interrupt(_GRACE_S)
        require_interrupted(await work)


async def leaves_nothing_in_the_background(bench: Bench) -> None:
    """Prove that what the agent left running ends with its session at the latest; looked at once that is closed."""
    outcome, _ = await _turn(bench, "background")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")


async def reports_subagents(bench: Bench) -> None:
    """Prove that a sub-agent is seen to begin and to end, and its calls are seen as its own."""
    outcome, heard = await _turn(bench, "subagent")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    began = [event.agent_id for event in heard.events if event.kind == "subagent_started"]
    ended = [event.agent_id for event in heard.events if event.kind == "subagent_ended"]
    require(len(began) == 1 and began == ended, f"begun {began}, ended {ended}")
    own = [call for call in _ended(heard) if call.agent_id == began[0]]
    require(any(call.success for call in own), "no call of the sub-agent was seen")
    require((bench.spec("subagent").workspace / MARKER).is_file(), "the sub-agent wrote nothing")


async def waits_for_its_provider(bench: Bench) -> None:
    """Prove that a provider that refuses for a while ends the turn as such, and that is told."""
    await _refused_for_now(bench, "limited")


async def waits_without_being_told_how_long(bench: Bench) -> None:
    """Prove the same of a provider that does not say for how long."""
    until = await _refused_for_now(bench, "limited_untold")
    require(until is None, f"it may go on at {until}, which nobody said")


async def knows_until_when(bench: Bench) -> None:
    """Prove that a turn may go on when the provider said, or a little later, and not before."""
    begun = datetime.now(UTC)
    until = await _refused_for_now(bench, "limited")
    soonest = begun + timedelta(seconds=RETRY_S - _ROUNDED_S)
    latest = datetime.now(UTC) + timedelta(seconds=RETRY_S * _SPREAD + _ROUNDED_S)
    in_time = until is not None and soonest <= until <= latest
    require(in_time, f"it may go on at {until}, and not between {soonest} and {latest}")


async def survives_a_broken_provider(bench: Bench) -> None:
    """Prove that a provider that fails by itself is a failure that may be tried again."""
    await _may_be_tried_again(bench, "broken")


async def survives_an_overloaded_provider(bench: Bench) -> None:
    """Prove that a provider that has too much to do is a failure that may be tried again."""
    await _may_be_tried_again(bench, "overloaded")


async def fails_with_a_bad_key(bench: Bench) -> None:
    """Prove that a key that nobody knows ends the turn for good, and what to set is said."""
    outcome, _ = await _turn(bench, "bad_key")
    error = outcome.error
    require(outcome.end == "failed" and error is not None, f"it ended as {outcome.end}")
    if error is not None:
        require(not error.retryable, "it would be tried again")
        says = _VARIABLE.search(error.message) is not None
        require(says, f"it does not say what to set: {error.message}")


async def survives_a_crash(bench: Bench) -> None:
    """Prove that the end of the agent's program is a failure that may be tried again, and nothing is left."""
    await _may_be_tried_again(bench, "crash")


async def survives_a_cut_stream(bench: Bench) -> None:
    """Prove that a provider whose answers break off is a failure that may be tried again."""
    await _may_be_tried_again(bench, "cut")


async def survives_huge_lines(bench: Bench) -> None:
    """Prove that output of any size neither ends the session nor is kept whole."""
    outcome, heard = await _turn(bench, "huge")
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    sizes = [len(call.output or "") for call in _ended(heard)]
    require(len(sizes) == 1 and sizes[0] <= MAX_TOOL_TEXT + MAX_NOTE, f"kept are {sizes} characters")


async def _refused_for_now(bench: Bench, behaviour: Behaviour) -> datetime | None:
    """Run a turn that its provider refuses; return the time from which it may go on, as it was told."""
    begun = datetime.now(UTC)
    outcome, heard = await _turn(bench, behaviour)
    require(outcome.end == "rate_limited", f"it ended as {outcome.end}: {outcome.error}")
    until = outcome.retry_at
    require(until is None or until > begun, f"it may go on at {until}, before it was refused")
    told = [event.reset_at for event in heard.events if event.kind == "rate_limited"]
    require(until in told, f"told was {told}, not {until}")
    return until


async def _may_be_tried_again(bench: Bench, behaviour: Behaviour) -> None:
    outcome, _ = await _turn(bench, behaviour)
    error = outcome.error
    require(outcome.end == "failed" and error is not None and error.retryable, f"it ended as {outcome}")


async def _turn(bench: Bench, behaviour: Behaviour) -> tuple[WorkOutcome, Heard]:
    async with opened(bench, bench.spec(behaviour)) as (session, heard):
        return await session.work(WorkRequest("Do it."), heard.emit), heard


def _ended(heard: Heard) -> list[NormalizedToolCall]:
    return [event.call for event in heard.events if event.kind == "tool_ended"]
