"""Making a run's own clone: from the source, or again from bundles; whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from system.bundles import unbundle
from system.git import TRANSFER_TIMEOUT_S, GitCut, GitError, SourceRefused
from system.git_layout import pin
from system.repository import Repository
from system.source import URL_PROTOCOLS, Source, url_config
from system.untrusted import remove_tree


async def clone(
    source: Source,
    target: Path,
    *,
    run_id: str,
    token: str | None = None,
) -> Repository:
    """Make the run's clone at ``target``: branch ``stepwise/<run_id>`` at ``source.head``, with its history and tags.

    Objects are always copied, never linked. No remote, no hooks, no filters, no submodules; conversions of line
    ends and the like are off. ``target`` appears when it is complete. Starts three processes (a fetch starts its
    own). Raises SourceRefused when the source does not give its commit, GitError, GitCut.
    """
    async with _made(target, run_id=run_id, base=source.head) as repository:
        await _fetch(repository, source, token=token)
        await _check_out(repository)
    return Repository(target, run_id=run_id, base=source.head)


async def clone_from_bundles(
    bundles: Sequence[Path],
    target: Path,
    *,
    run_id: str,
    base: str,
) -> Repository:
    """Make the run's clone at ``target`` from a self-contained bundle and then later ones, in their order.

    The branch is where the last bundle that has it says; restore a savepoint afterwards. Starts two processes and
    two or three for each bundle. Raises GitError.
    """
    async with _made(target, run_id=run_id, base=base) as repository:
        for path in bundles:
            await unbundle(repository, path)
        await _check_out(repository)
    return Repository(target, run_id=run_id, base=base)


async def clone_fork(
    source: Source | None,
    bundles: Sequence[Path],
    target: Path,
    *,
    run_id: str,
    base: str,
    of: str,
    head: str,
    token: str | None = None,
) -> Repository:
    """Make a fork's clone at ``target``: its branch at commit ``head`` of run ``of``, which began at ``base``.

    ``source`` is where that base can be fetched, None if the first of the other run's ``bundles`` is self-contained.
    Starts three processes, a fetch where there is a source, one or two for each bundle. Raises SourceRefused, GitError.
    """
    async with _made(target, run_id=run_id, base=base) as repository:
        if source is not None:
            await _fetch(repository, source, token=token)
        for path in bundles:
            await unbundle(repository, path, of=of)
        await repository.set_ref(repository.branch_ref, head)
        await _check_out(repository)
    return Repository(target, run_id=run_id, base=base)


@asynccontextmanager
async def _made(target: Path, *, run_id: str, base: str) -> AsyncIterator[Repository]:
    """Yield an empty clone beside ``target``; at the end it becomes ``target``, after an error it is removed."""
    work_tree = _beside(target)
    try:
        repository = Repository(work_tree, run_id=run_id, base=base)
        branch = f"--initial-branch={repository.branch}"
        await repository.git.run("init", "--quiet", "--template=", "--object-format=sha1", branch)
        pin(repository.git.git_dir)
        yield repository
        _move(work_tree, target)
    finally:
        remove_tree(work_tree)


async def _fetch(repository: Repository, source: Source, *, token: str | None) -> None:
    args = [
        "fetch",
        "--quiet",
        "--no-recurse-submodules",
        "--no-write-fetch-head",
        "--update-head-ok",
        *(["--update-shallow"] if source.shallow else []),
        "--end-of-options",
        source.location if source.git_dir is None else str(source.git_dir),
        f"{source.head}:{repository.branch_ref}",
    ]
    try:
        if source.kind == "url":
            config = url_config(source.location, token)
            await repository.git.run(
                *args, config=config, protocols=URL_PROTOCOLS, timeout_s=TRANSFER_TIMEOUT_S
            )
            return
        # The serving git refuses a repository that another user owns, and hears nothing but this file.
        with tempfile.NamedTemporaryFile("w", prefix="stepwise-git-", suffix=".config") as file:
            file.write("[safe]\n\tdirectory = *\n")
            file.flush()
            env = {"GIT_CONFIG_GLOBAL": file.name}
            await repository.git.run(*args, env=env, protocols=("file",), timeout_s=TRANSFER_TIMEOUT_S)
    except GitCut:
        raise
    except GitError as error:
        raise SourceRefused.because(
            error,
            "E_GIT_UNREACHABLE",
            f"{source.location} did not give commit {source.head}: {error.message}",
            mend="check that the base still exists there",
        ) from error


async def _check_out(repository: Repository) -> None:
    await repository.git.run(
        "read-tree", "--reset", "-u", "--end-of-options", "HEAD", timeout_s=TRANSFER_TIMEOUT_S
    )


def _beside(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    _refuse_existing(target)
    prefix = f".{target.name}.partial-"
    for leftover in target.parent.glob(f"{prefix}*"):
        remove_tree(leftover)
    work_tree = target.parent / f"{prefix}{os.urandom(6).hex()}"
    (work_tree / ".git").mkdir(parents=True)
    return work_tree


def _move(work_tree: Path, target: Path) -> None:
    _refuse_existing(target)
    work_tree.rename(target)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise GitError("E_GIT_TARGET_EXISTS", f"{target} exists already")
