"""The checks: each proves one thing of a transport, or raises NotConforming."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from schemas.handoff import HandoffDraft
from schemas.questions import DEADLINE, Answer, CallDecision, CallRequest, Given, Question
from transports.conformance_bench import (
    LIMIT_S,
    MARKER,
    QUESTION,
    WORDS,
    Bench,
    Heard,
    NotConforming,
    child_of,
    is_sign_of_work,
    nothing_left,
    opened,
    require,
    require_interrupted,
    require_knowledge,
    require_value,
    working,
)
from transports.port import Park, TransportError, WorkOutcome, WorkRequest
from transports.structured import MAX_REPROMPTS

_COOPERATIVE_GRACE_S: Final = 30.0
_SHORT_GRACE_S: Final = 0.1
_PIECES: Final = 2


async def opens_and_ends(bench: Bench) -> None:
    """Prove that a turn completes and is reported from ``session_opened`` to ``turn_ended``."""
    require(bench.transport.capabilities.provider_name != "unknown", "it does not name its provider")
    async with opened(bench, bench.spec("idle")) as (session, heard):
        outcome = await session.work(WorkRequest("do it"), heard.emit)
        require(outcome.end == "completed", f"an idle turn ended as {outcome.end}")
        ids = [event.session_id for event in heard.events if event.kind == "session_opened"]
        require(ids == [session.session_id], f"session_opened was emitted for {ids}")
        require(heard.events[-1].kind == "turn_ended", "turn_ended is not the last event")
        require(session.mode == "cold", f"a new session calls itself {session.mode}")


async def observes_tools(bench: Bench) -> None:
    """Prove that a tool call is seen to begin and to end, under one id."""
    async with opened(bench, bench.spec("write")) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
    require((bench.spec("write").workspace / MARKER).is_file(), "nothing was written")
    started = {event.call_id for event in heard.events if event.kind == "tool_started"}
    ended = {
        event.call.call_id for event in heard.events if event.kind == "tool_ended" and event.call.success
    }
    require(bool(started & ended), f"calls begun {started}, ended well {ended}")


async def keeps_read_only(bench: Bench) -> None:
    """Prove that a read-only session changes nothing."""
    async with opened(bench, replace(bench.spec("write"), read_only=True)) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
    require(not (bench.spec("write").workspace / MARKER).exists(), "a read-only session wrote a file")


async def intercepts_tools(bench: Bench) -> None:
    """Prove that a call that is not allowed has no effect and is reported as blocked, with the reason."""
    async with opened(bench, replace(bench.spec("write"), read_only=True)) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
    require(not (bench.spec("write").workspace / MARKER).exists(), "a blocked call took effect")
    blocked = [event.call for event in heard.events if event.kind == "tool_ended" and event.call.blocked]
    require(any(call.blocked_reason for call in blocked), "no call was reported as blocked")
    require(not any(call.success for call in blocked), "a blocked call is reported as a success")


async def streams(bench: Bench) -> None:
    """Prove that each piece of a text is heard of while the text is not whole: who watches over silence lives by it."""
    async with opened(bench, bench.spec("piecemeal")) as (session, heard), working(session, heard) as work:
        await heard.pieces(_PIECES)
        require(not work.done(), "the turn had ended before its pieces were heard of")
        require(WORDS not in "".join(heard.words), "the text was whole before its pieces were heard of")
        await session.interrupt(_SHORT_GRACE_S)


async def obeys_interrupts(bench: Bench) -> None:
    """Prove that an agent that can be asked ends its turn by itself, as failed with code ``interrupted``."""
    async with opened(bench, bench.spec("hold")) as (session, heard), working(session, heard) as work:
        await heard.until(is_sign_of_work)
        report = await session.interrupt(_COOPERATIVE_GRACE_S)
        require(report.method == "cooperative", f"it was {report.method}")
        require_interrupted(await work)


async def kills_what_hangs(bench: Bench) -> None:
    """Prove that an agent that does not obey is ended with its whole process tree before the interrupt returns."""
    async with opened(bench, bench.spec("hang")) as (session, heard), working(session, heard) as work:
        await child_of(bench)
        report = await session.interrupt(_SHORT_GRACE_S)
        require(report.method == "killed", f"it was {report.method}")
        await nothing_left(bench)
        require_interrupted(await work)


async def ends_when_cancelled(bench: Bench) -> None:
    """Prove that work that is cancelled raises CancelledError, after its processes are gone."""
    async with opened(bench, bench.spec("hang")) as (session, heard), working(session, heard) as work:
        await child_of(bench)
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            outcome = await work
            raise NotConforming(f"cancelled work returned {outcome.end}")
        await nothing_left(bench)


async def ends_when_closed(bench: Bench) -> None:
    """Prove that closing, also twice, ends the turn and its processes; a closed session does no more work."""
    async with opened(bench, bench.spec("hang")) as (session, heard), working(session, heard) as work:
        await child_of(bench)
        await session.aclose()
        await session.aclose()
        await nothing_left(bench)
        require((await work).end == "failed", "a closed turn did not fail")
        require(
            (await session.work(WorkRequest("more"), heard.emit)).end == "failed", "it worked when closed"
        )


async def is_hot(bench: Bench) -> None:
    """Prove that finalize is asked in the session that did the work, and knows of it."""
    async with opened(bench, bench.spec("write")) as (session, heard):
        await session.work(WorkRequest("write"), heard.emit)
        await require_knowledge(session, heard)
        require(session.mode == "hot", f"a session asked again calls itself {session.mode}")


async def resumes(bench: Bench) -> None:
    """Prove that a session that was interrupted and closed is gone on with under its id, and knows what it did."""
    await _resume_in(bench, step="build")


async def carries_context_across_steps(bench: Bench) -> None:
    """Prove that another step can go on with a session, and knows what was done in it."""
    await _resume_in(bench, step="review")


async def refuses_unknown_sessions(bench: Bench) -> None:
    """Prove that an id nobody knows is refused as such, so that the caller can start cold."""
    heard = Heard()
    try:
        session = await bench.transport.open_session(
            replace(bench.spec("idle"), resume="unknown"), heard.emit
        )
    except TransportError as error:
        require(error.resume_refused, "it does not say that only the session id was bad")
        return
    await session.aclose()
    raise NotConforming("it resumed a session that never was")


async def answers(bench: Bench) -> None:
    """Prove that a structured request is answered by a value of its schema."""
    async with opened(bench, bench.spec("idle")) as (session, heard):
        require_value(await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=LIMIT_S))


async def asks_again(bench: Bench) -> None:
    """Prove that an answer that does not validate is asked for again."""
    async with opened(bench, bench.spec("bad_once")) as (session, heard):
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=LIMIT_S)
        require(result.reprompts == 1, f"it was asked again {result.reprompts} times")
        require_value(result)


async def gives_up_asking(bench: Bench) -> None:
    """Prove that bad answers end in an error after a bounded number of tries."""
    async with opened(bench, bench.spec("bad_always")) as (session, heard):
        result = await session.structured("Sum up.", HandoffDraft, heard.emit, timeout_s=LIMIT_S)
        require(result.value is None and result.error is not None, "a bad answer was taken")
        require(result.reprompts == MAX_REPROMPTS, f"it was asked again {result.reprompts} times")


async def passes_questions_on(bench: Bench) -> None:
    """Prove that a question reaches the callback, and its answer the agent, whose turn goes on."""
    asked: list[Question] = []

    async def answer(question: Question) -> Answer:
        asked.append(question)
        return Answer(answers={QUESTION: "blue"}, source="conformance")

    async with opened(bench, replace(bench.spec("ask"), on_question=answer)) as (session, heard):
        outcome = await session.work(WorkRequest("ask"), heard.emit)
    require([item.question for each in asked for item in each.items] == [QUESTION], f"asked was {asked}")
    require(outcome.end == "completed", f"an answered turn ended as {outcome.end}")
    told = " ".join(event.text for event in heard.events if event.kind == "text")
    require("blue" in told, f"the agent does not know the answer: {told!r}")


async def parks_on_questions(bench: Bench) -> None:
    """Prove that a question that is parked ends the turn, and the outcome carries it."""

    async def park(_: Question) -> Park:
        return Park("nobody is there")

    async with opened(bench, replace(bench.spec("ask"), on_question=park)) as (session, heard):
        outcome = await session.work(WorkRequest("ask"), heard.emit)
    require(
        outcome.end == "question" and outcome.question is not None, f"a parked turn ended as {outcome.end}"
    )


async def goes_on_with_an_answer(bench: Bench) -> None:
    """Prove that a resumed session goes on behind a parked question when the answer comes with its next turn."""

    async def park(_: Question) -> Park:
        return Park("nobody is there")

    spec = replace(bench.spec("ask"), on_question=park)
    async with opened(bench, spec) as (session, heard):
        parked = await session.work(WorkRequest("ask"), heard.emit)
        left = session.session_id
    require(parked.question is not None and left is not None, f"a parked turn left {parked.question}, {left}")
    given = Given(question=parked.question, answers={QUESTION: "blue"}) if parked.question else None
    async with opened(bench, replace(spec, resume=left)) as (session, heard):
        outcome = await session.work(WorkRequest(f"{QUESTION}\nblue", given=given), heard.emit)
    require(outcome.end == "completed", f"an answered turn ended as {outcome.end}")


async def stops_while_it_asks(bench: Bench) -> None:
    """Prove that an interrupt ends a turn that waits for an answer, without a kill."""
    asked = asyncio.Event()

    async def never(_: Question) -> Answer:
        asked.set()
        await asyncio.Event().wait()
        raise NotConforming("it was answered")

    spec = replace(bench.spec("ask"), on_question=never)
    async with opened(bench, spec) as (session, heard), working(session, heard) as work:
        await asked.wait()
        report = await session.interrupt(_COOPERATIVE_GRACE_S)
        require(report.method == "cooperative", f"it was {report.method}")
        require_interrupted(await work)


async def asks_before_calls(bench: Bench) -> None:
    """Prove that a call that policy asks about is made only once it is allowed, under one signature."""
    marker = bench.spec("call").workspace / MARKER
    asked: list[CallRequest] = []

    async def allow(request: CallRequest) -> CallDecision:
        require(not marker.exists(), "the call was made before it was allowed")
        asked.append(request)
        return CallDecision(signature=request.signature, allow=True)

    async def deny(by: str, request: CallRequest) -> CallDecision:
        asked.append(request)
        return CallDecision(signature=request.signature, allow=False, reason="not today", by=by)

    for by, code in (("ann", "denied_by_human"), (DEADLINE, "denied_by_deadline")):
        outcome, heard = await _call(bench, partial(deny, by))
        require(outcome.end == "completed", f"a turn with a denied call ended as {outcome.end}")
        require(not marker.exists(), "a denied call took effect")
        blocked = [e.call for e in heard.events if e.kind == "tool_ended" and e.call.blocked]
        reasons = [call.blocked_reason or "" for call in blocked]
        told = any(reason.startswith(code) and "not today" in reason for reason in reasons)
        require(told, f"the denial is not reported: {reasons}")
    outcome, heard = await _call(bench, allow)
    require(outcome.end == "completed" and marker.exists(), f"an allowed call ended as {outcome.end}")
    require(len({request.signature for request in asked}) == 1, f"asked was {asked}")


async def parks_on_calls(bench: Bench) -> None:
    """Prove that a call nobody decides ends the turn without it, and the outcome carries it."""

    async def park(_: CallRequest) -> Park:
        return Park("nobody is there")

    outcome, _heard = await _call(bench, park)
    require(outcome.end == "approval" and outcome.call is not None, f"a parked turn ended as {outcome.end}")
    require(not (bench.spec("call").workspace / MARKER).exists(), "a call nobody allowed took effect")


async def steers_only_work(bench: Bench) -> None:
    """Prove that what is said outside of a turn is not taken; what is taken is seen in the events."""
    async with opened(bench, bench.spec("hold")) as (session, heard):
        require(not await session.steer("too early"), "it took words before its turn")
        async with working(session, heard):
            await heard.until(is_sign_of_work)
            if await session.steer("mind the gap"):
                await heard.until(lambda event: event.kind == "text" and "mind the gap" in event.text)
            await session.interrupt(_SHORT_GRACE_S)
        require(not await session.steer("too late"), "it took words after its turn")


async def _call(
    bench: Bench, on_call: Callable[[CallRequest], Awaitable[CallDecision | Park]]
) -> tuple[WorkOutcome, Heard]:
    async with opened(bench, replace(bench.spec("call"), on_call=on_call)) as (session, heard):
        return await session.work(WorkRequest("call"), heard.emit), heard


async def _resume_in(bench: Bench, *, step: str) -> None:
    async with opened(bench, bench.spec("hold")) as (session, heard):
        async with working(session, heard):
            await heard.until(is_sign_of_work)
            await session.interrupt(_COOPERATIVE_GRACE_S)
        left = session.session_id
        require(session.resumable and left is not None, "the session cannot be resumed")
    async with opened(bench, replace(bench.spec("idle", step=step), resume=left)) as (session, heard):
        require(session.mode == "resumed", f"a resumed session calls itself {session.mode}")
        require(session.session_id == left, "a resumed session has another id")
        await require_knowledge(session, heard)
