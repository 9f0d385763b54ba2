"""The activities of one worker, by the task queue they are registered on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from temporalio import activity

from activities.acquire import acquire_workspace
from activities.consult import consult
from activities.context import WorkerContext
from activities.deliver import deliver
from activities.errors import translated
from activities.heartbeat import beating
from activities.measure import measure
from activities.record import flush_journal
from activities.recording import write_record
from activities.release import release_workspace
from activities.resolve import resolve_flow
from activities.structured_phases import finalize, propose_route
from activities.work import work
from schemas.calls import (
    ACQUIRE,
    CONSULT,
    DELIVER,
    FINALIZE,
    FLUSH,
    MEASURE,
    PROPOSE_ROUTE,
    RECORD,
    RELEASE,
    RESOLVE_FLOW,
    WORK,
    ActivityRef,
    FlushIn,
    FlushOut,
    RecordIn,
    RecordOut,
    ResolveIn,
    ResolveOut,
)
from schemas.common import Durable

Activity = Callable[[Any], Awaitable[Any]]
_RESOLVING_BEAT_S: Final = 1.0
In = TypeVar("In", bound=Durable)
Out = TypeVar("Out", bound=Durable)


@dataclass(frozen=True)
class Registered:
    """Activities for the shared queue, the worker's pinned queue, its control queue."""

    shared: list[Activity]
    pinned: list[Activity]
    control: list[Activity]


def build_activities(ctx: WorkerContext) -> Registered:
    """Return the worker's activities, under the names workflows call them by."""

    def made(
        ref: ActivityRef[In, Out],
        body: Callable[[WorkerContext, In], Awaitable[Out]],
        *,
        redacted: bool = False,
    ) -> Activity:
        async def run(call: Any) -> Out:
            out = await body(ctx, call)
            with translated():
                return ctx.evidence.redacted(out) if redacted else out

        # The SDK decodes the argument into the type that stands here.
        run.__annotations__ = {"call": ref.takes, "return": ref.returns}
        return activity.defn(name=ref.name)(run)

    acquire, release = made(ACQUIRE, acquire_workspace), made(RELEASE, release_workspace)
    return Registered(
        shared=[
            made(RESOLVE_FLOW, _resolve_flow),
            acquire,
            release,
            made(RECORD, _record),
            made(FLUSH, _flush_journal),
        ],
        # What agents and gates said goes into history, where nothing else redacts it.
        pinned=[
            made(WORK, work, redacted=True),
            made(MEASURE, measure, redacted=True),
            made(FINALIZE, finalize, redacted=True),
            made(PROPOSE_ROUTE, propose_route, redacted=True),
            made(CONSULT, consult, redacted=True),
        ],
        control=[acquire, release, made(DELIVER, deliver)],
    )


async def _resolve_flow(ctx: WorkerContext, call: ResolveIn) -> ResolveOut:
    # The run does not know this worker's pace yet.
    async with beating(min(ctx.settings.heartbeat_every_s, _RESOLVING_BEAT_S)):
        with translated():
            return await resolve_flow(ctx, call)


async def _record(ctx: WorkerContext, call: RecordIn) -> RecordOut:
    # A local activity has no heartbeats: the workflow task it is part of stands for it.
    beat = nullcontext() if activity.info().is_local else beating(ctx.settings.heartbeat_every_s)
    async with beat:
        with translated():
            return await write_record(ctx, call)


async def _flush_journal(ctx: WorkerContext, call: FlushIn) -> FlushOut:
    async with beating(ctx.settings.heartbeat_every_s):
        with translated():
            return await ctx.blocking(flush_journal, ctx, call)
