"""The flow a run will follow: found, linted, filled in, pinned. Anything wrong is refused before a clone is made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from temporalio import activity

from activities.choosing import available, choose_transports, refuse_stub_without_scenario, switchable
from activities.context import WorkerContext
from activities.developer import developer_model
from activities.errors import refused
from activities.keeping import stored_ref
from activities.trust import is_listed
from flows.bundle import Bundle, bundle, read_bundle
from flows.findings import Finding
from flows.loader import find_flow, load_found, load_text
from flows.params import resolve
from flows.personas import personas_of
from flows.reading import SHIPPED
from flows.scenarios import find_scenario, load_scenario
from policy.start import refuse_secrets
from schemas.calls import Pace, ResolveIn, ResolveOut
from schemas.common import ArtifactRef, Durable
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import FlowSpec
from schemas.run import FlowInput
from store.evidence import JSON
from store.keys import input_key


class Task(Durable):
    """``base/task.json``: what the run is to do, in the words of who started it."""

    task: str


@dataclass(frozen=True)
class _Found:
    spec: FlowSpec
    text: str
    personas: dict[str, str]


async def resolve_flow(ctx: WorkerContext, call: ResolveIn) -> ResolveOut:
    """Resolve and pin the run's flow. Raises ApplicationError or BadInput, never retried, with one clear message."""
    redactor = ctx.evidence.redactor
    ids = (call.run_id, activity.info().workflow_id or "")
    refuse_secrets(call.input, *ids, redacted=redactor.text, known=redactor.knows)
    return await asyncio.to_thread(_resolve, ctx, call)


def task_key(run_id: str) -> str:
    """Return where the run's task is stored."""
    return f"runs/{run_id}/base/task.json"


def _resolve(ctx: WorkerContext, call: ResolveIn) -> ResolveOut:
    given = call.input
    _refuse_unsupported(ctx, given)
    folders = [path.expanduser() for path in ctx.settings.flow_paths]
    found = _find(call, folders)
    spec = resolve(found.spec, given.params, given.task)
    chosen = choose_transports(spec, given, ctx.settings, ctx.transports)
    scenario = _scenario(given, spec, folders, chained=call.flow is not None)
    _refuse_gates_without_a_model(ctx, given, spec, chosen)
    refuse_stub_without_scenario(chosen, ctx.transports, scenario=scenario is not None)
    wanted = bundle(spec=spec, source=found.text, personas=found.personas, scenario=scenario)
    pinned, ref = _pin(ctx, f"runs/{call.run_id}/base/bundle-{spec.id}.json", wanted)
    chosen = choose_transports(pinned.spec, given, ctx.settings, ctx.transports)
    scenario_ref: ArtifactRef | None = None
    if pinned.scenario is not None:
        place = f"runs/{call.run_id}/base/scenario-{spec.id}.yaml"
        scenario_ref = ctx.evidence.put_text(place, pinned.scenario, "application/yaml")
    ctx.evidence.put_model(task_key(call.run_id), Task(task=given.task))
    if not ctx.evidence.blobs.exists(input_key(call.run_id)):
        # A worker with other secrets would redact it in another way.
        ctx.evidence.put_model(input_key(call.run_id), given)
    settings = ctx.settings
    return ResolveOut(
        spec=pinned.spec,
        bundle=ref,
        transports=chosen,
        offered=available(ctx.transports),
        switch=switchable(pinned.spec, given, ctx.transports, scenario=scenario_ref is not None),
        scenario=scenario_ref,
        deterministic=given.deterministic,
        pace=Pace(
            heartbeat_s=settings.heartbeat_s,
            schedule_to_start_s=settings.schedule_to_start_s,
            recover_old_worker_s=settings.recover_old_worker_s,
        ),
    )


def _pin(ctx: WorkerContext, key: str, wanted: Bundle) -> tuple[Bundle, ArtifactRef]:
    """Store the bundle, or return the one that is pinned already: a file changed since then changes nothing."""
    text = wanted.canonical().decode()
    if ctx.evidence.redactor.text(text) != text:
        raise refused(
            "FlowRefused", "the flow, an agent or the scenario holds what looks like a secret: take it out"
        )
    try:
        return wanted, ctx.evidence.put_text(key, text, JSON)
    except EvidenceConflict:
        ref = stored_ref(ctx.evidence, key, JSON)
        return read_bundle(ctx.evidence.read(ref), digest=ref.sha256), ref


def _find(call: ResolveIn, folders: list[Path]) -> _Found:
    given = call.input
    name = call.flow or given.flow
    if name is not None:
        file = find_flow(name, folders)
        spec, findings = load_found(file, folders)
        spec = _linted(spec, findings)
        return _Found(spec, file.text, personas_of(spec, {}, file.folders))
    sent = given.spec
    if sent is None:
        raise BadInput("BadFlowInput", "give exactly one of 'flow' and 'spec'")
    spec, findings = load_text(sent.name, sent.text, sent.files, folders=folders)
    spec = _linted(spec, findings)
    return _Found(spec, sent.text, personas_of(spec, sent.files, [SHIPPED, *folders]))


def _linted(spec: FlowSpec | None, findings: list[Finding]) -> FlowSpec:
    if spec is None or findings:
        raise refused("FlowRefused", "; ".join(str(finding) for finding in findings))
    return spec


def _scenario(given: FlowInput, spec: FlowSpec, folders: list[Path], *, chained: bool) -> str | None:
    if given.scenario is None:
        return None
    if isinstance(given.scenario, str):
        file = find_scenario(given.scenario, folders)
        name, text = str(file.path), file.text
    else:
        name, text = given.scenario.name, given.scenario.text
    # In a chain one scenario plays in several flows, so it names steps of all of them; a fork has its parent's.
    several = chained or _follows(spec) or given.fork is not None
    _, findings = load_scenario(name, text, steps=None if several else _step_ids(spec))
    if findings:
        raise refused("BadFlowInput", "; ".join(str(finding) for finding in findings))
    return text


def _follows(spec: FlowSpec) -> bool:
    return spec.on_complete is not None or spec.on_failure is not None


def _step_ids(spec: FlowSpec) -> list[str]:
    return [step.id for step in spec.steps]


def _refuse_gates_without_a_model(
    ctx: WorkerContext, given: FlowInput, spec: FlowSpec, chosen: dict[str, list[str]]
) -> None:
    if given.approval != "developer":
        return
    for step in spec.steps:
        models = [developer_model(ctx.transports[name], ctx.settings) for name in chosen[step.id]]
        if step.approval != "none" and all(model is None for model in models):
            raise BadInput(
                "BadFlowInput",
                f"approval: 'developer' needs a model transport, and step {step.id!r} has {', '.join(chosen[step.id])}",
                mend="name a transport with a model, or use human or auto",
            )


def _refuse_unsupported(ctx: WorkerContext, given: FlowInput) -> None:
    if given.publish != "none":
        raise BadInput(
            "BadFlowInput",
            "publish: this version publishes nothing",
            mend="leave it out; the end of the run prints the command that fetches the branch",
        )
    if given.trusted and not is_listed(given.repo, ctx.settings.trusted_repos):
        raise BadInput(
            "BadFlowInput",
            f"trusted: {given.repo} is not among the repositories this worker trusts",
            mend="add it to the worker's trusted_repos (STEPWISE_TRUSTED_REPOS), or leave trusted out",
        )
