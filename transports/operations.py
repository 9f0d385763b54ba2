"""What a tool call does, in one word for all transports: their tools have names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from schemas.events import ToolEnded, TransportEvent

_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "read": ("Read", "mcp__stepwise__read_file", "read_file"),
        "list": ("Glob", "mcp__stepwise__list", "list_directory", "glob"),
        "search": ("Grep", "grep_search"),
        "write": (
            *("Write", "Edit", "mcp__stepwise__write_file", "mcp__stepwise__edit_file"),
            *("write_file", "replace", "apply_patch", "stub.edit"),
        ),
        "run": ("Bash", "mcp__stepwise__run_command", "run_shell_command", "exec_command", "stub.run"),
        "ask": ("AskUserQuestion", "request_user_input"),
        "delegate": ("Agent", "Task"),
    }
)
OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {name: operation for operation, names in _NAMES.items() for name in names}
)
"""The operation of a tool by its name; tools that are not here have none."""


def with_operation(event: TransportEvent) -> TransportEvent:
    """Return an event whose tool call, if it is one, says what it does."""
    if not isinstance(event, ToolEnded) or event.call.operation is not None:
        return event
    operation = OPERATIONS.get(event.call.tool_name)
    if operation is None:
        return event
    return event.model_copy(update={"call": event.call.model_copy(update={"operation": operation})})
