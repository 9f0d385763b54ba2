"""A tree id that is not measured again is one that cannot have changed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from system import stamp as stamp_module
from system.git import Git
from system.repository import Repository
from system.stamp import SETTLED_NS, stamp

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]


def settle(path: Path) -> None:
    """Wait until the newest change time is old enough to be trusted."""
    while not (found := stamp(path)) or not found.settled:
        time.sleep(SETTLED_NS / 1e9 / 10)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    work_tree = tmp_path / "ws"
    work_tree.mkdir()
    (work_tree / "a.txt").write_text("one\n")
    (work_tree / "folder").mkdir()
    (work_tree / "folder" / "b.txt").write_text("two\n")
    for argv in (
        ["init", "-q", "-b", "stepwise/r-1"],
        ["add", "."],
        ["commit", "-q", "-m", "first"],
    ):
        subprocess.run([*GIT, *argv], cwd=work_tree, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=work_tree, capture_output=True, text=True, check=True
    )
    return Repository(work_tree, run_id="r-1", base=head.stdout.strip())


async def measured_twice(repository: Repository) -> str:
    """Measure until the next call would not ask git."""
    await repository.tree_id()
    settle(repository.work_tree)
    return (await repository.tree_id()).tree


async def test_an_untouched_tree_starts_no_process(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = await measured_twice(repository)

    async def no_process(*_: object, **__: object) -> None:
        raise AssertionError("git was asked")

    monkeypatch.setattr(Git, "run", no_process)
    assert (await repository.tree_id()).tree == tree


def _same_size(tree: Path) -> None:
    (tree / "a.txt").write_text("eno\n")


def _same_times(tree: Path) -> None:
    before = (tree / "a.txt").stat()
    (tree / "a.txt").write_text("eno\n")
    os.utime(tree / "a.txt", ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced(tree: Path) -> None:
    before = (tree / "a.txt").stat()
    (tree / "new").write_text("eno\n")
    os.utime(tree / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tree / "new").replace(tree / "a.txt")


def _deep(tree: Path) -> None:
    with (tree / "folder" / "b.txt").open("r+b") as file:
        file.write(b"TWO")


def _created(tree: Path) -> None:
    (tree / "folder" / "c.txt").write_text("")


def _deleted(tree: Path) -> None:
    (tree / "a.txt").unlink()


def _executable(tree: Path) -> None:
    (tree / "a.txt").chmod(0o755)


def _hidden(tree: Path) -> None:
    subprocess.run(["git", "update-index", "--assume-unchanged", "a.txt"], cwd=tree, check=True)
    _same_size(tree)


def _committed(tree: Path) -> None:
    _same_size(tree)
    subprocess.run([*GIT, "commit", "-q", "-a", "-m", "by the agent"], cwd=tree, check=True)


@pytest.mark.parametrize(
    "change",
    [_same_size, _same_times, _replaced, _deep, _created, _deleted, _executable, _hidden, _committed],
)
async def test_every_change_is_seen(repository: Repository, change: Callable[[Path], None]) -> None:
    tree = await measured_twice(repository)
    change(repository.work_tree)
    assert (await repository.tree_id()).tree != tree


async def test_a_tree_that_was_just_written_is_measured_again(repository: Repository) -> None:
    (repository.work_tree / "a.txt").write_text("now\n")
    first = await repository.tree_id()
    (repository.work_tree / "a.txt").write_text("NOW\n")
    assert (await repository.tree_id()).tree != first.tree


def test_a_large_tree_has_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamp_module, "MAX_ENTRIES", 2)
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    assert stamp(tmp_path) is None
