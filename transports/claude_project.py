"""What a trusted repository brings for Claude Code: its own, and nothing of the folders above it.

The program looks for instructions and for servers of tools in every folder from the workspace up to the root of the
disk. Those above are somebody else's: nobody said that they are trusted.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from schemas.json_text import parse_json
from system.files import write_atomic
from system.untrusted import read_regular
from transports.claude_policy import SERVER

MAX_SERVERS_BYTES: Final = 262_144
"""A longer list of servers is not read."""

_LIST: Final = ".mcp.json"
_MAGIC: Final = re.compile(r"[\\*?\[\]{}()!+@|,]")


def project_arguments(workspace: Path, told: Path) -> list[str]:
    """Return the arguments by which the repository's own is loaded alone; its servers are written to a file in ``told``.

    Raises OSError where the file cannot be written.
    """
    # A backslash would be read as a slash: what could be part of a pattern stands as any one character.
    root = _MAGIC.sub("?", os.path.realpath(workspace))
    # What does not fit is left out: whatever names instructions have, only those below the workspace are read.
    settings = {"claudeMdExcludes": [f"!{root}/**"]}
    line = [f"--settings={json.dumps(settings)}"]
    servers = own_servers(workspace)
    if servers:
        listed = told / "repository.json"
        write_atomic(listed, json.dumps({"mcpServers": servers}).encode(), fsync=False)
        line.append(f"--mcp-config={listed}")
    return line


def own_servers(workspace: Path) -> dict[str, Any]:
    """Return the MCP servers of the repository's own list, but for one with the name of ours.

    A list that cannot be read has none: the program would refuse to begin with it. What is wrong with a single server the
    program says itself, and goes on without that.
    """
    try:
        found = parse_json(read_regular(workspace / _LIST, max_bytes=MAX_SERVERS_BYTES))
    except (OSError, ValueError):
        return {}
    listed = found.get("mcpServers") if isinstance(found, dict) else None
    if not isinstance(listed, dict):
        return {}
    return {name: each for name, each in listed.items() if name != SERVER}
