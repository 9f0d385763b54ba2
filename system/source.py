"""The repository a run was asked to work on: found, judged and named, and only ever read."""

from __future__ import annotations

import base64
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from system.git import Git, GitCode, GitCut, GitError, SourceRefused, checked_ref
from system.git_status import parse_status, shown

URL_PROTOCOLS: Final = ("https", "ssh")
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_URL_TEXT: Final = re.compile(r"[!-~]+")
_FULL_OID: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256_CHARS: Final = 64
_PATHS_NAMED: Final = 5
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Source:
    """A usable repository: ``head`` is the commit of the base ref, ``branch`` its branch if it is one.

    ``location`` is an absolute path or a URL without secrets; ``git_dir`` is where a path keeps its objects.
    """

    kind: Literal["path", "url"]
    location: str
    head: str
    branch: str | None
    dirty: bool = False
    shallow: bool = False
    git_dir: Path | None = None


async def inspect_source(
    repo: str,
    base: str | None = None,
    *,
    allow_dirty: bool = False,
    token: str | None = None,
) -> Source:
    """Find out what ``repo`` (absolute path, https or ssh URL) has at ``base`` (branch, tag, commit; default HEAD).

    A bare repository and a linked worktree are accepted; for a folder inside a repository the refusal names the
    top. Nothing is written and no program of the repository runs. Starts one process for a URL, four for a path.
    Raises SourceRefused with the mend, GitCut.
    """
    if base is not None:
        try:
            checked_ref(base)
        except GitError as error:
            raise _refused("E_GIT_BAD_REF", error.message, "name a branch, a tag or a commit") from error
    if repo.startswith("/"):
        return await _inspect_path(_absolute(repo), base, allow_dirty=allow_dirty)
    return await _inspect_url(check_url(repo), base, token=token)


def check_url(url: str) -> str:
    """Return a URL that a run may clone: https or ssh, without a password. Raises SourceRefused."""
    shapes = "give an absolute path, https://host/path or ssh://git@host/path"
    if _URL_TEXT.fullmatch(url) is None or "://" not in url or "::" in url.partition("://")[0]:
        raise SourceRefused("E_GIT_URL", "the repository is neither an absolute path nor a URL", mend=shapes)
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        raise SourceRefused("E_GIT_URL", "the URL of the repository is malformed", mend=shapes) from None
    if parts.scheme not in URL_PROTOCOLS:
        raise SourceRefused("E_GIT_URL", f"{parts.scheme[:20]!r} is not a protocol runs may use", mend=shapes)
    secret = parts.password is not None or (parts.username is not None and parts.scheme == "https")
    if secret or parts.query or parts.fragment:
        raise SourceRefused(
            "E_GIT_URL",
            "the URL of the repository carries user-info, a query or a fragment",
            mend="leave it out and name a credential in the worker's git_credentials setting",
        )
    user_ok = parts.username is None or _USER.fullmatch(parts.username) is not None
    host = parts.netloc.rpartition("@")[2]
    host = host if host.endswith("]") else re.sub(r":[0-9]*$", "", host)
    path_ok = len(parts.path) > 1 and not parts.path.startswith("/-")
    if not (port_ok and user_ok and path_ok and _HOST.fullmatch(host)):
        raise SourceRefused("E_GIT_URL", "the URL of the repository is malformed", mend=shapes)
    return url


def url_config(url: str, token: str | None) -> dict[str, str]:
    """Return the configuration that sends ``token`` to the host of an https URL, and to no other."""
    parts = urlsplit(url)
    if token is None or parts.scheme != "https":
        return {}
    secret = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    return {f"http.https://{parts.netloc}/.extraHeader": f"Authorization: Basic {secret}"}


async def _inspect_path(path: Path, base: str | None, *, allow_dirty: bool) -> Source:
    git_dir, work_tree = locate(path)
    git = Git(git_dir=git_dir, work_tree=work_tree, timeout_s=_TIMEOUT_S)
    name = base or "HEAD"
    head = await _parsed(git, f"{name}^{{commit}}")
    if not head:
        raise _no_commit(path, base)
    if len(head) == _SHA256_CHARS:
        raise SourceRefused(
            "E_GIT_OBJECT_FORMAT",
            f"{path} uses SHA-256 object names, which runs do not support",
            mend="use a repository with SHA-1 object names",
        )
    full_name = await _parsed(git, name, "--symbolic-full-name")
    changed = [] if work_tree is None else await _uncommitted(git)
    if changed and not allow_dirty:
        named = ", ".join(shown(entry) for entry in changed[:_PATHS_NAMED])
        more = f" and {len(changed) - _PATHS_NAMED} more" if len(changed) > _PATHS_NAMED else ""
        raise SourceRefused(
            "E_GIT_DIRTY",
            f"{path} has uncommitted changes, which would stay out of the run: {named}{more}",
            mend="commit or stash them, or start with allow_dirty",
        )
    common = _common_dir(git_dir)
    return Source(
        kind="path",
        location=str(path),
        head=head,
        branch=_branch_of(full_name),
        dirty=bool(changed),
        shallow=(common / "shallow").exists(),
        git_dir=common,
    )


