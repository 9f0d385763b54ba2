"""Checks of what transports differ in: each proves a claim of ``TransportCapabilities``, or that nobody needs to make it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace
from typing import Final

from schemas.handoff import HandoffDraft
from transports.conformance_bench import (
    ESCAPE,
    HOUSE_RULE,
    LIMIT_S,
    MARKER,
    OUTSIDE,
    OWN_TOOLS,
    STEERED,
    STRANGE_RULE,
    TRIED,
    WORDS,
    Bench,
    NotConforming,
    is_sign_of_work,
    opened,
    require,
    require_value,
    said_by,
    working,
)
from transports.port import Rewinds, WorkRequest

_TRIES: Final = f"""
import pathlib, socket
print({TRIED!r}, flush=True)
try:
    pathlib.Path("../{OUTSIDE}").write_text("here")
except OSError as error:
    print(error)
try:
    socket.create_connection(("127.0.0.1", {{port}}), timeout=10).close()
except OSError as error:
    print(error)
"""


async def asks_by_schema(bench: Bench) -> None:
    """Prove that an agent that heeds no words hands in a value, since the request for it has its schema."""
    async with opened(bench, bench.spec("schema")) as (session, heard):
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=LIMIT_S)
    require_value(result)
    require(result.reprompts == 0, f"it was asked again {result.reprompts} times")


async def denies_what_nobody_judged(bench: Bench) -> None:
    """Prove that a call whose judging fails is not made."""
    async with opened(bench, bench.spec("unjudged")) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
    require(not (bench.spec("unjudged").workspace / MARKER).exists(), "a call that nobody judged took effect")
    calls = [event.call for event in heard.events if event.kind == "tool_ended"]
    require(bool(calls) and not any(call.success for call in calls), f"its calls were {calls}")


async def keeps_commands_inside(bench: Bench) -> None:
    """Prove that a program that policy lets run reaches neither the network nor the folder beside the workspace."""
    spec = bench.spec("escape")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (spec.workspace / ESCAPE).write_text(_TRIES.format(port=listening.getsockname()[1]))
        async with opened(bench, spec) as (session, heard):
            outcome = await session.work(WorkRequest("run it"), heard.emit)
        require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
        outputs = [event.call.output or "" for event in heard.events if event.kind == "tool_ended"]
        require(any(TRIED in output for output in outputs), f"nothing was tried: {outputs}")
        require(not (spec.workspace.parent / OUTSIDE).exists(), "it wrote beside the workspace")
        # Whoever connected is in the queue by now.
        listening.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            listening.accept()[0].close()
            raise NotConforming("it reached the network")


async def takes_work_back(bench: Bench) -> None:
    """Prove that an agent does not know of work that was taken back; what it wrote stays."""
    async with opened(bench, bench.spec("write")) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
        if not isinstance(session, Rewinds):
            raise NotConforming("nothing takes work back")
        await session.rewind()
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=LIMIT_S)
    require((bench.spec("write").workspace / MARKER).is_file(), "nothing was written")
    require(MARKER not in require_value(result).model_dump_json(), "it knows what was taken back")


async def works_with_its_own_tools(bench: Bench) -> None:
    """Prove that files and commands are the business of the program's own tools."""
    async with opened(bench, bench.spec("command")) as (session, heard):
        outcome = await session.work(WorkRequest("write and run"), heard.emit)
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    used = [event.call.tool_name for event in heard.events if event.kind == "tool_ended"]
    require(bool(used), "no tool was used")
    ours = [name for name in used if name.startswith(OWN_TOOLS)]
    require(not ours, f"these are ours: {ours}")


async def knows_the_house_rules(bench: Bench) -> None:
    """Prove that a trusted repository's instructions are told to the agent, and nobody's above its workspace."""
    said = await _rules(bench, trusted=True)
    require(HOUSE_RULE in said, f"it knows no rule of the repository: {said!r}")
    require(STRANGE_RULE not in said, f"it knows a rule of the folder above: {said!r}")


async def is_told_no_rules_by_strangers(bench: Bench) -> None:
    """Prove that a repository that is not trusted tells the agent nothing."""
    said = await _rules(bench, trusted=False)
    require(HOUSE_RULE not in said and STRANGE_RULE not in said, f"it was told: {said!r}")


async def hears_while_it_works(bench: Bench) -> None:
    """Prove that an agent that works until it is told something hears it in the same turn."""
    async with opened(bench, bench.spec("heed")) as (session, heard), working(session, heard) as work:
        await heard.until(is_sign_of_work)
        require(await session.steer(STEERED), "it takes no words")
        outcome = await work
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    require(WORDS in said_by(heard, "assistant"), f"it said {said_by(heard, 'assistant')!r}")
    told = [event.text for event in heard.events if event.kind == "text" and event.role == "user"]
    require(STEERED in told, f"what it was told is not reported: {told}")


async def _rules(bench: Bench, *, trusted: bool) -> str:
    async with opened(bench, replace(bench.spec("project"), trusted=trusted)) as (session, heard):
        outcome = await session.work(WorkRequest("Which rules were you told?"), heard.emit)
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    return said_by(heard, "assistant")
