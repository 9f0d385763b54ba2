from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from git_kit import WHEN, clone_of, git, make_source

from system.bundles import bundle, unbundle
from system.clone import clone, clone_from_bundles
from system.git import GitError, RefMoved
from system.repository import Repository
from system.savepoints import restore, restore_tree, take_savepoint
from system.source import inspect_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
async def repository(source: Path, tmp_path: Path) -> Repository:
    return await clone_of(source, tmp_path / "ws")


def work(ws: Path) -> None:
    """Do what agents do: change, create, delete, link, make executable, stage, ignore."""
    (ws / "a.txt").write_text("changed\n")
    (ws / "gone.txt").unlink()
    (ws / "x" / "y").mkdir(parents=True)
    (ws / "x" / "y" / "z").write_text("z\n")
    (ws / "link").symlink_to("/nowhere")
    (ws / "d" / "f.txt").chmod(0o755)
    (ws / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    Path(os.fsdecode(os.fsencode(ws) + b"/\xff\nodd")).write_text("odd\n")
    (ws / "staged").write_text("staged\n")
    git("add", "staged", cwd=ws)
    (ws / "x.log").write_text("log\n")


def files(ws: Path, *, but: tuple[str, ...] = (".git",)) -> dict[str, tuple[int, bytes]]:
    """Return type, executable bit and bytes of everything in a working tree."""
    found = {}
    for path in ws.rglob("*"):
        name = str(path.relative_to(ws))
        if name.partition("/")[0] in but:
            continue
        mode = path.lstat().st_mode
        data = os.fsencode(path.readlink()) if stat.S_ISLNK(mode) else b""
        if stat.S_ISREG(mode):
            data = path.read_bytes()
        found[name] = (stat.S_IFMT(mode) | (mode & 0o111), data)
    return found


def _more_work(ws: Path) -> None:
    (ws / "a.txt").write_text("again\n")
    (ws / "new").write_text("new\n")
    shutil.rmtree(ws / "x")


def _agent_commits(ws: Path) -> None:
    _more_work(ws)
    git("add", "--all", cwd=ws)
    git("commit", "--quiet", "-m", "agent", cwd=ws)


def _elsewhere(ws: Path) -> None:
    git("stash", "--quiet", cwd=ws)
    git("checkout", "--quiet", "-b", "mine", "HEAD^", cwd=ws)


def _rebasing(ws: Path) -> None:
    _agent_commits(ws)
    git("checkout", "--quiet", "-b", "mine", "HEAD^", cwd=ws)
    (ws / "a.txt").write_text("mine\n")
    git("commit", "--quiet", "-am", "mine", cwd=ws)
    git("rebase", "stepwise/r1", cwd=ws, ok=False)


def _emptied(ws: Path) -> None:
    for path in ws.iterdir():
        if path.name != ".git":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _types_swapped(ws: Path) -> None:
    (ws / "a.txt").unlink()
    (ws / "a.txt").mkdir()
    (ws / "a.txt" / "in").write_text("in\n")
    shutil.rmtree(ws / "x")
    (ws / "x").write_text("x\n")


def _folder_is_a_link_outside(ws: Path) -> None:
    (ws.parent / "out" / "y").mkdir(parents=True)
    (ws.parent / "out" / "y" / "z").write_text("outside\n")
    shutil.rmtree(ws / "x")
    (ws / "x").symlink_to(ws.parent / "out")


def _ignored_in_the_way(ws: Path) -> None:
    (ws / ".gitignore").write_text("*.log\nx/\na.txt\nnew\n")
    shutil.rmtree(ws / "x")
    (ws / "x").write_text("ignored? no, a file\n")


def _index_lost(ws: Path) -> None:
    _more_work(ws)
    (ws / ".git" / "index").unlink()
    (ws / ".git" / "index.lock").write_text("")


def _hidden(ws: Path) -> None:
    git("update-index", "--assume-unchanged", "a.txt", cwd=ws)
    git("update-index", "--skip-worktree", "d/f.txt", cwd=ws)
    (ws / "a.txt").write_text("hidden\n")
    (ws / "d" / "f.txt").write_text("hidden\n")


AFTERWARDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "more work": _more_work,
    "the agent commits": _agent_commits,
    "the agent goes to another branch": _elsewhere,
    "a rebase is left": _rebasing,
    "everything is deleted": _emptied,
    "types are swapped": _types_swapped,
    "a folder is a link outside": _folder_is_a_link_outside,
    "ignore rules change": _ignored_in_the_way,
    "the index is lost": _index_lost,
    "changes are hidden": _hidden,
}


