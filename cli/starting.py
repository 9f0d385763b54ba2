"""What the commands that start a run share: the flow, parameters, scenario, the checked input, the call to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import ValidationError
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from cli.flows import OwnFlow, is_file, read_own_flow
from cli.session import WORKFLOW_TYPE, complain, say, say_json, temporal_command
from cli.words import SHORT_COMMIT
from flows.findings import Finding
from flows.loader import load_flow
from flows.params import resolve
from flows.reading import read_text
from flows.scenarios import find_scenario, known_scenarios, load_scenario
from flows.values import Value
from policy.plain import typed
from policy.start import refuse_secrets
from schemas.errors import BadInput, StepwiseError
from schemas.fields import fields_beside
from schemas.flow import FlowSpec, Param
from schemas.fork import ForkRef
from schemas.run import MAX_SPEC_BYTES, FlowInput, InlineFile, InlineSpec
from system.connection import connect
from system.settings import Loaded, resolved
from system.source import check_url
from workflows.start import run_id

MAX_SUMMARY: Final = 160
"""Characters of the task shown in lists of runs."""
MAX_DETAILS: Final = 4_000
"""Characters of the task shown in a run's details."""

_BOOLEANS: Final = {"true": True, "false": False}


def named_flow(flow: str, loaded: Loaded) -> tuple[dict[str, Any], FlowSpec | None]:
    """Return the field of the input that says which flow, and its spec if it is known here.

    A name may be known to the worker alone. Raises typer.Exit when an own file has faults, which are printed.
    """
    own = read_own_flow(Path(flow)) if is_file(flow) else None
    if own is not None:
        refuse_faults(own.findings)
    return _flow_field(flow, own), _spec(flow, own, loaded)


def refuse_faults(findings: Sequence[Finding]) -> None:
    """Print what is wrong with a file. Raises typer.Exit if anything is."""
    for finding in findings:
        complain(str(finding))
    if findings:
        raise typer.Exit(1)


