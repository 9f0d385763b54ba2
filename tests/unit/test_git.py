"""The git wrapper, and what is made of the repository a run was asked to work on: looked at, cloned."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from git_kit import WHEN, clone_of, content, counted, dying_git, git, make_source, poison, program

import system.git
from system.clone import clone
from system.git import (
    Git,
    GitError,
    GitKilled,
    GitTimeout,
    SourceRefused,
    checked_oid,
    checked_ref,
)
from system.git_layout import BUILD_JUNK, CONFIG
from system.repository import Repository
from system.source import check_url, inspect_source, url_config


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


@pytest.fixture
async def repository(source: Path, tmp_path: Path) -> Repository:
    return await clone_of(source, tmp_path / "ws")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return counted(monkeypatch)


class TestWrapper:
    async def test_the_environment_of_the_worker_is_not_handed_on(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script, mark = program(tmp_path)
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(script))
        monkeypatch.setenv("GIT_DIR", "/elsewhere")
        monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
        await Git(git_dir=source / ".git", work_tree=source).run("status")
        assert not mark.exists()
        assert not (tmp_path / "trace").exists()

    async def test_a_command_that_is_not_the_engines_is_refused(self, source: Path) -> None:
        with pytest.raises(GitError) as caught:
            await Git(git_dir=source / ".git", work_tree=source).run("push")
        assert caught.value.code == "E_GIT_ARGUMENT"

    async def test_a_failure_carries_what_ran_and_what_it_said(self, source: Path) -> None:
        with pytest.raises(GitError) as caught:
            await Git(git_dir=source / ".git", work_tree=source).run("rev-parse", "--verify", "nothing")
        assert caught.value.code == "E_GIT_FAILED"
        assert caught.value.argv == ("rev-parse", "--verify", "nothing")
        assert caught.value.exit_code == 128
        assert "Needed a single revision" in caught.value.stderr
        assert not caught.value.retryable

    async def test_a_process_that_hangs_is_stopped_and_the_error_can_be_retried(self, source: Path) -> None:
        os.mkfifo(source / "fifo")
        with pytest.raises(GitTimeout) as caught:
            await Git(git_dir=source / ".git", work_tree=source).run("hash-object", "fifo", timeout_s=0.2)
        assert caught.value.retryable

    async def test_a_process_that_is_killed_says_nothing_of_the_repository(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dying_git(tmp_path, monkeypatch, "rev-parse")
        with pytest.raises(GitKilled, match="signal 9") as caught:
            await inspect_source(str(source))
        assert caught.value.retryable

    async def test_output_is_never_cut_unnoticed(self, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        git_here = Git(git_dir=source / ".git", work_tree=source)
        monkeypatch.setattr(system.git, "MAX_OUTPUT_BYTES", 10)
        with pytest.raises(GitError) as caught:
            await git_here.run("log")
        assert caught.value.code == "E_GIT_OUTPUT"

    @pytest.mark.parametrize(
        "url", ["{source}", "ext::{evil}", "file://{source}", "fd::0", "git://127.0.0.1/x"]
    )
    async def test_no_transport_is_allowed_unless_it_is_named(
        self, repository: Repository, source: Path, tmp_path: Path, url: str
    ) -> None:
        script, mark = program(tmp_path)
        with pytest.raises(GitError, match="not allowed"):
            await repository.git.run("fetch", url.format(source=source, evil=script), protocols=("https",))
        assert not mark.exists()

    async def test_extra_configuration_outranks_files_and_stays_out_of_argv(self, source: Path) -> None:
        here = Git(git_dir=source / ".git", work_tree=source)
        finished = await here.run("config", "--get", "x.y", config={"x.y": "secret"})
        assert finished.stdout == b"secret\n"

    @pytest.mark.parametrize("name", ["main", "stepwise/r1", "refs/heads/a", "v1.0", "a@b", "файл"])
    def test_an_ordinary_ref_name_is_taken(self, name: str) -> None:
        assert checked_ref(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            *(
                "",
                "-x",
                "--upload-pack=x",
                "a..b",
                "a b",
                "a~1",
                "a^",
                "a:b",
                "a@{1}",
                "a/.b",
                "a.lock",
                "a.lock/b",
            ),
            *("/a", "a/", "a//b", "a?", "a*", "a[", "a\\b", "a\nb", "@", ".", "a.", "x" * 256),
        ],
    )
    def test_a_ref_name_that_git_could_read_otherwise_is_refused(self, name: str) -> None:
        with pytest.raises(GitError) as caught:
            checked_ref(name)
        assert caught.value.code == "E_GIT_BAD_REF"

    @pytest.mark.parametrize("value", ["HEAD", "abc", "A" * 40, "a" * 41, "a" * 40 + "\n", "--help"])
    def test_only_whole_object_ids_are_object_ids(self, value: str) -> None:
        with pytest.raises(GitError):
            checked_oid(value)


class TestSource:
    @pytest.mark.parametrize(
        ("base", "revision", "branch"),
        [(None, "main", "main"), ("topic", "topic", "topic"), ("v1", "v1", None), ("origin/x", "v1", "x")],
    )
    async def test_a_base_is_resolved_to_its_commit_and_branch(
        self, source: Path, base: str | None, revision: str, branch: str | None
    ) -> None:
        git("update-ref", "refs/remotes/origin/x", "v1", cwd=source)
        found = await inspect_source(str(source), base)
        assert (found.kind, found.branch) == ("path", branch)
        assert found.head == git("rev-parse", revision, cwd=source)
        by_id = await inspect_source(str(source), found.head)
        assert (by_id.head, by_id.branch) == (found.head, None)

    async def test_a_bare_repository_and_a_linked_worktree_are_sources(
        self, source: Path, tmp_path: Path
    ) -> None:
        git("clone", "--quiet", "--bare", str(source), "bare.git", cwd=tmp_path)
        git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), cwd=source)
        git("commit", "--quiet", "--allow-empty", "-m", "on no branch", cwd=tmp_path / "linked")
        assert (await inspect_source(str(tmp_path / "bare.git"))).branch == "main"
        linked = await inspect_source(str(tmp_path / "linked"))
        made = await clone(linked, tmp_path / "ws", run_id="r1")
        assert await made.head() == git("rev-parse", "HEAD", cwd=tmp_path / "linked")

    @pytest.mark.parametrize(
        ("repo", "base", "code", "words"),
        [
            ("relative/path", None, "E_GIT_URL", "absolute path"),
            ("-x", None, "E_GIT_URL", "absolute path"),
            ("{tmp}/nowhere", None, "E_GIT_SOURCE_MISSING", socket.gethostname()),
            ("{tmp}", None, "E_GIT_NOT_A_REPOSITORY", "git init"),
            ("{tmp}/source/d", None, "E_GIT_SUBDIRECTORY", "give {tmp}/source"),
            ("{tmp}/source/a.txt", None, "E_GIT_SUBDIRECTORY", "give {tmp}/source"),
            ("{tmp}/empty", None, "E_GIT_UNBORN", "first commit"),
            ("{tmp}/sha256", None, "E_GIT_OBJECT_FORMAT", "SHA-1"),
            ("{tmp}/source", "nothing", "E_GIT_BAD_REF", "check the base"),
            ("{tmp}/source", "main:a.txt", "E_GIT_BAD_REF", "not a name"),
            ("{tmp}/source", "--all", "E_GIT_BAD_REF", "not a name"),
            ("{tmp}/source", "0" * 40, "E_GIT_BAD_REF", "check the base"),
            ("/\0", None, "E_GIT_SOURCE_MISSING", "NUL"),
        ],
    )
    async def test_a_repository_that_cannot_be_used_is_refused_with_the_mend(
        self, source: Path, tmp_path: Path, repo: str, base: str | None, code: str, words: str
    ) -> None:
        git("init", "--quiet", "empty", cwd=source.parent)
        git("init", "--quiet", "--object-format=sha256", "sha256", cwd=source.parent)
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=tmp_path / "sha256")
        with pytest.raises(SourceRefused) as caught:
            await inspect_source(repo.format(tmp=tmp_path), base)
        assert caught.value.code == code
        assert words.format(tmp=tmp_path) in str(caught.value)

    @pytest.mark.parametrize("change", ["modified", "staged", "untracked", "deleted"])
    async def test_uncommitted_changes_are_refused_unless_allowed(self, source: Path, change: str) -> None:
        match change:
            case "modified":
                (source / "a.txt").write_text("changed\n")
            case "staged":
                (source / "a.txt").write_text("changed\n")
                git("add", "a.txt", cwd=source)
            case "untracked":
                (source / "new.txt").write_text("new\n")
            case _:
                (source / "a.txt").unlink()
        with pytest.raises(SourceRefused, match="stay out of the run") as caught:
            await inspect_source(str(source))
        assert caught.value.code == "E_GIT_DIRTY"
        assert (await inspect_source(str(source), allow_dirty=True)).dirty

    async def test_ignored_files_are_not_changes(self, source: Path) -> None:
        (source / "x.log").write_text("")
        assert not (await inspect_source(str(source))).dirty

    async def test_a_hostile_repository_runs_nothing_and_is_only_read(
        self, source: Path, tmp_path: Path
    ) -> None:
        (source / ".gitattributes").write_text("* filter=x diff=x merge=x\nd/* filter=a=b\n")
        git("add", ".", cwd=source)
        git("commit", "--quiet", "-m", "attributes", cwd=source)
        script, mark = program(tmp_path)
        poison(source, script)
        os.utime(source / "a.txt")
        before = content(source)
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        assert not mark.exists()
        assert content(source) == before
        assert (made.work_tree / "a.txt").read_text() == "aa\n"

    @pytest.mark.parametrize(
        "url",
        [
            *("https://example.org/a/b.git", "https://example.org:8443/a", "https://[::1]:8443/a"),
            *("ssh://git@example.org/a", "ssh://h:22/~u/a"),
        ],
    )
    def test_https_and_ssh_urls_are_taken(self, url: str) -> None:
        assert check_url(url) == url

    @pytest.mark.parametrize(
        "url",
        [
            *("http://example.org/a", "git://example.org/a", "file:///etc", "ext::sh -c touch%20x", "fd::17"),
            *("https://user@example.org/a", "https://user:tok@example.org/a", "ssh://git:pw@example.org/a"),
            *("ssh://-oProxyCommand=touch/x", "ssh://git@-oProxyCommand=x/a", "ssh://-x@example.org/a"),
            *("--upload-pack=x", "git@example.org:a/b", "example.org:a", "https://example.org", "https:///a"),
            *(
                "https://example.org/a?token=x",
                "https://example.org/a#x",
                "https://exa mple.org/a",
                "HTTPS//x",
            ),
            *("https://example.org/a\n", "https://example.org:port/a", "ssh://example.org/-x"),
            *("ext::https://h/a", "https://good.com\0.evil/a", "https://[::1/a", ""),
        ],
    )
    async def test_any_other_url_is_refused_before_git_sees_it(self, url: str, processes: list[str]) -> None:
        with pytest.raises(SourceRefused) as caught:
            await inspect_source(url)
        assert caught.value.code == "E_GIT_URL"
        assert "tok" not in str(caught.value)
        assert processes == []

    async def test_a_host_that_does_not_answer_is_named_and_the_token_is_not(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"https://127.0.0.1:{closed.getsockname()[1]}/a.git"
            with pytest.raises(SourceRefused) as caught:
                await inspect_source(url, token="hunter2")  # noqa: S106
        assert caught.value.code == "E_GIT_UNREACHABLE"
        assert socket.gethostname() in str(caught.value)
        assert "hunter2" not in f"{caught.value} {caught.value.argv} {caught.value.stderr}"

    def test_a_token_goes_to_its_own_host_over_https_only(self) -> None:
        assert list(url_config("https://h:8443/a/b", "t")) == ["http.https://h:8443/.extraHeader"]
        assert url_config("ssh://git@h/a", "t") == {}
        assert url_config("https://h/a", None) == {}


class TestClone:
    async def test_a_clone_is_on_its_own_branch_and_tied_to_nothing(
        self, source: Path, repository: Repository
    ) -> None:
        ws = repository.work_tree
        assert git("rev-parse", "--abbrev-ref", "HEAD", cwd=ws) == "stepwise/r1"
        assert git("rev-parse", "HEAD", cwd=ws) == git("rev-parse", "main", cwd=source)
        assert git("remote", cwd=ws) == ""
        assert git("status", "--porcelain", cwd=ws) == ""
        assert git("tag", cwd=ws) == "v1"
        assert (ws / ".git" / "config").read_bytes() == CONFIG
        assert (ws / ".git" / "info" / "exclude").read_text().split() == list(BUILD_JUNK)
        assert not (ws / ".git" / "objects" / "info" / "alternates").exists()
        assert not (ws / ".git" / "hooks").exists()
        files = [path for path in (ws / ".git").rglob("*") if path.is_file()]
        assert {path.stat().st_nlink for path in files} == {1}
        assert [path.name for path in ws.parent.iterdir() if path.name.startswith(".ws")] == []

    async def test_bytes_arrive_as_they_are_committed_whatever_the_attributes_say(
        self, source: Path, tmp_path: Path
    ) -> None:
        (source / ".gitattributes").write_text(
            "*.bat text eol=crlf\n*.id ident\n*.16 working-tree-encoding=UTF-16\n"
        )
        (source / "x.id").write_bytes(b"$Id$\n")
        (source / "x.bat").write_bytes(b"echo\r\n")
        (source / "x.16").write_bytes("hello\n".encode("utf-16"))
        git("add", ".", cwd=source)
        git("commit", "--quiet", "-m", "attributes", cwd=source)
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        assert (made.work_tree / "x.id").read_bytes() == b"$Id$\n"
        assert (made.work_tree / "x.bat").read_bytes() == b"echo\n"
        assert (made.work_tree / "x.16").read_bytes() == b"hello\n"
        (made.work_tree / "x.bat").write_bytes(b"echo\r\n")
        measured = await made.tree_id()
        assert git("cat-file", "blob", f"{measured.tree}:x.bat", cwd=made.work_tree) == "echo"
        assert (await made.changes(made.base, measured.tree)).modified == ["x.bat"]
        assert (await made.commit_tree("x", visit="s#1", attempt=1, when=WHEN)).tree == measured.tree

    async def test_submodules_are_not_fetched(self, source: Path, tmp_path: Path) -> None:
        git("init", "--quiet", "sub", cwd=tmp_path)
        git("commit", "--quiet", "--allow-empty", "-m", "x", cwd=tmp_path / "sub")
        git("submodule", "--quiet", "add", str(tmp_path / "sub"), "sub", cwd=source)
        git("commit", "--quiet", "-m", "submodule", cwd=source)
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        assert list((made.work_tree / "sub").iterdir()) == []
        measured = await made.tree_id()
        assert (measured.tree, measured.not_kept) == (await made.tree_of(made.base), ())

    async def test_a_clone_that_fails_leaves_nothing_and_one_that_is_there_is_kept(
        self, source: Path, tmp_path: Path, repository: Repository
    ) -> None:
        found = await inspect_source(str(source))
        with pytest.raises(GitError) as caught:
            await clone(found, repository.work_tree, run_id="r1")
        assert caught.value.code == "E_GIT_TARGET_EXISTS"
        shutil.rmtree(source / ".git" / "objects")
        before = set(content(tmp_path))
        with pytest.raises(SourceRefused) as refused:
            await clone(found, tmp_path / "other", run_id="r2")
        assert refused.value.code == "E_GIT_UNREACHABLE"
        assert set(content(tmp_path)) == before

    async def test_a_clone_whose_git_is_killed_is_no_refusal_of_its_source(
        self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = await inspect_source(str(source))
        dying_git(tmp_path, monkeypatch, "fetch")
        with pytest.raises(GitKilled):
            await clone(found, tmp_path / "other", run_id="r1")
        assert not (tmp_path / "other").exists()

    async def test_a_url_whose_look_up_is_killed_is_not_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dying_git(tmp_path, monkeypatch, "ls-remote")
        with pytest.raises(GitKilled):
            await inspect_source("https://example.invalid/r")

    async def test_what_a_killed_clone_left_is_removed_by_the_next(
        self, source: Path, tmp_path: Path
    ) -> None:
        (tmp_path / ".ws.partial-0").mkdir()
        await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        assert not (tmp_path / ".ws.partial-0").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    async def test_a_repository_of_another_user_can_be_cloned(self, source: Path, tmp_path: Path) -> None:
        for name in (".", *content(source)):
            os.chown(source / name, 65534, 65534)
        made = await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")
        assert (made.work_tree / "a.txt").exists()

    async def test_a_run_id_that_is_no_ref_name_is_refused(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(GitError):
            await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="a..b")
