"""Handing a person's word to the session that is at work: text, an answer, the decision about a call."""

from __future__ import annotations

import asyncio
from typing import Final

from temporalio import activity

from activities.asking import Desk
from activities.context import WorkerContext
from activities.errors import translated
from schemas.calls import DeliverIn, DeliverOut
from schemas.errors import LeaseLost
from store.errors import NotStored, StoreUnavailable

LIMIT_S: Final = 5.0
"""How long a session may take to accept what it is told, in seconds."""


async def deliver(ctx: WorkerContext, call: DeliverIn) -> DeliverOut:
    """Hand over a word, once however often it is delivered. That nobody takes it is a value, with the reason."""
    with translated():
        until = asyncio.get_running_loop().time() + LIMIT_S
        try:
            async with asyncio.timeout_at(until):
                await ctx.check_lease(call.key.run_id, call.lease)
        except (LeaseLost, NotStored, StoreUnavailable) as error:
            return _not_taken(str(error))
        except TimeoutError:
            return _not_taken(_late())
        return await _hand_over(ctx, call, until)


async def _hand_over(ctx: WorkerContext, call: DeliverIn, until: float) -> DeliverOut:
    desk = ctx.sessions.desk(call.key)
    if desk is None or desk.is_over:
        return _not_taken("no agent is at work on this attempt")
    if call.given is not None:
        return desk.take(call.given.question.question_id, call.given, call.id)
    if call.decision is not None:
        return desk.take(call.call_id or "", call.decision, call.id)
    if call.steer is not None:
        return await _steer(ctx, desk, call.steer, call.id, until)
    return _not_taken("there is nothing to deliver")


async def _steer(ctx: WorkerContext, desk: Desk, text: str, word: str, until: float) -> DeliverOut:
    try:
        async with asyncio.timeout_at(until):
            await desk.begun()
    except TimeoutError:
        return _not_taken("the agent's turn has not begun yet")
    held = ctx.sessions.held(desk.key)
    if held is None or desk.is_over:
        return _not_taken("no agent is at work on this attempt")
    info = activity.info()
    word = word or f"{info.workflow_run_id}/{info.activity_id}"
    try:
        async with asyncio.timeout_at(until):
            took = await desk.steer(text, word, held.session.steer)
    except TimeoutError:
        return DeliverOut(live=False, unsure=True, detail=_late())
    if took:
        return DeliverOut(live=True)
    return _not_taken("the agent cannot be told anything while it works")


def _not_taken(why: str) -> DeliverOut:
    return DeliverOut(live=False, detail=why)


def _late() -> str:
    return f"it was not taken within {LIMIT_S:g} seconds"
