"""Savepoints: a working tree kept as a commit beside the run's branch, and put back as it was."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from schemas.handoff import Savepoint
from system.git import NULL_OID, GitError, RefMoved, checked_oid
from system.git_layout import clear_leftovers, operation_in_progress, scratch_index
from system.repository import Repository


async def take_savepoint(
    repository: Repository, number: int, *, when: datetime, previous: Savepoint | None = None
) -> Savepoint:
    """Keep the working tree under ``refs/stepwise/<run_id>/<number>``, on top of HEAD; branch and files stay.

    Returns ``previous`` when neither HEAD nor the tree has changed since. Starts one to six processes. Raises
    RefMoved when the number is taken by another savepoint, GitError.
    """
    measured = await repository.tree_id()
    parent = measured.head or repository.base
    if (
        previous is not None
        and previous.tree == measured.tree
        and await _parent(repository, previous) == parent
    ):
        return previous
    not_kept = list(measured.not_kept)
    operation = operation_in_progress(repository.git.git_dir)
    if operation is not None:
        not_kept.append(f"operation in progress: {operation}")
    message = f"Savepoint {number}\n\nStepwise-Run: {repository.run_id}\n"
    commit = await repository.make_commit(measured.tree, parent=parent, message=message, when=when)
    ref = f"{repository.savepoint_prefix}{number}"
    try:
        await repository.set_ref(ref, commit, expected=NULL_OID)
    except RefMoved:
        # A repeat of this very savepoint finds its own ref.
        if await repository.ref(ref) != commit:
            raise
    return Savepoint(ref=ref, commit=commit, tree=measured.tree, not_kept=not_kept)


async def restore(repository: Repository, savepoint: Savepoint) -> list[str]:
    """Put the run's branch at the savepoint's parent and the files at its tree, unstaged; return what was repaired.

    Untracked files that are not in the tree are removed; ignored files and nested repositories stay, unless the
    tree has a file in their place. Call when no agent runs; a repeat after a crash starts over. Starts eight to
    thirteen processes, five more if the tree has ignored files in it. Raises GitError (E_GIT_RESTORE if the working
    tree is not the savepoint's afterwards).
    """
    parent = await _parent(repository, savepoint)
    tree = await repository.tree_of(savepoint.commit)
    return await _put_back(repository, tree, branch_at=parent)


async def restore_tree(repository: Repository, tree: str) -> list[str]:
    """Put the files at ``tree``, as ``restore`` does, with the run's branch left where it is; return the repairs.

    Starts seven to twelve processes. Raises GitError.
    """
    branch_at = await repository.ref(repository.branch_ref)
    return await _put_back(repository, checked_oid(tree), branch_at=branch_at or repository.base)


async def _put_back(repository: Repository, tree: str, *, branch_at: str) -> list[str]:
    git = repository.git
    repairs = clear_leftovers(git.git_dir, repository.work_tree, repository.branch)
    with scratch_index(git.git_dir) as index:
        # With every file of the working tree in this index, git itself removes those that are not in the tree.
        measured, todo = await repository.measure(index, build=True)
        repairs += measured.repairs
        _delete(repository.work_tree, todo.left_untracked)
        await git.run("read-tree", "--reset", "-u", "--end-of-options", tree, index=index)
        if await repository.tree_of(branch_at) != tree:
            # One tree, merged: entries that are the same keep what is known of their files.
            await git.run("read-tree", "-m", "--end-of-options", branch_at, index=index)
        await repository.set_ref(repository.branch_ref, branch_at)
        if measured.branch != repository.branch:
            await git.run("symbolic-ref", "HEAD", repository.branch_ref)
        repository.take_index(index)
    after = await repository.tree_id()
    if after.tree != tree:
        await _stage(repository, after.tree, tree)
        after = await repository.tree_id()
    if after.tree != tree:
        raise GitError(
            "E_GIT_RESTORE",
            f"the working tree is {after.tree} and not {tree} after it was put back",
            mend="make the clone again and restore there",
        )
    return repairs


async def _stage(repository: Repository, seen: str, tree: str) -> None:
    """Stage what only the index can say: an ignored file that was added by force, or one taken out of the index."""
    args = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--end-of-options", seen, tree)
    fields = (await repository.git.run(*args)).stdout.split(b"\0")[:-1]
    lines = b""
    for header, path in zip(fields[::2], fields[1::2], strict=True):
        _, mode, _, oid, _ = header.split(b" ")
        lines += mode + b" " + oid + b"\t" + path + b"\0"
    await repository.git.run("update-index", "-z", "--index-info", stdin=lines)


def _delete(work_tree: Path, paths: list[bytes]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(os.fsencode(work_tree), path))  # noqa: PTH108, PTH118 - paths are bytes


async def _parent(repository: Repository, savepoint: Savepoint) -> str:
    name = f"{checked_oid(savepoint.commit)}^"
    return await repository.git.line("rev-parse", "--verify", "--end-of-options", name)
