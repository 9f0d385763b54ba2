"""Where ``stepwise mcp`` begins, and how programs start it: ``python -I -S mcp_entry.py JSON``, the fields of Given.

A client waits until it knows the tools, so it is told of them at once; they are loaded while its model thinks, and
site-packages, which are slow to find, are looked for only then.
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

from cli.mcp_protocol import CALL, Desk
from schemas.json_text import parse_json

_INTERRUPTED: Final = 130
_PART: Final = 65_536


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
    unread = _handshake(desk)
    if unread is None:
        return
    if sys.flags.no_site:
        import site  # noqa: PLC0415 - nobody waits for it

        site.main()
    from cli.mcp_server import work  # noqa: PLC0415 - this is what the client does not wait for

    work(
        desk,
        unread,
        workspace=given["workspace"],
        read_only=given["read_only"],
        screened=given["screened"],
        environment=environment,
        timeout_s=given["timeout_s"],
    )


def _handshake(desk: Desk) -> bytes | None:
    """Answer the client until it knows the tools or calls one; return what is unread then, None at its end."""
    unread = b""
    while not desk.listed:
        line, end, rest = unread.partition(b"\n")
        if not end:
            part = os.read(sys.stdin.fileno(), _PART)
            if not part:
                return unread or None
            unread += part
            continue
        request = desk.take(line)
        if request is not None and request.method == CALL:
            break
        unread = rest
    return unread


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
    from schemas.errors import BadInput  # noqa: PLC0415 - slow, and seldom needed

    return BadInput("bad_environment", message)


if __name__ == "__main__":
    try:
        serve(json.loads(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
