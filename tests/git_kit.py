"""What tests of git share: git as a person or an agent runs it, and a person's repository."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

import system.git
from system.clone import clone
from system.processes import Finished, run
from system.repository import Repository
from system.source import inspect_source

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


def make_source(path: Path) -> Path:
    """Make a person's repository with two commits, a tag and a second branch."""
    (path / "d").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main", cwd=path)
    (path / "a.txt").write_text("a\n")
    (path / "gone.txt").write_text("gone\n")
    (path / "d" / "f.txt").write_text("f\n")
    (path / ".gitignore").write_text("*.log\nbuild/\n")
    git("add", ".", cwd=path)
    git("commit", "--quiet", "-m", "one", cwd=path)
    git("tag", "v1", cwd=path)
    git("branch", "topic", cwd=path)
    (path / "a.txt").write_text("aa\n")
    git("commit", "--quiet", "-am", "two", cwd=path)
    return path


async def clone_of(source: Path, work_tree: Path) -> Repository:
    """Clone a repository for the run ``r1``."""
    return await clone(await inspect_source(str(source)), work_tree, run_id="r1")


def content(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything in a folder: mode, modification time, bytes."""
    found = {}
    for path in folder.rglob("*"):
        stats = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(stats.st_mode) else b""
        found[str(path.relative_to(folder))] = (stats.st_mode, stats.st_mtime_ns, data)
    return found


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


def odd_names(ws: Path) -> None:
    """Make files whose names are hard to quote."""
    for name in (b"new\nline", b"-lead", b"\xff\xfe", b"tab\t", b'quote"', "файл".encode(), b"a b", b"[x]*?"):
        Path(os.fsdecode(os.path.join(os.fsencode(ws), name))).write_text("x")  # noqa: PTH118 - bytes


def half_merged(ws: Path) -> None:
    """Leave a merge with a conflict in progress."""
    git("checkout", "--quiet", "-b", "theirs", cwd=ws)
    (ws / "a.txt").write_text("theirs\n")
    git("commit", "--quiet", "-am", "theirs", cwd=ws)
    git("checkout", "--quiet", "stepwise/r1", cwd=ws)
    (ws / "a.txt").write_text("ours\n")
    git("commit", "--quiet", "-am", "ours", cwd=ws)
    git("merge", "theirs", cwd=ws, ok=False)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the sub-commands of the git processes that the engine starts from here on."""
    started: list[str] = []

    async def counting(argv: tuple[str, ...], **options: object) -> Finished:
        started.append(next(arg for arg in argv if arg in system.git.COMMANDS))
        return await run(argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("system.git.run", counting)
    return started


def dying_git(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Put a git in place that is killed whenever it is to run this command of its."""
    script = folder / "dying-git"
    script.write_text(
        f'#!/bin/sh\ncase " $* " in *" {command} "*) kill -KILL $$ ;; esac\nexec {system.git.git_binary()} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(system.git, "git_binary", lambda: str(script))
