"""The run's own clone: what its working tree is, what changed, and the engine's commits on the run's branch."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from schemas.common import FileChanges
from system.git import NULL_OID, Git, GitCut, GitError, RefMoved, checked_oid, checked_ref
from system.git_layout import clear_leftovers, copy_index, preflight, scratch_index, use_index
from system.git_status import STATUS, Plan, parse_status, plan, shown
from system.stamp import stamp

MAX_FILE_BYTES: Final = 50 * 1024 * 1024
MAX_MESSAGE_CHARS: Final = 60_000
ENGINE_NAME: Final = "Stepwise"
ENGINE_EMAIL: Final = "stepwise@localhost"

_HIDDEN: Final = re.compile(rb"(?:\A|\0)(?:[a-z]|S) ")
"""In ``ls-files -v``: a path an agent told git not to look at (assume-unchanged, skip-worktree)."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class WorkingTree:
    """A working tree as measured: its tree id, HEAD's commit (None when unborn) and branch, what is not in it.

    ``not_kept`` and ``repairs`` are sentences for people: what stays out of the tree, what was put right.
    """

    tree: str
    head: str | None
    branch: str | None
    not_kept: tuple[str, ...]
    repairs: tuple[str, ...]


@dataclass(frozen=True)
class Committed:
    """How an engine commit ended: ``commit`` is None if nothing changed, ``head`` is the branch afterwards."""

    commit: str | None
    head: str
    tree: str
    not_kept: tuple[str, ...]
    repairs: tuple[str, ...]


