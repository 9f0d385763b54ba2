"""Full payloads of the durable contracts: every field set, so that a release's data can be held against later code."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import schemas
from schemas.common import Durable

WHEN: Final = "2026-01-01T00:00:00Z"
EXCLUDED: Final = {"FlowInput": "spec"}
"""Fields that must not be set beside another one, by the name of their contract."""
_PATTERNS: Final = {r"^[0-9a-f]{64}$": "a" * 64, r"^[a-z][a-z0-9_-]*$": "step"}


def durable_models() -> dict[str, type[Durable]]:
    """Return every durable contract of ``schemas`` by its name."""
    for module in pkgutil.iter_modules(schemas.__path__):
        importlib.import_module(f"schemas.{module.name}")
    return {model.__name__: model for model in _below(Durable) if model.__module__.startswith("schemas.")}


def _below(model: type[Durable]) -> Iterator[type[Durable]]:
    for inner in model.__subclasses__():
        yield inner
        yield from _below(inner)


def sample(model: type[Durable]) -> Any:
    """Return a payload of the model in which every field is set."""
    schema = model.model_json_schema()
    return _value(schema, schema.get("$defs", {}))


def _value(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(ref)}:
            return _value(defs[ref.rpartition("/")[2]], defs)
        case {"const": value}:
            return value
        case {"enum": [*_, last]}:
            return last
        case {"anyOf": choices} | {"oneOf": choices}:
            return _value(next(one for one in choices if one.get("type") != "null"), defs)
        case {"type": "object", "properties": fields}:
            left_out = EXCLUDED.get(schema.get("title", ""))
            return {name: _value(inner, defs) for name, inner in fields.items() if name != left_out}
        case {"type": "object", "patternProperties": patterns}:
            return {"key": _value(next(iter(patterns.values())), defs)}
        case {"type": "object"}:
            values = schema.get("additionalProperties")
            return {"key": _value(values, defs)} if isinstance(values, dict) else {"key": "value"}
        case {"type": "array", "items": items}:
            return [_value(items, defs)]
        case {"type": "string", "format": "date-time"}:
            return WHEN
        case {"type": "string", "pattern": pattern}:
            return _PATTERNS[pattern]
        case {"type": "string"}:
            return "text"
        case {"type": "integer"}:
            return max(2, schema.get("minimum", 2))
        case {"type": "number"}:
            return 0.5
        case {"type": "boolean"}:
            return True
        case _:
            return "anything"


def write_missing(folder: Path) -> None:
    """Write the payloads of contracts that no release has yet; what a release has is never written again."""
    stored = {path.stem for path in folder.glob("*/*.json")}
    release = folder / version("stepwise")
    release.mkdir(parents=True, exist_ok=True)
    for name, model in durable_models().items():
        if name not in stored:
            text = json.dumps(sample(model), indent=1, ensure_ascii=False)
            (release / f"{name}.json").write_text(text + "\n", encoding="utf-8")
