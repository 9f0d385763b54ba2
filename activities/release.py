"""Giving a run back: its outcome is recorded, its sessions end, its clone stays for a while with the result."""

from __future__ import annotations

import asyncio
import shlex
from typing import Final

from activities.context import WorkerContext, now
from activities.errors import translated
from activities.folder import Held
from activities.heartbeat import beating
from activities.senders import store_senders
from activities.workspace import BaseFacts, base_key
from schemas.calls import ReleaseIn, ReleaseOut
from schemas.run import GitResult
from schemas.run_record import RunRecord
from system.git import GitError, GitKilled
from system.leftovers import end_leftovers
from system.logs import logger
from system.repository import Repository

STILL_ENDING_S: Final = 60.0
"""How long a phase that still runs here gets to end."""
_LEFTOVERS_GRACE_S: Final = 2.0
UNRECORDED: Final = "unrecorded"
"""Where, beside a run's savepoints, a commit is kept that was made and never recorded."""
_log = logger("activities")


async def release_workspace(ctx: WorkerContext, call: ReleaseIn) -> ReleaseOut:
    """Record the outcome and end what the run still has here. A repeat returns the same."""
    async with beating(ctx.settings.heartbeat_every_s):
        with translated():
            await ctx.running.stop_run(call.run_id, "interrupt", within_s=STILL_ENDING_S)
            return await ctx.running.exclusive(call.run_id, lambda: _release(ctx, call))


async def _release(ctx: WorkerContext, call: ReleaseIn) -> ReleaseOut:
    if call.journal:
        await asyncio.to_thread(ctx.journal.flush, call.run_id, call.journal)
    if call.messages:
        await store_senders(ctx, call.run_id)
    await ctx.sessions.close_run(call.run_id)
    ctx.open_runs.pop(call.run_id, None)
    record = await asyncio.to_thread(_newest, ctx, call)
    if record is None:
        return ReleaseOut()
    if call.lease.epoch == 0:
        await asyncio.to_thread(_end_early, ctx, call, record)
        return ReleaseOut()
    base = await asyncio.to_thread(ctx.evidence.get_model, base_key(call.run_id), BaseFacts)
    folder = ctx.folder(call.run_id)
    held = await asyncio.to_thread(folder.held)
    here = held is not None and held.is_under(record.lease) and folder.workspace.is_dir()
    if here and held is not None:
        await end_leftovers(call.run_id, _LEFTOVERS_GRACE_S)
    try:
        if here and held is not None:
            await _set_unrecorded_aside(ctx, held, record)
            git = await _of_clone(ctx, held)
        else:
            git = _of_bundle(ctx, record, base)
    except GitKilled:
        raise  # it says nothing of the clone; one that hangs is not waited for again
    except GitError as error:
        # Whoever destroyed the clone does not keep the run from ending: the store has its commits, too.
        _log.warning("the clone of run %s cannot be read: %s", call.run_id, error)
        git = _of_bundle(ctx, record, base)
    ctx.crash_at("release.record")
    await asyncio.to_thread(ctx.runs.update, call.run_id, record.lease, lambda known: _ended(known, call))
    if here and held is not None:
        await asyncio.to_thread(folder.drop_private)
        released = held.model_copy(update={"released_at": held.released_at or now()})
        await asyncio.to_thread(folder.hold, released)
    ctx.crash_at("release.done")
    return ReleaseOut(git=git)


def _newest(ctx: WorkerContext, call: ReleaseIn) -> RunRecord | None:
    """Return the run's record: at its end, only an acquisition that was cut can have a newer lease than the run knows.

    None where it ends before anything was acquired.
    """
    known = ctx.runs.get(call.run_id)
    if call.lease.epoch == 0 and known is None:
        return None
    is_newer = known is not None and known.lease.epoch > call.lease.epoch
    return known if known is not None and is_newer else ctx.runs.check(call.run_id, call.lease)


def _end_early(ctx: WorkerContext, call: ReleaseIn, record: RunRecord) -> None:
    """Record the end of a run whose first acquisition was cut; what it left here goes, since nothing was done in it."""
    ctx.folder(call.run_id).drop()
    ctx.crash_at("release.record")
    ctx.runs.update(call.run_id, record.lease, lambda known: _ended(known, call))


def _ended(record: RunRecord, call: ReleaseIn) -> RunRecord:
    return record.model_copy(
        update={
            "outcome": call.outcome,
            "ended_at": record.ended_at or now(),
            "receipts_head": call.receipts_head,
            "released": True,
        }
    )


async def _set_unrecorded_aside(ctx: WorkerContext, held: Held, record: RunRecord) -> None:
    """Let the branch be what receipts say.

    Where a worker died behind a commit, and the run was ended while it was looked for, no receipt knows of it: it is
    kept where unfinished work is.
    """
    repository = _repository(ctx, held)
    head = await repository.ref(repository.branch_ref) or held.base_commit
    recorded = record.head or held.base_commit
    if head != recorded:
        await repository.set_ref(f"{repository.savepoint_prefix}{UNRECORDED}", head)
        await repository.set_ref(repository.branch_ref, recorded, expected=head)


def _repository(ctx: WorkerContext, held: Held) -> Repository:
    return Repository(ctx.folder(held.run_id).workspace, run_id=held.run_id, base=held.base_commit)


async def _of_clone(ctx: WorkerContext, held: Held) -> GitResult:
    repository, workspace = _repository(ctx, held), ctx.folder(held.run_id).workspace
    head = await repository.ref(repository.branch_ref) or held.base_commit
    return GitResult(
        branch=repository.branch,
        base=held.base_commit,
        head=head,
        tree=await repository.tree_of(head),
        workspace=str(workspace),
        host=ctx.host,
        fetch=_fetch(str(workspace), repository.branch),
    )


def _of_bundle(ctx: WorkerContext, record: RunRecord, base: BaseFacts | None) -> GitResult:
    """Return where the result is when the clone is on another worker's disk: its newest bundle in the store."""
    newest, head = record.newest, record.head or record.base_commit
    tree = base.tree if base and not record.head else ""
    if newest is not None and newest.commit == head:
        tree = newest.tree
    bundle = newest.bundle if newest else None
    place = ctx.store_path(bundle.uri) if bundle and record.head else record.workspace
    return GitResult(
        branch=record.branch,
        base=record.base_commit,
        head=head,
        tree=tree,
        workspace=record.workspace,
        host=record.host,
        fetch=_fetch(place, record.branch),
    )


def _fetch(place: str, branch: str) -> str:
    return shlex.join(["git", "fetch", place, f"{branch}:{branch}"])
