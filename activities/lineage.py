"""What the store says of a run that is to be forked: its visits in their order, and how it stood before one of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from activities.keeping import stored_ref
from activities.workspace import BUNDLE_TYPE, BaseFacts, base_key
from flows.bundle import Bundle, read_bundle
from schemas.calls import AttemptKey, ForkState, MeasureOut, StepPlace
from schemas.common import FINAL_STEP, ArtifactRef, Durable
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import Gate
from schemas.fork import ForkRef
from schemas.receipt import StepReceipt
from schemas.run_record import RunRecord
from schemas.run_state import MAX_CONTEXT
from store.errors import EvidenceCorrupt, NotStored
from store.evidence import JSON, Evidence
from store.journal import Journal
from store.runs import Runs

M = TypeVar("M", bound=BaseModel)
_MAX_NAMED: Final = 40
"""Visits that an error lists at most, the newest."""
_MAX_CLOSE: Final = 3


class VisitedFlow(Durable):
    """A flow that was run before a fork: its pinned bundle, and the steps that were visited and that nobody skipped."""

    flow_key: str
    bundle: ArtifactRef
    steps: list[str]


class ForkFacts(Durable):
    """``base/fork.json``: where a fork left its parent, and everything it has from there."""

    point: ForkRef
    state: ForkState
    flows: list[VisitedFlow]


@dataclass(frozen=True)
class Visited:
    """A visit that a run began; ``skipped`` if a person had the run go on without it."""

    flow_key: str
    step_id: str
    visit: int
    skipped: bool = False


@dataclass(frozen=True)
class Measured:
    """What a command, with its parser, said of a tree."""

    argv: tuple[str, ...]
    parse: str
    tree: str
    passed: bool


@dataclass
class Standing:
    """How a run stood before a visit; ``bundle`` holds what the branch's ``head`` has on top of the base."""

    base: BaseFacts
    head: str
    bundle: ArtifactRef | None = None
    context: list[StepPlace] = field(default_factory=list)
    last_gates: AttemptKey | None = None
    measured: list[Measured] = field(default_factory=list)
    flows: list[VisitedFlow] = field(default_factory=list)


def fork_key(run_id: str) -> str:
    """Return where it is stored what a fork began with."""
    return f"runs/{run_id}/base/fork.json"


def bundle_key(run_id: str, flow_key: str) -> str:
    """Return where a run's pinned flow is stored."""
    return f"runs/{run_id}/base/bundle-{flow_key}.json"


def parent_of(runs: Runs, evidence: Evidence, run_id: str) -> RunRecord:
    """Return the record of a run that can be forked. Blocks; raises BadInput, which says what would be right."""
    try:
        record = runs.get(run_id)
    except EvidenceCorrupt as error:
        raise _damaged(run_id, error) from error
    if record is None:
        raise _unknown(run_id, runs.list())
    marker = evidence.pruned_run(run_id)
    if marker is not None:
        raise _cannot(run_id, f"its evidence was {marker.words}")
    return record


def visits_of(evidence: Evidence, record: RunRecord) -> list[Visited]:
    """Return the visits the run has begun, oldest first, as its journal tells. Blocks."""
    found: dict[tuple[str, str, int], Visited] = {}
    flow = record.flow_key
    for event in Journal(evidence).read(record.run_id):
        said = event.model_extra or {}
        if event.kind == "run_created":
            flow = str(said.get("flow", flow))
        step, visit = said.get("step"), said.get("visit", 1)
        if event.kind not in {"step_started", "routed"} or step == FINAL_STEP:
            continue
        if not isinstance(step, str) or not isinstance(visit, int):
            continue
        key = (flow, step, visit)
        visited = found.setdefault(key, Visited(*key))
        if event.kind == "routed":
            found[key] = replace(visited, skipped=said.get("decision") == "skip")
    return list(found.values())


def choose(
    run_id: str, visits: Sequence[Visited], step: str, *, flow: str | None = None, visit: int | None = None
) -> int:
    """Return the place in ``visits`` of the newest visit that is meant. Raises BadInput, naming those there are."""
    for index in range(len(visits) - 1, -1, -1):
        one = visits[index]
        if one.step_id == step and flow in {None, one.flow_key} and visit in {None, one.visit}:
            return index
    wanted = f"{flow}:{step}" if flow else step
    if not visits:
        raise BadInput(
            "BadFlowInput", f"run {run_id} has entered no step yet", mend="fork it later, or start a new run"
        )
    reached = any(one.step_id == step and flow in {None, one.flow_key} for one in visits)
    what = f"has no visit {visit} of {wanted}" if reached else f"never reached step {wanted}"
    raise BadInput("BadFlowInput", f"run {run_id} {what}", mend=f"choose one of {_listed(visits)}")


def standing(evidence: Evidence, record: RunRecord, before: Sequence[Visited]) -> Standing:
    """Return how the run stood after the visits ``before``, which are all up to some moment. Blocks; raises BadInput."""
    try:
        return _standing(evidence, record, before)
    except NotStored as error:
        raise _cannot(record.run_id, error.message) from error
    except (EvidenceCorrupt, EvidenceConflict) as error:
        raise _damaged(record.run_id, error) from error


def pinned_flow(evidence: Evidence, run_id: str, flow_key: str) -> tuple[Bundle, ArtifactRef]:
    """Return a flow as a run pinned it. Blocks; raises NotStored."""
    ref = stored_ref(evidence, bundle_key(run_id, flow_key), JSON)
    return read_bundle(evidence.read(ref)), ref