class TestTake:
    async def test_it_keeps_the_tree_beside_the_branch_and_changes_nothing(
        self, repository: Repository
    ) -> None:
        ws = repository.work_tree
        work(ws)
        before, status = files(ws), git("status", "--porcelain", cwd=ws)
        saved = await take_savepoint(repository, 3, when=WHEN)
        assert saved.ref == "refs/stepwise/r1/3"
        assert git("rev-parse", saved.ref, f"{saved.ref}^", f"{saved.ref}^{{tree}}", cwd=ws).split() == [
            saved.commit,
            repository.base,
            saved.tree,
        ]
        assert saved.tree == (await repository.tree_id()).tree
        assert saved.not_kept == ["x.log: ignored"]
        assert git("rev-parse", "stepwise/r1", cwd=ws) == repository.base
        assert (files(ws), git("status", "--porcelain", cwd=ws)) == (before, status)

    async def test_an_unchanged_tree_gives_the_previous_savepoint(self, repository: Repository) -> None:
        work(repository.work_tree)
        first = await take_savepoint(repository, 1, when=WHEN)
        assert await take_savepoint(repository, 2, when=WHEN, previous=first) == first
        assert await repository.ref("refs/stepwise/r1/2") is None
        (repository.work_tree / "n").write_text("n")
        second = await take_savepoint(repository, 2, when=WHEN, previous=first)
        assert second.tree != first.tree
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=repository.work_tree)
        third = await take_savepoint(repository, 3, when=WHEN, previous=second)
        assert third.commit != second.commit

    async def test_a_number_is_used_once_but_a_repeat_finds_its_own(self, repository: Repository) -> None:
        work(repository.work_tree)
        first = await take_savepoint(repository, 1, when=WHEN)
        assert await take_savepoint(repository, 1, when=WHEN) == first
        (repository.work_tree / "n").write_text("n")
        with pytest.raises(RefMoved):
            await take_savepoint(repository, 1, when=WHEN)
        assert await repository.ref(first.ref) == first.commit

    async def test_an_operation_in_progress_is_named_as_not_kept_and_stays(
        self, repository: Repository
    ) -> None:
        work(repository.work_tree)
        _rebasing(repository.work_tree)
        saved = await take_savepoint(repository, 1, when=WHEN)
        assert "operation in progress: rebase" in saved.not_kept
        assert (repository.git.git_dir / "rebase-merge").is_dir()


