"""Taking hold of a run: admission, the lease, a clone to work in, and what became of a phase that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.admission import admitted, drop_if_stale
from activities.context import OpenRun, WorkerContext, now
from activities.errors import translated
from activities.folder import Held
from activities.fork import ForkPlan, first_record, fork_state, link, make_fork, plan_fork, store_fork
from activities.heartbeat import Beat, beating
from activities.recovery import Found, complete_or_keep, look_up
from activities.setup import measure_base, set_up
from activities.workspace import (
    BaseFacts,
    base_key,
    check_base,
    inspect,
    keep_open,
    make_clone,
    rebuild,
    store_base,
)
from schemas.calls import AcquireIn, AcquireOut, Lease
from schemas.common import Outcome
from schemas.errors import BadInput, LeaseLost, StepwiseError
from schemas.run_record import RunRecord
from system.git import GitCut, GitError, SourceRefused
from system.leftovers import end_leftovers
from system.logs import logger
from system.repository import Repository
from system.source import Source

T = TypeVar("T")
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
_log = logger("activities")


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
            try:
                return await ctx.running.exclusive(call.run_id, lambda: _acquire(ctx, call, beat))
            except (SourceRefused, BadInput):
                await asyncio.to_thread(ctx.runs.forget, call.run_id)
                raise
            except LeaseLost as error:
                # Two tries crossed each other. The one that Temporal still listens to has to be made again.
                raise ApplicationError(str(error), type="LeaseLost") from error


async def _acquire(ctx: WorkerContext, call: AcquireIn, beat: Beat) -> AcquireOut:
    run_id = call.run_id
    record = await asyncio.to_thread(ctx.runs.get, run_id)
    kept = await drop_if_stale(ctx, run_id, record)
    base = await asyncio.to_thread(ctx.evidence.get_model, base_key(run_id), BaseFacts)
    if base is not None:
        check_base(base, call.repo)
    origin = None if base is not None else await _origin(ctx, call)
    async with admitted(ctx, run_id):
        try:
            return await _hold(ctx, call, beat, base, origin, record, kept=kept)
        except (asyncio.CancelledError, ApplicationError) as error:
            # Nobody releases a run that was never acquired, so it must not keep its place here.
            if call.recover is None and not (isinstance(error, ApplicationError) and not error.non_retryable):
                outcome: Outcome = "failed" if isinstance(error, ApplicationError) else "cancelled"
                await _unbroken(asyncio.to_thread(_give_up, ctx, run_id, outcome))
            raise


async def _origin(ctx: WorkerContext, call: AcquireIn) -> Source | ForkPlan:
    """Look at what the run will be made from, without writing anything. Raises SourceRefused, BadInput."""
    if call.fork is None:
        return await inspect(ctx, call)
    spec = (await ctx.bundle(call.bundle)).spec
    return await asyncio.to_thread(plan_fork, ctx, call, call.fork, spec)


async def _hold(
    ctx: WorkerContext,
    call: AcquireIn,
    beat: Beat,
    base: BaseFacts | None,
    origin: Source | ForkPlan | None,
    record: RunRecord | None,
    *,
    kept: bool,
) -> AcquireOut:
    run_id = call.run_id
    if call.recover is not None:
        beat.say("ending leftovers")
        await end_leftovers(run_id, _LEFTOVERS_GRACE_S)
    held = await asyncio.to_thread(ctx.folder(run_id).held) if kept else None
    found = Found()
    if base is not None:
        # First of all: whoever held the run changes nothing any more of what is looked at from here on.
        record = await _unbroken(asyncio.to_thread(_take, ctx, call, base.commit, record, held))
        found = await asyncio.to_thread(look_up, ctx, call.recover) if call.recover else found
    repository, rebuilt = await _clone(ctx, call, base, origin, beat, found=found, record=record, kept=kept)
    ctx.crash_at("acquire.cloned")
    if record is None or base is None:
        record = await _unbroken(asyncio.to_thread(_take, ctx, call, repository.base, record, held, origin))
    opened = await keep_open(ctx, _held(record, held if kept and not rebuilt else None), repository)
    if base is None:
        assert origin is not None  # noqa: S101 - looked at where there are no base facts
        beat.say("storing the base")
        if isinstance(origin, ForkPlan):
            base = await store_fork(ctx, opened, origin, call.bundle)
        else:
            base = await store_base(ctx, repository, origin)
        ctx.crash_at("acquire.based")
    if call.fork is not None and call.recover is None:
        await asyncio.to_thread(link, ctx, call.run_id)
        ctx.crash_at("fork.linked")
    if call.recover is not None:
        step = (await ctx.bundle(call.bundle)).spec.step(call.recover.key.step_id)
        found = await complete_or_keep(ctx, opened, call.recover, found, step, rebuilt=rebuilt)
    return await _ready(ctx, call, opened, base, found, beat, rebuilt=rebuilt)


async def _clone(
    ctx: WorkerContext,
    call: AcquireIn,
    base: BaseFacts | None,
    origin: Source | ForkPlan | None,
    beat: Beat,
    *,
    found: Found,
    record: RunRecord | None,
    kept: bool,
) -> tuple[Repository, bool]:
    """Return the clone there is, or one that is made anew; and whether it was made again from the store."""
    folder = ctx.folder(call.run_id)
    if kept and record is not None:
        repository = Repository(folder.workspace, run_id=call.run_id, base=record.base_commit)
        try:
            await repository.tree_id()
        except GitError as error:
            if base is None or isinstance(error, GitCut):
                # What was cut says nothing of the clone, which has all that the agent did since its last savepoint.
                raise
            _log.warning("the clone of run %s is made again: %s", call.run_id, error)
            await asyncio.to_thread(folder.drop)
        else:
            return repository, False
    if base is None:
        assert origin is not None  # noqa: S101 - looked at where there are no base facts
        beat.say("cloning")
        if isinstance(origin, ForkPlan):
            return await make_fork(ctx, folder, origin), False
        return await make_clone(ctx, folder, origin), False
    beat.say("rebuilding the clone")
    newest = found.newest or (record.newest if record else None)
    return await rebuild(ctx, folder, base, newest), True


def _take(
    ctx: WorkerContext,
    call: AcquireIn,
    base_commit: str,
    known: RunRecord | None,
    held: Held | None,
    origin: Source | ForkPlan | None = None,
) -> RunRecord:
    """Take the lease in the store; ``held`` is the note of the clone that stays, if one does."""
    folder = ctx.folder(call.run_id)
    here = {
        "host": ctx.host,
        "workspace": str(folder.workspace),
        "base_commit": base_commit,
        "branch": f"stepwise/{call.run_id}",
        "released": False,
        "outcome": None,
        "ended_at": None,
    }

    def make(current: RunRecord | None) -> RunRecord:
        if current is not None:
            return current.model_copy(update=here)
        return RunRecord.model_validate(
            {
                **here,
                **(first_record(origin) if isinstance(origin, ForkPlan) else {}),
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

    if known is not None and held is not None:
        # Killed after the next line but one, this worker would take its own clone for one that another has replaced.
        claimed = Lease(worker_id=ctx.worker_id, epoch=known.lease.epoch + 1)
        held = folder.hold(held.model_copy(update={"lease": known.lease, "claimed": claimed}))
    record = ctx.runs.take_lease(call.run_id, ctx.worker_id, make, force_new_epoch=call.recover is not None)
    ctx.crash_at("acquire.leased")
    if held is not None and not held.is_under(record.lease):
        raise ApplicationError(f"another worker had run {call.run_id} meanwhile", type="LeaseLost")
    return record


def _held(record: RunRecord, held: Held | None) -> Held:
    return Held(
        run_id=record.run_id,
        workflow_id=record.workflow_id,
        lease=record.lease,
        base_commit=record.base_commit,
        setup=held.setup if held else None,
    )


def _give_up(ctx: WorkerContext, run_id: str, outcome: Outcome) -> None:
    """Undo a first acquisition that came to nothing, here and in the run's record."""
    ctx.open_runs.pop(run_id, None)
    ctx.folder(run_id).drop()

    def over(record: RunRecord) -> RunRecord:
        ended = {"outcome": outcome, "ended_at": now(), "released": True}
        return record.model_copy(update=ended)

    try:
        record = ctx.runs.get(run_id)
        if record is not None and record.lease.worker_id == ctx.worker_id:
            ctx.runs.update(run_id, record.lease, over)
    except StepwiseError as error:
        _log.warning("the end of run %s could not be recorded: %s", run_id, error)