def _standing(evidence: Evidence, record: RunRecord, before: Sequence[Visited]) -> Standing:
    now = _beginning(evidence, record)
    bundles = {flow.flow_key: flow.bundle for flow in now.flows}
    inherited = {(flow.flow_key, step): True for flow in now.flows for step in flow.steps}
    own: dict[tuple[str, str], bool] = {}
    gates: dict[str, dict[tuple[str, str], Gate]] = {}
    for visited in before:
        flow = visited.flow_key
        if flow not in gates:
            # An ancestor may have run a flow of this name: what counts is how its newest version defines its steps.
            pinned, bundles[flow] = pinned_flow(evidence, record.run_id, flow)
            gates[flow] = {(step.id, gate.name): gate for step in pinned.spec.steps for gate in step.gates}
        own[flow, visited.step_id] = not visited.skipped
        _after_visit(evidence, record.run_id, visited, gates[flow], now)
    counts = {**own, **inherited}
    now.flows = [
        VisitedFlow(
            flow_key=flow,
            bundle=bundle,
            steps=[step for (name, step), count in counts.items() if name == flow and count],
        )
        for flow, bundle in bundles.items()
    ]
    now.context = now.context[-MAX_CONTEXT:]
    return now


def _beginning(evidence: Evidence, record: RunRecord) -> Standing:
    """Return how the run stood before its first step: at its base, or where it left its own parent."""
    run_id = record.run_id
    base = _must(evidence, base_key(run_id), BaseFacts)
    if record.forked_from is None:
        return Standing(base=base, head=base.commit)
    facts = _must(evidence, fork_key(run_id), ForkFacts)
    state = facts.state
    place = f"runs/{run_id}/base/fork.bundle"
    return Standing(
        base=base,
        head=facts.point.commit,
        bundle=stored_ref(evidence, place, BUNDLE_TYPE) if facts.point.commit != base.commit else None,
        context=list(state.context),
        last_gates=state.last_gates,
        measured=[
            Measured(tuple(gate.argv), gate.parse, state.tree, gate.passed)
            for gate in state.gates
            if gate.passed is not None
        ],
        flows=list(facts.flows),
    )


def _after_visit(
    evidence: Evidence, run_id: str, visited: Visited, gates: dict[tuple[str, str], Gate], now: Standing
) -> None:
    """Bring ``now`` to where the run stood after one more visit."""
    for key in _attempts(evidence, run_id, visited):
        receipt = _stored(evidence, f"{key.path}/receipt.json", StepReceipt)
        if receipt is None:
            continue
        if receipt.git is not None and receipt.git.commit_after != now.head:
            now.head = receipt.git.commit_after
            now.bundle = stored_ref(evidence, f"{key.path}/work.bundle", BUNDLE_TYPE)
        if receipt.execution_status == "succeeded" and receipt.envelope is not None:
            place = StepPlace(
                run_id=run_id,
                flow_key=key.flow_key,
                step_id=key.step_id,
                visit=key.visit,
                attempt=key.attempt,
                sha256=receipt.envelope.sha256,
            )
            now.context.append(place)
        measured = _stored(evidence, f"{key.path}/measure.json", MeasureOut)
        if measured is None:
            continue
        now.last_gates = key if any(not run.fact.passed for run in measured.gates) else None
        for run in measured.gates:
            gate = gates.get((key.step_id, run.fact.name))
            tree = measured.tree_before
            if gate is None or tree is None or tree != measured.tree_after or not run.fact.measured:
                continue
            now.measured.append(Measured(tuple(gate.argv), gate.parse, tree, run.fact.passed))


def _attempts(evidence: Evidence, run_id: str, visited: Visited) -> Iterator[AttemptKey]:
    first = AttemptKey(
        run_id=run_id, flow_key=visited.flow_key, step_id=visited.step_id, visit=visited.visit, attempt=1
    )
    folders = evidence.blobs.folders(f"{first.path.rpartition('/')[0]}/")
    for number in sorted(int(name) for name in folders if name.isdecimal()):
        yield first.model_copy(update={"attempt": number})


def _must(evidence: Evidence, key: str, model: type[M]) -> M:
    """Return a stored model. Raises NotStored, with code ``E_PRUNED`` if it was removed; EvidenceCorrupt."""
    data = evidence.read_key(key)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise EvidenceCorrupt("E_EVIDENCE_CORRUPT", f"{key} is no {model.__name__}", key=key) from error


def _stored(evidence: Evidence, key: str, model: type[M]) -> M | None:
    """Return a stored model, None if there never was one. Raises NotStored if it was removed, EvidenceCorrupt."""
    try:
        return _must(evidence, key, model)
    except NotStored as error:
        if error.code == "E_PRUNED":
            raise
        return None


def _unknown(run_id: str, records: Sequence[RunRecord]) -> BadInput:
    of_workflow = [record.run_id for record in records if record.workflow_id == run_id]
    close = of_workflow or difflib.get_close_matches(run_id, [record.run_id for record in records])
    mend = (
        f"did you mean {' or '.join(close[-_MAX_CLOSE:])}?" if close else "give the id of a run of this store"
    )
    return BadInput("BadFlowInput", f"fork: the store knows no run {run_id!r}", mend=mend)


def _cannot(run_id: str, why: str) -> BadInput:
    return BadInput("BadFlowInput", f"run {run_id} cannot be forked: {why}", mend="start a new run")


def _damaged(run_id: str, error: EvidenceCorrupt | EvidenceConflict) -> BadInput:
    return _cannot(run_id, f"its evidence is damaged: {error.message}")


def _listed(visits: Sequence[Visited]) -> str:
    several = len({one.flow_key for one in visits}) > 1
    named: dict[str, list[str]] = {}
    for one in visits[-_MAX_NAMED:]:
        name = f"{one.flow_key}:{one.step_id}" if several else one.step_id
        named.setdefault(name, []).append(f"#{one.visit}")
    return ", ".join(f"{name} {' '.join(numbers)}" for name, numbers in named.items())
