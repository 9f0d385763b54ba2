"""Which tools a Claude agent may use, and how: judged before the call, for sub-agents too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from policy.commands import ALLOWED, Verdict, judge, judge_read_only
from system.paths import PathDenied, check_new, check_writable, leads_out, parts_of

SERVER: Final = "stepwise"
"""The name of our own server of tools in a session."""
QUESTION: Final = "AskUserQuestion"
"""The tool that asks the user."""
SUBAGENT: Final = frozenset({"Agent", "Task"})
"""The tool that has another agent do something; it has two names."""

_READ_ONLY: Final = Verdict("deny", "read_only", "this session may not change anything")


@dataclass(frozen=True)
class Toolset:
    """The tools that read and those that write, each with its argument that is a path, and the one that runs commands.

    ``optional`` names those whose path may be left out, ``patterns`` the arguments that are patterns of paths.
    """

    reading: Mapping[str, str]
    writing: Mapping[str, str]
    command: str
    optional: frozenset[str]
    patterns: Mapping[str, str]


OWN: Final = Toolset(
    reading={"Read": "file_path", "Glob": "path", "Grep": "path"},
    writing={"Write": "file_path", "Edit": "file_path"},
    command="Bash",
    optional=frozenset({"Glob", "Grep"}),
    patterns={"Glob": "pattern", "Grep": "glob"},
)
"""Claude Code's own tools, as far as an agent is offered them."""
OURS: Final = Toolset(
    reading={f"mcp__{SERVER}__{name}": "path" for name in ("read_file", "list")},
    writing={f"mcp__{SERVER}__{name}": "path" for name in ("write_file", "edit_file")},
    command=f"mcp__{SERVER}__run_command",
    optional=frozenset({f"mcp__{SERVER}__list"}),
    patterns={},
)
"""The tools of ``stepwise mcp``."""


def judge_tool(
    name: str,
    arguments: Mapping[str, Any],
    *,
    tools: Toolset,
    workspace: Path,
    read_only: bool,
    repository_tools: bool,
) -> Verdict:
    """Return what policy says of a call. Blocks: where links lead is looked up on the disk.

    ``repository_tools`` lets the tools of a trusted repository's own MCP servers pass.
    """
    try:
        if name in tools.reading:
            return _judge_read(name, arguments, tools, workspace)
        if name in tools.writing:
            return _READ_ONLY if read_only else _judge_write(arguments.get(tools.writing[name]), workspace)
    except PathDenied as denied:
        return Verdict("deny", denied.code, denied.message)
    if name == tools.command:
        judged = judge_read_only if read_only else judge
        return judged(str(arguments.get("command", "")), workspace=os.path.realpath(workspace))
    if name in SUBAGENT or name == QUESTION:
        return ALLOWED
    if name.startswith("mcp__") and not name.startswith(f"mcp__{SERVER}__") and repository_tools:
        return _READ_ONLY if read_only else ALLOWED
    return Verdict("deny", "tool_not_offered", f"the tool {name} is not offered here")


def _judge_read(name: str, arguments: Mapping[str, Any], tools: Toolset, workspace: Path) -> Verdict:
    given = arguments.get(tools.reading[name])
    if given is not None or name not in tools.optional:
        _inside(given, workspace)
    pattern = str(arguments.get(tools.patterns.get(name, "")) or "")
    if leads_out(pattern):
        return Verdict("deny", "E_PATH_OUTSIDE", f"the pattern {pattern[:200]!a} leads out of the workspace")
    return ALLOWED


def _judge_write(given: object, workspace: Path) -> Verdict:
    path = given if isinstance(given, str) else ""
    for parts in _inside(given, workspace):
        check_writable(path, parts)
        check_new(path, parts)
    return ALLOWED


def _inside(given: object, workspace: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a path's components below the workspace, as given and where links lead; raises PathDenied if outside."""
    path = given if isinstance(given, str) else ""
    real = os.path.realpath(workspace)
    parts = parts_of(path, roots=(str(workspace), real))
    led_to = os.path.realpath(os.path.join(real, *parts))  # noqa: PTH118 - as text, links and all
    return parts, () if led_to == real else parts_of(led_to, roots=(real,))
