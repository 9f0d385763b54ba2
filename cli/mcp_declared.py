"""The tools of ``stepwise mcp``: what a client is told of them, and what ``cli.mcp_arguments`` checks calls against."""

from __future__ import annotations

from typing import Any, Final


def _tool(
    name: str, description: str, *, reads: bool = False, required: tuple[str, ...] = (), **properties: Any
) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    schema["properties"] = {
        each: {"title": each.replace("_", " ").title(), **what} for each, what in properties.items()
    }
    if required:
        schema["required"] = list(required)
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": reads, "openWorldHint": False},
    }


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean", "default": False}
_PLACE: Final = {**_TEXT, "description": "Relative to the workspace, or absolute within it."}

DECLARED: Final = [
    _tool(
        "read_file",
        "Read a text file of the workspace, or some of its lines.",
        reads=True,
        required=("path",),
        path=_PLACE,
        offset={
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "The first line, counted from 1.",
        },
        limit={
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
            "default": None,
            "description": "How many lines; all by default.",
        },
    ),
    _tool(
        "list",
        "List a folder of the workspace; folders end with a slash.",
        reads=True,
        path={**_PLACE, "default": "."},
        recursive=_FLAG,
    ),
    _tool(
        "write_file",
        "Create a file of the workspace or replace it whole; folders are made.",
        required=("path", "content"),
        path=_PLACE,
        content=_TEXT,
    ),
    _tool(
        "edit_file",
        "Replace a text in a file of the workspace; it has to be there exactly once, unless all of them are meant.",
        required=("path", "old", "new"),
        path=_PLACE,
        old={**_TEXT, "minLength": 1},
        new=_TEXT,
        all=_FLAG,
    ),
    _tool(
        "run_command",
        "Run a command line with a shell in the workspace, and wait for its end.",
        required=("command",),
        command=_TEXT,
        timeout_s={
            "anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 3600.0}, {"type": "null"}],
            "default": None,
        },
    ),
]
"""The tools, as the answer to ``tools/list`` has them."""
