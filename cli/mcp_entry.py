"""Where ``stepwise mcp`` begins, and how programs start it: ``python -I -S mcp_entry.py JSON``, the fields of Given.

A client waits until it knows the tools, so it is told of them at once; they are loaded while its model thinks. What
they need that is slow to load, and site-packages, wait for the first command.
"""

from __future__ import annotations

import json
import os
import sys
from io import FileIO
from typing import Final, TypedDict

if __name__ == "__main__":
    # Run as a script, the package that holds this file is not on the path.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

from cli.mcp_protocol import CALL, Desk, Input
from schemas.json_text import parse_json

_INTERRUPTED: Final = 130


class Given(TypedDict):
    """What a server is told: the options of ``stepwise mcp``, and the version that it says of itself."""

    workspace: str
    read_only: bool
    screened: bool
    environment: str | None
    timeout_s: float
    version: str


def serve(given: Given) -> None:
    """Serve the client on standard input and output to its end. Raises BadInput for an environment that is none."""
    environment = None if given["environment"] is None else _environment(given["environment"])
    desk = Desk(_write, version=given["version"])
    client = Input(sys.stdin.fileno())
    if not _handshake(desk, client):
        return
    from cli.mcp_server import work  # noqa: PLC0415 - this is what the client does not wait for

    work(
        desk,
        client,
        workspace=given["workspace"],
        read_only=given["read_only"],
        screened=given["screened"],
        environment=environment,
        timeout_s=given["timeout_s"],
    )


def _handshake(desk: Desk, client: Input) -> bool:
    """Answer the client until it knows the tools or calls one, which stays unread. False at its end."""
    while not desk.listed:
        line = client.line()
        if line is None:
            return False
        request = desk.take(line)
        if request is not None and request.method == CALL:
            client.put_back(line)
            break
    return True


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _environment(file: str) -> dict[str, str]:
    try:
        with FileIO(file) as opened:
            given = parse_json(opened.readall())
    except (OSError, ValueError) as error:
        raise _refused(f"{file} cannot be read: {error}") from error
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise _refused(f"{file} holds no JSON object of texts")
    return given


def _refused(message: str) -> Exception:
    from schemas.errors import BadInput  # noqa: PLC0415 - seldom needed

    return BadInput("bad_environment", message)


if __name__ == "__main__":
    try:
        serve(json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
