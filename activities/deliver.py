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
from store.errors import NotStored

LIMIT_S: Final = 5.0
"""How long a session may take to accept what it is told, in seconds."""


async def deliver(ctx: WorkerContext, call: DeliverIn) -> DeliverOut:
    """Hand over a word, once however often it is delivered. That nobody takes it is a value, with the reason."""
    with translated():
        try:
            async with asyncio.timeout(LIMIT_S):
                await ctx.check_lease(call.key.run_id, call.lease)
                return await _hand_over(ctx, call)
        except (LeaseLost, NotStored) as error:
            return _not_taken(str(error))
        except TimeoutError:
            return _not_taken(f"it was not taken within {LIMIT_S:g} seconds")


async def _hand_over(ctx: WorkerContext, call: DeliverIn) -> DeliverOut:
    desk = ctx.sessions.desk(call.key)
    if desk is None or desk.is_over:
        return _not_taken("no agent is at work on this attempt")
    if call.given is not None:
        return desk.take(call.given.question.question_id, call.given)
    if call.decision is not None:
        return desk.take(call.call_id or "", call.decision)
    if call.steer is not None:
        return await _steer(ctx, desk, call.steer)
    return _not_taken("there is nothing to deliver")


async def _steer(ctx: WorkerContext, desk: Desk, text: str) -> DeliverOut:
    held = ctx.sessions.held(desk.key)
    if held is None:
        return _not_taken("the agent's session is not open yet")
    info = activity.info()
    delivery = f"{info.workflow_run_id}/{info.activity_id}"
    if await desk.steer(text, delivery, held.session.steer):
        return DeliverOut(live=True)
    return _not_taken("the agent cannot be told anything while it works")


def _not_taken(why: str) -> DeliverOut:
    return DeliverOut(live=False, detail=why)
