"""``stepwise start``: starts a run of an own flow file, sent whole, or of a flow the worker knows."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import AsJson
from cli.session import settings
from cli.starting import checked_input, merged, named_flow, params_of, report, scenario_of, send
from schemas.errors import BadInput
from schemas.json_text import parse_json


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
        str,
        typer.Option("--workflow-id", "--id", help="Workflow id; made up if it is not given.", metavar="ID"),
    ] = "",
    more: Annotated[
        str,
        typer.Option("--input", help="More fields of the input, as a JSON object.", metavar="JSON"),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Check a flow and its input, then start a run of it.

    An own file needs no place on the worker: it is sent whole, with those files agents/*.md beside it that its
    steps name. Values of --param are read as the flow's parameter says: text, number, true/false, or words.
    """
    loaded = settings()
    said, spec = named_flow(flow, loaded)
    fields = merged(
        {
            **said,
            **({"task": task} if task else {}),
            **({"repo": _repo(repo)} if repo else {}),
            **({"params": params_of(param, spec)} if param else {}),
            **({"scenario": scenario_of(scenario, spec)} if scenario else {}),
        },
        _more(more),
    )
    checked = checked_input(fields, spec)
    chosen = workflow_id or _made_up(spec.id if spec else flow)
    handle = asyncio.run(send(loaded, checked, chosen, spec.id if spec else flow))
    report(loaded, handle, as_json=as_json)


def _repo(repo: str) -> str:
    """Name a folder that is here by its whole path: a worker on this machine runs elsewhere."""
    return str(Path(repo).resolve()) if Path(repo).is_dir() else repo


def _more(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        data = parse_json(text)
    except ValueError as error:
        raise BadInput(
            "BadFlowInput", f"--input is not JSON: {error}", mend="give one JSON object"
        ) from error
    if not isinstance(data, dict):
        raise BadInput("BadFlowInput", "--input is not a JSON object", mend='give {"name": value, …}')
    return data


def _made_up(flow: str) -> str:
    return f"{flow}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
