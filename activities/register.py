"""The activities of one worker, by the task queue they are registered on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from activities.acquire import acquire_workspace
from activities.context import WorkerContext
from activities.deliver import deliver
from activities.errors import translated
from activities.heartbeat import beating
from activities.measure import measure
from activities.record import flush_journal, record
from activities.release import release_workspace
from activities.resolve import resolve_flow
from activities.structured_phases import finalize, propose_route
from activities.work import work
from schemas.calls import (
    ACQUIRE,
    DELIVER,
    FINALIZE,
    FLUSH,
    MEASURE,
    PROPOSE_ROUTE,
    RECORD,
    RELEASE,
    RESOLVE_FLOW,
    WORK,
    AcquireIn,
    AcquireOut,
    DeliverIn,
    DeliverOut,
    FinalizeOut,
    FlushIn,
    FlushOut,
    MeasureIn,
    MeasureOut,
    ProposeOut,
    RecordIn,
    RecordOut,
    ReleaseIn,
    ReleaseOut,
    ResolveIn,
    ResolveOut,
    SessionPhaseIn,
    WorkIn,
    WorkOut,
)

Activity = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Registered:
    """Activities for the shared queue, the worker's pinned queue, its control queue."""

    shared: list[Activity]
    pinned: list[Activity]
    control: list[Activity]


def build_activities(ctx: WorkerContext) -> Registered:
    """Return the worker's activities, under the names workflows call them by."""

    @activity.defn(name=RESOLVE_FLOW.name)
    async def _resolve(call: ResolveIn) -> ResolveOut:
        with translated():
            return await resolve_flow(ctx, call)

    @activity.defn(name=ACQUIRE.name)
    async def _acquire(call: AcquireIn) -> AcquireOut:
        return await acquire_workspace(ctx, call)

    @activity.defn(name=RELEASE.name)
    async def _release(call: ReleaseIn) -> ReleaseOut:
        return await release_workspace(ctx, call)

    @activity.defn(name=DELIVER.name)
    async def _deliver(call: DeliverIn) -> DeliverOut:
        return await deliver(ctx, call)

    @activity.defn(name=WORK.name)
    async def _work(call: WorkIn) -> WorkOut:
        return await work(ctx, call)

    @activity.defn(name=MEASURE.name)
    async def _measure(call: MeasureIn) -> MeasureOut:
        return await measure(ctx, call)

    @activity.defn(name=FINALIZE.name)
    async def _finalize(call: SessionPhaseIn) -> FinalizeOut:
        return await finalize(ctx, call)

    @activity.defn(name=PROPOSE_ROUTE.name)
    async def _propose_route(call: SessionPhaseIn) -> ProposeOut:
        return await propose_route(ctx, call)

    @activity.defn(name=RECORD.name)
    async def _record(call: RecordIn) -> RecordOut:
        # A local activity has no heartbeats: the workflow task it is part of stands for it.
        beat = nullcontext() if activity.info().is_local else beating(ctx.settings.heartbeat_every_s)
        async with beat:
            with translated():
                step = (await ctx.bundle(call.bundle)).spec.step(call.key.step_id)
                return await ctx.blocking(record, ctx, call, step)

    @activity.defn(name=FLUSH.name)
    async def _flush(call: FlushIn) -> FlushOut:
        async with beating(ctx.settings.heartbeat_every_s):
            with translated():
                return await ctx.blocking(flush_journal, ctx, call)

    return Registered(
        shared=[_resolve, _acquire, _release, _record, _flush],
        pinned=[_work, _measure, _finalize, _propose_route],
        control=[_acquire, _release, _deliver],
    )
