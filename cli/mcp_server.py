"""The calls of an MCP client. Those for files are made here, one after the other.

The first command is where the rest is loaded, which takes four times as long as all before: policy of commands, guarded
processes, and the loop in which calls run beside each other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from cli.mcp_protocol import CANCELLED, RUN, Call, Desk, Input, RefusedError
from cli.mcp_tools import Workshop


def work(
    desk: Desk,
    client: Input,
    *,
    workspace: str,
    read_only: bool,
    screened: bool,
    environment: Mapping[str, str] | None,
    timeout_s: float,
) -> None:
    """Make a client's calls until its end."""
    workshop = Workshop(workspace, read_only=read_only)
    try:
        if not _files(desk, client, workshop):
            return
        if sys.flags.no_site:
            import site  # noqa: PLC0415 - what commands need is in site-packages

            site.main()
        from cli.mcp_calls import serve  # noqa: PLC0415 - slow, and for commands only
        from cli.mcp_commands import Shell  # noqa: PLC0415 - as above

        shell = Shell(
            workspace,
            read_only=read_only,
            environment=environment,
            timeout_s=timeout_s,
            screened=screened,
        )
        serve(desk, client.unread, workshop, shell)
    finally:
        workshop.close()


def _files(desk: Desk, client: Input, workshop: Workshop) -> bool:
    """Make calls until a command is to be run, which stays unread. False at the client's end."""
    while (line := client.line()) is not None:
        request = desk.take(line)
        if request is None or request.method == CANCELLED:
            continue
        try:
            call = Call.of(request)
        except RefusedError as refused:
            desk.refuse(request.id, refused)
            continue
        if call.tool == RUN:
            client.put_back(line)
            return True
        said = workshop.call(call.tool, call.arguments)
        desk.say(call, said.text, failed=said.failed)
    return False
