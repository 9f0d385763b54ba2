"""An approval gate that the developer model decides, from what a person would look at: task, objective, hand-offs."""

from __future__ import annotations

import asyncio

from pydantic import Field
from temporalio.exceptions import ApplicationError

from activities.briefing import gather
from activities.context import WorkerContext
from activities.developer import Developer, developer_model
from activities.errors import translated
from activities.heartbeat import beating
from activities.opening import session_spec, step_models
from activities.prompt import compose
from activities.running import Stop
from activities.timeouts import seconds
from schemas.calls import ConsultIn, ConsultOut
from schemas.common import Closed, Usage
from schemas.events import TransportEvent, UsageEvent

_BEFORE = "May this step be done now? Approve it unless something speaks against it."
_AFTER = "Is the result of this step right, as its hand-off (the last one above) says? Reject it with what is to change."


class Decision(Closed):
    """The developer's decision at a gate; ``reason`` goes to the agent where it is rejected."""

    approve: bool
    reason: str = Field(default="", max_length=1_000)


async def consult(ctx: WorkerContext, call: ConsultIn) -> ConsultOut:
    """Ask the developer model. That it cannot be asked is a value; only the engine's own faults raise."""
    async with beating(ctx.settings.heartbeat_every_s):
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _consult(ctx, call, stop))


async def _consult(ctx: WorkerContext, call: ConsultIn, stop: Stop) -> ConsultOut:
    await ctx.check_lease(call.key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    step = bundle.step(call.key.step_id)
    offered = [ctx.transports[name] for name in call.transports if name in ctx.transports]
    able = (
        one for one in offered if developer_model(one, ctx.settings) is not None and one.is_available().ok
    )
    transport = next(able, None)
    if transport is None:
        return ConsultOut(reason=f"no model can be asked through {', '.join(call.transports)}")
    parts, _ = await ctx.blocking(gather, ctx, call, step)
    spec = await ctx.blocking(session_spec, ctx, call.key, call.iteration, bundle, step)
    models = await ctx.blocking(step_models, ctx, call.key, bundle, step)
    usage = Usage()

    def emit(event: TransportEvent) -> None:
        nonlocal usage
        if isinstance(event, UsageEvent):
            usage = usage.plus(event.usage)

    model = developer_model(transport, ctx.settings, models)
    developer = Developer(
        transport=transport,
        spec=spec,
        model=model or None,
        limit_s=seconds(bundle.spec, step, "answer"),
        task=parts.task,
        emit=emit,
        start=ctx.sessions.start,
    )
    question = _BEFORE if call.gate == "before" else _AFTER
    asking = ctx.sessions.start(
        developer.ask(f"{compose(parts).text}\n# The decision\n\n{question}", Decision)
    )
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            if stop.reason != "interrupt":
                # Nobody asked for this stop, so nobody is to be asked: the model is, once more.
                raise ApplicationError(f"the model's turn was stopped: {stop.reason}", type=stop.reason)
            return ConsultOut(reason="the decision was cut off", usage=usage)
        decision = asking.result()
    finally:
        stopped.cancel()
        asking.cancel()
        await asyncio.wait({asking})
    if decision is None:
        return ConsultOut(reason="it gave no answer", model=model or None, usage=usage)
    return ConsultOut(approve=decision.approve, reason=decision.reason, model=model or None, usage=usage)
