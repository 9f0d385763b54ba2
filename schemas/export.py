"""Writes the JSON Schemas of what people write and what is stored: ``python -m schemas.export [--check]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from schemas.events import RunEvent
from schemas.flow import FlowSpec
from schemas.handoff import HandoffEnvelope, PartialHandoff
from schemas.receipt import StepReceipt
from schemas.scenario import Scenario

FOLDER = Path(__file__).resolve().parent / "json"
EXPORTED: dict[str, type[BaseModel]] = {
    "flow": FlowSpec,
    "scenario": Scenario,
    "receipt": StepReceipt,
    "envelope": HandoffEnvelope,
    "handoff_partial": PartialHandoff,
    "run_event": RunEvent,
}
"""The exported contracts by the name of their file."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text(name: str) -> str:
    """Return the text of one schema file; KeyError if no contract has that name."""
    schema = {"$schema": _DIALECT, **EXPORTED[name].model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def schema_path(name: str, folder: Path = FOLDER) -> Path:
    """Return where a schema file stands."""
    return folder / f"{name}.schema.json"


def write(folder: Path = FOLDER) -> None:
    """Write every schema file."""
    folder.mkdir(exist_ok=True)
    for name in EXPORTED:
        schema_path(name, folder).write_text(schema_text(name), encoding="utf-8")


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the names of the files that differ from their contract or belong to none, sorted."""
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    wanted = {schema_path(name).name: schema_text(name) for name in EXPORTED}
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` only compare; return the exit code (2: wrong arguments)."""
    if arguments == ["--check"]:
        differing = stale()
        for name in differing:
            sys.stderr.write(f"schemas/json/{name} is stale: run `python -m schemas.export`\n")
        return 1 if differing else 0
    if arguments:
        sys.stderr.write("usage: python -m schemas.export [--check]\n")
        return 2
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
