"""The one way to run git: environment from scratch, fixed configuration, bounded time and output.

```
StepwiseError
└── GitError              a git process failed; carries argv, exit code and stderr
    ├── GitCut            it did not come to its own end: it says nothing of the repository (retryable)
    │   ├── GitTimeout    it was stopped at its time-out
    │   └── GitKilled     somebody ended it
    ├── SourceRefused     the repository a run was asked to work on cannot be used
    ├── RepositoryDamaged the run's clone is broken in a way that cannot be repaired
    └── RefMoved          a branch or ref is not where the caller thought (retryable)
```
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from schemas.errors import StepwiseError
from system.processes import Finished, run

GitCode = Literal[
    "E_GIT_FAILED",
    "E_GIT_TIMEOUT",
    "E_GIT_KILLED",
    "E_GIT_OUTPUT",
    "E_GIT_ARGUMENT",
    "E_GIT_BINARY",
    "E_GIT_SOURCE_MISSING",
    "E_GIT_NOT_A_REPOSITORY",
    "E_GIT_SUBDIRECTORY",
    "E_GIT_UNBORN",
    "E_GIT_BAD_REF",
    "E_GIT_DIRTY",
    "E_GIT_URL",
    "E_GIT_UNREACHABLE",
    "E_GIT_OBJECT_FORMAT",
    "E_GIT_TARGET_EXISTS",
    "E_GIT_DAMAGED",
    "E_GIT_REF_MOVED",
    "E_GIT_RESTORE",
]

DEFAULT_TIMEOUT_S: Final = 120.0
TRANSFER_TIMEOUT_S: Final = 1_800.0
"""For processes that move a repository's whole content."""
MAX_OUTPUT_BYTES: Final = 256 * 1024 * 1024
"""Upper bound of what one git process may print; lists of paths are never used when cut."""

NULL_OID: Final = "0" * 40
OID: Final = re.compile(r"[0-9a-f]{40}")
_BAD_REF: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(?:/|$)|^[-./@]$|^[-./]|[./]$")

COMMANDS: Final = frozenset(
    {
        "bundle",
        "commit-tree",
        "config",
        "diff-tree",
        "fetch",
        "init",
        "log",
        "ls-files",
        "ls-remote",
        "merge-base",
        "read-tree",
        "rev-parse",
        "status",
        "symbolic-ref",
        "update-index",
        "update-ref",
        "write-tree",
        "hash-object",
        "cat-file",
    }
)
"""The sub-commands the engine uses; none of them runs a program named by a repository."""

_FIXED_CONFIG: Final = (
    # Keys that name a program, or let one be reached.
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.sshCommand=ssh -o BatchMode=yes",
    "core.pager=cat",
    "core.alternateRefsCommand=",
    "credential.helper=",
    "diff.external=",
    "protocol.allow=never",
    "safe.bareRepository=explicit",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "commit.gpgsign=false",
    # Keys that change what is seen in a working tree.
    "core.excludesFile=/dev/null",
    "core.attributesFile=/dev/null",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.sparseCheckout=false",
    "core.ignoreStat=false",
    "core.trustctime=true",
    "core.checkStat=default",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.autocrlf=false",
    "core.safecrlf=false",
)
_FIXED_ARGUMENTS: Final = ("--no-pager", *(part for item in _FIXED_CONFIG for part in ("-c", item)))

_FIXED_ENVIRONMENT: Final = {
    "PATH": "/usr/local/bin:/opt/homebrew/bin:/usr/bin:/bin",
    # Neither a home nor a configuration folder of any user is read.
    "HOME": "/nonexistent",
    "XDG_CONFIG_HOME": "/nonexistent",
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
}


