"""What every transport has to hold, as checks: run them against a bench that can make its agent behave.

A claim of ``TransportCapabilities`` is true only where ``PROOFS`` names the check that shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Final

from transports import conformance_checks as checks
from transports import conformance_faults as faults
from transports import conformance_flags as flags
from transports import conformance_lost as lost
from transports.conformance_bench import LIMIT_S, Behaviour, Bench, NotConforming, nothing_left
from transports.port import TransportCapabilities


@dataclass(frozen=True)
class Check:
    """One thing a transport has to hold; ``claim`` is the flag it proves, None for what all have to hold."""

    name: str
    prove: Callable[[Bench], Awaitable[None]]
    claim: str | None
    needs: Behaviour

    def applies(self, bench: Bench) -> bool:
        """Tell whether the transport claims this and the bench can show it."""
        claimed = self.claim is None or self.claim in claims(bench.transport.capabilities)
        return claimed and self.needs in bench.behaviours


def claims(capabilities: TransportCapabilities) -> frozenset[str]:
    """Return the names of the flags that are set; a fall-back other than ``none`` is one."""
    claimed = {name for name, value in asdict(capabilities).items() if value is True}
    fallback = capabilities.structured_output_fallback != "none"
    return frozenset(claimed | ({"structured_output_fallback"} if fallback else set()))


def without_scenario(kind: type[TransportCapabilities] = TransportCapabilities) -> frozenset[str]:
    """Return the flags for which this suite has no scenario: one may not be added without."""
    named = {field.name for field in fields(kind) if field.default is False}
    return frozenset(named | {"structured_output_fallback"}) - PROOFS.keys()


def unproved(capabilities: TransportCapabilities) -> frozenset[str]:
    """Return the claims for which this suite has no proof: a transport may not make them."""
    return claims(capabilities) - PROOFS.keys()


async def prove(check: Check, bench: Bench) -> None:
    """Run a check within a minute; raises NotConforming, also when a process outlives its session."""
    try:
        async with asyncio.timeout(LIMIT_S):
            await check.prove(bench)
    except TimeoutError:
        raise NotConforming(f"{check.name}: not done within {LIMIT_S:g} seconds") from None
    await nothing_left(bench)


CHECKS: Final = (
    Check("opens_and_ends", checks.opens_and_ends, None, "idle"),
    Check("observes_tools", checks.observes_tools, "tool_observation", "write"),
    Check("keeps_read_only", checks.keeps_read_only, None, "write"),
    Check("intercepts_tools", checks.intercepts_tools, "tool_interception", "write"),
    Check("streams", checks.streams, "streaming", "piecemeal"),
    Check("obeys_interrupts", checks.obeys_interrupts, "interrupts", "hold"),
    Check("kills_what_hangs", checks.kills_what_hangs, None, "hang"),
    Check("ends_when_cancelled", checks.ends_when_cancelled, None, "hang"),
    Check("ends_when_closed", checks.ends_when_closed, None, "hang"),
    Check("is_hot", checks.is_hot, "hot_context", "write"),
    Check("resumes", checks.resumes, None, "hold"),
    Check(
        "carries_context_across_steps", checks.carries_context_across_steps, "context_across_steps", "hold"
    ),
    Check("refuses_unknown_sessions", checks.refuses_unknown_sessions, None, "idle"),
    Check("heals_empty_sessions", lost.heals_empty_sessions, None, "write"),
    Check("heals_torn_sessions", lost.heals_torn_sessions, None, "write"),
    Check("keeps_sessions_its_provider_refuses", lost.keeps_sessions_its_provider_refuses, None, "bad_key"),
    Check("answers", checks.answers, None, "idle"),
    Check("asks_again", checks.asks_again, "structured_output_fallback", "bad_once"),
    Check("gives_up_asking", checks.gives_up_asking, "structured_output_fallback", "bad_always"),
    Check("passes_questions_on", checks.passes_questions_on, "questions", "ask"),
    Check("parks_on_questions", checks.parks_on_questions, "questions", "ask"),
    Check("goes_on_with_an_answer", checks.goes_on_with_an_answer, "questions", "ask"),
    Check("stops_while_it_asks", checks.stops_while_it_asks, "questions", "ask"),
    Check("asks_before_calls", checks.asks_before_calls, "tool_interception", "call"),
    Check("parks_on_calls", checks.parks_on_calls, "tool_interception", "call"),
    Check("steers_only_work", checks.steers_only_work, None, "hold"),
    Check("says", faults.says, None, "say"),
    Check("runs_commands", faults.runs_commands, None, "command"),
    Check("calls_in_parallel", faults.calls_in_parallel, "parallel_calls", "parallel"),
    Check("blocks_dangerous_calls", faults.blocks_dangerous_calls, None, "dangerous"),
    Check("stops_while_it_streams", faults.stops_while_it_streams, None, "stream"),
    Check("stops_while_a_tool_runs", faults.stops_while_a_tool_runs, None, "tool"),
    Check("stops_at_the_start", faults.stops_at_the_start, None, "stream"),
    Check("leaves_nothing_in_the_background", faults.leaves_nothing_in_the_background, None, "background"),
    Check("reports_subagents", faults.reports_subagents, "subagents", "subagent"),
    Check("waits_for_its_provider", faults.waits_for_its_provider, None, "limited"),
    Check("knows_until_when", faults.knows_until_when, "retry_time", "limited"),
    Check(
        "waits_without_being_told_how_long", faults.waits_without_being_told_how_long, None, "limited_untold"
    ),
    Check("survives_a_broken_provider", faults.survives_a_broken_provider, None, "broken"),
    Check("survives_an_overloaded_provider", faults.survives_an_overloaded_provider, None, "overloaded"),
    Check("fails_with_a_bad_key", faults.fails_with_a_bad_key, None, "bad_key"),
    Check("survives_a_crash", faults.survives_a_crash, None, "crash"),
    Check("survives_a_cut_stream", faults.survives_a_cut_stream, None, "cut"),
    Check("survives_huge_lines", faults.survives_huge_lines, None, "huge"),
    Check("hears_while_it_works", flags.hears_while_it_works, "steering", "heed"),
    Check("asks_by_schema", flags.asks_by_schema, "output_format", "schema"),
    Check("works_with_its_own_tools", flags.works_with_its_own_tools, "native_tools", "command"),
    Check("denies_what_nobody_judged", flags.denies_what_nobody_judged, "hooks", "unjudged"),
    Check("keeps_commands_inside", flags.keeps_commands_inside, "sandbox", "escape"),
    Check("knows_the_house_rules", flags.knows_the_house_rules, "project_context", "project"),
    Check("is_told_no_rules_by_strangers", flags.is_told_no_rules_by_strangers, None, "project"),
    Check("takes_work_back", flags.takes_work_back, "rewind", "write"),
)
"""Every check of the suite."""

PROOFS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        claim: frozenset(check.name for check in CHECKS if check.claim == claim)
        for claim in (check.claim for check in CHECKS)
        if claim is not None
    }
)
"""The claims that can be proved, each with the names of the checks that prove it."""
