"""A run's own clone: damage repaired, the engine's commits, what changed between trees."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from git_kit import (
    WHEN,
    clone_of,
    content,
    counted,
    git,
    half_merged,
    make_source,
    odd_names,
    poison,
    program,
)

from system.clone import clone
from system.git import (
    NULL_OID,
    RefMoved,
    RepositoryDamaged,
)
from system.git_layout import CONFIG
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


class TestDamage:
    async def test_what_an_agent_wrote_into_git_runs_nothing_and_is_put_right(
        self, repository: Repository, tmp_path: Path
    ) -> None:
        ws = repository.work_tree
        script, mark = program(tmp_path)
        poison(ws, script)
        (ws / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
        (ws / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
        (ws / ".git" / "info" / "exclude").write_text("*\n")
        (ws / "n").write_text("n\n")
        measured = await repository.tree_id()
        assert set(measured.repairs) == {"config", "info/exclude", "info/attributes"}
        assert (ws / ".git" / "config").read_bytes() == CONFIG
        poison(ws, script)
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert "config" in done.repairs
        assert (await repository.changes(repository.base, done.tree)).created == [".gitattributes", "n"]
        assert b"+n" in await repository.diff(repository.base, done.head, max_bytes=10_000)
        assert await repository.find_commit("s#1", 1) == done.commit
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("HEAD", "garbage\n"),
            ("HEAD", "ref: /etc/passwd\n"),
            ("commondir", "/nowhere\n"),
            ("objects/info/alternates", "/nowhere\n"),
            ("refs/heads/stepwise/r1", "ref: refs/tags/v1\n"),
            ("refs/heads/stepwise/r1", "garbage\n"),
        ],
    )
    async def test_a_file_that_misleads_git_is_put_right_and_the_commit_lands(
        self, repository: Repository, name: str, text: str
    ) -> None:
        ws = repository.work_tree
        path = ws / ".git" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        (ws / "n").write_text("n\n")
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert name in done.repairs
        assert git("rev-parse", "stepwise/r1", "HEAD", cwd=ws).split() == [done.commit, done.commit]
        assert git("merge-base", repository.base, "HEAD", cwd=ws) == repository.base
        assert git("status", "--porcelain", cwd=ws) == ""

    @pytest.mark.parametrize("damage", ["gone", "file", "link", "no objects", "no work tree"])
    async def test_a_clone_that_is_no_repository_any_more_is_a_typed_error(
        self, repository: Repository, source: Path, damage: str
    ) -> None:
        dot_git = repository.git.git_dir
        match damage:
            case "no objects":
                shutil.rmtree(dot_git / "objects")
            case "no work tree":
                shutil.rmtree(repository.work_tree)
            case _:
                shutil.rmtree(dot_git)
        if damage == "file":
            dot_git.write_text(f"gitdir: {source}/.git\n")
        if damage == "link":
            dot_git.symlink_to(source / ".git")
        (source / ".git" / "MERGE_MSG").write_text("a person's own")
        before = content(source)
        with pytest.raises(RepositoryDamaged) as caught:
            await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert caught.value.code == "E_GIT_DAMAGED"
        assert content(source) == before

    async def test_locks_of_killed_processes_do_not_stop_a_commit(self, repository: Repository) -> None:
        dot_git = repository.git.git_dir
        locks = ["index.lock", "HEAD.lock", "packed-refs.lock", "config.lock", "refs/heads/stepwise/r1.lock"]
        for lock in locks:
            (dot_git / lock).write_text("")
        (repository.work_tree / "n").write_text("n\n")
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert set(locks) <= set(done.repairs)
        assert git("status", "--porcelain", cwd=repository.work_tree) == ""
        git("commit", "--allow-empty", "-m", "the agent can go on", cwd=repository.work_tree)

    async def test_replace_refs_and_grafts_change_nothing(self, repository: Repository) -> None:
        ws = repository.work_tree
        git("replace", repository.base, "v1", cwd=ws)
        assert await repository.tree_of(repository.base) == git(
            "--no-replace-objects", "rev-parse", f"{repository.base}^{{tree}}", cwd=ws
        )
        assert (await repository.tree_id()).tree == await repository.tree_of(repository.base)


class TestCommit:
    async def test_a_commit_is_the_engines_and_clean_afterwards(
        self, repository: Repository, processes: list[str]
    ) -> None:
        ws = repository.work_tree
        await repository.tree_id()
        (ws / "n").write_text("n\n")
        processes.clear()
        done = await repository.commit_tree("flow/step #1", visit="step#1", attempt=2, when=WHEN)
        assert processes == ["status", "update-index", "write-tree", "commit-tree", "update-ref"]
        assert git("log", "-1", "--format=%an %ae %cn %ce %at %ct", cwd=ws) == (
            "Stepwise stepwise@localhost Stepwise stepwise@localhost 1767323045 1767323045"
        )
        assert git("log", "-1", "--format=%B", cwd=ws).splitlines() == [
            "flow/step #1",
            "",
            "Stepwise-Run: r1",
            "Stepwise-Visit: step#1",
            "Stepwise-Attempt: 2",
        ]
        assert (done.commit, done.repairs, done.not_kept) == (git("rev-parse", "HEAD", cwd=ws), (), ())
        processes.clear()
        again = await repository.commit_tree("flow/step #1", visit="step#1", attempt=2, when=WHEN)
        assert (again.commit, again.head, processes) == (None, done.commit, ["status"])
        assert git("status", "--porcelain", cwd=ws) == ""

    async def test_the_same_work_makes_the_same_commit_anywhere(self, source: Path, tmp_path: Path) -> None:
        found = await inspect_source(str(source))
        commits = set()
        for name in ("one", "two"):
            made = await clone(found, tmp_path / name, run_id="r1")
            (made.work_tree / "n").write_text("n\n")
            commits.add((await made.commit_tree("x", visit="s#1", attempt=1, when=WHEN)).commit)
        assert len(commits) == 1

    async def test_a_commit_is_found_again_by_visit_and_attempt_only(self, repository: Repository) -> None:
        ws = repository.work_tree
        made = {}
        for visit, attempt in (("s#1", 1), ("s#1", 2), ("s#2", 1)):
            (ws / "n").write_text(f"{visit} {attempt}\n")
            done = await repository.commit_tree("x", visit=visit, attempt=attempt, when=WHEN)
            made[visit, attempt] = done.commit
        text = "x\n\nStepwise-Run: r1\nStepwise-Visit: s#3\nStepwise-Attempt: 1\n"
        git("commit", "--quiet", "--allow-empty", "-m", text, cwd=ws)
        for (visit, attempt), commit in made.items():
            assert await repository.find_commit(visit, attempt) == commit
        assert await repository.find_commit("s#3", 1) is None
        assert await repository.find_commit("s#1", 3) is None
        other = Repository(ws, run_id="r2", base=repository.base)
        git("branch", "stepwise/r2", cwd=ws)
        assert await other.find_commit("s#1", 1) is None

    async def test_a_commit_that_was_only_merged_in_is_not_the_engines(self, repository: Repository) -> None:
        ws = repository.work_tree
        text = "x\n\nStepwise-Run: r1\nStepwise-Visit: s#1\nStepwise-Attempt: 1\n"
        tree = await repository.tree_of(repository.base)
        side = await repository.make_commit(tree, parent=repository.base, message=text, when=WHEN)
        git("merge", "--quiet", "--no-ff", "-m", "merge", side, cwd=ws)
        assert await repository.find_commit("s#1", 1) is None
        git("reset", "--quiet", "--hard", side, cwd=ws)
        assert await repository.find_commit("s#1", 1) == side

    @pytest.mark.parametrize(
        ("message", "subject"),
        [
            ("--amend", "--amend"),
            ("a\x1b[31mb\x9bc\x00", "a[31mbc"),
            ("x" * 1_000_000, "x" * 60_000),
            ("x\n\nStepwise-Run: r1\nStepwise-Visit: t#9\nStepwise-Attempt: 1", "x"),
            ("# no comment", "# no comment"),
        ],
        ids=["option", "controls", "long", "trailers", "comment"],
    )
    async def test_a_message_is_only_text(self, repository: Repository, message: str, subject: str) -> None:
        (repository.work_tree / "n").write_text("n\n")
        done = await repository.commit_tree(message, visit="s#1", attempt=1, when=WHEN)
        assert git("log", "-1", "--format=%s", cwd=repository.work_tree) == subject
        assert await repository.find_commit("s#1", 1) == done.commit
        assert await repository.find_commit("t#9", 1) is None

    async def test_the_agents_own_commits_stay_as_ancestors(self, repository: Repository) -> None:
        ws = repository.work_tree
        (ws / "n").write_text("n\n")
        git("add", ".", cwd=ws)
        git("commit", "--quiet", "-m", "agent", cwd=ws)
        own = git("rev-parse", "HEAD", cwd=ws)
        nothing = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert (nothing.commit, nothing.head) == (None, own)
        (ws / "m").write_text("m\n")
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert git("rev-parse", f"{done.commit}^", cwd=ws) == own

    @pytest.mark.parametrize("how", [("checkout", "-b", "mine"), ("checkout", "--detach")])
    async def test_commits_made_off_the_branch_are_kept_when_they_build_on_it(
        self, repository: Repository, how: tuple[str, ...]
    ) -> None:
        ws = repository.work_tree
        git(*how, cwd=ws)
        git("commit", "--quiet", "--allow-empty", "-m", "agent", cwd=ws)
        own = git("rev-parse", "HEAD", cwd=ws)
        (ws / "n").write_text("n\n")
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert git("rev-parse", "stepwise/r1^", cwd=ws) == own
        assert git("symbolic-ref", "HEAD", cwd=ws) == "refs/heads/stepwise/r1"
        assert any(repair.startswith("HEAD was at") for repair in done.repairs)

    async def test_commits_off_the_branch_move_it_even_when_nothing_else_changed(
        self, repository: Repository
    ) -> None:
        ws = repository.work_tree
        git("checkout", "--quiet", "-b", "mine", cwd=ws)
        (ws / "n").write_text("n\n")
        git("add", ".", cwd=ws)
        git("commit", "--quiet", "-m", "agent", cwd=ws)
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert (done.commit, done.head) == (None, git("rev-parse", "mine", cwd=ws))
        assert git("rev-parse", "stepwise/r1", cwd=ws) == done.head

    @pytest.mark.parametrize("where", ["v1", "orphan"])
    async def test_work_on_unrelated_history_lands_on_the_branch_as_content(
        self, repository: Repository, where: str
    ) -> None:
        ws = repository.work_tree
        if where == "orphan":
            git("checkout", "--quiet", "--orphan", "mine", cwd=ws)
        else:
            git("checkout", "--quiet", where, cwd=ws)
        (ws / "n").write_text("n\n")
        tree = (await repository.tree_id()).tree
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert git("rev-parse", "HEAD^", "HEAD^{tree}", cwd=ws).split() == [repository.base, tree]
        assert done.tree == tree
        assert git("status", "--porcelain", cwd=ws) == ""

    @pytest.mark.parametrize("how", ["deleted", "reset below the base"])
    async def test_a_branch_that_lost_the_base_gets_it_back(self, repository: Repository, how: str) -> None:
        ws = repository.work_tree
        if how == "deleted":
            git("checkout", "--quiet", "--detach", cwd=ws)
            git("branch", "-D", "stepwise/r1", cwd=ws)
        else:
            git("reset", "--quiet", "--hard", "v1", cwd=ws)
        (ws / "n").write_text("n\n")
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert git("rev-parse", "stepwise/r1", "HEAD^", cwd=ws).split() == [done.commit, repository.base]

    @pytest.mark.parametrize("operation", ["merge", "rebase", "cherry-pick", "bisect"])
    async def test_an_operation_left_in_progress_is_ended_and_the_files_are_committed(
        self, repository: Repository, operation: str
    ) -> None:
        ws = repository.work_tree
        half_merged(ws)
        if operation != "merge":
            git("merge", "--abort", cwd=ws)
        match operation:
            case "rebase":
                git("rebase", "theirs", cwd=ws, ok=False)
            case "cherry-pick":
                git("cherry-pick", "theirs", cwd=ws, ok=False)
            case "bisect":
                git("bisect", "start", "HEAD", "v1", cwd=ws)
                (ws / "n").write_text("n\n")
            case _:
                pass
        on_disk = (ws / "a.txt").read_text()
        done = await repository.commit_tree("x", visit="s#1", attempt=1, when=WHEN)
        assert f"operation in progress: {operation}" in done.repairs
        assert git("show", "stepwise/r1:a.txt", cwd=ws) == on_disk.strip()
        assert git("status", "--porcelain", "--branch", cwd=ws) == "## stepwise/r1"
        assert "You are currently" not in git("status", cwd=ws)

    async def test_a_ref_is_only_moved_from_where_it_was_expected(self, repository: Repository) -> None:
        old = git("rev-parse", "v1", cwd=repository.work_tree)
        with pytest.raises(RefMoved) as caught:
            await repository.set_ref(repository.branch_ref, old, expected=old)
        assert caught.value.retryable
        with pytest.raises(RefMoved):
            await repository.set_ref(repository.branch_ref, old, expected=NULL_OID)
        assert await repository.ref(repository.branch_ref) == repository.base
        assert await repository.ref("refs/heads/none") is None


class TestChanges:
    async def test_changes_are_sorted_and_a_rename_is_a_deletion_and_a_creation(
        self, repository: Repository, processes: list[str]
    ) -> None:
        ws = repository.work_tree
        git("mv", "a.txt", "z.txt", cwd=ws)
        odd_names(ws)
        (ws / "d" / "f.txt").unlink()
        (ws / "d" / "f.txt").symlink_to("x")
        (ws / ".gitignore").chmod(0o755)
        tree = (await repository.tree_id()).tree
        changes = await repository.changes(repository.base, tree)
        assert changes.created == sorted(
            ["z.txt", "new\nline", "-lead", "\\xff\\xfe", "tab\t", 'quote"', "файл", "a b", "[x]*?"]
        )
        assert changes.modified == [".gitignore", "d/f.txt"]
        assert changes.deleted == ["a.txt"]
        processes.clear()
        assert (await repository.changes(tree, tree)).total == 0
        assert processes == []

    async def test_a_diff_names_binary_files_and_stays_within_its_bound(self, repository: Repository) -> None:
        ws = repository.work_tree
        (ws / "x.bin").write_bytes(b"\0" * 5_000)
        (ws / "long.txt").write_text("line\n" * 50_000)
        tree = (await repository.tree_id()).tree
        whole = await repository.diff(repository.base, tree, max_bytes=1_000_000)
        assert b"Binary files /dev/null and b/x.bin differ" in whole
        assert len(whole) > 250_000
        cut = await repository.diff(repository.base, tree, max_bytes=1_000)
        assert len(cut) <= 1_000
        assert cut[:300] == whole[:300]
