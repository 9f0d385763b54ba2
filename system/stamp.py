"""A stamp of a working tree: as long as it stays the same, git need not be asked again what the tree is.

It rests on what git's own index rests on: a file that is written to, renamed or replaced has another change time,
inode or size. The change time is the kernel's, and nobody but the kernel sets it.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from system.git_layout import SCRATCH

MAX_ENTRIES: Final = 5_000
"""Above this many files and folders git is as fast."""
SETTLED_NS: Final = 50_000_000
"""A change time younger than this may come again with the next write: clocks of kernels tick every few milliseconds."""

_GIT_SKIPPED: Final = frozenset({"objects", "logs"})


@dataclass(frozen=True)
class Stamp:
    """What was there; ``settled`` says whether any later change is sure to show."""

    digest: bytes
    settled: bool


def stamp(work_tree: Path) -> Stamp | None:
    """Return the stamp of a working tree and of its ``.git``, or None if it is too large or changes meanwhile."""
    taken_at = time.time_ns()
    digest = hashlib.blake2b(digest_size=20)
    newest = count = 0
    git_dir = os.fspath(work_tree / ".git")
    folders = [os.fspath(work_tree)]
    try:
        while folders:
            folder = folders.pop()
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                if folder == git_dir and (entry.name in _GIT_SKIPPED or entry.name.startswith(SCRATCH)):
                    continue
                count += 1
                if count > MAX_ENTRIES:
                    return None
                stats = entry.stat(follow_symlinks=False)
                is_folder = entry.is_dir(follow_symlinks=False)
                line = [os.fsencode(entry.path), b"%o %d" % (stats.st_mode, stats.st_ino)]
                if entry.path != git_dir:
                    # the times of .git itself change with every index of our own
                    line.append(b"%d %d %d" % (stats.st_size, stats.st_mtime_ns, stats.st_ctime_ns))
                    newest = max(newest, stats.st_ctime_ns)
                digest.update(b"\0".join(line) + b"\0\0")
                if is_folder:
                    folders.append(entry.path)
    except OSError:
        return None
    return Stamp(digest.digest(), newest < taken_at - SETTLED_NS)
