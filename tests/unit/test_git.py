from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

import system.git
from system.clone import clone
from system.git import (
    NULL_OID,
    Git,
    GitError,
    GitTimeout,
    RefMoved,
    RepositoryDamaged,
    SourceRefused,
    checked_oid,
    checked_ref,
)
from system.git_layout import BUILD_JUNK, CONFIG
from system.processes import Finished, run
from system.repository import Repository
from system.source import check_url, inspect_source, url_config

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LONG_AGO = {"GIT_AUTHOR_DATE": "@1700000000 +0000", "GIT_COMMITTER_DATE": "@1700000000 +0000"}


def git(*args: str, cwd: Path, ok: bool = True, env: Mapping[str, str] | None = None) -> str:
    """Run plain git as a person or an agent would, without anybody's own configuration."""
    isolated = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_EDITOR": "true",
        **LONG_AGO,
        **(env or {}),
    }
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *who, *args], cwd=cwd, env=isolated, check=ok, capture_output=True)
    return done.stdout.decode("utf-8", "surrogateescape").strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a person's repository with two commits, a tag and a second branch."""
    path = tmp_path / "source"
    (path / "d").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=path)
    (path / "a.txt").write_text("a\n")
    (path / "d" / "f.txt").write_text("f\n")
    (path / ".gitignore").write_text("*.log\n")
    git("add", ".", cwd=path)
    git("commit", "--quiet", "-m", "one", cwd=path)
    git("tag", "v1", cwd=path)
    git("branch", "topic", cwd=path)
    (path / "a.txt").write_text("aa\n")
    git("commit", "--quiet", "-am", "two", cwd=path)
    return path


@pytest.fixture
async def repository(source: Path, tmp_path: Path) -> Repository:
    return await clone(await inspect_source(str(source)), tmp_path / "ws", run_id="r1")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the git processes that the engine starts, by sub-command."""
    started: list[str] = []

    async def counted(argv: tuple[str, ...], **options: object) -> Finished:
        started.append(next(arg for arg in argv if arg in system.git.COMMANDS))
        return await run(argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("system.git.run", counted)
    return started


def content(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything in a folder: mode, modification time, bytes."""
    found = {}
    for path in folder.rglob("*"):
        stats = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(stats.st_mode) else b""
        found[str(path.relative_to(folder))] = (stats.st_mode, stats.st_mtime_ns, data)
    return found


def oracle(work_tree: Path) -> str:
    """Return the tree id as plain ``git add --all`` in an index of its own computes it."""
    index = {"GIT_INDEX_FILE": str(work_tree.parent / "oracle-index")}
    git("read-tree", "HEAD", cwd=work_tree, env=index)
    git("add", "--all", cwd=work_tree, env=index)
    tree = git("write-tree", cwd=work_tree, env=index)
    (work_tree.parent / "oracle-index").unlink()
    return tree


def program(tmp_path: Path) -> tuple[Path, Path]:
    """Make a program that leaves a mark when it runs."""
    mark, script = tmp_path / "it-ran", tmp_path / "evil"
    script.write_text(f"#!/bin/sh\ntouch '{mark}'\ncat\n")
    script.chmod(0o755)
    return script, mark


def poison(work_tree: Path, script: Path) -> None:
    """Set every way by which a repository's own files make git run a program or look elsewhere."""
    evil = str(script)
    keys = {
        "core.fsmonitor": evil,
        "core.hooksPath": str(script.parent / "hooks"),
        "core.pager": evil,
        "core.editor": evil,
        "core.sshCommand": evil,
        "core.worktree": "/etc",
        "core.excludesFile": str(script.parent / "everything"),
        "diff.external": evil,
        "diff.x.textconv": evil,
        "diff.x.command": evil,
        "filter.x.clean": evil,
        "filter.x.smudge": evil,
        "filter.x.process": evil,
        "filter.x.required": "true",
        "filter.a=b.clean": evil,
        "merge.x.driver": evil,
        "gpg.program": evil,
        "commit.gpgsign": "true",
        "log.showSignature": "true",
        "credential.helper": f"!{evil}",
        "protocol.ext.allow": "always",
        "uploadpack.packObjectsHook": evil,
        "alias.status": f"!{evil}",
    }
    (script.parent / "everything").write_text("*\n")
    hooks = (work_tree / ".git" / "hooks", script.parent / "hooks")
    for folder in hooks:
        folder.mkdir(exist_ok=True)
        for name in (
            "pre-commit",
            "post-checkout",
            "post-index-change",
            "reference-transaction",
            "post-commit",
        ):
            shutil.copy(script, folder / name)
    for key, value in keys.items():
        git("config", "--file", str(work_tree / ".git" / "config"), key, value, cwd=script.parent)


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


def _odd_names(ws: Path) -> None:
    for name in (b"new\nline", b"-lead", b"\xff\xfe", b"tab\t", b'quote"', "файл".encode(), b"a b", b"[x]*?"):
        Path(os.fsdecode(os.path.join(os.fsencode(ws), name))).write_text("x")  # noqa: PTH118 - bytes


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


def _half_merged(ws: Path) -> None:
    git("checkout", "--quiet", "-b", "theirs", cwd=ws)
    (ws / "a.txt").write_text("theirs\n")
    git("commit", "--quiet", "-am", "theirs", cwd=ws)
    git("checkout", "--quiet", "stepwise/r1", cwd=ws)
    (ws / "a.txt").write_text("ours\n")
    git("commit", "--quiet", "-am", "ours", cwd=ws)
    git("merge", "theirs", cwd=ws, ok=False)


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
    "odd names": _odd_names,
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
    "half merged": _half_merged,
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
        _half_merged(repository.work_tree)
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
        _half_merged(ws)
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
        _odd_names(ws)
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