async def _inspect_url(url: str, base: str | None, *, token: str | None) -> Source:
    patterns = (
        ["HEAD"] if base is None else [f"refs/heads/{base}", f"refs/tags/{base}", f"refs/tags/{base}^{{}}"]
    )
    # No repository of this machine is involved: "/" is none.
    git = Git(git_dir=Path("/"), timeout_s=_TIMEOUT_S)
    try:
        finished = await git.run(
            "ls-remote",
            "--symref",
            "--end-of-options",
            url,
            *patterns,
            config=url_config(url, token),
            protocols=URL_PROTOCOLS,
        )
    except GitCut:
        raise
    except GitError as error:
        raise SourceRefused.because(
            error,
            "E_GIT_UNREACHABLE",
            f"{url} cannot be read from host {socket.gethostname()}: {error.message}",
            mend="check the address and the worker's git_credentials setting",
        ) from error
    found: dict[str, str] = {}
    symbolic: str | None = None
    for line in finished.stdout.decode("utf-8", "replace").splitlines():
        value, _, ref = line.partition("\t")
        if value.startswith("ref: "):
            symbolic = value.removeprefix("ref: ")
        else:
            found[ref] = value
    if base is None:
        head, branch = found.get("HEAD"), _branch_of(symbolic)
    elif f"refs/heads/{base}" in found:
        head, branch = found[f"refs/heads/{base}"], base
    else:
        # Only the fetch can tell whether the host has a commit that no ref names.
        by_id = base if _FULL_OID.fullmatch(base) else None
        head, branch = found.get(f"refs/tags/{base}^{{}}", found.get(f"refs/tags/{base}", by_id)), None
    if head is None:
        raise _no_commit(url, base)
    return Source(kind="url", location=url, head=head, branch=branch)


def locate(path: Path) -> tuple[Path, Path | None]:
    """Return the git folder and the work tree (None: bare) of the repository at ``path``. Raises SourceRefused."""
    if not path.exists():
        raise _refused(
            "E_GIT_SOURCE_MISSING",
            f"{path} is not there on host {socket.gethostname()}",
            "the path is looked up on the worker's machine: put the repository there, or give a URL",
        )
    dot_git = path / ".git"
    if dot_git.is_dir():
        return dot_git, path
    if dot_git.is_file():
        target = dot_git.read_bytes()[:8192].decode("utf-8", "surrogateescape").strip()
        git_dir = (path / target.removeprefix("gitdir: ")).resolve()
        if target.startswith("gitdir: ") and (git_dir / "HEAD").is_file():
            return git_dir, path
        raise _refused("E_GIT_NOT_A_REPOSITORY", f"{dot_git} leads to no repository", "repair the worktree")
    if all((path / name).exists() for name in ("HEAD", "objects", "refs")):
        return path, None
    top = next((parent for parent in path.parents if (parent / ".git").exists()), None)
    if top is not None:
        raise _refused("E_GIT_SUBDIRECTORY", f"{path} is a folder inside the repository {top}", f"give {top}")
    raise _refused(
        "E_GIT_NOT_A_REPOSITORY",
        f"{path} on host {socket.gethostname()} is not a git repository",
        "run 'git init' there and commit, or give another path",
    )


async def _uncommitted(git: Git) -> list[bytes]:
    """List what differs from HEAD, with every filter driver that the repository configures switched off."""
    names = await git.run("config", "--name-only", "-z", "--get-regexp", r"^filter\.", ok=(0, 1))
    drivers = {key.rpartition(".")[0] for key in names.stdout.decode("utf-8", "surrogateescape").split("\0")}
    off = {
        f"{driver}.{variable}": value
        for driver in sorted(drivers - {""})
        for variable, value in (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))
    }
    args = ("--porcelain=v2", "-z", "--untracked-files=normal", "--no-renames", "--ignore-submodules=dirty")
    return [entry.path for entry in parse_status((await git.run("status", *args, config=off)).stdout).entries]


async def _parsed(git: Git, name: str, *options: str) -> str:
    args = ("rev-parse", "--verify", "--quiet", *options, "--end-of-options", name)
    output = (await git.run(*args, ok=(0, 1, 128))).stdout.decode().split()
    return output[-1] if output else ""


def _no_commit(where: object, base: str | None) -> SourceRefused:
    if base is None:
        return _refused(
            "E_GIT_UNBORN", f"{where} has no commit at HEAD", "make a first commit, or name a base"
        )
    return _refused("E_GIT_BAD_REF", f"{where} has no branch, tag or commit {base!r}", "check the base")


def _refused(code: GitCode, message: str, mend: str) -> SourceRefused:
    return SourceRefused(code, message, mend=mend)


def _absolute(repo: str) -> Path:
    if "\0" in repo:
        raise _refused("E_GIT_SOURCE_MISSING", "the path of the repository holds a NUL", "check the path")
    return Path(repo).resolve()


def _common_dir(git_dir: Path) -> Path:
    pointer = git_dir / "commondir"
    if not pointer.is_file():
        return git_dir
    return (git_dir / pointer.read_bytes().decode("utf-8", "surrogateescape").strip()).resolve()


def _branch_of(ref: str | None) -> str | None:
    if ref and ref.startswith("refs/heads/"):
        return ref.removeprefix("refs/heads/")
    if ref and ref.startswith("refs/remotes/"):
        return ref.removeprefix("refs/remotes/").partition("/")[2] or None
    return None
