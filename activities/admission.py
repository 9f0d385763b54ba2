"""Who may have a workspace here, and whether this worker's copy of a run is still the run's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from temporalio.exceptions import ApplicationError

from activities.context import WorkerContext
from activities.folder import run_folders
from schemas.run_record import RunRecord

RETRY_AFTER: Final = timedelta(seconds=5)


@asynccontextmanager
async def admitted(ctx: WorkerContext, run_id: str) -> AsyncIterator[None]:
    """Hold a place for the run while its workspace is made. Raises ApplicationError ``WorkerFull``, to be retried."""
    async with ctx.admission:
        there = await asyncio.to_thread(_with_workspace, ctx) | ctx.admitted
        if run_id not in there and len(there) >= ctx.settings.max_runs:
            raise ApplicationError(
                f"worker {ctx.worker_id} has {len(there)} runs, as many as it may (max_runs)",
                type="WorkerFull",
                next_retry_delay=RETRY_AFTER,
            )
        ctx.admitted.add(run_id)
    try:
        yield
    finally:
        ctx.admitted.discard(run_id)


async def drop_if_stale(ctx: WorkerContext, run_id: str, record: RunRecord | None) -> bool:
    """Remove this worker's copy of a run unless ``record`` says that it is the run's; say whether it stays."""
    folder = ctx.folder(run_id)
    held = await asyncio.to_thread(folder.held)
    current = record is not None and held is not None and held.is_under(record.lease)
    if current and await asyncio.to_thread(folder.workspace.is_dir):
        return True
    ctx.open_runs.pop(run_id, None)
    await ctx.sessions.close_run(run_id)
    if await asyncio.to_thread(folder.path.exists):
        await asyncio.to_thread(folder.drop)
    return False


def _with_workspace(ctx: WorkerContext) -> set[str]:
    found = ((folder.run_id, folder.held()) for folder in run_folders(ctx.runs_dir))
    return {run_id for run_id, held in found if held is not None and held.released_at is None}
