"""``stepwise mcp``: the tools of a workspace for an agent, as an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.mcp_server import Server
from cli.mcp_tools import Workshop
from schemas.errors import BadInput
from schemas.json_text import parse_json
from system.processes import child_env, shutdown

NAME: Final = "stepwise"
"""What the server calls itself."""
DEFAULT_TIMEOUT_S: Final = 120.0

_MAX_LINE: Final = 32_000_000
_OWN: Final = ("HOME", "TMPDIR")


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
        raise BadInput("no_workspace", f"{workspace} is no folder", mend="name the workspace")
    asyncio.run(
        _serve(
            Workshop(
                workspace,
                read_only=read_only,
                environment=_environment(environment),
                timeout_s=timeout,
                screened=screened,
            )
        )
    )


def _environment(file: Path | None) -> dict[str, str]:
    """Return what commands see; by default the harmless variables, and where this process has its home."""
    if file is None:
        return child_env(extra={name: os.environ[name] for name in _OWN if name in os.environ})
    try:
        given = parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput("bad_environment", f"{file} cannot be read: {error}") from error
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise BadInput("bad_environment", f"{file} holds no JSON object of texts")
    return given


async def _serve(workshop: Workshop) -> None:
    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    try:
        await Server(workshop, write, name=NAME, version=version("stepwise")).serve(_lines())
    finally:
        workshop.close()
        await shutdown()


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    try:
        while line := await reader.readline():
            yield line
    finally:
        pipe.close()


if __name__ == "__main__":
    # Agents start it this way: without the other commands it is there at once.
    typer.run(mcp)
