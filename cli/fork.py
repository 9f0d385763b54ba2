"""``stepwise fork``: starts a run that goes on from where another one stood before one of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer
from temporalio.client import WorkflowHandle

from activities.lineage import choose, parent_of, pinned_flow, standing, visits_of
from cli.here import Here, open_here
from cli.history.find import find
from cli.options import AsJson, RunName, StoreUrl
from cli.starting import checked_input, merged, named_flow, params_of, report, scenario_of, send
from flows.bundle import Bundle
from flows.shape import check_shape
from flows.source import read_source
from schemas.errors import BadInput
from schemas.flow import FlowSpec
from schemas.fork import ForkOf, ForkRef
from schemas.json_text import parse_json
from schemas.run import FlowInput, InlineFile, InlineSpec
from schemas.run_record import RunRecord
from store.evidence import Evidence
from store.keys import input_key
from store.runs import Runs

MAX_NUMBERS: Final = 100
"""How many made-up workflow ids are tried in a row that others have just taken."""

_JSON_BEGINS: Final = ("{", "[", '"')
_WORDS: Final = {"true": True, "false": False, "null": None}
_ELSEWHERE: Final = {
    "flow": "use --flow",
    "spec": "use --flow",
    "fork": "use --from and --visit",
    "repo": "a fork works on its parent's repository",
    "base": "a fork has its parent's base",
}
"""Fields of the input that --input cannot set, each with the reason."""


def fork(
    run: RunName,
    *,
    step: Annotated[
        str,
        typer.Option(
            "--from", help="The step before which the fork begins; FLOW:STEP in a chain.", metavar="STEP"
        ),
    ],
    visit: Annotated[
        int | None,
        typer.Option(help="Which visit of that step; the newest if not given.", metavar="N", min=1),
    ] = None,
    task: Annotated[str, typer.Option(help="Another task.", metavar="TEXT")] = "",
    param: Annotated[
        list[str] | None, typer.Option(help="Another value of a parameter; repeatable.", metavar="NAME=VALUE")
    ] = None,
    scenario: Annotated[
        str, typer.Option(help="Another scenario: a file, or its name.", metavar="FILE|NAME")
    ] = "",
    flow: Annotated[
        str, typer.Option(help="Another flow that has the step: a file, or its name.", metavar="FILE|NAME")
    ] = "",
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Another value of a field of the parent's input; JSON, or text; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    workflow_id: Annotated[
        str,
        typer.Option(
            "--workflow-id", "--id", help="Workflow id; <parent's>-fork-<n> if not given.", metavar="ID"
        ),
    ] = "",
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """Start a new run from where another one stood before a step.

    The new run has a clone, a branch, a run id and receipts of its own. Its flow, task and all other input are the
    parent's unless said otherwise. The parent may be running, waiting or ended; it goes on as it is.
    """
    here = open_here(store)
    parent = parent_of(Runs(here.evidence), here.evidence, find(run, here.evidence).run_id)
    point = _point(here.evidence, parent, step, visit)
    said, spec = _flow(here, parent, point.flow_key, flow)
    overridden = _given(given or [])
    fields = {
        **_inherited(here.evidence, parent, point.flow_key),
        **said,
        "fork": ForkOf(run_id=point.run_id, flow=point.flow_key, step=point.step_id, visit=point.visit),
    }
    if spec is not None:
        # Of another flow's parameters this one need not know.
        fields["params"] = {
            name: value for name, value in fields.get("params", {}).items() if name in spec.params
        }
    options = {
        **({"task": task} if task else {}),
        **({"params": {**fields.get("params", {}), **params_of(param, spec)}} if param else {}),
        **({"scenario": scenario_of(scenario, spec)} if scenario else {}),
    }
    checked = checked_input({**fields, **merged(options, overridden)}, spec)
    _refuse_without_step(spec, point.step_id)
    name = spec.id if spec else flow
    handle = asyncio.run(_send(here, checked, parent.workflow_id, workflow_id, name))
    report(here.loaded, handle, as_json=as_json, fork=point)


def _point(evidence: Evidence, parent: RunRecord, step: str, visit: int | None) -> ForkRef:
    """Return where the fork leaves its parent. Raises BadInput, which names the steps and visits there are."""
    flow, found, name = step.rpartition(":")
    visits = visits_of(evidence, parent)
    index = choose(parent.run_id, visits, name, flow=flow if found else None, visit=visit)
    chosen = visits[index]
    return ForkRef(
        run_id=parent.run_id,
        flow_key=chosen.flow_key,
        step_id=chosen.step_id,
        visit=chosen.visit,
        commit=standing(evidence, parent, visits[:index]).head,
    )


def _flow(here: Here, parent: RunRecord, flow_key: str, flow: str) -> tuple[dict[str, Any], FlowSpec | None]:
    """Return the field that says which flow, and its spec: that of ``flow``, else the parent's as it was pinned."""
    if flow:
        return named_flow(flow, here.loaded)
    pinned, _ = pinned_flow(here.evidence, parent.run_id, flow_key)
    files = {f"agents/{key}.md": text for key, text in pinned.personas.items()}
    sent = InlineSpec(name=f"{flow_key}.yaml", text=pinned.source, files=files)
    # It was linted when it was pinned, and flows that follow it may be known to the worker alone.
    source, _ = read_source(sent.name, sent.text)
    return {"spec": sent}, None if source is None else check_shape(source, FlowSpec)[0]


