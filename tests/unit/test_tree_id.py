"""What a working tree is: measured as git itself would commit it, whatever an agent did to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from git_kit import WHEN, clone_of, content, counted, dying_git, git, half_merged, make_source, odd_names

from system.clone import clone
from system.git import GitKilled
from system.repository import Repository
from system.source import inspect_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
async def repository(source: Path, tmp_path: Path) -> Repository:
    return await clone_of(source, tmp_path / "ws")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return counted(monkeypatch)


def oracle(work_tree: Path) -> str:
    """Return the tree id as plain ``git add --all`` in an index of its own computes it."""
    index = {"GIT_INDEX_FILE": str(work_tree.parent / "oracle-index")}
    git("read-tree", "HEAD", cwd=work_tree, env=index)
    git("add", "--all", cwd=work_tree, env=index)
    tree = git("write-tree", cwd=work_tree, env=index)
    (work_tree.parent / "oracle-index").unlink()
    return tree


def _folder_becomes_link(ws: Path) -> None:
    shutil.rmtree(ws / "d")
    (ws / "d").symlink_to(ws.parent / "source" / "d")


def _file_becomes_folder(ws: Path) -> None:
    (ws / "a.txt").unlink()
    (ws / "a.txt").mkdir()
    (ws / "a.txt" / "x").write_text("x")


def _folder_becomes_file(ws: Path) -> None:
    shutil.rmtree(ws / "d")
    (ws / "d").write_text("x")


def _created_deep(ws: Path) -> None:
    (ws / "x" / "y").mkdir(parents=True)
    (ws / "x" / "y" / "z").write_text("z")


def _file_becomes_link(ws: Path) -> None:
    (ws / "a.txt").unlink()
    (ws / "a.txt").symlink_to("d/f.txt")


def _staged(ws: Path, *options: str) -> None:
    (ws / "n").write_text("n")
    git("add", *options, "n", cwd=ws)


def _staged_then_changed(ws: Path) -> None:
    _staged(ws)
    (ws / "n").write_text("m")


def _staged_then_deleted(ws: Path) -> None:
    _staged(ws)
    (ws / "n").unlink()


def _index_gone(ws: Path) -> None:
    (ws / "a.txt").write_text("changed\n")
    (ws / ".git" / "index").unlink()


def _index_broken(ws: Path) -> None:
    (ws / "n").write_text("n")
    (ws / ".git" / "index").write_bytes(b"no index")


def _index_is_a_link(ws: Path) -> None:
    (ws / ".git" / "index").unlink()
    (ws / ".git" / "index").symlink_to("/dev/zero")


def _split_index(ws: Path) -> None:
    (ws / "n").write_text("n")
    git("update-index", "--split-index", cwd=ws)


def _detached(ws: Path) -> None:
    git("checkout", "--quiet", "--detach", "v1", cwd=ws)
    (ws / "n").write_text("n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "modified": lambda ws: (ws / "a.txt").write_text("changed\n"),
    "deleted": lambda ws: (ws / "a.txt").unlink(),
    "created deep": _created_deep,
    "odd names": odd_names,
    "mode": lambda ws: (ws / "a.txt").chmod(0o755),
    "link to nowhere": lambda ws: (ws / "link").symlink_to("/nowhere/at all"),
    "file becomes link": _file_becomes_link,
    "folder becomes link": _folder_becomes_link,
    "file becomes folder": _file_becomes_folder,
    "folder becomes file": _folder_becomes_file,
    "staged": _staged,
    "staged then changed": _staged_then_changed,
    "staged then deleted": _staged_then_deleted,
    "intent to add": lambda ws: _staged(ws, "--intent-to-add"),
    "taken out of the index": lambda ws: git("rm", "--quiet", "--cached", "a.txt", cwd=ws),
    "renamed": lambda ws: git("mv", "a.txt", "b.txt", cwd=ws),
    "ignored": lambda ws: (ws / "x.log").write_text("x"),
    "half merged": half_merged,
    "index gone": _index_gone,
    "index broken": _index_broken,
    "index is a link": _index_is_a_link,
    "split index": _split_index,
    "detached": _detached,
}


class TestTreeId:
    @pytest.mark.parametrize("change", CHANGES)
    async def test_it_is_the_tree_that_adding_everything_would_commit(
        self, repository: Repository, change: str
    ) -> None:
        CHANGES[change](repository.work_tree)
        measured = await repository.tree_id()
        assert measured.tree == oracle(repository.work_tree)
        assert (await repository.tree_id()).tree == measured.tree

    async def test_a_clean_tree_costs_one_process(self, repository: Repository, processes: list[str]) -> None:
        await repository.tree_id()
        processes.clear()
        assert (await repository.tree_id()).tree == await repository.tree_of(repository.base)
        assert processes == ["status"]

    async def test_a_changed_tree_costs_three_processes(
        self, repository: Repository, processes: list[str]
    ) -> None:
        await repository.tree_id()
        (repository.work_tree / "a.txt").write_text("changed\n")
        processes.clear()
        await repository.tree_id()
        assert processes == ["status", "update-index", "write-tree"]

    async def test_it_only_reads(self, repository: Repository) -> None:
        half_merged(repository.work_tree)
        (repository.work_tree / "n").write_text("n")

        def seen() -> dict[str, tuple[int, int, bytes]]:
            found = content(repository.work_tree)
            return {name: value for name, value in found.items() if not name.startswith(".git/objects")}

        before = {name: value[2] for name, value in seen().items()}
        await repository.tree_id()
        assert {name: value[2] for name, value in seen().items()} == before

    async def test_an_edit_within_the_granularity_of_the_clock_is_seen(self, repository: Repository) -> None:
        path = repository.work_tree / "a.txt"
        seen = set()
        for number in range(100, 140):
            path.write_text(f"{number}\n")
            seen.add((await repository.tree_id()).tree)
            if number % 4 == 0:
                await repository.commit_tree("x", visit=f"s#{number}", attempt=1, when=WHEN)
            if number % 5 == 0:
                git("add", "--all", cwd=repository.work_tree)
        assert len(seen) == 40

    @pytest.mark.parametrize("bit", ["--assume-unchanged", "--skip-worktree"])
    async def test_a_change_hidden_by_a_bit_in_the_index_is_seen(
        self, repository: Repository, bit: str
    ) -> None:
        ws = repository.work_tree
        await repository.tree_id()
        git("update-index", bit, "a.txt", cwd=ws)
        (ws / "a.txt").write_text("hidden\n")
        measured = await repository.tree_id()
        assert measured.tree == oracle(ws)
        assert (await repository.changes(repository.base, measured.tree)).modified == ["a.txt"]
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert done.tree == measured.tree
        assert git("ls-files", "-v", "a.txt", cwd=ws) == "H a.txt"

    async def test_an_ignored_file_counts_once_the_agent_added_it(self, repository: Repository) -> None:
        (repository.work_tree / "x.log").write_text("x")
        git("add", "--force", "x.log", cwd=repository.work_tree)
        (repository.work_tree / "x.log").write_text("y")
        measured = await repository.tree_id()
        assert git("cat-file", "blob", f"{measured.tree}:x.log", cwd=repository.work_tree) == "y"

    async def test_ignored_files_are_named_and_build_junk_is_not(self, repository: Repository) -> None:
        ws = repository.work_tree
        for folder in ("pkg/__pycache__", ".venv/bin", "node_modules/x", "x.egg-info"):
            (ws / folder).mkdir(parents=True)
            (ws / folder / "f").write_text("f")
        (ws / ".coverage.1").write_text("")
        (ws / "x.pyc").write_text("")
        (ws / "x.log").write_text("x")
        measured = await repository.tree_id()
        assert measured.not_kept == ("x.log: ignored",)
        assert measured.tree == await repository.tree_of(repository.base)

    async def test_a_nested_repository_is_left_out_and_named(self, repository: Repository) -> None:
        ws = repository.work_tree
        git("init", "--quiet", "unborn", cwd=ws)
        (ws / "unborn" / "x").write_text("x")
        git("init", "--quiet", "born", cwd=ws)
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=ws / "born")
        git("init", "--quiet", "added", cwd=ws)
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=ws / "added")
        git("add", "added", cwd=ws)
        measured = await repository.tree_id()
        assert measured.tree == await repository.tree_of(repository.base)
        assert {line.replace("/", "") for line in measured.not_kept} == {
            "added: nested repository",
            "born: nested repository",
            "unborn: nested repository",
        }

    async def test_a_file_over_the_limit_stays_as_head_has_it(self, source: Path, tmp_path: Path) -> None:
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        small = Repository(made.work_tree, run_id="r1", base=made.base, max_file_bytes=100)
        ws = made.work_tree
        (ws / "new").write_bytes(b"x" * 101)
        (ws / "staged").write_bytes(b"x" * 101)
        (ws / "d" / "f.txt").write_bytes(b"x" * 101)
        (ws / "a.txt").write_bytes(b"x" * 101)
        (ws / "fits").write_bytes(b"x" * 100)
        git("add", "staged", "a.txt", cwd=ws)
        measured = await small.tree_id()
        assert [line.partition(":")[0] for line in measured.not_kept] == ["a.txt", "d/f.txt", "staged", "new"]
        assert (await small.changes(made.base, measured.tree)).created == ["fits"]
        assert (await small.changes(made.base, measured.tree)).total == 1

    async def test_what_is_no_file_and_names_git_refuses_are_left_out_and_named(
        self, repository: Repository
    ) -> None:
        ws = repository.work_tree
        (ws / "a.txt").unlink()
        os.mkfifo(ws / "a.txt")
        os.mkfifo(ws / "fifo")
        for name in ("git~1", ".git ", ".g\u200cit", ".git::$INDEX_ALLOCATION"):
            (ws / name).write_text("x")
        (ws / ".gitmodules").symlink_to("a")
        (ws / "kept").write_text("x")
        measured = await repository.tree_id()
        changes = await repository.changes(repository.base, measured.tree)
        assert (changes.created, changes.deleted) == (["kept"], ["a.txt"])
        assert sum("a name git refuses" in line for line in measured.not_kept) == 5

    async def test_a_moved_submodule_stays_as_head_has_it(self, source: Path, tmp_path: Path) -> None:
        git("init", "--quiet", "sub", cwd=tmp_path)
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=tmp_path / "sub")
        git("submodule", "--quiet", "add", str(tmp_path / "sub"), "sub", cwd=source)
        git("commit", "--quiet", "-m", "submodule", cwd=source)
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        git("submodule", "--quiet", "update", "--init", cwd=made.work_tree)
        git("commit", "--quiet", "--allow-empty", "-m", "y", cwd=made.work_tree / "sub")
        (made.work_tree / "n").write_text("n")
        for _ in range(2):
            measured = await made.tree_id()
            assert "sub: nested repository" in measured.not_kept
            assert (await made.changes(made.base, measured.tree)).created == ["n"]
            assert (await made.changes(made.base, measured.tree)).total == 1
            git("add", "--all", cwd=made.work_tree)


@pytest.mark.parametrize(
    ("command", "damage"), [("ls-files", _staged_then_changed), ("read-tree", _index_gone)]
)
async def test_a_git_that_is_killed_says_nothing_of_the_index(
    command: str,
    damage: Callable[[Path], object],
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damage(repository.work_tree)
    with monkeypatch.context() as patched:
        dying_git(tmp_path, patched, command)
        with pytest.raises(GitKilled):
            await Repository(repository.work_tree, run_id="r1", base=repository.base).tree_id()
    measured = await Repository(repository.work_tree, run_id="r1", base=repository.base).tree_id()
    assert measured.tree == oracle(repository.work_tree)
