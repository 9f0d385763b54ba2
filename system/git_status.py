"""What a working tree would commit as: ``git status`` read, and the index updates that follow from it. Pure."""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from system.git_layout import BUILD_JUNK
from system.paths import NEVER, canonical_name

STATUS: Final = (
    "status",
    "--porcelain=v2",
    "--branch",
    "-z",
    "--untracked-files=all",
    "--ignored=matching",
    "--no-renames",
    "--no-ahead-behind",
    "--ignore-submodules=dirty",
)
MAX_NOT_KEPT: Final = 100
"""How many paths that stay out are named; the rest is counted. What is named travels through history."""
MAX_IGNORED_LISTED: Final = 50
"""How many ignored paths are named; the rest is counted."""

_GITLINK: Final = b"160000"
_ABSENT: Final = b"000000"
_NULL: Final = b"0" * 40


@dataclass(frozen=True)
class Entry:
    """One path that differs: ``staged`` and ``unstaged`` are git's letters (``.`` unchanged, ``?`` untracked)."""

    path: bytes
    staged: str = "?"
    unstaged: str = "?"
    head_mode: bytes = _ABSENT
    index_mode: bytes = _ABSENT
    work_mode: bytes = b""
    head_oid: bytes = _NULL


@dataclass(frozen=True)
class Status:
    """The parsed output of ``git status``: HEAD's commit (None when unborn), its branch, what differs."""

    head: str | None
    branch: str | None
    entries: tuple[Entry, ...]
    ignored: tuple[bytes, ...]


@dataclass
class Plan:
    """How to turn a copy of the index into the working tree, and what stays out of it."""

    index_info: list[bytes] = field(default_factory=list)
    add: list[bytes] = field(default_factory=list)
    staged: bool = False
    not_kept: list[str] = field(default_factory=list)
    left_untracked: list[bytes] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether the working tree is HEAD's tree as it stands."""
        return not (self.index_info or self.add or self.staged)

    def remove(self, entry: Entry) -> None:
        """Take the path out of the index."""
        self.index_info.append(b"0 " + _NULL + b"\t" + entry.path)

    def leave(self, entry: Entry, reason: str) -> None:
        """Keep what HEAD has at the path (nothing, if it has nothing) and say so."""
        self.not_kept.append(f"{shown(entry.path)}: {reason}")
        if entry.staged == "?":
            self.left_untracked.append(entry.path)
        elif entry.head_mode == _ABSENT:
            self.remove(entry)
        else:
            self.index_info.append(entry.head_mode + b" " + entry.head_oid + b"\t" + entry.path)


def shown(path: bytes) -> str:
    """Return a path as text that is always valid UTF-8; other bytes stand as escapes."""
    return path.decode("utf-8", "backslashreplace")


def parse_status(output: bytes) -> Status:
    """Parse what STATUS prints; raises ValueError on a line of an unknown kind."""
    head: str | None = None
    branch: str | None = None
    entries: list[Entry] = []
    ignored: list[bytes] = []
    for line in output.split(b"\0"):
        kind, _, rest = line.partition(b" ")
        match kind:
            case b"":
                continue
            case b"#":
                name, _, value = rest.decode("utf-8", "surrogateescape").partition(" ")
                if name == "branch.oid":
                    head = None if value == "(initial)" else value
                elif name == "branch.head":
                    branch = None if value == "(detached)" else value
            case b"1":
                xy, _sub, m_head, m_index, m_work, h_head, _h_index, path = rest.split(b" ", 7)
                letters = xy.decode()
                entries.append(Entry(path, letters[0], letters[1], m_head, m_index, m_work, h_head))
            case b"u":
                _xy, _sub, _m1, _m2, _m3, m_work, _h1, _h2, _h3, path = rest.split(b" ", 9)
                entries.append(Entry(path, "U", "U", work_mode=m_work))
            case b"?":
                entries.append(Entry(rest))
            case b"!":
                ignored.append(rest)
            case _:
                raise ValueError(f"git status printed a line of an unknown kind: {line[:80]!r}")
    return Status(head, branch, tuple(entries), tuple(ignored))


def plan(status: Status, *, max_bytes: int, lstat: Callable[[bytes], os.stat_result | None]) -> Plan:
    """Decide for every path that differs whether it is added, removed, or left as HEAD has it.

    ``lstat`` returns None for a path that is not there. Left out and named: nested repositories, files over
    ``max_bytes``, files that cannot be read or that are no files, names git refuses, ignored files.
    """
    result = Plan()
    for entry in status.entries:
        _plan_entry(result, entry, max_bytes=max_bytes, lstat=lstat)
    if len(result.not_kept) > MAX_NOT_KEPT:
        result.not_kept[MAX_NOT_KEPT:] = [f"{len(result.not_kept) - MAX_NOT_KEPT} more paths"]
    ignored = [path for path in status.ignored if not _is_junk(path)]
    result.not_kept += [f"{shown(path)}: ignored" for path in ignored[:MAX_IGNORED_LISTED]]
    if len(ignored) > MAX_IGNORED_LISTED:
        result.not_kept.append(f"{len(ignored) - MAX_IGNORED_LISTED} more paths: ignored")
    return result


def _plan_entry(
    result: Plan, entry: Entry, *, max_bytes: int, lstat: Callable[[bytes], os.stat_result | None]
) -> None:
    result.staged |= entry.staged not in ".?"
    if entry.path.endswith(b"/"):
        result.not_kept.append(f"{shown(entry.path)}: nested repository")
        return
    if entry.work_mode == _ABSENT:
        if entry.unstaged != ".":
            result.remove(entry)
        return
    if _GITLINK in (entry.head_mode, entry.index_mode):
        result.leave(entry, "nested repository")
        return
    stats = lstat(entry.path)
    if stats is None or stat.S_ISDIR(stats.st_mode):
        # Gone since git looked; or a folder now, whose files have entries of their own.
        result.remove(entry)
        return
    if not (stat.S_ISREG(stats.st_mode) or stat.S_ISLNK(stats.st_mode)):
        result.not_kept.append(f"{shown(entry.path)}: not a regular file")
        result.remove(entry)
    elif _refused_name(entry.path, is_link=stat.S_ISLNK(stats.st_mode)):
        result.leave(entry, "a name git refuses")
    elif stat.S_ISREG(stats.st_mode) and stats.st_size > max_bytes:
        result.leave(entry, f"larger than {max_bytes // (1024 * 1024)} MB")
    elif entry.unstaged != ".":
        result.add.append(entry.path)


def _refused_name(path: bytes, *, is_link: bool) -> bool:
    """Whether git keeps the path out of every index, since other systems would read it as ``.git``."""
    if any(canonical_name(part.decode("utf-8", "replace")) in NEVER for part in path.split(b"/")):
        return True
    return is_link and path.rpartition(b"/")[2].lower() == b".gitmodules"


def _is_junk(path: bytes) -> bool:
    text = shown(path)
    name = text.rstrip("/").rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(f"{name}/" if pattern.endswith("/") and text.endswith("/") else name, pattern)
        for pattern in BUILD_JUNK
    )
