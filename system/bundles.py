"""Git bundles: a run's commits and savepoints as one file, to rebuild its clone on another machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from system.git import TRANSFER_TIMEOUT_S, GitError, checked_oid, checked_ref
from system.repository import Repository

_SHALLOW: Final = "shallow"
"""Name beside the savepoints under which a shallow clone's list of commits without parents is kept."""


async def bundle(
    repository: Repository,
    path: Path,
    *,
    base: str | None,
    refs: Sequence[str] = (),
) -> None:
    """Write the run's branch and ``refs`` to the file ``path`` (absolute), whole or not at all; replaces what is there.

    Self-contained when ``base`` is None (also for a shallow clone), else only what came after that commit.
    Starts one process, three for a shallow clone. Raises GitError, also when there is nothing after ``base``.
    """
    names = [repository.branch_ref, *(checked_ref(ref) for ref in refs)]
    if base is None and (repository.git.git_dir / "shallow").exists():
        names.append(await _keep_shallow(repository))
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        since = () if base is None else (f"^{checked_oid(base)}",)
        args = ("bundle", "create", "--quiet", "--version=2", str(temporary), *names, *since)
        await repository.git.run(*args, timeout_s=TRANSFER_TIMEOUT_S)
        _sync(temporary)
        temporary.replace(path)
    finally:
        for leftover in (temporary, temporary.with_name(f"{temporary.name}.lock")):
            leftover.unlink(missing_ok=True)


async def unbundle(repository: Repository, path: Path, *, of: str | None = None) -> dict[str, str]:
    """Take in the objects of the bundle at ``path`` (absolute) and set its refs; return them. The working tree stays as it is.

    A bundle of another run, whose id is ``of``, sets no refs here. Starts two processes (one then), one more for a
    bundle of a shallow clone. Raises GitError when commits the bundle builds on are missing, or when it holds a ref
    that is not that run's.
    """
    branch_ref = repository.branch_ref if of is None else f"refs/heads/stepwise/{of}"
    prefix = repository.savepoint_prefix if of is None else f"refs/stepwise/{of}/"
    args = ("bundle", "unbundle", str(path))
    finished = await repository.git.run(*args, timeout_s=TRANSFER_TIMEOUT_S)
    refs = {}
    for line in finished.stdout.decode("utf-8", "replace").splitlines():
        oid, _, name = line.partition(" ")
        if name != branch_ref and not name.startswith(prefix):
            raise GitError("E_GIT_BAD_REF", f"{path.name} holds {name[:200]!r}, which is no ref of this run")
        refs[checked_ref(name)] = checked_oid(oid)
    shallow = refs.pop(f"{prefix}{_SHALLOW}", None)
    if shallow is not None:
        content = (await repository.git.run("cat-file", "blob", shallow)).stdout
        (repository.git.git_dir / "shallow").write_bytes(content)
    if of is not None:
        return refs
    lines = "".join(f"update {name} {oid}\n" for name, oid in refs.items())
    await repository.git.run("update-ref", "--no-deref", "--stdin", stdin=lines.encode())
    return refs


async def _keep_shallow(repository: Repository) -> str:
    """Keep the list of commits without parents under a ref: a bundle has no other place for it."""
    content = (repository.git.git_dir / "shallow").read_bytes()
    blob = (await repository.git.run("hash-object", "-w", "--stdin", stdin=content)).stdout.decode().strip()
    ref = f"{repository.savepoint_prefix}{_SHALLOW}"
    await repository.set_ref(ref, blob)
    return ref


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
