"""``stepwise start``: starts a run of an own flow file, sent whole, or of a flow the worker knows."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from cli.flows import OwnFlow, is_file, read_own_flow, shown
from cli.session import WORKFLOW_TYPE, complain, connect, say, settings, temporal_flags, typed
from flows.loader import load_flow
from flows.params import resolve
from flows.scenarios import load_scenario
from flows.values import Value
from schemas.errors import BadInput, StepwiseError
from schemas.flow import FlowSpec, Param
from schemas.run import MAX_SPEC_BYTES, FlowInput, InlineFile, InlineSpec
from system.settings import Loaded, resolved
from workflows.start import run_id

MAX_SUMMARY: Final = 160
"""Characters of the task shown in lists of runs."""
MAX_DETAILS: Final = 4_000
"""Characters of the task shown in a run's details."""

_BOOLEANS: Final = {"true": True, "false": False}


def start(
    flow: Annotated[
        str,
        typer.Argument(help="An own flow file, or the name of a flow the worker knows.", metavar="FILE|NAME"),
    ],
    *,
    task: Annotated[str, typer.Option(help="What is to be done.", metavar="TEXT")] = "",
    repo: Annotated[
        str, typer.Option(help="Repository: a path on the worker's machine, or a URL.", metavar="REPO")
    ] = "",
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the flow; may be repeated.", metavar="NAME=VALUE")
    ] = None,
    scenario: Annotated[
        str,
        typer.Option(help="For transport stub: a scenario's file, or its name.", metavar="FILE|NAME"),
    ] = "",
    workflow_id: Annotated[
        str, typer.Option("--id", help="Workflow id; made up if it is not given.", metavar="ID")
    ] = "",
    more: Annotated[
        str,
        typer.Option("--input", help="More fields of the input, as a JSON object.", metavar="JSON"),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check a flow and its input, then start a run of it.

    An own file needs no place on the worker: it is sent whole, with those files agents/*.md beside it that its
    steps name. Values of --param are read as the flow's parameter says: text, number, true/false, or words.
    """
    loaded = settings()
    own = read_own_flow(Path(flow)) if is_file(flow) else None
    if own is not None and own.findings:
        for finding in own.findings:
            complain(shown(finding))
        raise typer.Exit(1)
    spec = _spec(flow, own, loaded)
    fields = _merged(
        {
            **_flow_field(flow, own),
            **({"task": task} if task else {}),
            **({"repo": _repo(repo)} if repo else {}),
            **({"params": _params(param, spec)} if param else {}),
            **({"scenario": _scenario(scenario, spec)} if scenario else {}),
        },
        _more(more),
    )
    checked = _checked(fields, spec)
    chosen = workflow_id or _made_up(spec.id if spec else flow)
    handle = asyncio.run(_start(loaded, checked, chosen, spec.id if spec else flow))
    _report(loaded, handle, as_json=as_json)


def _spec(flow: str, own: OwnFlow | None, loaded: Loaded) -> FlowSpec | None:
    """Return the flow's spec if it is known here; a name may be known to the worker alone."""
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


def _repo(repo: str) -> str:
    """Name a folder that is here by its whole path: a worker on this machine runs elsewhere."""
    return str(Path(repo).resolve()) if Path(repo).is_dir() else repo


def _params(given: Sequence[str], spec: FlowSpec | None) -> dict[str, Value]:
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


def _scenario(scenario: str, spec: FlowSpec | None) -> str | InlineFile:
    path = Path(scenario)
    if not is_file(scenario):
        return scenario
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("E_FILE", f"{path} cannot be read: {error}", mend="name a scenario file") from error
    _, findings = load_scenario(str(path), text, steps=[step.id for step in spec.steps] if spec else None)
    if findings:
        for finding in findings:
            complain(shown(finding))
        raise typer.Exit(1)
    return InlineFile(name=path.name, text=text)


def _more(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BadInput(
            "BadFlowInput", f"--input is not JSON: {error}", mend="give one JSON object"
        ) from error
    if not isinstance(data, dict):
        raise BadInput("BadFlowInput", "--input is not a JSON object", mend='give {"name": value, …}')
    return data


def _merged(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    twice = sorted(options.keys() & more.keys())
    if twice:
        raise BadInput(
            "BadFlowInput",
            f"{', '.join(twice)}: given by an option and in --input",
            mend="say it once",
        )
    return {**options, **more}


def _checked(fields: Mapping[str, Any], spec: FlowSpec | None) -> FlowInput:
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
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "input"
        known = ", ".join(FlowInput.model_fields)
        raise BadInput("BadFlowInput", f"{where}: {first['msg']}", mend=f"known fields: {known}") from error
    if spec is not None:
        resolve(spec, checked.params, checked.task)
    return checked


def _made_up(flow: str) -> str:
    return f"{flow}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


async def _start(loaded: Loaded, checked: FlowInput, workflow_id: str, flow: str) -> WorkflowHandle[Any, Any]:
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
            mend="choose another --id, or wait for its end",
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
    own = " (own file)" if checked.spec else ""
    return f"**Flow** {flow}{own}\n\n**Repository** {checked.repo}\n\n**Task**\n\n{task}"


def _report(loaded: Loaded, handle: WorkflowHandle[Any, Any], *, as_json: bool) -> None:
    first = handle.first_execution_run_id or ""
    run = run_id(handle.id, first)
    if as_json:
        say(json.dumps({"workflow_id": handle.id, "run_id": run, "execution_id": first}, indent=2))
        return
    flags = temporal_flags(loaded.address, loaded.namespace)

    def temporal(*words: str) -> str:
        return typed(["temporal", "workflow", *words, "--workflow-id", handle.id, *flags])

    say(f"workflow id  {handle.id}")
    say(f"run id       {run}")
    say(f"execution    {first}")
    say()
    say(f"status       {temporal('query', '--type', 'status')}")
    say(f"pause        {temporal('signal', '--name', 'pause')}")
    say(f"result       {temporal('result')}")
    say(f"verify       {typed(['stepwise', 'verify', run])}")
