"""Which paths a tool may name inside a workspace, judged by their text alone. Pure."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

from schemas.errors import StepwiseError

PathCode = Literal[
    "E_PATH_OUTSIDE",
    "E_PATH_ABSOLUTE",
    "E_PATH_INVALID",
    "E_PATH_PROTECTED",
    "E_PATH_SYMLINK",
    "E_PATH_NOT_REGULAR",
    "E_PATH_HARDLINK",
]

MAX_COMPONENT_BYTES: Final = 255
MAX_PATH_BYTES: Final = 4096

NEVER: Final = frozenset({".git", "git~1"})
"""Names no tool reads or writes, at any depth."""

NOT_WRITABLE: Final = frozenset(
    {".claude", ".gemini", ".codex", ".mcp.json", ".vscode", ".idea", ".env", ".envrc", ".gitconfig"}
)
"""Names that configure the programs around a workspace: readable, never written, created or deleted."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class PathDenied(StepwiseError):
    """Raised when a path may not be used so; nothing was changed. ``path`` is the path as it was given."""

    def __init__(self, code: PathCode, path: str, reason: str) -> None:
        super().__init__(code, f"{path[:200]!a}: {reason}")
        self.path = path


def parts_of(path: str, *, roots: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the components of a path below the root; none for the root itself. Raises PathDenied.

    An absolute path is taken only when it is one of ``roots`` or below one.
    """
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise PathDenied("E_PATH_INVALID", path, "the path cannot be a file name") from None
    if not path or b"\0" in encoded or len(encoded) > MAX_PATH_BYTES:
        raise PathDenied("E_PATH_INVALID", path, "the path is empty, too long, or holds a NUL")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/"):
        parts = _below(path, parts, roots)
    if ".." in parts:
        raise PathDenied("E_PATH_OUTSIDE", path, "a path may not go up with '..'")
    if any(len(os.fsencode(part)) > MAX_COMPONENT_BYTES for part in parts):
        raise PathDenied("E_PATH_INVALID", path, "a component is longer than 255 bytes")
    if any(canonical_name(part) in NEVER for part in parts):
        raise PathDenied("E_PATH_PROTECTED", path, "git's own files are not for tools")
    return tuple(parts)


def leads_out(pattern: str) -> bool:
    """Tell whether a pattern of paths may match something out of the workspace, or git's own files."""
    parts = re.split(r"[/{},]", pattern)
    outside = pattern.startswith(("/", "~")) or ".." in parts
    return outside or any(canonical_name(part) in NEVER or _may_be_git(part) for part in parts)


def _may_be_git(part: str) -> bool:
    """Whether a part that is more than a star can be git's folder."""
    return part.strip("*") != "" and any(fnmatchcase(name, part.casefold()) for name in NEVER)


def check_writable(path: str, parts: Sequence[str]) -> None:
    """Raise PathDenied when a tool may not change what is at ``parts``."""
    if any(canonical_name(part) in NOT_WRITABLE for part in parts):
        raise PathDenied("E_PATH_PROTECTED", path, "the file configures programs around the workspace")


def check_new(path: str, parts: Sequence[str]) -> None:
    """Raise PathDenied when a name holds characters that are not seen (control, bidi, zero width, not UTF-8)."""
    if any(unicodedata.category(char) in _UNSEEN for part in parts for char in part):
        raise PathDenied("E_PATH_INVALID", path, "the name holds characters that are not seen or no text")


def canonical_name(part: str) -> str:
    """Return a component as the most lenient file systems read it: case, unseen characters, trailing dots gone."""
    seen = "".join(char for char in part if unicodedata.category(char) != "Cf")
    return seen.casefold().split(":")[0].split("\\")[0].rstrip(" .")


def _below(path: str, parts: list[str], roots: Sequence[str]) -> list[str]:
    for root in roots:
        above = [part for part in root.split("/") if part]
        if parts[: len(above)] == above:
            return parts[len(above) :]
    raise PathDenied("E_PATH_ABSOLUTE", path, "an absolute path has to be inside the workspace")
