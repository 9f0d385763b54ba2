"""What a worker does with the runs on its disk when it starts, and every ten minutes: drop what is not its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Final

from activities.context import WorkerContext, now
from activities.folder import Held, RunFolder, run_folders
from schemas.errors import StepwiseError
from system.logs import logger
from system.processes import end_leftovers

SWEEP_EVERY_S: Final = 600.0
_GRACE_S: Final = 2.0
_log = logger("activities")


async def sweep(ctx: WorkerContext, *, starting: bool = False) -> list[str]:
    """Drop stale copies of runs and finished runs kept long enough; return the ids of the runs that were dropped.

    At the start, processes that an earlier worker here left behind are ended first. A run whose lease cannot be
    read now is left alone.
    """
    dropped = []
    for folder in await asyncio.to_thread(lambda: list(run_folders(ctx.runs_dir))):
        if starting:
            await end_leftovers(folder.run_id, _GRACE_S)
        held = await asyncio.to_thread(folder.held)
        if folder.run_id in ctx.admitted or (held is None and not starting):
            continue
        try:
            gone = held is None or await asyncio.to_thread(_is_gone, ctx, folder, held)
        except StepwiseError as error:
            _log.warning("the lease of a run cannot be read: %s", error, extra={"run_id": folder.run_id})
            continue
        if gone:
            await ctx.running.stop_run(folder.run_id, "server_lost", within_s=SWEEP_EVERY_S)
            await ctx.running.exclusive(folder.run_id, partial(_drop, ctx, folder))
            dropped.append(folder.run_id)
    return dropped


async def sweep_forever(ctx: WorkerContext) -> None:
    """Sweep now, as at a start, and then every ten minutes until cancelled."""
    starting = True
    while True:
        try:
            await sweep(ctx, starting=starting)
        except Exception:  # noqa: BLE001 - one sweep that fails must not end those that follow
            _log.exception("a sweep of this worker's runs failed")
        starting = False
        await asyncio.sleep(SWEEP_EVERY_S)


def _is_gone(ctx: WorkerContext, folder: RunFolder, held: Held) -> bool:
    if held.released_at is not None:
        return now() - held.released_at > timedelta(seconds=ctx.settings.keep_workspaces_s)
    record = ctx.runs.get(folder.run_id)
    if record is None or record.lease == held.lease:
        return False
    _log.warning(
        "the run is held by %s (epoch %d) now: this copy is dropped",
        record.lease.worker_id,
        record.lease.epoch,
        extra={"run_id": folder.run_id},
    )
    return True


async def _drop(ctx: WorkerContext, folder: RunFolder) -> None:
    ctx.open_runs.pop(folder.run_id, None)
    await ctx.sessions.close_run(folder.run_id)
    await end_leftovers(folder.run_id, _GRACE_S)
    await asyncio.to_thread(folder.drop)
