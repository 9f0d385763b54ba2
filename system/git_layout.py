"""What the engine pins inside a run's clone, and the check that puts it back before every operation.

Whatever an agent writes into ``.git``, the configuration, the excludes and the attributes the engine works with
are the ones below: they are constants, so a changed file is recognised by its bytes and written anew.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from system.git import RepositoryDamaged
from system.untrusted import remove_tree

BUILD_JUNK: Final = (
    "__pycache__/",
    "*.pyc",
    ".pytest_cache/",
    ".mypy_cache/",
    ".ruff_cache/",
    ".coverage",
    ".coverage.*",
    "htmlcov/",
    ".venv/",
    "venv/",
    "node_modules/",
    ".tox/",
    "*.egg-info/",
    ".hypothesis/",
)
"""Names that are never part of a run's work, whatever the repository's own ignore files say."""

_FOLDS_CASE: Final = "\tignorecase = true\n\tprecomposeunicode = true\n" if sys.platform == "darwin" else ""

CONFIG: Final = (
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
    f"{_FOLDS_CASE}"
    # Agents commit too; their commits are told apart from the engine's by this name.
    "[user]\n\tname = Stepwise agent\n\temail = agent@localhost\n"
    # A background gc would outlive the agent that caused it.
    "[gc]\n\tauto = 0\n"
).encode()
EXCLUDE: Final = "".join(f"{pattern}\n" for pattern in BUILD_JUNK).encode()
ATTRIBUTES: Final = b"* -text !eol !ident !filter !working-tree-encoding\n"
"""No filter and no conversion, ever: the bytes in a tree are the bytes on disk."""

_PINNED: Final = (("config", CONFIG), ("info/exclude", EXCLUDE), ("info/attributes", ATTRIBUTES))
_UNWANTED: Final = ("commondir", "objects/info/alternates", "objects/info/http-alternates")
_PLAIN_FILES: Final = ("index", "packed-refs", "shallow")
"""What git reads if it is there: it would wait for a FIFO for ever, and write through a link."""
_FOLDERS: Final = ("objects", "refs", "refs/heads")
_FOLDERS_IF_PRESENT: Final = ("objects/info", "objects/pack", "refs/heads/stepwise", "refs/stepwise", "logs")
_HEAD: Final = re.compile(rb"ref: refs/heads/[^\x00-\x20\x7f]+\n|[0-9a-f]{40}\n")
_REF: Final = re.compile(rb"[0-9a-f]{40}\n")
_OPERATIONS: Final = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "sequencer": "cherry-pick or revert",
    "BISECT_LOG": "bisect",
}
_OPERATION_FILES: Final = (
    *_OPERATIONS,
    "AUTO_MERGE",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "REBASE_HEAD",
    "SQUASH_MSG",
    "BISECT_ANCESTORS_OK",
    "BISECT_EXPECTED_REV",
    "BISECT_FIRST_PARENT",
    "BISECT_NAMES",
    "BISECT_RUN",
    "BISECT_START",
    "BISECT_TERMS",
)
SCRATCH: Final = "stepwise-index"


def pin(git_dir: Path) -> list[str]:
    """Write the pinned files that differ from what they should be; return their names inside ``git_dir``."""
    changed = []
    info = git_dir / "info"
    if not _is(info, stat.S_ISDIR):
        _remove(info)
        info.mkdir()
    for name, content in _PINNED:
        path = git_dir / name
        if not _is(path, stat.S_ISREG) or path.read_bytes() != content:
            _put(path, content)
            changed.append(name)
    return changed


def preflight(git_dir: Path, work_tree: Path, branch: str) -> list[str]:
    """Undo what could misdirect git in a run's clone; return what was repaired. Starts no process.

    Raises RepositoryDamaged when the clone is not a repository any more. Safe while an agent runs.
    """
    _require_folders(git_dir, work_tree)
    repairs = pin(git_dir)
    for name in _UNWANTED:
        if os.path.lexists(git_dir / name):
            _remove(git_dir / name)
            repairs.append(name)
    for name in _PLAIN_FILES:
        if os.path.lexists(git_dir / name) and not _is(git_dir / name, stat.S_ISREG):
            _remove(git_dir / name)
            repairs.append(name)
    head = git_dir / "HEAD"
    if not _is(head, stat.S_ISREG) or _HEAD.fullmatch(head.read_bytes()) is None:
        _put(head, f"ref: refs/heads/{branch}\n".encode())
        repairs.append("HEAD")
    ref = git_dir / "refs" / "heads" / branch
    if os.path.lexists(ref) and (not _is(ref, stat.S_ISREG) or _REF.fullmatch(ref.read_bytes()) is None):
        # Also a symbolic ref: the run's branch never stands for another one.
        _remove(ref)
        repairs.append(f"refs/heads/{branch}")
    return repairs


def operation_in_progress(git_dir: Path) -> str | None:
    """Return which operation (merge, rebase, ...) was begun and not ended, if one was. Starts no process."""
    return next((word for name, word in _OPERATIONS.items() if os.path.lexists(git_dir / name)), None)


def clear_leftovers(git_dir: Path, work_tree: Path, branch: str) -> list[str]:
    """End an operation in progress and remove lock files; return what was removed. Starts no process.

    Only for callers that know the run's agent has ended: nobody else works in a run's clone, so every lock
    that is left belongs to a process that is gone. Raises RepositoryDamaged.
    """
    _require_folders(git_dir, work_tree)
    removed = []
    operation = operation_in_progress(git_dir)
    if operation is not None:
        removed.append(f"operation in progress: {operation}")
    for name in _OPERATION_FILES:
        _remove(git_dir / name)
    locks = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", f"refs/heads/{branch}.lock")
    for name in locks:
        if os.path.lexists(git_dir / name):
            _remove(git_dir / name)
            removed.append(name)
    for path in git_dir.glob(f"{SCRATCH}.*"):
        _remove(path)
    return removed


@contextmanager
def scratch_index(git_dir: Path) -> Iterator[Path]:
    """Yield a path for an index of one's own beside the real one; whatever is there at the end is removed."""
    path = git_dir / f"{SCRATCH}.{os.urandom(6).hex()}"
    try:
        yield path
    finally:
        for leftover in (path, path.with_name(path.name + ".lock")):
            # Where .git is no folder any more, what found that out says so.
            with suppress(FileNotFoundError, NotADirectoryError):
                leftover.unlink()


