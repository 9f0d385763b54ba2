"""A run's clone: made from the repository, or again from what the store holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

from temporalio.exceptions import ApplicationError

from activities.context import OpenRun, WorkerContext
from activities.folder import Held, RunFolder
from schemas.calls import AcquireIn, Lease
from schemas.common import ArtifactRef, Durable
from schemas.errors import EvidenceConflict
from schemas.handoff import Savepoint
from schemas.run_record import RunRecord
from system.bundles import bundle, unbundle
from system.clone import clone, clone_from_bundles
from system.git import GitError, SourceRefused
from system.repository import Repository, WorkingTree
from system.savepoints import restore, restore_tree
from system.source import Source, inspect_source

T = TypeVar("T")
BUNDLE_TYPE = "application/x-git-bundle"


class BaseFacts(Durable):
    """``base/base.json``: the commit a run began at, and where that commit can be had.

    ``bundle`` is set where the repository cannot be asked by every worker: it holds the commit with its history.
    """

    commit: str
    tree: str
    location: str
    kind: Literal["path", "url"]
    branch: str | None = None
    bundle: ArtifactRef | None = None


def base_key(run_id: str) -> str:
    """Return where a run's base facts are stored."""
    return f"runs/{run_id}/base/base.json"


def check_base(base: BaseFacts, repo: str) -> None:
    """Raise EvidenceConflict where base facts name another URL than the run does: the worker's token would go there."""
    if base.kind == "url" and base.location != repo:
        raise EvidenceConflict(
            "E_BASE_ELSEWHERE", f"the stored base is from {base.location}, the run is on {repo}"
        )


async def inspect(ctx: WorkerContext, call: AcquireIn) -> Source:
    """Look at the repository a run names, without writing anything. Raises SourceRefused."""
    token = git_token(ctx, call.repo)
    return await inspect_source(call.repo, call.base, allow_dirty=call.allow_dirty, token=token)


async def make_clone(ctx: WorkerContext, folder: RunFolder, source: Source) -> Repository:
    """Clone the repository; nothing stays on disk when that is refused. Raises SourceRefused, GitError."""
    try:
        return await clone(
            source, folder.workspace, run_id=folder.run_id, token=git_token(ctx, source.location)
        )
    except GitError:
        await asyncio.to_thread(folder.drop)
        raise


async def store_base(ctx: WorkerContext, repository: Repository, source: Source) -> BaseFacts:
    """Store what every worker needs to make the clone again, once."""
    run_id = repository.run_id
    ref: ArtifactRef | None = None
    if source.kind == "path" or source.shallow:
        key = f"runs/{run_id}/base/base.bundle"
        ref = await store_bundle(ctx, key, repository, base=None)
    facts = BaseFacts(
        commit=repository.base,
        tree=await repository.tree_of(repository.base),
        location=source.location,
        kind=source.kind,
        branch=source.branch,
        bundle=ref,
    )
    await asyncio.to_thread(ctx.evidence.put_model, base_key(run_id), facts)
    return facts


async def rebuild(
    ctx: WorkerContext, folder: RunFolder, base: BaseFacts, newest: Savepoint | None
) -> Repository:
    """Make the clone again as the newest commit or savepoint has it. Raises GitError, NotStored."""
    refs = [ref for ref in (base.bundle, newest.bundle if newest else None) if ref is not None]
    paths = [await fetch(ctx, folder, number, ref) for number, ref in enumerate(refs)]
    if base.bundle is not None:
        repository = await clone_from_bundles(paths, folder.workspace, run_id=folder.run_id, base=base.commit)
    else:
        repository = await _clone_again(ctx, folder, base)
        for path in paths:
            await unbundle(repository, path)
            await restore_tree(repository, await repository.tree_of(await repository.head()))
    if newest is not None and newest.ref != repository.branch_ref:
        await restore(repository, newest)
    return repository


async def fetch(ctx: WorkerContext, folder: RunFolder, number: int, ref: ArtifactRef) -> Path:
    """Bring a bundle from the store to the disk and return its path. Raises NotStored, EvidenceCorrupt."""
    path = folder.scratch / f"{number}.bundle"

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ctx.evidence.read(ref))

    await asyncio.to_thread(write)
    return path


