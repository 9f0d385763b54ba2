"""More checks: sessions that are there and cannot be gone on with, and those that only seem so."""

from __future__ import annotations

import json
from dataclasses import replace

from schemas.handoff import HandoffDraft
from transports.conformance_bench import LIMIT_S, MARKER, Bench, NotConforming, opened, require
from transports.port import SESSION_LOST, TransportError, WorkRequest
from transports.resuming import drop_mark


async def heals_empty_sessions(bench: Bench) -> None:
    """Prove that a session whose file is empty, which nobody had let go, is refused, and a new one works in its place."""
    left = await _left(bench)
    bench.kept(left).write_bytes(b"")
    drop_mark(bench.spec("write").state, left)
    require(not await _goes_on(bench, left), "a session whose file is empty was gone on with")
    await _begins_anew(bench)


async def heals_torn_sessions(bench: Bench) -> None:
    """Prove that a session whose file lost its second half is refused, unless it knows what it did."""
    left = await _left(bench)
    file = bench.kept(left)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    await _goes_on(bench, left)
    await _begins_anew(bench)


async def keeps_sessions_its_provider_refuses(bench: Bench) -> None:
    """Prove that a key nobody knows is not taken for a lost session: with a good one it is gone on with."""
    left = await _left(bench)
    refusing = replace(bench.spec("bad_key", step="again"), resume=left)
    async with opened(bench, refusing) as (session, heard):
        outcome = await session.work(WorkRequest("go on"), heard.emit)
        code = None if outcome.error is None else outcome.error.code
        require(outcome.end == "failed", f"it ended as {outcome.end}")
        require(code != SESSION_LOST and session.resumable, f"the session is given up for {code}")
    require(await _goes_on(bench, left), "the session cannot be gone on with any more")


async def _left(bench: Bench) -> str:
    """Return the id of a session that wrote MARKER and was closed."""
    async with opened(bench, bench.spec("write")) as (session, heard):
        outcome = await session.work(WorkRequest("write"), heard.emit)
        left = session.session_id
    require(outcome.end == "completed", f"it ended as {outcome.end}: {outcome.error}")
    if left is None:
        raise NotConforming("the session has no id")
    return left


async def _goes_on(bench: Bench, left: str) -> bool:
    """Tell whether a session is gone on with; raises NotConforming where it is, and does not know what it did."""
    spec = replace(bench.spec("idle", step="again"), resume=left)
    try:
        async with opened(bench, spec) as (session, heard):
            result = await session.structured(
                "Which files did you write?", HandoffDraft, heard.emit, timeout_s=LIMIT_S
            )
    except TransportError as error:
        require(error.resume_refused, f"it is not told that the id is at fault: {error}")
        return False
    if result.error is not None:
        require(result.error.code == SESSION_LOST, f"it failed for another reason: {result.error}")
        require(all(event.kind != "tool_started" for event in heard.events), "a lost session did something")
        return False
    require(MARKER in json.dumps(result.value), f"it does not know what it wrote: {result}")
    return True


async def _begins_anew(bench: Bench) -> None:
    async with opened(bench, bench.spec("idle", step="again")) as (session, heard):
        outcome = await session.work(WorkRequest("do it"), heard.emit)
    require(outcome.end == "completed", f"a new session ended as {outcome.end}: {outcome.error}")
