"""Attacks on files and folders: what an agent puts in the place of something is neither followed nor waited for."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from system.files import Root
from system.git import RepositoryDamaged
from system.git_layout import pin, preflight, scratch_index
from system.untrusted import own_folder, read_regular, remove_tree

BRANCH = "stepwise/r1"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a file that must stay."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "precious").write_text("kept")
    return path


@pytest.fixture
def git_dir(tmp_path: Path) -> Path:
    """What the engine needs of a clone's ``.git``."""
    path = tmp_path / "ws" / ".git"
    for name in ("objects", "refs/heads"):
        (path / name).mkdir(parents=True)
    (path / "HEAD").write_text(f"ref: refs/heads/{BRANCH}\n")
    pin(path)
    return path


def kept(outside: Path) -> bool:
    return [one.read_text() for one in outside.iterdir()] == ["kept"]


def deep(path: Path, depth: int) -> None:
    """Make folders deeper than any path, and than Python's recursion, can reach."""
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


PLACED: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "folder": Path.mkdir,
    "dangling": lambda path: path.symlink_to("/nowhere"),
}


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_is_not_read_and_nothing_is_waited_for(tmp_path: Path, kind: str) -> None:
    PLACED[kind](tmp_path / "report")
    with pytest.raises(OSError, match=r"regular|directory|links"):
        read_regular(tmp_path / "report")


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "report").write_bytes(b"12345")
    assert read_regular(tmp_path / "report") == b"12345"
    assert read_regular(tmp_path / "report", max_bytes=3) == b"123"


def test_folders_of_any_depth_go(tmp_path: Path) -> None:
    deep(tmp_path / "top", 2_500)
    assert remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_a_tool_deletes_folders_of_any_depth(tmp_path: Path) -> None:
    deep(tmp_path / "top", 1_500)
    root = Root(tmp_path)
    assert root.delete("top")
    root.close()
    assert list(tmp_path.iterdir()) == []


def test_links_go_and_what_they_lead_to_stays(tmp_path: Path, outside: Path) -> None:
    top = tmp_path / "top"
    (top / "in").mkdir(parents=True)
    for path in (top / "folder", top / "in" / "folder"):
        path.symlink_to(outside)
    (top / "file").symlink_to(outside / "precious")
    os.link(outside / "precious", top / "same")
    os.mkfifo(top / "in" / "fifo")
    (tmp_path / "link").symlink_to(outside)

    assert remove_tree(top)
    assert remove_tree(tmp_path / "link")

    assert not top.exists()
    assert not (tmp_path / "link").is_symlink()
    assert kept(outside)


def test_folders_that_nobody_may_enter_go(tmp_path: Path) -> None:
    inner = tmp_path / "top" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "f").write_text("")
    for path, mode in ((inner, 0), (inner.parent, 0o111), (tmp_path / "top", 0o500)):
        path.chmod(mode)
    assert remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_nothing_to_remove_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert remove_tree(tmp_path / "missing")
    assert remove_tree(tmp_path / "file" / "below")
    assert remove_tree(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "link", "dangling", "file", "nothing"])
def test_a_folder_of_ones_own_takes_the_place_of_whatever_is_there(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    place: dict[str, Callable[[Path], object]] = {
        **PLACED,
        "link": lambda path: path.symlink_to(outside),
        "file": lambda path: path.write_text("x"),
        "nothing": lambda _: None,
    }
    place[kind](tmp_path / "home")
    own_folder(tmp_path / "home")
    assert stat.S_ISDIR((tmp_path / "home").lstat().st_mode)
    assert kept(outside)


def test_a_folder_of_ones_own_keeps_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    own_folder(tmp_path)
    assert (tmp_path / "file").exists()


# What git would wait for, or be led away by.


@pytest.mark.parametrize("name", ["index", "packed-refs", "shallow"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_git_would_wait_for_is_taken_away_before_git_runs(git_dir: Path, name: str, kind: str) -> None:
    PLACED[kind](git_dir / name)
    assert preflight(git_dir, git_dir.parent, BRANCH) == [name]
    assert not os.path.lexists(git_dir / name)


def test_a_git_folder_that_became_a_file_is_a_damaged_clone_and_no_other_error(git_dir: Path) -> None:
    git_dir.rename(git_dir.parent / "evil")
    git_dir.write_text(f"gitdir: {git_dir.parent}/evil\n")
    with pytest.raises(RepositoryDamaged), scratch_index(git_dir):
        preflight(git_dir, git_dir.parent, BRANCH)