def _inherited(evidence: Evidence, parent: RunRecord, flow_key: str) -> dict[str, Any]:
    """Return the parent's input as far as a fork has it too, with the scenario as it was pinned. Raises BadInput."""
    stored = evidence.get_model(input_key(parent.run_id), FlowInput)
    if stored is None:
        raise BadInput(
            "BadFlowInput", f"the input of run {parent.run_id} is not stored", mend="start a new run"
        )
    fields = stored.model_dump(exclude_defaults=True, exclude={"flow", "spec", "scenario", "fork"})
    scenario = _scenario(stored, pinned_flow(evidence, parent.run_id, flow_key)[0])
    return fields if scenario is None else {**fields, "scenario": scenario}


def _scenario(stored: FlowInput, pinned: Bundle) -> InlineFile | None:
    if pinned.scenario is None:
        return None
    named = stored.scenario.name if isinstance(stored.scenario, InlineFile) else f"{stored.scenario}.yaml"
    return InlineFile(name=named, text=pinned.scenario)


def _given(given: Sequence[str]) -> dict[str, Any]:
    """Return what ``--input`` sets: JSON where a value is an object, a list, a quoted text or a word of JSON."""
    fields: dict[str, Any] = {}
    for each in given:
        name, found, value = each.partition("=")
        if not found or name not in FlowInput.model_fields:
            known = ", ".join(key for key in FlowInput.model_fields if key not in _ELSEWHERE)
            raise BadInput(
                "BadFlowInput", f"--input {each!r} sets no field", mend=f"write KEY=VALUE; known: {known}"
            )
        if name in _ELSEWHERE:
            raise BadInput("BadFlowInput", f"--input cannot set {name}", mend=_ELSEWHERE[name])
        if name in fields:
            raise BadInput("BadFlowInput", f"--input {name} is given twice", mend="give it once")
        fields[name] = _value(name, value)
    return fields


def _value(name: str, value: str) -> Any:
    if value in _WORDS:
        return _WORDS[value]
    if not value.startswith(_JSON_BEGINS):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise BadInput(
            "BadFlowInput", f"--input {name}: it is not JSON: {error}", mend="mend it, or give a text"
        ) from error


def _refuse_without_step(spec: FlowSpec | None, step: str) -> None:
    if spec is not None and spec.step(step) is None:
        steps = ", ".join(one.id for one in spec.steps)
        raise BadInput("BadFlowInput", f"flow {spec.id} has no step {step!r}", mend=f"its steps are {steps}")


async def _send(
    here: Here, checked: FlowInput, parent: str, workflow_id: str, flow: str
) -> WorkflowHandle[Any, Any]:
    """Start the fork under ``workflow_id``, else under the first made-up one that nobody has."""
    if workflow_id:
        return await send(here.loaded, checked, workflow_id, flow)
    names = _made_up(here.evidence, parent)
    while True:
        name = next(names)
        try:
            return await send(here.loaded, checked, name, flow)
        except BadInput as error:
            # A fork that has just been started is on the server before it is in the store.
            if error.code != "E_RUNNING" or name.endswith(f"-{MAX_NUMBERS}"):
                raise


def _made_up(evidence: Evidence, parent: str) -> Iterator[str]:
    known = {record.workflow_id for record in Runs(evidence).list()}
    number = 0
    while True:
        number += 1
        if (name := f"{parent}-fork-{number}") not in known:
            yield name
