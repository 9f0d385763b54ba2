"""Finds and reads files of named kinds in folders: a name is a name, never a path."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from flows.findings import one_of
from flows.known import NAME_PATTERN
from flows.source import MAX_FILE_BYTES
from schemas.errors import BadInput

_MAX_SHOWN = 100

SHIPPED = Path(__file__).resolve().parent
"""The folder of the flow files, agents and scenarios that come with the product."""


def read_text(path: Path) -> str:
    """Return a file's text, at most one byte more than is allowed; bytes that are no UTF-8 become U+FFFE.

    A link is followed. Raises OSError for what is no regular file: a FIFO is not waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        data = file.read(MAX_FILE_BYTES + 1)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # U+FFFE is refused by the YAML reader with its line, as any other forbidden character
        return data[: error.start].decode() + "\ufffe"


def names_in(folders: Iterable[Path]) -> list[str]:
    """Return the names of the YAML files in these folders that have a usable name, sorted."""
    stems = {path.stem for folder in folders for path in folder.glob("*.yaml") if is_regular(path)}
    return sorted(stem for stem in stems if re.fullmatch(NAME_PATTERN, stem))


def is_regular(path: Path) -> bool:
    """Whether there is a regular file, or a link to one; False for whatever cannot be asked."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_found(path: Path, kind: str) -> str:
    """Return the text of a file that was found by its name. Raises BadInput ``FlowRefused`` when it cannot be read."""
    try:
        return read_text(path)
    except OSError as error:
        raise BadInput(
            "FlowRefused",
            f"the {kind} {path} cannot be read: {error.strerror}",
            mend="make it a file that the worker can read",
        ) from error


def find_named(kind: str, code: str, name: str, folders: Iterable[Path]) -> Path:
    """Return ``<name>.yaml`` from the first folder that has it; BadInput ``code`` names the known ones."""
    searched = list(folders)
    if re.fullmatch(NAME_PATTERN, name):
        for folder in searched:
            path = folder / f"{name}.yaml"
            if is_regular(path):
                return path
            if os.path.lexists(path):
                raise BadInput(
                    code,
                    f"{path} is no regular file",
                    mend=f"put the {kind} there, or take it away",
                    name=name,
                )
    known = names_in(searched)
    mend = one_of(name, known) if known else "none is known"
    shown = name if len(name) <= _MAX_SHOWN else f"{name[:_MAX_SHOWN]}…"
    raise BadInput(code, f"no {kind} is named {shown!r}", mend=mend, name=shown, known=" ".join(known))
