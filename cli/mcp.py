"""``stepwise mcp``: the tools of a workspace for an agent, as an MCP server on standard input and output."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.mcp_entry import Given, serve

DEFAULT_TIMEOUT_S: Final = 120.0


def mcp(
    *,
    workspace: Annotated[
        Path, typer.Option(help="The folder the tools work in; nothing outside is reached.", metavar="DIR")
    ],
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Deny what writes, and every command that does more than read."),
    ] = False,
    screened: Annotated[
        bool,
        typer.Option(
            "--screened",
            help="People were asked by whoever passes calls on; else what policy leaves to people is denied.",
        ),
    ] = False,
    environment: Annotated[
        Path | None,
        typer.Option(help="The whole environment of commands, as a JSON object.", metavar="FILE"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Longest time of a command, in seconds.", metavar="SECONDS")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Offer a workspace's files and commands to an agent, on standard input and output, under our policy."""
    if not workspace.is_dir():
        from schemas.errors import BadInput  # noqa: PLC0415 - seldom needed

        raise BadInput("no_workspace", f"{workspace} is no folder", mend="name the workspace")
    serve(
        Given(
            workspace=str(workspace),
            read_only=read_only,
            screened=screened,
            environment=None if environment is None else str(environment),
            timeout_s=timeout,
            version=version("stepwise"),
        )
    )