class Repository:
    """One run's clone at ``work_tree``, on branch ``stepwise/<run_id>`` that started at commit ``base``.

    Not for use by two tasks at once.
    """

    def __init__(
        self, work_tree: Path, *, run_id: str, base: str, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self.run_id = run_id
        self.base = checked_oid(base)
        self.branch = checked_ref(f"stepwise/{run_id}")
        self.branch_ref = f"refs/heads/{self.branch}"
        self.git = Git(git_dir=work_tree / ".git", work_tree=work_tree)
        self.savepoint_prefix = f"refs/stepwise/{run_id}/"
        self.work_tree = work_tree
        self._max_file_bytes = max_file_bytes
        self._trees: dict[str, str] = {}
        self._on_base: set[str] = {base}
        self._looked_at: tuple[int, ...] | None = None
        self._measured: tuple[bytes, WorkingTree] | None = None

    async def head(self) -> str:
        """Return the commit HEAD is at. Starts one process."""
        return await self.git.line("rev-parse", "--verify", "--end-of-options", "HEAD^{commit}")

    async def tree_of(self, commit: str) -> str:
        """Return the tree of a commit. Starts one process, none when asked again."""
        if commit not in self._trees:
            self._trees[commit] = await self.git.line(
                "rev-parse", "--verify", "--end-of-options", f"{checked_oid(commit)}^{{tree}}"
            )
        return self._trees[commit]

    async def tree_id(self) -> WorkingTree:
        """Measure the tree that the working tree would commit as: tracked files and untracked, not ignored ones.

        Reads only: branch, index and files stay as they are. Starts no process if nothing was touched since the
        last time, one for a clean tree seen before (two more after the index or HEAD changed), three or four for
        a changed one. Raises GitError, RepositoryDamaged.
        """
        seen = stamp(self.work_tree)
        if seen is not None and self._measured is not None and self._measured[0] == seen.digest:
            return self._measured[1]
        with scratch_index(self.git.git_dir) as index:
            measured, _ = await self.measure(index)
        certain = seen is not None and seen.settled and not measured.repairs
        self._measured = (seen.digest, measured) if seen is not None and certain else None
        return measured

    async def measure(self, index: Path, *, build: bool = False) -> tuple[WorkingTree, Plan]:
        """Do what ``tree_id`` does; leave the index of that tree at ``index`` if one was made or ``build`` is set.

        Starts as many processes as ``tree_id``.
        """
        repairs = preflight(self.git.git_dir, self.work_tree, self.branch)
        made = await self._readable_index(index)
        repairs += made
        output = (await self.git.run(*STATUS, index=index if made else None)).stdout
        status = parse_status(output)
        todo = plan(status, max_bytes=self._max_file_bytes, lstat=self._lstat)
        if not made and (build or not todo.empty or status.head is None):
            copy_index(self.git.git_dir / "index", index)
        if todo.index_info:
            lines = b"".join(line + b"\0" for line in todo.index_info)
            await self.git.run("update-index", "-z", "--index-info", stdin=lines, index=index)
        if todo.add:
            paths = b"".join(path + b"\0" for path in todo.add)
            await self.git.run(
                "update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=paths, index=index
            )
        if todo.empty and status.head is not None:
            tree = await self.tree_of(status.head)
        else:
            tree = (await self.git.run("write-tree", index=index)).stdout.decode().strip()
        measured = WorkingTree(tree, status.head, status.branch, tuple(todo.not_kept), tuple(repairs))
        return measured, todo

    async def changes(self, from_tree: str, to_tree: str) -> FileChanges:
        """Return the paths that differ between two trees or commits. Starts one process, none if both are equal."""
        if from_tree == to_tree:
            return FileChanges()
        found: dict[str, list[str]] = {"A": [], "M": [], "T": [], "D": []}
        output = await self._diff_tree("--name-status", "-z", from_tree=from_tree, to_tree=to_tree)
        fields = output.split(b"\0")[:-1]
        for letter, path in zip(fields[::2], fields[1::2], strict=True):
            found[letter.decode()].append(shown(path))
        return FileChanges(
            created=sorted(found["A"]), modified=sorted(found["M"] + found["T"]), deleted=sorted(found["D"])
        )

    async def diff(self, from_tree: str, to_tree: str, *, max_bytes: int) -> bytes:
        """Return the patch between two trees or commits, at most ``max_bytes`` of it; binary files are only named.

        Starts one process.
        """
        return await self._diff_tree("--patch", from_tree=from_tree, to_tree=to_tree, cut_at=max_bytes)

    async def commit_tree(self, message: str, *, visit: str, attempt: int, when: datetime) -> Committed:
        """Commit the working tree on the run's branch, as the engine, at the time ``when``; call when no agent runs.

        ``visit`` is ``<step>#<visit>``. The same tree, parent, message and time make the same commit. The parent
        is HEAD when HEAD descends from the run's branch (the agent's own commits are kept), else the tip of the
        branch; when that no longer descends from the base, the base. Lock files and an operation in progress are
        removed, HEAD is put back on the branch; ``repairs`` says so. Starts one process if nothing changed, five
        or six otherwise. Raises RefMoved when the branch moves meanwhile.
        """
        repairs = clear_leftovers(self.git.git_dir, self.work_tree, self.branch)
        with scratch_index(self.git.git_dir) as index:
            measured, _ = await self.measure(index)
            repairs += measured.repairs
            on_branch = measured.branch == self.branch
            tip = measured.head if on_branch else await self.ref(self.branch_ref)
            parent = await self._parent(measured.head, tip)
            commit: str | None = None
            if measured.tree != await self.tree_of(parent):
                text = self._message(message, visit=visit, attempt=attempt)
                commit = await self.make_commit(measured.tree, parent=parent, message=text, when=when)
            head = commit or parent
            if head != tip:
                await self.set_ref(self.branch_ref, head, expected=tip or NULL_OID)
            if not on_branch:
                await self.git.run("symbolic-ref", "HEAD", self.branch_ref)
                repairs.append(f"HEAD was at {measured.branch or measured.head or 'no commit'}")
            self.take_index(index)
        return Committed(commit, head, measured.tree, measured.not_kept, tuple(repairs))

    async def find_commit(self, visit: str, attempt: int) -> str | None:
        """Return the engine's commit for a visit and attempt on the branch's first-parent line after the base.

        Starts one process.
        """
        keys = ("Stepwise-Run", "Stepwise-Visit", "Stepwise-Attempt")
        trailers = "%x1f".join(f"%(trailers:key={key},valueonly,separator=%x2C)" for key in keys)
        finished = await self.git.run(
            "log",
            "-z",
            "--first-parent",
            "--no-show-signature",
            f"--format=%H%x1f%ae%x1f{trailers}",
            "--end-of-options",
            f"{self.base}..{self.branch_ref}",
        )
        wanted = [ENGINE_EMAIL, self.run_id, visit, str(attempt)]
        for record in finished.stdout.decode("utf-8", "replace").split("\0"):
            commit, *fields = record.strip("\n").split("\x1f")
            if fields == wanted:
                return commit
        return None

    async def make_commit(self, tree: str, *, parent: str, message: str, when: datetime) -> str:
        """Write a commit object by the engine and return its id; moves no ref. Starts one process."""
        stamp = f"@{int(when.timestamp())} +0000"
        identity = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (("NAME", ENGINE_NAME), ("EMAIL", ENGINE_EMAIL), ("DATE", stamp))
        }
        args = ("commit-tree", checked_oid(tree), "-p", checked_oid(parent), "-F", "-")
        commit = await self.git.line(*args, stdin=message.encode(), env=identity)
        self._trees[commit] = tree
        self._on_base |= {commit} if parent in self._on_base else set()
        return commit

    async def set_ref(self, ref: str, commit: str, *, expected: str | None = None) -> None:
        """Point a ref at a commit; with ``expected`` only if it has that value (40 zeros: only if it is new).

        Starts one process. Raises RefMoved.
        """
        args = ["update-ref", "--no-deref", "-m", "stepwise", checked_ref(ref), checked_oid(commit)]
        try:
            await self.git.run(*args, *([] if expected is None else [checked_oid(expected)]))
        except GitError as error:
            if error.code != "E_GIT_FAILED":
                raise
            message = f"{ref} could not be set: {error.message}"
            raise RefMoved.because(error, "E_GIT_REF_MOVED", message) from error

    async def ref(self, name: str) -> str | None:
        """Return the object a ref points at, None if there is no such ref. Starts one process."""
        args = ("rev-parse", "--verify", "--quiet", "--end-of-options", checked_ref(name))
        return (await self.git.run(*args, ok=(0, 1))).stdout.decode().strip() or None

    def take_index(self, index: Path) -> None:
        """Put an index that ``measure`` made in place of the real one; nothing happens if it made none."""
        if use_index(index, self.git.git_dir):
            self._looked_at = _identity(self.git.git_dir / "index")

    async def _readable_index(self, index: Path) -> list[str]:
        """Make an index at ``index``, and say why, if the real one cannot be trusted to show every change."""
        real = self.git.git_dir / "index"
        try:
            key = _identity(real)
            if key == self._looked_at:
                return []
            listed = await self.git.run("ls-files", "-v", "-z")
        except GitCut:
            raise
        except (FileNotFoundError, GitError):
            try:
                await self.git.run("read-tree", "--end-of-options", "HEAD", index=index)
            except GitCut:
                raise
            except GitError:
                await self.git.run("read-tree", "--empty", index=index)
            return ["index"]
        if _HIDDEN.search(listed.stdout) is None:
            self._looked_at = key
            return []
        entries = await self.git.run("ls-files", "--stage", "-z")
        await self.git.run("update-index", "-z", "--index-info", stdin=entries.stdout, index=index)
        return ["index: paths hidden from git by assume-unchanged or skip-worktree"]

    def _lstat(self, path: bytes) -> os.stat_result | None:
        try:
            return os.lstat(os.path.join(os.fsencode(self.work_tree), path))  # noqa: PTH118 - paths are bytes
        except (FileNotFoundError, NotADirectoryError):
            return None

    async def _parent(self, head: str | None, tip: str | None) -> str:
        parent = tip or head or self.base
        if head is not None and tip is not None and head != tip and await self._descends(head, tip):
            parent = head
        if parent not in self._on_base:
            if not await self._descends(parent, self.base):
                return self.base
            self._on_base.add(parent)
        return parent

    async def _descends(self, commit: str, ancestor: str) -> bool:
        finished = await self.git.run("merge-base", "--is-ancestor", ancestor, commit, ok=(0, 1))
        return finished.exit_code == 0

    async def _diff_tree(
        self, *options: str, from_tree: str, to_tree: str, cut_at: int | None = None
    ) -> bytes:
        fixed = ("-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        trees: Sequence[str] = (checked_oid(from_tree), checked_oid(to_tree))
        finished = await self.git.run(
            "diff-tree", *fixed, *options, "--end-of-options", *trees, cut_at=cut_at
        )
        return finished.stdout if cut_at is None else finished.stdout[:cut_at]

    def _message(self, text: str, *, visit: str, attempt: int) -> str:
        body = _CONTROL.sub("", text).strip()[:MAX_MESSAGE_CHARS]
        trailers = f"Stepwise-Run: {self.run_id}\nStepwise-Visit: {visit}\nStepwise-Attempt: {attempt}\n"
        return f"{body}\n\n{trailers}"


def _identity(path: Path) -> tuple[int, ...]:
    stats = path.stat()
    return (stats.st_ino, stats.st_size, stats.st_mtime_ns, stats.st_ctime_ns)
