"""What a worker does with the runs on its disk when it starts, and every ten minutes: drop what is not its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from activities.context import WorkerContext, now
from activities.folder import Held, RunFolder, drop_run, run_folders
from schemas.errors import StepwiseError
from schemas.run_record import RunRecord
from store.retention import is_older
from system.leftovers import end_leftovers
from system.logs import logger

SWEEP_EVERY_S: Final = 600.0
_GRACE_S: Final = 2.0
_ENDING_S: Final = 180.0
_CLOSED: Final = frozenset(
    {
        WorkflowExecutionStatus.COMPLETED,
        WorkflowExecutionStatus.FAILED,
        WorkflowExecutionStatus.CANCELED,
        WorkflowExecutionStatus.TERMINATED,
        WorkflowExecutionStatus.TIMED_OUT,
    }
)
_log = logger("activities")

Standing = Literal["ours", "over", "gone"]
"""A run on this disk: held here, ended (its clone is kept for a while), or to be dropped."""


async def sweep(ctx: WorkerContext, *, starting: bool = False) -> list[str]:
    """Drop stale copies of runs and finished runs kept long enough; return the ids of the runs that were dropped.

    At the start, processes that an earlier worker here left behind are ended first. A run whose lease cannot be
    read now is left alone.
    """
    dropped = []
    for folder in await asyncio.to_thread(lambda: list(run_folders(ctx.runs_dir))):
        if starting:
            await ctx.running.exclusive(folder.run_id, partial(_end_orphans, ctx, folder))
        if await _standing(ctx, folder) == "gone":
            # An agent may still work in a copy that another worker's has replaced.
            await ctx.running.stop_run(folder.run_id, "server_lost", within_s=_ENDING_S)
        if await ctx.running.exclusive(folder.run_id, partial(_sweep_one, ctx, folder)):
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


async def _end_orphans(ctx: WorkerContext, folder: RunFolder) -> None:
    # What this process itself has started for the run since then is no orphan.
    if not ctx.sessions.holds(folder.run_id):
        await end_leftovers(folder.run_id, _GRACE_S, home=folder.path)


async def _sweep_one(ctx: WorkerContext, folder: RunFolder) -> bool:
    standing = await _standing(ctx, folder)
    held = await asyncio.to_thread(folder.held)
    if standing == "gone":
        ctx.open_runs.pop(folder.run_id, None)
        await ctx.sessions.close_run(folder.run_id)
        await end_leftovers(folder.run_id, _GRACE_S, home=folder.path)
        await asyncio.to_thread(drop_run, folder, ctx.spool)
        return True
    if standing == "over" and held is not None and held.released_at is None:
        await ctx.sessions.close_run(folder.run_id)
        await asyncio.to_thread(folder.drop_private)
        await asyncio.to_thread(folder.hold, held.model_copy(update={"released_at": now()}))
    return False


async def _standing(ctx: WorkerContext, folder: RunFolder) -> Standing:
    if folder.run_id in ctx.admitted:
        return "ours"
    held = await asyncio.to_thread(folder.held)
    if held is None:
        return "gone"
    if held.released_at is not None:
        kept_for = timedelta(seconds=ctx.settings.keep_workspaces_s)
        return "gone" if is_older(held.released_at, kept_for, now()) else "over"
    try:
        record = await asyncio.to_thread(ctx.runs.get, folder.run_id)
    except StepwiseError as error:
        _log.warning("the lease of a run cannot be read: %s", error, extra={"run_id": folder.run_id})
        return "ours"
    if record is not None and not held.is_under(record.lease):
        return "gone"
    if record is not None and record.released:
        return "over"
    return "over" if await _has_ended(ctx, held, record) else "ours"


async def _has_ended(ctx: WorkerContext, held: Held, record: RunRecord | None) -> bool:
    """Whether the run's workflow is over, though nobody released the run: it was terminated.

    Only a server that knows the run says so: this worker may have been started for another one.
    """
    if ctx.client is None or held.run_id in ctx.running:
        return False
    try:
        described = await ctx.client.get_workflow_handle(held.workflow_id).describe()
        first = described.raw_description.workflow_execution_info.first_run_id.replace("-", "")
        if not first or held.run_id.endswith(first[-12:]):
            return described.status in _CLOSED
        if record is None:
            return False
        # The id is another run's now: on the server of this one, that could only begin when this one was over.
        execution = ctx.client.get_workflow_handle(held.workflow_id, run_id=record.execution_run_id)
        await execution.describe()
    except (RPCError, ValueError):
        # Unknown here; or a status newer than this SDK, such as a native pause.
        return False
    return True
