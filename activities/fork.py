"""Beginning a run where another one stood before one of its steps: its clone, and what it has from that run.

Everything is read from the store, so the parent may be running, ended, or gone from every worker's disk.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from activities.context import OpenRun, WorkerContext
from activities.errors import refused
from activities.folder import RunFolder
from activities.lineage import (
    ForkFacts,
    Measured,
    Standing,
    VisitedFlow,
    bundle_key,
    choose,
    fork_key,
    parent_of,
    standing,
    visits_of,
)
from activities.timeouts import seconds
from activities.workspace import BaseFacts, base_key, check_base, fetch, git_token, remember, store_bundle
from flows.bundle import Bundle, read_bundle
from schemas.calls import AcquireIn, ForkState, GateRun
from schemas.common import ArtifactRef
from schemas.errors import BadInput
from schemas.flow import FlowSpec
from schemas.fork import ForkGate, ForkOf, ForkRef
from schemas.handoff import Savepoint
from schemas.run_record import RunRecord
from store.errors import NotStored
from store.evidence import JSON
from system.clone import clone_fork
from system.git import GitError
from system.logs import logger
from system.repository import Repository
from system.source import Source

_DIGEST_CHARS: Final = 12
_log = logger("activities")


@dataclass(frozen=True)
class ForkPlan:
    """A fork that can be made: its parent, the visit before which it leaves it, and how the parent stood there."""

    parent: RunRecord
    point: ForkRef
    stood: Standing


def plan_fork(ctx: WorkerContext, call: AcquireIn, fork: ForkOf, spec: FlowSpec) -> ForkPlan:
    """Find the place at which a fork begins; nothing is written. Blocks; raises BadInput, which says what would be right."""
    parent = parent_of(ctx.runs, ctx.evidence, fork.run_id)
    if call.repo != parent.repo:
        raise _bad(f"a fork works on its parent's repository, not on {call.repo}", f"give {parent.repo}")
    if call.base not in {None, parent.base, parent.base_commit}:
        raise _bad(f"a fork has its parent's base, not {call.base}", "leave base out")
    if spec.step(fork.step) is None:
        steps = ", ".join(step.id for step in spec.steps)
        raise _bad(f"flow {spec.id} has no step {fork.step!r}", f"its steps are {steps}")
    visits = visits_of(ctx.evidence, parent)
    index = choose(parent.run_id, visits, fork.step, flow=fork.flow, visit=fork.visit)
    stood = standing(ctx.evidence, parent, visits[:index])
    check_base(stood.base, call.repo)
    point = ForkRef(
        run_id=parent.run_id,
        flow_key=visits[index].flow_key,
        step_id=fork.step,
        visit=fork.visit,
        commit=stood.head,
    )
    return ForkPlan(parent, point, stood)


async def make_fork(ctx: WorkerContext, folder: RunFolder, plan: ForkPlan) -> Repository:
    """Make the fork's clone from its parent's bundles; nothing stays on disk when that fails. Raises SourceRefused, GitError."""
    stood = plan.stood
    refs = [ref for ref in (stood.base.bundle, stood.bundle) if ref is not None]
    base = stood.base
    source: Source | None = None
    if base.bundle is None:
        source = Source(kind=base.kind, location=base.location, head=base.commit, branch=base.branch)
    try:
        paths = [await fetch(ctx, folder, number, ref) for number, ref in enumerate(refs)]
        return await clone_fork(
            source,
            paths,
            folder.workspace,
            run_id=folder.run_id,
            base=base.commit,
            of=plan.parent.run_id,
            head=stood.head,
            token=git_token(ctx, base.location),
        )
    except NotStored as error:
        raise _bad(
            f"run {plan.parent.run_id} cannot be forked: {error.message}", "start a new run"
        ) from error
    except GitError:
        await asyncio.to_thread(folder.drop)
        raise


def first_record(plan: ForkPlan) -> dict[str, object]:
    """Return what a fork's record says from the beginning, beside what every run's says."""
    head = plan.stood.head
    return {"forked_from": plan.point, "head": "" if head == plan.stood.base.commit else head}


async def store_fork(ctx: WorkerContext, opened: OpenRun, plan: ForkPlan, flow: ArtifactRef) -> BaseFacts:
    """Store all that the fork needs of its parent, once, so that it depends on neither its clone nor its bundles.

    The base facts, which are returned, come last: they say that the rest is there. ``flow`` is the fork's own pinned flow.
    Raises ApplicationError ``BadFlowInput`` if the parent is removed meanwhile.
    """
    repository, run_id, base, head = opened.repository, opened.held.run_id, plan.stood.base, plan.stood.head
    tree = await repository.tree_of(head)
    folder = f"runs/{run_id}/base"
    whole: ArtifactRef | None = None
    if base.bundle is not None:
        whole = await store_bundle(ctx, f"{folder}/base.bundle", repository, base=None)
    if head != base.commit:
        ref = await store_bundle(ctx, f"{folder}/fork.bundle", repository, base=base.commit)
        newest = Savepoint(ref=repository.branch_ref, commit=head, tree=tree, bundle=ref)
        lease = opened.held.lease
        await remember(ctx, run_id, lease, lambda known: known.model_copy(update={"newest": newest}))
    ctx.crash_at("fork.bundled")
    pinned = await ctx.bundle(flow)
    try:
        await asyncio.to_thread(_store_facts, ctx, run_id, plan, tree, pinned, flow)
    except NotStored as error:
        raise refused(
            "BadFlowInput", f"run {plan.parent.run_id} cannot be forked: {error.message}"
        ) from error
    own_base = base.model_copy(update={"bundle": whole})
    await asyncio.to_thread(ctx.evidence.put_model, base_key(run_id), own_base)
    return own_base


def link(ctx: WorkerContext, run_id: str) -> None:
    """Name the fork in its parent's record, once. Blocks; raises StoreUnavailable."""
    record = ctx.runs.get(run_id)
    if record is None or record.forked_from is None:
        return
    point = record.forked_from
    try:
        ctx.runs.link_fork(point.run_id, point.model_copy(update={"run_id": run_id}))
    except NotStored as error:
        _log.warning("a fork's parent is not stored any more: %s", error, extra={"run_id": run_id})


