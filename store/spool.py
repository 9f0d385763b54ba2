"""Line files that grow on the worker's disk while an agent works, and are mended after a crash."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from schemas.cutting import cut
from schemas.json_text import parse_json
from store.errors import StoreUnavailable
from store.evidence import line_of


@dataclass(frozen=True)
class Limits:
    """Upper bounds in bytes: of one line, and of one file."""

    line: int = 1_000_000
    file: int = 50_000_000


@contextmanager
def spooling(path: Path) -> Iterator[None]:
    """Turn an OSError at ``path`` into StoreUnavailable."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            "E_SPOOL", f"cannot keep {path} on this worker: {error.strerror or error}", path=str(path)
        ) from error


class LineFile:
    """One file of JSON lines on the worker's disk, made with its first line. Every call may raise StoreUnavailable."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self._limits = limits
        self._size = 0
        self._full = False
        self._file: io.FileIO | None = None

    def append(self, tree: Any, notice: Any) -> None:
        """Write one line, its texts cut if it is too long; once the file is full, ``notice``, and then nothing."""
        if self._full:
            return
        line = _fitted(tree, self._limits.line) or line_of(notice)
        self._full = self._size + len(line) > self._limits.file
        self.end_with(line_of(notice) if self._full else line)

    def end_with(self, line: bytes) -> None:
        """Write a line whatever the limit; a line that cannot be written whole is not written."""
        with spooling(self.path):
            if self._file is None:
                self._file = self.path.open("xb", buffering=0)
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
            except OSError:
                self._file.truncate(self._size)
                self._file.seek(self._size)
                raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file is not None:
            self._file.close()


def _fitted(tree: Any, limit: int) -> bytes | None:
    for size in (limit, limit // 10, limit // 500, 20):
        line = line_of(tree if size == limit else _shortened(tree, size))
        if len(line) <= limit:
            return line
    return None


def _shortened(tree: Any, size: int) -> Any:
    if isinstance(tree, str):
        return cut(tree, size)
    if isinstance(tree, dict):
        return {key: _shortened(value, size) for key, value in islice(tree.items(), size)}
    return [_shortened(item, size) for item in tree[:size]] if isinstance(tree, list) else tree


def whole_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the lines that are JSON objects; a torn last line and broken ones are left out."""
    found: list[dict[str, Any]] = []
    for line in data.split(b"\n")[:-1]:
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
