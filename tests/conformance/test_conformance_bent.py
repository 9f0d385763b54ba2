"""Each check of the conformance suite finds out a transport of which one thing is not as it says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from claude_kit import DRAFT
from liars import (
    Bent,
    Cold,
    Deafened,
    Drowsy,
    Leaving,
    Mute,
    Pretending,
    Rewinding,
    Stubborn,
    calling,
    ending,
    failing,
    handing,
    limited_until,
    mishearing,
    saying,
    without,
)
from stub_bench import StubBench
from test_conformance_liars import LIARS

from system import processes
from transports.conformance import CHECKS, prove
from transports.conformance_bench import HOUSE_RULE, HUGE_CHARS, STRANGE_RULE, NotConforming
from transports.port import Transport

NEVER: Final = "not done within"


@pytest_asyncio.fixture(autouse=True)
async def no_process_is_left() -> AsyncIterator[None]:
    yield
    while Leaving.left:
        await Leaving.left.pop().stop(0)
    await processes.shutdown()


COMPLETED = ending(end="completed", error=None)
FORGOTTEN = handing(value={**DRAFT, "notes_for_next_step": ""})
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FOR_GOOD = Bent(ends=failing(retryable=False))
WHOLE = calling(output="x" * HUGE_CHARS)
BOTH_RULES = saying(f"{HOUSE_RULE} {STRANGE_RULE}")

BENT: Final[Sequence[tuple[Transport, str, str]]] = (
    (Bent(emits=without("session_opened")), "opens_and_ends", "was emitted for"),
    (Bent(emits=without("tool_ended")), "observes_tools", "ended well set"),
    (Bent(hands=FORGOTTEN), "resumes", "does not know"),
    (Bent(hands=FORGOTTEN), "carries_context_across_steps", "does not know"),
    (Bent(emits=calling(blocked=False)), "intercepts_tools", "reported as blocked"),
    (Bent(opens=mishearing), "passes_questions_on", "does not know the answer"),
    (Bent(ends=COMPLETED), "parks_on_questions", "ended as completed"),
    (Bent(session=Stubborn), "ends_when_cancelled", "cancelled work returned"),
    (Bent(session=Cold), "is_hot", "calls itself cold"),
    (Bent(hands=FORGOTTEN), "is_hot", "does not know"),
    (Bent(hands=handing(value={"status": "fine"})), "answers", "is no handoff"),
    (Bent(hands=handing(reprompts=0)), "asks_again", "asked again 0 times"),
    (Bent(hands=handing(value={})), "asks_again", "is no handoff"),
    (Bent(hands=handing(value=DRAFT, error=None)), "gives_up_asking", "was taken"),
    (Bent(emits=without("text")), "says", "it said ''"),
    (Bent(emits=without("usage")), "says", "no tokens"),
    (Bent(emits=calling(output="")), "runs_commands", "printed ''"),
    (Bent(emits=calling(success=False)), "runs_commands", "its calls were"),
    (Bent(emits=calling(call_id="1"), claims={"parallel_calls": True}), "calls_in_parallel", "begun"),
    (Bent(emits=calling(blocked=False)), "blocks_dangerous_calls", "its calls were"),
    (Bent(emits=calling(blocked_reason="no")), "blocks_dangerous_calls", "the reason is"),
    (Bent(ends=COMPLETED), "stops_while_it_streams", "ended as completed"),
    (Bent(ends=COMPLETED), "stops_while_a_tool_runs", "ended as completed"),
    (Bent(session=Drowsy), "stops_at_the_start", NEVER),
    (Bent(session=Leaving), "leaves_nothing_in_the_background", "processes are left"),
    (Bent(claims={"subagents": True}), "reports_subagents", "begun \\[\\]"),
    (Bent(ends=ending(end="failed")), "waits_for_its_provider", "ended as failed"),
    (Bent(ends=ending(retry_at=LONG_AGO)), "waits_for_its_provider", "before it was refused"),
    (Bent(emits=without("rate_limited")), "waits_for_its_provider", "told was"),
    (Bent(ends=ending(end="failed")), "waits_without_being_told_how_long", "ended as failed"),
    (Bent(emits=without("rate_limited")), "waits_without_being_told_how_long", "told was"),
    (limited_until(None), "knows_until_when", "go on at None"),
    (limited_until(timedelta(hours=1)), "knows_until_when", "and not between"),
    (limited_until(timedelta(seconds=-20)), "knows_until_when", "and not between"),
    (FOR_GOOD, "survives_a_broken_provider", "retryable=False"),
    (FOR_GOOD, "survives_an_overloaded_provider", "retryable=False"),
    (FOR_GOOD, "survives_a_crash", "retryable=False"),
    (FOR_GOOD, "survives_a_cut_stream", "retryable=False"),
    (Bent(ends=failing(retryable=True)), "fails_with_a_bad_key", "tried again"),
    (Bent(ends=failing(message="set_it")), "fails_with_a_bad_key", "what to set"),
    (Bent(emits=WHOLE), "survives_huge_lines", "kept are"),
    (Bent(session=Mute), "hears_while_it_works", "takes no words"),
    (Bent(session=Deafened), "hears_while_it_works", NEVER),
    (Bent(claims={"output_format": True}), "asks_by_schema", "there was no answer"),
    (Bent(claims={"native_tools": True}), "works_with_its_own_tools", "these are ours"),
    (Bent(claims={"hooks": True}), "denies_what_nobody_judged", "took effect"),
    (Bent(claims={"sandbox": True}), "keeps_commands_inside", "beside the workspace"),
    (Bent(claims={"project_context": True}), "knows_the_house_rules", "knows no rule"),
    (Bent(emits=BOTH_RULES, claims={"project_context": True}), "knows_the_house_rules", "folder above"),
    (Bent(emits=saying(HOUSE_RULE)), "is_told_no_rules_by_strangers", "it was told"),
    (Bent(claims={"rewind": True}), "takes_work_back", "nothing takes work back"),
    (Bent(session=Pretending, claims={"rewind": True}), "takes_work_back", "was taken back"),
)
"""Stubs of which one thing is bent, the check that finds it out, and how that is said."""


@pytest.mark.parametrize(
    ("transport", "check_name", "message"),
    [pytest.param(*liar, id=f"{liar[1]}-{number}") for number, liar in enumerate(BENT)],
)
async def test_a_stub_that_is_bent_is_found_out(
    transport: Transport, check_name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message == NEVER:
        monkeypatch.setattr("transports.conformance.LIMIT_S", 0.5)
    check = next(check for check in CHECKS if check.name == check_name)
    bench = StubBench(tmp_path, transport=transport)
    assert check.applies(bench)
    with pytest.raises(NotConforming, match=message):
        await prove(check, bench)


def test_every_check_finds_somebody_out() -> None:
    liars = {check_name for _, check_name, _ in (*BENT, *LIARS)}
    # The one that does not stream has a test of its own.
    assert liars | {"streams"} == {check.name for check in CHECKS}


async def test_work_that_is_really_taken_back_is_held(tmp_path: Path) -> None:
    check = next(check for check in CHECKS if check.name == "takes_work_back")
    await prove(check, StubBench(tmp_path, transport=Bent(session=Rewinding, claims={"rewind": True})))