class TestRestore:
    @pytest.mark.parametrize("afterwards", AFTERWARDS)
    async def test_files_and_branch_are_as_they_were_and_nothing_is_staged(
        self, repository: Repository, afterwards: str
    ) -> None:
        ws = repository.work_tree
        work(ws)
        before = files(ws, but=(".git", "x.log"))
        saved = await take_savepoint(repository, 1, when=WHEN)
        AFTERWARDS[afterwards](ws)
        await restore(repository, saved)
        assert files(ws, but=(".git", "x.log")) == before
        assert git("symbolic-ref", "HEAD", cwd=ws) == "refs/heads/stepwise/r1"
        assert git("rev-parse", "HEAD", cwd=ws) == repository.base
        assert git("diff", "--cached", "--name-only", cwd=ws) == ""
        assert git("ls-files", "--unmerged", cwd=ws) == ""
        assert (await repository.tree_id()).tree == saved.tree
        outside = ws.parent / "out" / "y" / "z"
        assert not outside.exists() or outside.read_text() == "outside\n"

    async def test_a_repeat_of_a_restore_changes_nothing(self, repository: Repository) -> None:
        work(repository.work_tree)
        saved = await take_savepoint(repository, 1, when=WHEN)
        await restore(repository, saved)
        before = files(repository.work_tree)
        assert await restore(repository, saved) == []
        assert files(repository.work_tree) == before

    async def test_ignored_files_and_nested_repositories_stay_and_untracked_ones_go(
        self, repository: Repository
    ) -> None:
        ws = repository.work_tree
        saved = await take_savepoint(repository, 1, when=WHEN)
        (ws / "x.log").write_text("kept\n")
        (ws / "build").mkdir()
        (ws / "build" / "out").write_text("kept\n")
        (ws / "deep" / "er").mkdir(parents=True)
        (ws / "deep" / "er" / "untracked").write_text("goes\n")
        git("init", "--quiet", "nested", cwd=ws)
        (ws / "nested" / "kept").write_text("kept\n")
        await restore(repository, saved)
        assert (ws / "x.log").exists()
        assert (ws / "build" / "out").exists()
        assert (ws / "nested" / "kept").exists()
        assert not (ws / "deep").exists()

    async def test_an_untracked_file_over_the_limit_goes_too(self, repository: Repository) -> None:
        small = Repository(repository.work_tree, run_id="r1", base=repository.base, max_file_bytes=10)
        saved = await take_savepoint(small, 1, when=WHEN)
        (repository.work_tree / "big").write_bytes(b"x" * 11)
        await restore(small, saved)
        assert not (repository.work_tree / "big").exists()

    async def test_a_tree_is_put_back_without_moving_the_branch(self, repository: Repository) -> None:
        ws = repository.work_tree
        work(ws)
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        before = files(ws, but=(".git", "x.log"))
        (ws / "a.txt").write_text("a gate wrote this\n")
        (ws / "report.xml").write_text("and this\n")
        await restore_tree(repository, done.tree)
        assert files(ws, but=(".git", "x.log")) == before
        assert git("rev-parse", "stepwise/r1", cwd=ws) == done.commit
        assert git("status", "--porcelain", cwd=ws) == ""

    async def test_what_only_the_index_says_of_ignored_files_comes_back(self, repository: Repository) -> None:
        ws = repository.work_tree
        (ws / "forced.log").write_text("forced\n")
        git("add", "--force", "forced.log", cwd=ws)
        (ws / ".gitignore").write_text("*.log\ngone.txt\n")
        git("rm", "--quiet", "--cached", "gone.txt", cwd=ws)
        saved = await take_savepoint(repository, 1, when=WHEN)
        changes = await repository.changes(repository.base, saved.tree)
        assert (changes.created, changes.deleted) == (["forced.log"], ["gone.txt"])
        git("reset", "--quiet", "--hard", cwd=ws)
        await restore(repository, saved)
        assert (ws / "forced.log").read_text() == "forced\n"
        assert (await repository.tree_id()).tree == saved.tree

    async def test_a_nested_repository_in_the_way_of_a_file_gives_way(self, repository: Repository) -> None:
        ws = repository.work_tree
        (ws / "nested").write_text("a file\n")
        saved = await take_savepoint(repository, 1, when=WHEN)
        (ws / "nested").unlink()
        git("init", "--quiet", "nested", cwd=ws)
        await restore(repository, saved)
        assert (ws / "nested").read_text() == "a file\n"

    async def test_a_tree_that_is_not_there_afterwards_is_an_error(self, repository: Repository) -> None:
        (repository.work_tree / "n").write_bytes(b"x" * 11)
        saved = await take_savepoint(repository, 1, when=WHEN)
        small = Repository(repository.work_tree, run_id="r1", base=repository.base, max_file_bytes=10)
        with pytest.raises(GitError) as caught:
            await restore(small, saved)
        assert caught.value.code == "E_GIT_RESTORE"

    async def test_a_savepoint_of_another_clone_is_an_error(self, repository: Repository) -> None:
        saved = await take_savepoint(repository, 1, when=WHEN)
        with pytest.raises(GitError):
            await restore(repository, saved.model_copy(update={"commit": "1" * 40}))


