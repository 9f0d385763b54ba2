"""Checks a file's data against its contract and says each fault with its place and mend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from flows.findings import MAX_FINDINGS, Code, Fault, Finding, PathInFile, dotted, nearest, one_of
from flows.source import Source

Model = TypeVar("Model", bound=BaseModel)

_SHOWN = 60
_MENDS = {
    "string_type": "write text, in quotes if it looks like a number or true/false",
    "int_type": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "bool_type": "write true or false",
    "list_type": "write a list",
    "model_type": "write a mapping of keys to values",
    "model_attributes_type": "write a mapping of keys to values",
    "dict_type": "write a mapping of keys to values",
    "string_pattern_mismatch": "use a-z, 0-9, _ and -, beginning with a letter",
    "string_too_long": "write less",
    "too_short": "write at least one",
    "greater_than": "raise it",
    "greater_than_equal": "raise it",
    "less_than": "lower it",
    "less_than_equal": "lower it",
}


def check_shape(source: Source, model: type[Model]) -> tuple[Model | None, list[Finding]]:
    """Validate a file; with unknown keys alone the model is still returned, so that more can be said of it."""
    try:
        return model.model_validate(source.data, strict=True), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    many = len(errors) > MAX_FINDINGS
    errors = errors[:MAX_FINDINGS]
    faults, unknown = [], []
    by_place: dict[PathInFile, list[ErrorDetails]] = defaultdict(list)
    for details in errors:
        path = _path_of(source.data, details["loc"])
        if details["type"] == "extra_forbidden":
            key, known = str(details["loc"][-1]), _known_keys(model, details["loc"][:-1])
            faults.append(
                Fault(path, "unknown_key", f"`{key}` is no key here", one_of(key, known), on_key=True)
            )
            unknown.append((path, nearest(key, known)))
        elif details["type"] == "missing":
            key = str(details["loc"][-1])
            faults.append(Fault(path, "missing_key", f"`{dotted((*path, key))}` is missing", f"add `{key}:`"))
        else:
            by_place[path].append(details)
    faults += [_wrong_value(path, found) for path, found in by_place.items()]
    salvaged = None if many or len(unknown) < len(errors) else _without(source.data, unknown, model)
    return salvaged, [source.finding(fault) for fault in faults]


def _wrong_value(path: PathInFile, found: list[ErrorDetails]) -> Fault:
    first = found[0]
    if first["type"] in {"union_tag_not_found", "union_tag_invalid"}:
        return _wrong_tag(path, first)
    on_key = first["loc"][-1:] == ("[key]",)
    said = dict.fromkeys(_said(details) for details in found)
    what = f"`{dotted(path)}`: {'; or '.join(said)}"
    if not isinstance(first["input"], Mapping | list):
        text = repr(first["input"])
        what += f", not {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"
    mends = dict.fromkeys(_MENDS.get(details["type"], "") for details in found)
    if first["type"] == "literal_error":
        mends = {one_of(str(first["input"]), _words(first["ctx"]["expected"])): ""}
    code: Code = "inconsistent" if first["type"] == "value_error" else "wrong_value"
    return Fault(path, code, what, ", or ".join(filter(None, mends)), on_key)


def _said(details: ErrorDetails) -> str:
    # pydantic names its own class here, which says nothing to whoever wrote the file
    if details["type"] in {"model_type", "model_attributes_type"}:
        return "Input should be a mapping"
    return str(details["msg"]).removeprefix("Value error, ")


def _wrong_tag(path: PathInFile, details: ErrorDetails) -> Fault:
    key = str(details["ctx"]["discriminator"]).strip("'")
    if details["type"] == "union_tag_not_found":
        return Fault(
            path, "missing_key", f"`{dotted((*path, key))}` is missing", f"add `{key}:` (see docs/flows.md)"
        )
    tag = str(details["ctx"]["tag"])
    mend = one_of(tag, _words(details["ctx"]["expected_tags"]))
    return Fault((*path, key), "wrong_value", f"`{dotted((*path, key))}` cannot be {tag!r}", mend)


def _words(listed: object) -> list[str]:
    return [word.strip(" '") for word in str(listed).replace(" or ", ", ").split(",")]


def _path_of(data: object, loc: tuple[int | str, ...]) -> PathInFile:
    """Return the part of an error's location that is written in the file: tags of unions are not."""
    path: list[str | int] = []
    for part in loc:
        match data:
            case dict() if part in data:
                data = data[part]
            case list() if isinstance(part, int) and part < len(data):
                data = data[part]
            case _:
                continue
        path.append(part)
    return tuple(path)


def _without(data: object, unknown: list[tuple[PathInFile, str | None]], model: type[Model]) -> Model | None:
    """Validate again with each unknown key taken for the one it was probably meant to be, or left out."""
    copy = deepcopy(data)
    for path, meant in unknown:
        around: Any = copy
        for part in path[:-1]:
            around = around[part]
        # a value reached by an alias stands in several places; the first visit has changed it already
        value = around.pop(path[-1], None)
        if meant is not None and meant not in around:
            around[meant] = value
    try:
        return model.model_validate(copy, strict=True)
    except ValidationError:
        return None


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    root = _schema(model)
    node = root
    for part in loc:
        node = _child(_follow(root, node), part)
    return list(_follow(root, node).get("properties", {}))


def _follow(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while True:
        options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]
        if "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        elif len(options) == 1:
            node = options[0]
        else:
            return node


def _child(node: dict[str, Any], part: int | str) -> dict[str, Any]:
    mapping = node.get("discriminator", {}).get("mapping", {})
    if isinstance(part, int):
        found = node.get("items", {})
    elif part in mapping:
        found = {"$ref": mapping[part]}
    else:
        # keys that people choose themselves all hold the same shape
        chosen = [node.get("additionalProperties"), *node.get("patternProperties", {}).values()]
        found = node.get("properties", {}).get(part, next(filter(None, chosen), {}))
    return found if isinstance(found, dict) else {}
