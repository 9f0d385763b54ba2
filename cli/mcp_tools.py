"""The tools of ``stepwise mcp`` that read and write files of one workspace, under our path policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from cli.mcp_arguments import checked
from schemas.cutting import cut
from schemas.errors import StepwiseError
from system.files import Root
from system.paths import PathDenied

MAX_OUTPUT: Final = 30_000
"""How many characters of a tool's output the model gets."""


class Said(NamedTuple):
    """What a tool answers: words for the model, and whether it failed."""

    text: str
    failed: bool = False


class Denied(StepwiseError):
    """Raised for a call that policy does not allow; nothing was done."""


def failure(error: Exception) -> Said:
    """Return what a failed call answers: what went wrong in words, with its code."""
    if isinstance(error, StepwiseError):
        return Said(cut(f"{error.code}: {error.message}", MAX_OUTPUT), failed=True)
    return Said(cut(f"{type(error).__name__}: {error}", MAX_OUTPUT), failed=True)


class Workshop:
    """The files of one workspace."""

    def __init__(self, workspace: str, *, read_only: bool) -> None:
        self._root = Root(workspace)
        self._read_only = read_only
        self._tools: Mapping[str, Callable[..., str]] = {
            "read_file": self._read,
            "list": self._list,
            "write_file": self._write,
            "edit_file": self._edit,
        }

    def close(self) -> None:
        """Let go of the workspace."""
        self._root.close()

    def call(self, name: str, arguments: Mapping[str, Any]) -> Said:
        """Make a call; what goes wrong is said. Blocks."""
        try:
            given = checked(name, arguments)
            return Said(cut(self._tools[name](**given), MAX_OUTPUT))
        except Exception as error:  # noqa: BLE001 - a folder that is too deep, say: whoever called has to know
            return failure(error)

    def _read(self, *, path: str, offset: int, limit: int | None) -> str:
        lines = self._text(path).splitlines(keepends=True)[offset - 1 :]
        return "".join(lines[:limit])

    def _list(self, *, path: str, recursive: bool) -> str:
        entries = self._root.list(path, recursive=recursive)
        lines = [f"{entry.path}{'/' if entry.type == 'directory' else ''}" for entry in entries]
        return "\n".join(lines) or "(nothing)"

    def _write(self, *, path: str, content: str) -> str:
        self._check_may_write()
        data = content.encode()
        self._root.write_atomic(path, data)
        return f"Wrote {len(data)} bytes to {path}."

    def _edit(self, *, path: str, old: str, new: str, all: bool) -> str:  # noqa: A002 - as clients know it
        self._check_may_write()
        text = self._text(path)
        found = text.count(old)
        if found == 0:
            raise Denied("text_not_found", f"{path} does not contain the text")
        if found > 1 and not all:
            raise Denied("text_not_unique", f"{path} contains the text {found} times")
        self._root.write_atomic(path, text.replace(old, new).encode())
        return f"Replaced {found} in {path}."

    def _check_may_write(self) -> None:
        if self._read_only:
            raise Denied("read_only", "nothing may be changed here")

    def _text(self, path: str) -> str:
        content = self._root.read(path)
        if content.truncated:
            raise Denied("file_too_large", f"{path} has {content.total_bytes} bytes")
        if b"\0" in content.data:
            raise PathDenied("E_PATH_NOT_REGULAR", path, "the file is no text")
        return content.data.decode()