class GitError(StepwiseError):
    """A git operation failed; ``argv``, ``exit_code`` and ``stderr`` are those of the process, if one ran."""

    def __init__(
        self,
        code: GitCode,
        message: str,
        *,
        mend: str | None = None,
        argv: Sequence[str] = (),
        exit_code: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(code, message, mend=mend)
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stderr = stderr

    @classmethod
    def because(cls, error: GitError, code: GitCode, message: str, *, mend: str | None = None) -> Self:
        """Return an error of this kind about the process that ``error`` is about."""
        return cls(code, message, mend=mend, argv=error.argv, exit_code=error.exit_code, stderr=error.stderr)


class GitCut(GitError):
    """Raised when a git process did not come to its own end: it says nothing of the repository."""

    retryable = True


class GitTimeout(GitCut):
    """Raised when a git process was stopped at its time-out."""


class GitKilled(GitCut):
    """Raised when a git process was ended by a signal, or with its guard."""


class SourceRefused(GitError):
    """Raised when the repository named for a run cannot be used; the message says how to mend it."""


class RepositoryDamaged(GitError):
    """Raised when the run's clone is broken in a way the engine does not repair."""


class RefMoved(GitError):
    """Raised when a ref does not have the value the caller expected; nothing was changed."""

    retryable = True


@dataclass(frozen=True, kw_only=True)
class Git:
    """Git on one repository, with ``GIT_DIR`` and ``GIT_WORK_TREE`` pinned; never discovers anything."""

    git_dir: Path
    work_tree: Path | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    async def run(
        self,
        *args: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        index: Path | None = None,
        protocols: Sequence[str] = (),
        timeout_s: float | None = None,
        ok: Sequence[int] = (0,),
        cut_at: int | None = None,
    ) -> Finished:
        """Run one git process and return it; ``config`` outranks every file and is not visible in argv.

        No transport is allowed but ``protocols``. Output past ``cut_at`` bytes is dropped where that is given
        and an error where it is not. Raises GitTimeout, GitKilled, and GitError for an exit code not in ``ok``.
        """
        argv = (git_binary(), *_FIXED_ARGUMENTS, *args)
        if args[0] not in COMMANDS:
            raise GitError("E_GIT_ARGUMENT", f"git {args[0]} is not a command of the engine", argv=argv)
        finished = await run(
            argv,
            cwd=self.work_tree or self.git_dir,
            env=self._environment(env or {}, config or {}, index, protocols),
            stdin=stdin,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            max_output=MAX_OUTPUT_BYTES if cut_at is None else cut_at,
        )
        _check(finished, args, ok=ok, may_be_cut=cut_at is not None)
        return finished

    async def line(self, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """Run one git process and return the single line it prints."""
        return (await self.run(*args, stdin=stdin, env=env)).stdout.decode().strip()

    def _environment(
        self,
        env: Mapping[str, str],
        config: Mapping[str, str],
        index: Path | None,
        protocols: Sequence[str],
    ) -> dict[str, str]:
        result = dict(_FIXED_ENVIRONMENT)
        result["GIT_DIR"] = str(self.git_dir)
        result["GIT_CEILING_DIRECTORIES"] = str((self.work_tree or self.git_dir).parent)
        result["GIT_ALLOW_PROTOCOL"] = ":".join(protocols)
        if self.work_tree is not None:
            result["GIT_WORK_TREE"] = str(self.work_tree)
        if index is not None:
            result["GIT_INDEX_FILE"] = str(index)
        result["GIT_CONFIG_COUNT"] = str(len(config))
        for number, (key, value) in enumerate(config.items()):
            result[f"GIT_CONFIG_KEY_{number}"] = key
            result[f"GIT_CONFIG_VALUE_{number}"] = value
        result.update(env)
        return result


@functools.cache
def git_binary() -> str:
    """Return the absolute path of git; raises GitError if there is none on the fixed path."""
    found = shutil.which("git", path=_FIXED_ENVIRONMENT["PATH"])
    if found is None:
        raise GitError("E_GIT_BINARY", "git is not installed", mend="install git 2.39 or newer")
    return found


def checked_oid(value: str) -> str:
    """Return ``value`` if it is a whole object id; raises GitError otherwise."""
    if OID.fullmatch(value) is None:
        raise GitError("E_GIT_ARGUMENT", f"{value[:80]!r} is not an object id of 40 hex digits")
    return value


def checked_ref(value: str) -> str:
    """Return ``value`` if git accepts it as a ref name and it cannot be read as an option; raises GitError."""
    if not value or len(value) > 255 or _BAD_REF.search(value):  # noqa: PLR2004 - the longest file name
        raise GitError("E_GIT_BAD_REF", f"{value[:80]!r} is not a name git accepts for a branch or ref")
    return value


def _check(finished: Finished, args: Sequence[str], *, ok: Sequence[int], may_be_cut: bool) -> None:
    if finished.timed_out:
        raise GitTimeout(
            "E_GIT_TIMEOUT",
            f"git {args[0]} did not end in time",
            argv=args,
            exit_code=finished.exit_code,
            stderr=_text(finished.stderr),
        )
    if finished.exit_code is None:
        how = "was lost" if finished.signal is None else f"was ended by signal {finished.signal}"
        raise GitKilled("E_GIT_KILLED", f"git {args[0]} {how}", argv=args, stderr=_text(finished.stderr))
    if finished.truncated and not may_be_cut:
        raise GitError("E_GIT_OUTPUT", f"git {args[0]} printed more than {MAX_OUTPUT_BYTES} bytes", argv=args)
    if finished.exit_code not in ok and not (finished.truncated and may_be_cut):
        stderr = _text(finished.stderr)
        last = stderr.strip().splitlines()[-1:] or [f"exit code {finished.exit_code}"]
        raise GitError(
            "E_GIT_FAILED",
            f"git {args[0]} failed: {last[0][:400]}",
            argv=args,
            exit_code=finished.exit_code,
            stderr=stderr,
        )


def _text(data: bytes) -> str:
    return data[-4_000:].decode("utf-8", "backslashreplace")
