"""Finds and reads files of named kinds in folders: a name is a name, never a path."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from flows.findings import nearest
from flows.known import NAME_PATTERN
from flows.source import MAX_FILE_BYTES
from schemas.errors import BadInput

SHIPPED = Path(__file__).resolve().parent
"""The folder of the flow files, agents and scenarios that come with the product."""


def read_text(path: Path) -> str:
    """Return a file's text, at most one byte more than is allowed; bytes that are no UTF-8 become U+FFFE."""
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # U+FFFE is refused by the YAML reader with its line, as any other forbidden character
        return data[: error.start].decode() + "\ufffe"


def names_in(folders: Iterable[Path]) -> list[str]:
    """Return the names of the YAML files in these folders that have a usable name, sorted."""
    stems = {path.stem for folder in folders for path in folder.glob("*.yaml") if path.is_file()}
    return sorted(stem for stem in stems if re.fullmatch(NAME_PATTERN, stem))


def find_named(kind: str, code: str, name: str, folders: Iterable[Path]) -> Path:
    """Return ``<name>.yaml`` from the first folder that has it; BadInput ``code`` names the known ones."""
    searched = list(folders)
    if re.fullmatch(NAME_PATTERN, name):
        for folder in searched:
            path = folder / f"{name}.yaml"
            if path.is_file():
                return path
    known = names_in(searched)
    listed = f"known: {', '.join(known)}" if known else "none is known"
    near = nearest(name, known)
    mend = f"did you mean {near!r}? {listed}" if near else listed
    raise BadInput(code, f"no {kind} is named {name!r}", mend=mend, name=name, known=" ".join(known))