def merged(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that options of their own and ``--input`` set. Raises BadInput where both set one."""
    twice = sorted(options.keys() & more.keys())
    if twice:
        raise BadInput(
            "BadFlowInput", f"{', '.join(twice)}: given by an option and in --input", mend="say it once"
        )
    return {**options, **more}


def _spec(flow: str, own: OwnFlow | None, loaded: Loaded) -> FlowSpec | None:
    if own is not None:
        return own.spec
    try:
        return load_flow(flow, resolved(loaded.settings).flow_paths)[0]
    except BadInput:
        return None


def _flow_field(flow: str, own: OwnFlow | None) -> dict[str, Any]:
    if own is None or own.spec is None:
        return {"flow": flow}
    named = {f"agents/{step.agent}.md" for step in own.spec.steps}
    files = {name: text for name, text in own.files.items() if name in named}
    size = len(own.text.encode()) + sum(len(text.encode()) for text in files.values())
    if size > MAX_SPEC_BYTES:
        raise BadInput(
            "FlowRefused",
            f"{own.path} with its agents has {size} bytes; at most {MAX_SPEC_BYTES} can be sent",
            mend="shorten it, or put it into a folder of the worker's STEPWISE_FLOW_PATHS and start it by name",
        )
    return {"spec": InlineSpec(name=own.path.name, text=own.text, files=files)}


def params_of(given: Sequence[str], spec: FlowSpec | None) -> dict[str, Value]:
    """Return the values of ``--param name=value`` options, read as the flow's parameters say. Raises BadInput."""
    params: dict[str, Value] = {}
    for each in given:
        name, found, value = each.partition("=")
        if not found or not name:
            raise BadInput("BadFlowInput", f"--param {each!r} has no value", mend="write --param name=value")
        if name in params:
            raise BadInput("BadFlowInput", f"--param {name} is given twice", mend="give it once")
        params[name] = _typed(name, value, spec.params.get(name) if spec else None)
    return params


def _typed(name: str, value: str, param: Param | None) -> Value:
    """Read a value as the parameter's type; text where the type is text, words or not known here."""
    kind = "string" if param is None else param.type
    try:
        match kind:
            case "integer":
                return int(value)
            case "number":
                return float(value)
            case "boolean":
                return _BOOLEANS[value]
            case "string" | "argv":
                return value
    except (ValueError, KeyError) as error:
        raise BadInput(
            "BadFlowInput",
            f"--param {name}={value}: it is no {kind}",
            mend="give true or false" if kind == "boolean" else "give a number",
        ) from error


def scenario_of(scenario: str, spec: FlowSpec | None) -> str | InlineFile:
    """Return a scenario's name, or its file whole. Raises BadInput; typer.Exit when it has faults, which are printed."""
    path = Path(scenario)
    if not is_file(scenario):
        if spec is not None and scenario in known_scenarios():
            shipped = find_scenario(scenario)
            _, findings = load_scenario(
                f"scenario {scenario}", shipped.text, steps=[step.id for step in spec.steps]
            )
            refuse_faults(findings)
        return scenario
    try:
        text = read_text(path)
    except OSError as error:
        raise BadInput(
            "E_FILE", f"{path} cannot be read: {error.strerror}", mend="name a scenario file"
        ) from error
    _, findings = load_scenario(str(path), text, steps=[step.id for step in spec.steps] if spec else None)
    refuse_faults(findings)
    return InlineFile(name=path.name, text=text)


def checked_input(fields: Mapping[str, Any], spec: FlowSpec | None) -> FlowInput:
    """Return the input, checked against its contract and, where the spec is known, the flow's parameters. Raises BadInput."""
    missing = [name for name in ("task", "repo") if name not in fields]
    if missing:
        raise BadInput(
            "BadFlowInput",
            f"missing: {', '.join(missing)}",
            mend=f"add {' '.join(f'--{name} …' for name in missing)}",
        )
    try:
        checked = FlowInput.model_validate(dict(fields))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # Where a text or an object may stand, the object's faults come behind "it is no text".
        first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
        where = ".".join(str(part) for part in first["loc"]) or "input"
        known = fields_beside(FlowInput, first["loc"]) if first["type"] == "extra_forbidden" else []
        mend = f"known fields: {', '.join(known)}" if known else None
        raise BadInput("BadFlowInput", f"{where}: {first['msg']}", mend=mend) from error
    if spec is not None:
        resolve(spec, checked.params, checked.task)
    return checked


async def send(loaded: Loaded, checked: FlowInput, workflow_id: str, flow: str) -> WorkflowHandle[Any, Any]:
    """Start the run on the server. Raises BadInput for a key in it, E_RUNNING where that workflow id is taken, StepwiseError E_SERVER."""
    # Any end will do: what the execution's id ends with says nothing.
    refuse_secrets(checked, workflow_id, run_id(workflow_id, "0123456789ab"))
    if "://" in checked.repo:
        check_url(checked.repo)
    client = await connect(loaded)
    try:
        return await client.start_workflow(
            WORKFLOW_TYPE,
            checked,
            id=workflow_id,
            task_queue=loaded.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            static_summary=_summary(flow, checked),
            static_details=_details(flow, checked),
        )
    except WorkflowAlreadyStartedError as error:
        raise BadInput(
            "E_RUNNING",
            f"a run with workflow id {workflow_id} is going on",
            mend="choose another --workflow-id, or wait for its end",
        ) from error
    except RPCError as error:
        raise StepwiseError(
            "E_SERVER", f"the server refused: {error.message}", mend="`stepwise doctor` says what is missing"
        ) from error


def _summary(flow: str, checked: FlowInput) -> str:
    line = " ".join(checked.task.split())
    return f"{flow}: {line[:MAX_SUMMARY]}{'…' if len(line) > MAX_SUMMARY else ''}"


def _details(flow: str, checked: FlowInput) -> str:
    task = f"{checked.task[:MAX_DETAILS]}…" if len(checked.task) > MAX_DETAILS else checked.task
    said = " (own file)" if checked.spec else ""
    if checked.fork is not None:
        said = f"\n\n**Fork of** {checked.fork.run_id} before {checked.fork.step} #{checked.fork.visit}"
    return f"**Flow** {flow}{said}\n\n**Repository** {checked.repo}\n\n**Task**\n\n{task}"


def report(
    loaded: Loaded, handle: WorkflowHandle[Any, Any], *, as_json: bool, fork: ForkRef | None = None
) -> None:
    """Print the ids of a run that was started, what it is a fork of, and the commands that come next."""
    first = handle.first_execution_run_id or ""
    run = run_id(handle.id, first)
    if as_json:
        ids: dict[str, Any] = {"workflow_id": handle.id, "run_id": run, "execution_id": first}
        if fork is not None:
            ids["forked_from"] = fork.model_dump(mode="json")
        say_json(ids)
        return

    def temporal(*words: str) -> str:
        return temporal_command(loaded, "workflow", *words, "--workflow-id", handle.id)

    say(f"workflow id  {handle.id}")
    say(f"run id       {run}")
    say(f"execution    {first}")
    if fork is not None:
        place = f"before {fork.step_id} #{fork.visit}, at commit {fork.commit[:SHORT_COMMIT]}"
        say(f"forked from  {fork.run_id} {place}")
    say()
    say(f"status       {temporal('query', '--type', 'status')}")
    say(f"pause        {temporal('signal', '--name', 'pause')}")
    say(f"result       {temporal('result')}")
    say(f"verify       {typed(['stepwise', 'verify', run])}")