def fork_state(ctx: WorkerContext, run_id: str) -> ForkState | None:
    """Return what a fork began with; None for other runs. Blocks."""
    facts = ctx.evidence.get_model(fork_key(run_id), ForkFacts)
    return facts.state if facts else None


def _store_facts(
    ctx: WorkerContext, run_id: str, plan: ForkPlan, tree: str, pinned: Bundle, ref: ArtifactRef
) -> None:
    stood = plan.stood
    flows = [_kept(ctx, run_id, flow) for flow in stood.flows if flow.flow_key != pinned.spec.id]
    same = [flow for flow in stood.flows if flow.flow_key == pinned.spec.id]
    flows += [flow.model_copy(update={"bundle": ref}) for flow in same]
    state = ForkState(
        tree=tree,
        context=stood.context,
        last_gates=stood.last_gates,
        gates=[gate for flow in flows for gate in _gates(ctx, flow, stood.measured, tree)],
    )
    _keep_base_gates(ctx, run_id, plan.parent, pinned.spec)
    ctx.evidence.put_model(fork_key(run_id), ForkFacts(point=plan.point, state=state, flows=flows))


def _kept(ctx: WorkerContext, run_id: str, flow: VisitedFlow) -> VisitedFlow:
    """Store another flow's bundle with the fork; it was redacted when it was pinned."""
    place = bundle_key(run_id, f"{flow.flow_key}-{flow.bundle.sha256[:_DIGEST_CHARS]}")
    kept = ctx.evidence.put_bytes(place, ctx.evidence.read(flow.bundle), JSON)
    return flow.model_copy(update={"bundle": kept})


def _gates(ctx: WorkerContext, flow: VisitedFlow, measured: list[Measured], tree: str) -> list[ForkGate]:
    """Return the required gates of a flow's visited steps, as its bundle defines them."""
    spec = read_bundle(ctx.evidence.read(flow.bundle), digest=flow.bundle.sha256).spec
    known = {(one.argv, one.parse): one.passed for one in measured if one.tree == tree}
    return [
        ForkGate(
            flow_key=flow.flow_key,
            bundle=flow.bundle,
            step_id=step.id,
            gate=gate.name,
            argv=gate.argv,
            parse=gate.parse,
            limit_s=int(seconds(spec, step, "gate", own=gate.timeout)),
            passed=known.get((tuple(gate.argv), gate.parse)),
        )
        for step in spec.steps
        if step.id in flow.steps
        for gate in step.required_gates()
    ]


def _keep_base_gates(ctx: WorkerContext, run_id: str, parent: RunRecord, spec: FlowSpec) -> None:
    """Store what the parent's gates said of the base tree, which is the fork's too, where they are the same gates."""
    if parent.bundle is None:
        return
    theirs = read_bundle(ctx.evidence.read(parent.bundle), digest=parent.bundle.sha256).spec
    for step in spec.steps:
        of_parent = theirs.step(step.id)
        same = {(gate.name, tuple(gate.argv), gate.parse) for gate in of_parent.gates} if of_parent else set()
        for gate in step.gates:
            if not gate.before or (gate.name, tuple(gate.argv), gate.parse) not in same:
                continue
            name = f"{step.id}-{gate.name}"
            done = ctx.evidence.get_model(f"runs/{parent.run_id}/base/gates-{name}.json", GateRun)
            if done is None:
                continue
            fact = done.fact.model_copy(update={"required": gate.required})
            kept = done.model_copy(
                update={"fact": fact, "evidence": _copied(ctx, done.evidence, run_id, name)}
            )
            ctx.evidence.put_model(f"runs/{run_id}/base/gates-{name}.json", kept)


def _copied(ctx: WorkerContext, output: ArtifactRef | None, run_id: str, name: str) -> ArtifactRef | None:
    if output is None:
        return None
    try:
        text = ctx.evidence.read(output)
    except NotStored:
        return None
    return ctx.evidence.put_bytes(f"runs/{run_id}/base/gates/{name}.txt", text, output.media_type)


def _bad(message: str, mend: str) -> BadInput:
    return BadInput("BadFlowInput", message, mend=mend)
