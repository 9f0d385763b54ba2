"""JSON Schemas as the provider's strict mode takes them; what it does not take is validated by us alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_KEPT: Final = frozenset(
    {
        "type",
        "description",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "items",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
    }
)
# Only narrow what is valid, or say nothing of it.
_LEFT_OUT: Final = frozenset(
    {
        "title",
        "default",
        "examples",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "uniqueItems",
        "deprecated",
    }
)


class _NotStrict(Exception):
    """Raised for a schema that strict mode cannot say."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of strict mode whose values are those of ``schema`` but for bounds on texts; None if there is none.

    Every property is required and no other is allowed; open objects cannot be said so.
    """
    try:
        strict = _strict({key: value for key, value in schema.items() if key != "$defs"})
        if strict.get("type") != "object":
            return None
        named = {name: _strict(each) for name, each in schema.get("$defs", {}).items()}
    except _NotStrict:
        return None
    return strict | ({"$defs": named} if named else {})


def _strict(node: Any) -> dict[str, Any]:
    if not isinstance(node, Mapping):
        raise _NotStrict
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    kept = {key: value for key, value in node.items() if key in _KEPT}
    rest = node.keys() - _KEPT - _LEFT_OUT
    if node.get("type") == "object":
        rest -= {"properties", "required", "additionalProperties"}
        kept |= _object(node)
    if rest:
        raise _NotStrict
    if "items" in kept:
        kept["items"] = _strict(kept["items"])
    if "anyOf" in kept:
        kept["anyOf"] = [_strict(each) for each in kept["anyOf"]]
    return kept


def _object(node: Mapping[str, Any]) -> dict[str, Any]:
    properties = node.get("properties")
    if not properties or node.get("additionalProperties", True) is not False:
        raise _NotStrict
    return {
        "properties": {name: _strict(each) for name, each in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