async def _clone_again(ctx: WorkerContext, folder: RunFolder, base: BaseFacts) -> Repository:
    source = Source(kind=base.kind, location=base.location, head=base.commit, branch=base.branch)
    try:
        return await clone(
            source, folder.workspace, run_id=folder.run_id, token=git_token(ctx, source.location)
        )
    except SourceRefused as error:
        # It could be had when the run began; that it cannot now is no reason to end the run.
        raise ApplicationError(str(error), type="BaseUnreachable") from error


async def store_bundle(
    ctx: WorkerContext, key: str, repository: Repository, *, base: str | None, refs: tuple[str, ...] = ()
) -> ArtifactRef:
    """Store the run's branch and ``refs`` as a bundle under ``key``; what is stored there already stays."""
    path = ctx.folder(repository.run_id).scratch / f"{os.urandom(6).hex()}.bundle"
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    try:
        await bundle(repository, path, base=base, refs=refs)
        return await asyncio.to_thread(_keep, ctx, key, path)
    finally:
        path.unlink(missing_ok=True)


async def remember(
    ctx: WorkerContext, run_id: str, lease: Lease, change: Callable[[RunRecord], RunRecord]
) -> RunRecord:
    """Change the run's record while the lease holds. Raises LeaseLost, StoreUnavailable."""
    return await asyncio.to_thread(ctx.runs.update, run_id, lease, change)


async def open_run(ctx: WorkerContext, run_id: str, lease: Lease) -> OpenRun:
    """Return the run this worker holds under ``lease``, from memory or from its disk.

    Raises ApplicationError ``WorkspaceGone`` where the disk does not have it: it has to be acquired again.
    """
    known = ctx.open_runs.get(run_id)
    if known is not None and known.held.lease == lease:
        return known
    folder = ctx.folder(run_id)
    held = await asyncio.to_thread(folder.held)
    if held is None or held.lease != lease or not folder.workspace.is_dir():
        raise ApplicationError(
            f"this worker does not have run {run_id} under that lease", type="WorkspaceGone"
        )
    repository = Repository(folder.workspace, run_id=run_id, base=held.base_commit)
    return await keep_open(ctx, held, repository)


async def keep_open(ctx: WorkerContext, held: Held, repository: Repository) -> OpenRun:
    """Keep a run's clone in memory, with the engine's last commit; an agent's own may stand on top of it."""
    record = await asyncio.to_thread(ctx.runs.get, held.run_id)
    head = record.head if record and record.head else held.base_commit
    opened = OpenRun(held=held, repository=repository, head=head)
    ctx.open_runs[held.run_id] = opened
    return opened


async def settle(opened: OpenRun) -> WorkingTree:
    """Put files and branch back to the engine's last commit; return how they were found. Raises GitError.

    Only a finished work phase adds to a run. What a gate, or an agent that was merely asked something, leaves behind
    would otherwise be measured with the next step, or counted as its work.
    """
    repository = opened.repository
    found = await repository.tree_id()
    tree = await repository.tree_of(opened.head)
    if found.head != opened.head:
        await repository.set_ref(repository.branch_ref, opened.head)
    if found.tree != tree or found.head != opened.head or found.branch != repository.branch:
        await restore_tree(repository, tree)
    opened.settled = True
    return found


def git_token(ctx: WorkerContext, location: str) -> str | None:
    """Return the token for a clone from ``location``, from the variable the worker's settings name; None elsewhere.

    Whoever starts a run names the repository, so that any host may be meant.
    """
    name = ctx.settings.git_credentials
    if urlsplit(location).netloc.lower() != ctx.settings.git_host.lower():
        return None
    token = os.environ.get(name) if name else None
    if token:
        ctx.evidence.redactor.add(token)
    return token or None


def _keep(ctx: WorkerContext, key: str, path: Path) -> ArtifactRef:
    # The same commits may be packed in another way; whoever stored them first is right.
    if ctx.evidence.blobs.exists(key):
        return ctx.evidence.put_bytes(key, ctx.evidence.read_key(key), BUNDLE_TYPE)
    return ctx.evidence.put_bytes(key, path.read_bytes(), BUNDLE_TYPE)