def copy_index(source: Path, target: Path) -> None:
    """Copy an index with its modification time: git trusts entries only when they are older than that."""
    with source.open("rb") as file:
        stats = os.fstat(file.fileno())
        target.write_bytes(file.read())
    os.utime(target, ns=(stats.st_atime_ns, stats.st_mtime_ns))


def use_index(index: Path, git_dir: Path) -> bool:
    """Put a scratch index in place of the real one; return False if it was not made."""
    try:
        index.replace(git_dir / "index")
    except FileNotFoundError:
        return False
    return True


def _require_folders(git_dir: Path, work_tree: Path) -> None:
    """Raise RepositoryDamaged unless everything the engine writes through is a folder and no link."""
    required = (work_tree, git_dir, *(git_dir / name for name in _FOLDERS))
    present = (git_dir / name for name in _FOLDERS_IF_PRESENT if os.path.lexists(git_dir / name))
    for folder in (*required, *present):
        if not _is(folder, stat.S_ISDIR):
            raise RepositoryDamaged(
                "E_GIT_DAMAGED",
                f"{folder} is not a folder any more",
                mend="the clone has to be made again from its last savepoint",
            )


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _put(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}")
    temporary.write_bytes(content)
    if _is(path, stat.S_ISDIR):
        _remove(path)
    temporary.replace(path)


def _remove(path: Path) -> None:
    if not remove_tree(path):
        raise RepositoryDamaged(
            "E_GIT_DAMAGED", f"{path} cannot be removed", mend="the clone has to be made again elsewhere"
        )
