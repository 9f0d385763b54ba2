"""The measure phase: the gates of a step, and the tree they saw."""

from __future__ import annotations

import os
import time
from typing import Final

from temporalio.exceptions import ApplicationError

from activities.context import OpenRun, WorkerContext, now
from activities.errors import translated
from activities.gates import Measured, Place, run_gate, unmeasured
from activities.heartbeat import Beat, beating
from activities.running import Stop
from activities.setup import gate_environment
from activities.timeouts import seconds
from activities.workspace import open_run, settle
from flows.bundle import Bundle
from schemas.calls import AttemptKey, GateRun, MeasureIn, MeasureOut
from schemas.common import ArtifactRef
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import Gate, StepSpec
from workflows.routing import failure_signature

MAX_LEFT_BEHIND: Final = 20


async def measure(ctx: WorkerContext, call: MeasureIn) -> MeasureOut:
    """Run gates in the workspace; what they say, and what could not be measured, is the result."""
    async with beating(ctx.settings.heartbeat_every_s) as beat:
        with translated():
            return await ctx.running.phase(call.key.run_id, lambda stop: _measure(ctx, call, beat, stop))


async def _measure(ctx: WorkerContext, call: MeasureIn, beat: Beat, stop: Stop) -> MeasureOut:
    key = call.key
    await ctx.check_lease(key.run_id, call.lease)
    if call.journal:
        await ctx.blocking(ctx.journal.flush, key.run_id, call.journal)
    stored = await ctx.blocking(ctx.results.load, key, MeasureOut)
    if stored is not None:
        return stored
    opened = await open_run(ctx, key.run_id, call.lease)
    bundle = await ctx.bundle(call.bundle)
    chosen = _chosen(bundle, call)
    begun = time.monotonic()
    await settle(opened)
    before = await opened.repository.tree_of(opened.head)
    runs: list[GateRun] = []
    failures: list[str] = []
    for step, gate in chosen:
        if stop.reason is not None:
            runs.append(GateRun(fact=unmeasured(gate, f"stopped: {stop.reason}")))
            continue
        beat.say(f"gate {gate.name}")
        measured = await _one(ctx, opened, key, bundle, step, gate, stop)
        evidence = await ctx.blocking(_keep, ctx, key, gate.name, measured.output)
        runs.append(GateRun(fact=measured.fact, elapsed_ms=measured.elapsed_ms, evidence=evidence))
        if measured.fact.measured and not measured.fact.passed:
            failures.append(f"{gate.name}\n{measured.output}")
    after = (await settle(opened)).tree
    left = await opened.repository.changes(before, after)
    out = MeasureOut(
        gates=runs,
        tree_before=before,
        tree_after=after,
        commit=opened.head,
        failure_signature=failure_signature("\n".join(failures)) if failures else None,
        elapsed_ms=int((time.monotonic() - begun) * 1_000),
        ended_at=now(),
        stopped=stop.reason,
        left_behind=[*left.created, *left.modified, *left.deleted][:MAX_LEFT_BEHIND],
    )
    if stop.reason is not None:
        if stop.reason != "interrupt":
            # Nobody asked for this stop, so nobody is to be asked: the gates are run again in the next attempt.
            raise ApplicationError(f"the phase was stopped: {stop.reason}", type=stop.reason)
        return out
    ctx.crash_at("measure.gates")
    await ctx.blocking(ctx.results.save, key, out)
    ctx.crash_at("measure.done")
    return out


def _chosen(bundle: Bundle, call: MeasureIn) -> list[tuple[StepSpec, Gate]]:
    """Return the step's gates, or those named ``<step>/<gate>``, then with that whole name."""
    spec = bundle.spec
    if call.gates is None:
        step = bundle.step(call.key.step_id)
        return [(step, gate) for gate in step.gates]
    known = {f"{step.id}/{gate.name}": (step, gate) for step in spec.steps for gate in step.gates}
    missing = [name for name in call.gates if name not in known]
    if missing:
        raise BadInput("BadFlowInput", f"flow {spec.id!r} has no gate {', '.join(missing)}")
    return [
        (step, gate.model_copy(update={"name": name})) for name in call.gates for step, gate in [known[name]]
    ]


async def _one(
    ctx: WorkerContext,
    opened: OpenRun,
    key: AttemptKey,
    bundle: Bundle,
    step: StepSpec,
    gate: Gate,
    stop: Stop,
) -> Measured:
    folder = ctx.folder(key.run_id)
    home = folder.attempt(key)
    place = Place(
        opened.repository.work_tree,
        gate_environment(folder.environment(home, ctx.settings.environment)),
        home / "reports",
    )
    timeout_s = seconds(bundle.spec, step, "gate", own=gate.timeout)
    return await run_gate(gate, place, timeout_s=timeout_s, stop=stop)


def _keep(ctx: WorkerContext, key: AttemptKey, name: str, output: str) -> ArtifactRef:
    place = f"{key.path}/gates/{name.replace('/', '-')}"
    try:
        return ctx.evidence.put_text(f"{place}.txt", output)
    except EvidenceConflict:
        # An earlier run of this phase came as far as this gate and no farther.
        return ctx.evidence.put_text(f"{place}.{os.urandom(4).hex()}.txt", output)
