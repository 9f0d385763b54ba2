"""Taking hold of a run: admission, the lease, a clone to work in, and what became of a phase that was lost."""

from __future__ import annotations

import asyncio
from typing import Final

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.admission import admitted, drop_if_stale
from activities.context import OpenRun, WorkerContext, now
from activities.errors import translated
from activities.folder import Held
from activities.heartbeat import Beat, beating
from activities.recovery import Found, complete_or_keep, look_up
from activities.setup import measure_base, set_up
from activities.workspace import (
    BaseFacts,
    base_key,
    inspect,
    keep_open,
    make_clone,
    rebuild,
    store_base,
)
from schemas.calls import AcquireIn, AcquireOut
from schemas.run_record import RunRecord
from system.processes import end_leftovers
from system.repository import Repository
from system.source import Source

SEARCH_ATTRIBUTES: Final = (
    "StepwiseFlow",
    "StepwiseStep",
    "StepwiseState",
    "StepwiseRepo",
    "StepwiseNeedsHuman",
)
STILL_ENDING_S: Final = 180.0
"""How long recovery waits for the lost phase, if it turns out to run in this very process."""
_LEFTOVERS_GRACE_S: Final = 2.0


async def acquire_workspace(ctx: WorkerContext, call: AcquireIn) -> AcquireOut:
    """Make this worker the holder of a run. A repeat finds what is done; a refusal leaves nothing behind."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            if call.recover is not None:
                beat.say("ending the lost phase")
                if not await ctx.running.stop_run(call.run_id, "server_lost", within_s=STILL_ENDING_S):
                    raise ApplicationError(
                        f"a phase of run {call.run_id} is still ending here", type="StillEnding"
                    )
            return await ctx.running.exclusive(call.run_id, lambda: _acquire(ctx, call, beat))


async def _acquire(ctx: WorkerContext, call: AcquireIn, beat: Beat) -> AcquireOut:
    run_id = call.run_id
    folder = ctx.folder(run_id)
    record = await asyncio.to_thread(ctx.runs.get, run_id)
    kept = await drop_if_stale(ctx, run_id, record)
    base = await asyncio.to_thread(ctx.evidence.get_model, base_key(run_id), BaseFacts)
    source = None if base is not None else await inspect(ctx, call)
    async with admitted(ctx, run_id):
        if call.recover is not None:
            beat.say("ending leftovers")
            await end_leftovers(run_id, _LEFTOVERS_GRACE_S)
        found = await asyncio.to_thread(look_up, ctx, call.recover) if call.recover else Found()
        repository, base_facts, rebuilt = await _clone(
            ctx, call, base, source, beat, found=found, record=record, kept=kept
        )
        held = await asyncio.to_thread(_take, ctx, call, repository, folder.held() if kept else None)
        opened = await keep_open(ctx, held, repository)
        if base_facts is None:
            assert source is not None  # noqa: S101 - inspected where there are no base facts
            beat.say("storing the base")
            base_facts = await store_base(ctx, repository, source)
        if call.recover is not None:
            step = (await ctx.bundle(call.bundle)).spec.step(call.recover.key.step_id)
            found = await complete_or_keep(ctx, opened, call.recover, found, step, rebuilt=rebuilt)
        return await _ready(ctx, call, opened, base_facts, found, beat, rebuilt=rebuilt)


async def _clone(
    ctx: WorkerContext,
    call: AcquireIn,
    base: BaseFacts | None,
    source: Source | None,
    beat: Beat,
    *,
    found: Found,
    record: RunRecord | None,
    kept: bool,
) -> tuple[Repository, BaseFacts | None, bool]:
    folder = ctx.folder(call.run_id)
    if kept and record is not None:
        known = ctx.open_runs.get(call.run_id)
        if known is not None:
            return known.repository, base, False
        held = folder.held()
        commit = held.base_commit if held else record.base_commit
        return Repository(folder.workspace, run_id=call.run_id, base=commit), base, False
    if base is None:
        assert source is not None  # noqa: S101 - inspected where there are no base facts
        beat.say("cloning")
        return await make_clone(ctx, folder, source), None, False
    beat.say("rebuilding the clone")
    newest = found.newest or (record.newest if record else None)
    return await rebuild(ctx, folder, base, newest), base, True


def _take(ctx: WorkerContext, call: AcquireIn, repository: Repository, held: Held | None) -> Held:
    """Take the lease in the store, then note it on the disk."""
    folder = ctx.folder(call.run_id)

    def make(current: RunRecord | None) -> RunRecord:
        here = {
            "host": ctx.host,
            "workspace": str(folder.workspace),
            "base_commit": repository.base,
            "branch": repository.branch,
        }
        if current is not None:
            return current.model_copy(update=here)
        return RunRecord.model_validate(
            {
                **here,
                "run_id": call.run_id,
                "workflow_id": call.workflow_id,
                "execution_run_id": call.execution_run_id,
                "flow_key": call.flow_key,
                "repo": call.repo,
                "base": call.base,
                "bundle": call.bundle,
                "lease": {"worker_id": ctx.worker_id, "epoch": 1},
                "created_at": now(),
            }
        )

    record = ctx.runs.take_lease(call.run_id, ctx.worker_id, make, force_new_epoch=call.recover is not None)
    return folder.hold(
        Held(
            run_id=call.run_id,
            workflow_id=call.workflow_id,
            lease=record.lease,
            base_commit=repository.base,
            setup=held.setup if held else None,
        )
    )


async def _ready(
    ctx: WorkerContext,
    call: AcquireIn,
    opened: OpenRun,
    base: BaseFacts,
    found: Found,
    beat: Beat,
    *,
    rebuilt: bool,
) -> AcquireOut:
    spec = (await ctx.bundle(call.bundle)).spec
    if call.recover is None or rebuilt:
        await set_up(ctx, opened, spec, beat)
    base_gates = await measure_base(ctx, opened, spec, beat, measure=call.recover is None and not rebuilt)
    beat.say("")
    await asyncio.to_thread(ctx.journal.flush, call.run_id, call.journal)
    await ctx.check_lease(call.run_id, opened.held.lease)
    return AcquireOut(
        lease=opened.held.lease,
        queue=ctx.queue,
        control_queue=ctx.control_queue,
        host=ctx.host,
        workspace=str(ctx.folder(call.run_id).workspace),
        branch=opened.repository.branch,
        base_commit=base.commit,
        base_tree=base.tree,
        base_gates=base_gates,
        search_attributes=await _has_search_attributes(ctx),
        rebuilt=rebuilt,
        finished_work=found.work,
        finished_measure=found.measure,
        finished_finalize=found.finalize,
        finished_route=found.route,
        partial=found.partial,
        partial_work=found.partial_work,
    )


async def _has_search_attributes(ctx: WorkerContext) -> bool:
    if ctx.search_attributes is None:
        ctx.search_attributes = False
        if ctx.client is not None:
            request = ListSearchAttributesRequest(namespace=ctx.client.namespace)
            try:
                answer = await ctx.client.operator_service.list_search_attributes(request)
            except RPCError:
                # A server that cannot say it has none; asked again by the next worker process.
                return False
            ctx.search_attributes = set(SEARCH_ATTRIBUTES) <= set(answer.custom_attributes)
    return ctx.search_attributes