class TestBundles:
    @pytest.mark.parametrize("kind", ["whole", "shallow"])
    async def test_an_empty_disk_gets_the_run_back_without_the_source(
        self, source: Path, tmp_path: Path, kind: str
    ) -> None:
        origin = source
        if kind == "shallow":
            origin = tmp_path / "shallow"
            git("clone", "--quiet", "--depth=1", f"file://{source}", str(origin), cwd=tmp_path)
        found = await inspect_source(str(origin))
        assert found.shallow == (kind == "shallow")
        made = await clone(found, tmp_path / "ws", run_id="r1")
        base, later, last = (tmp_path / "store" / name for name in ("base", "later", "last"))
        base.parent.mkdir()
        await bundle(made, base, base=None)
        (made.work_tree / "n").write_text("n\n")
        done = await made.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        await bundle(made, later, base=found.head)
        work(made.work_tree)
        saved = await take_savepoint(made, 1, when=WHEN)
        await bundle(made, last, base=found.head, refs=[saved.ref])
        before = files(made.work_tree, but=(".git", "x.log"))
        for path in (source, tmp_path / "shallow", made.work_tree):
            shutil.rmtree(path, ignore_errors=True)

        again = await clone_from_bundles([base, last], tmp_path / "again", run_id="r1", base=found.head)
        assert await again.head() == done.commit
        assert await again.find_commit("s#1", 1) == done.commit
        await restore(again, saved)
        assert files(again.work_tree, but=(".git", "x.log")) == before
        assert git("rev-parse", "HEAD", cwd=again.work_tree) == done.head
        git("fsck", "--strict", cwd=again.work_tree)
        assert sorted(path.name for path in base.parent.iterdir()) == ["base", "last", "later"]

    async def test_a_later_bundle_goes_on_top_of_a_new_clone_of_the_source(
        self, repository: Repository, source: Path, tmp_path: Path
    ) -> None:
        work(repository.work_tree)
        saved = await take_savepoint(repository, 1, when=WHEN)
        await bundle(repository, tmp_path / "b", base=repository.base, refs=[saved.ref])
        other = await clone(await inspect_source(str(source)), tmp_path / "other", run_id="r1")
        assert await unbundle(other, tmp_path / "b") == {saved.ref: saved.commit}
        await restore(other, saved)
        assert (await other.tree_id()).tree == saved.tree

    async def test_a_later_bundle_alone_is_refused_and_leaves_nothing(
        self, repository: Repository, tmp_path: Path
    ) -> None:
        (repository.work_tree / "n").write_text("n\n")
        await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        await bundle(repository, tmp_path / "b", base=repository.base)
        with pytest.raises(GitError, match="bundle"):
            await clone_from_bundles([tmp_path / "b"], tmp_path / "again", run_id="r1", base=repository.base)
        assert sorted(path.name for path in _children(tmp_path)) == ["b", "source", "ws"]

    async def test_refs_of_another_run_are_refused(self, repository: Repository, tmp_path: Path) -> None:
        await bundle(repository, tmp_path / "b", base=None)
        with pytest.raises(GitError, match="no ref of this run"):
            await clone_from_bundles([tmp_path / "b"], tmp_path / "again", run_id="r2", base=repository.base)

    async def test_a_bundle_that_fails_leaves_the_old_file_and_no_other(
        self, repository: Repository, tmp_path: Path
    ) -> None:
        (tmp_path / "store").mkdir()
        path = tmp_path / "store" / "b"
        path.write_bytes(b"old")
        with pytest.raises(GitError):
            await bundle(repository, path, base=None, refs=["refs/stepwise/r1/9"])
        with pytest.raises(GitError, match="empty bundle"):
            await bundle(repository, path, base=repository.base)
        assert path.read_bytes() == b"old"
        assert [child.name for child in _children(path.parent)] == ["b"]

    async def test_a_broken_bundle_is_an_error(self, repository: Repository, tmp_path: Path) -> None:
        await bundle(repository, tmp_path / "b", base=None)
        whole = (tmp_path / "b").read_bytes()
        (tmp_path / "b").write_bytes(whole[:-40])
        with pytest.raises(GitError):
            await clone_from_bundles([tmp_path / "b"], tmp_path / "again", run_id="r1", base=repository.base)
        assert not (tmp_path / "again").exists()


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir())
