"""The record of the attempt before, which a work phase brings along: written first, and the run told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from activities.asking import teller
from activities.context import WorkerContext
from activities.record import record
from schemas.calls import RECORDED, Recorded, RecordIn, RecordOut, StepPlace, WorkIn
from system.logs import logger

TELL_AFTER_S: Final = 1.0
"""How long a work phase lasts, in seconds, before the run hears of the record by itself; else by the result."""
_log = logger("activities")


async def write_record(ctx: WorkerContext, call: RecordIn) -> RecordOut:
    """Write what belongs to an attempt's record. Raises StoreUnavailable, EvidenceConflict, NotStored."""
    step = (await ctx.bundle(call.bundle)).spec.step(call.key.step_id)
    return await ctx.blocking(record, ctx, call, step)


def with_envelope(call: WorkIn, recorded: Recorded) -> WorkIn:
    """Return a work phase's call as it would be, had the record been written before."""
    key = recorded.key
    place = StepPlace(
        step_id=key.step_id, visit=key.visit, attempt=key.attempt, sha256=recorded.out.envelope.sha256
    )
    return call.model_copy(update={"context": [*call.context, place], "record": None})


@asynccontextmanager
async def telling(ctx: WorkerContext, workflow_id: str, recorded: Recorded) -> AsyncIterator[None]:
    """Tell the run that a record is written, where the block lasts; people ask for receipts while an agent works."""

    async def tell() -> None:
        await asyncio.sleep(TELL_AFTER_S)
        try:
            await teller(ctx.client, workflow_id)(RECORDED, recorded)
        except Exception as error:  # noqa: BLE001 - the run hears of it with the result, too
            _log.info(
                "the run could not be told of a record: %s", error, extra={"run_id": recorded.key.run_id}
            )

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()
