"""The arguments of a call, checked against what ``cli.mcp_declared`` tells clients of the tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cli.mcp_declared import DECLARED
from schemas.errors import StepwiseError

_SCHEMAS: Final = {tool["name"]: tool["inputSchema"] for tool in DECLARED}

_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "string": ((str,), "a string"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "null": ((type(None),), "null"),
}
_NOTES: Final = frozenset({"title", "description", "default"})
_BOUNDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "minimum": lambda value, bound: value >= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "maximum": lambda value, bound: value <= bound,
    "minLength": lambda value, bound: len(value) >= bound,
}


def checked(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments, with the defaults of those that are not given.

    Raises StepwiseError for a tool that is none, and for arguments that do not fit: each field, and what it has to be.
    """
    schema = _SCHEMAS.get(tool)
    if schema is None:
        raise StepwiseError("unsupported_tool_name", f"there is no tool {tool!r}")
    fields: dict[str, Any] = schema["properties"]
    required = schema.get("required", ())
    faults = [
        f"{name}: it is missing, give {_wanted(fields[name])}" for name in required if name not in arguments
    ]
    given = {name: _number(value) for name, value in arguments.items()}
    for name, value in given.items():
        if name not in fields:
            faults.append(f"{name}: there is no such field, leave it out; there are {', '.join(fields)}")
        elif not _fits(value, fields[name]):
            faults.append(f"{name}: give {_wanted(fields[name])}")
    if faults:
        raise StepwiseError("bad_arguments", "; ".join(faults))
    defaults = {name: field["default"] for name, field in fields.items() if name not in required}
    return defaults | given


def _number(value: Any) -> Any:
    """Return a whole number as an integer, which it is by JSON Schema however it is written (2.0)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is as declared. Raises KeyError for a schema that says what is not known here."""
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    bounds = schema.keys() - _NOTES - {"type"}
    # By its very type: true is no integer.
    return type(value) in _TYPES[schema["type"]][0] and all(
        _BOUNDS[bound](value, schema[bound]) for bound in bounds
    )


def _wanted(schema: Mapping[str, Any]) -> str:
    """Say what a value has to be."""
    if "anyOf" in schema:
        return " or ".join(map(_wanted, schema["anyOf"]))
    bounds = ", ".join(f"{bound} {schema[bound]:g}" for bound in _BOUNDS if bound in schema)
    return _TYPES[schema["type"]][1] + (f" ({bounds})" if bounds else "")