async def _unbroken(work: Awaitable[T]) -> T:
    """Await something that must come to its end also when this is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


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
    # A fork's files are not those of its base: of that it knows what its parent measured, and no more.
    measures = call.recover is None and call.fork is None
    base_gates = await measure_base(ctx, opened, spec, beat, measure=measures)
    beat.say("")
    await asyncio.to_thread(ctx.journal.flush, call.run_id, call.journal)
    await ctx.check_lease(call.run_id, opened.held.lease)
    opened.held = await asyncio.to_thread(ctx.folder(call.run_id).hold, opened.held)
    forked = None
    if call.fork is not None and call.recover is None:
        forked = await asyncio.to_thread(fork_state, ctx, call.run_id)
    ctx.crash_at("acquire.done")
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
        forked=forked,
        rebuilt=rebuilt,
        takes_records=True,
        finished_work=found.work,
        finished_measure=found.measure,
        finished_finalize=found.finalize,
        finished_route=found.route,
        partial=found.partial,
        partial_work=found.partial_work,
    )


async def _has_search_attributes(ctx: WorkerContext) -> bool:
    """Return whether the server knows the five attributes; asked once, and again where it could not say."""
    if ctx.search_attributes is None and ctx.client is not None:
        request = ListSearchAttributesRequest(namespace=ctx.client.namespace)
        try:
            answer = await ctx.client.operator_service.list_search_attributes(request)
        except RPCError:
            return False
        ctx.search_attributes = set(SEARCH_ATTRIBUTES) <= set(answer.custom_attributes)
    return bool(ctx.search_attributes)
