"""Which names no agent writes, and which paths certainly stay in the workspace. Pure; by their text alone."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

PROTECTED: Final = (".git", ".gitconfig", ".claude", ".mcp.json", ".vscode", ".idea", ".env")
"""Names within a workspace that decide what runs later, or hold secrets: no agent writes them."""

_CLASSES: Final = re.compile(r"\[.*\]", re.DOTALL)
_MAX_PART: Final = 512


def is_protected(path: str) -> bool:
    """Whether a path, or what a pattern may match, is protected or in what is."""
    return any(_is_protected(part) for part in path.split("/"))


def _is_protected(part: str) -> bool:
    lowered = part.lower()
    if lowered in PROTECTED:
        return True
    if len(part) > _MAX_PART:
        return part[:1] in {".", "[", "\\"}
    return part[:1] in {".", "[", "\\"} and any(fnmatchcase(one, widened(part)) for one in PROTECTED)


def widened(path: str) -> str:
    """Return a pattern of which every class may match anything: what it matches is not read."""
    return _CLASSES.sub("*", path.lower()).replace("\\", "")


def is_plain(path: str) -> bool:
    """Whether a path leads down from where it begins, past nothing hidden: no part of it leads elsewhere."""
    return bool(path) and all(part[:1] not in {"", ".", "~", "-", "[", "\\", "$"} for part in path.split("/"))
