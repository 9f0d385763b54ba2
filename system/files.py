"""Files of a workspace by directory-descriptor walk, and the engine's own files written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from system.paths import NEVER, PathDenied, canonical_name, check_new, check_writable, parts_of
from system.untrusted import remove_tree

if TYPE_CHECKING:
    from pathlib import Path  # slow to import, for a server of tools that starts with every agent

DEFAULT_MAX_BYTES: Final = 5_000_000
MAX_ENTRIES: Final = 10_000

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a FIFO put in place of a file is found out instead of waited for.
_LEAF: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

FileType = Literal["file", "directory", "symlink", "other"]
_TYPES: Final[dict[int, FileType]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}


class Entry(NamedTuple):
    """A path below the root as ``lstat`` shows it; ``size`` in bytes, ``modified_ns`` since the epoch."""

    path: str
    type: FileType
    size: int
    mode: int
    modified_ns: int


class Content(NamedTuple):
    """The first bytes of a file, and how many it has in all."""

    data: bytes
    total_bytes: int

    @property
    def truncated(self) -> bool:
        """Whether the file has more bytes than were read."""
        return len(self.data) < self.total_bytes


class Root:
    """A folder that paths cannot leave: every component is opened from the one before it, links are never followed.

    Every operation raises PathDenied for a path that is not allowed, and the ordinary OSError (FileNotFoundError,
    NotADirectoryError, IsADirectoryError) for one that is but does not fit what is there. Calls block.
    """

    def __init__(self, path: Path | str) -> None:
        self._roots = tuple({os.path.abspath(path), os.path.realpath(path)})  # noqa: PTH100 - as text
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; no operation works afterwards."""
        os.close(self._fd)

    def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Content:
        """Return at most ``max_bytes`` bytes of a regular file."""
        with self._leaf(path, self._existing(path)) as (folder, name):
            fd = _open_regular(path, name, folder, os.O_RDONLY)
            with os.fdopen(fd, "rb") as file:
                data = file.read(max_bytes)
                return Content(data, max(os.fstat(fd).st_size, len(data)))

    def write_atomic(self, path: str, data: bytes, *, create_parents: bool = True) -> None:
        """Replace or create a regular file in one move; an existing file keeps its mode."""
        with self._leaf(path, self._new(path), create=create_parents) as (folder, name):
            mode = _regular_mode(path, name, folder)
            temporary = f".stepwise-{os.urandom(8).hex()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _LEAF
            try:
                with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
                    if mode is not None:
                        os.fchmod(file.fileno(), mode)
                    file.write(data)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def append(self, path: str, data: bytes, *, create_parents: bool = True) -> None:
        """Append to a regular file, made if it is missing; a file with a second name elsewhere is denied."""
        with self._leaf(path, self._new(path), create=create_parents) as (folder, name):
            _regular_mode(path, name, folder)
            fd = _open_regular(path, name, folder, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(fd, "ab") as file:
                if os.fstat(fd).st_nlink > 1:
                    raise PathDenied("E_PATH_HARDLINK", path, "the file has another name, maybe outside")
                file.write(data)

    def delete(self, path: str, *, recursive: bool = True) -> bool:
        """Delete a file, a link itself, or a folder; return False when there is nothing. The root is refused."""
        parts = self._existing(path)
        check_writable(path, parts)
        try:
            with self._leaf(path, parts) as (folder, name):
                if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                    os.unlink(name, dir_fd=folder)
                elif recursive:
                    if not remove_tree(name, folder):
                        raise OSError(errno.ENOTEMPTY, "something in it cannot be removed", path)
                else:
                    os.rmdir(name, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a folder; raises FileExistsError when there is something else, or a folder and not ``exist_ok``."""
        with self._leaf(path, self._new(path), create=parents) as (folder, name):
            try:
                os.mkdir(name, dir_fd=folder)
            except FileExistsError:
                is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
                if not (exist_ok and is_folder):
                    raise

    def stat(self, path: str) -> Entry:
        """Return what is at a path, a link itself and not what it leads to."""
        parts = self._existing(path)
        if not parts:
            return _entry(".", os.fstat(self._fd))
        with self._leaf(path, parts) as (folder, name):
            return _entry("/".join(parts), os.lstat(name, dir_fd=folder))

    def list(self, path: str = ".", *, recursive: bool = False, limit: int = MAX_ENTRIES) -> list[Entry]:
        """Return at most ``limit`` entries of a folder, sorted, without ``.git``; links are not entered."""
        parts = self._existing(path)
        found: list[Entry] = []
        with self._folder(path, parts) as fd:
            _collect(fd, list(parts), found, recursive=recursive, limit=limit)
        return found

    def _existing(self, path: str) -> tuple[str, ...]:
        return parts_of(path, roots=self._roots)

    def _new(self, path: str) -> tuple[str, ...]:
        parts = self._existing(path)
        check_writable(path, parts)
        check_new(path, parts)
        return parts

    @contextmanager
    def _leaf(self, path: str, parts: Sequence[str], *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the held descriptor of the parent folder and the last component."""
        if not parts:
            raise PathDenied("E_PATH_INVALID", path, "the path is the root itself")
        with self._folder(path, parts[:-1], create=create) as fd:
            yield fd, parts[-1]

    @contextmanager
    def _folder(self, path: str, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
        fd = os.dup(self._fd)
        try:
            for name in parts:
                below = _open_folder(path, name, fd, create=create)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


def write_atomic(path: Path, data: bytes, *, fsync: bool = True, aside: Path | None = None) -> None:
    """Write one of the engine's own files: the old content or the new, never a part; parents are made.

    It is written into the folder ``aside`` (of the same file system; None: beside it) and moved from there.
    """
    with _written(path, data, fsync=fsync, aside=aside) as temporary:
        temporary.replace(path)


def create_exclusive(path: Path, data: bytes, *, fsync: bool = True, aside: Path | None = None) -> bool:
    """Create one of the engine's own files, as ``write_atomic`` does; False, and no change, when it exists already."""
    if path.exists():
        # Whoever made it may not have come to flush the folder.
        if fsync:
            _sync_folder(path.parent)
        return False
    with _written(path, data, fsync=fsync, aside=aside) as temporary:
        try:
            # A link, unlike a move, fails where there is something already.
            os.link(temporary, path)
        except FileExistsError:
            return False
    return True


def move_exclusive(old: Path, new: Path, *, fsync: bool = True) -> bool:
    """Move one of the engine's own files to where nothing is; False, and no change, where that cannot be done.

    Whoever dies between leaves it in both places, as one file.
    """
    if fsync:
        with old.open("rb") as file:
            os.fsync(file.fileno())
    _make_folders(new.parent, fsync=fsync)
    try:
        os.link(old, new, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        # There is something; or the two are on different disks, or on one that knows no links.
        return False
    if fsync:
        _sync_folder(new.parent)
    old.unlink()
    return True


@contextmanager
def _written(path: Path, data: bytes, *, fsync: bool, aside: Path | None) -> Iterator[Path]:
    """Yield a file with this content that is to take its place at ``path``; flushed, as the folder is afterwards."""
    if aside is None:
        _make_folders(path.parent, fsync=fsync)
    temporary = (aside or path.parent) / f".{os.urandom(8).hex()}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        # Only now: a store that is not mounted has no folder ``aside``, and must not come to be anew.
        _make_folders(path.parent, fsync=fsync)
        yield temporary
        if fsync:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _make_folders(folder: Path, *, fsync: bool) -> None:
    if folder.is_dir():
        return
    _make_folders(folder.parent, fsync=fsync)
    folder.mkdir(exist_ok=True)
    if fsync:
        _sync_folder(folder.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _open_folder(path: str, name: str, folder: int, *, create: bool) -> int:
    try:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        _deny_link(path, name, folder, error)
        raise


def _open_regular(path: str, name: str, folder: int, flags: int) -> int:
    try:
        fd = os.open(name, flags | _LEAF, 0o666, dir_fd=folder)
    except OSError as error:
        _deny_link(path, name, folder, error)
        _regular_mode(path, name, folder)
        raise
    try:
        _require_regular(path, os.fstat(fd).st_mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _regular_mode(path: str, name: str, folder: int) -> int | None:
    """Return the permission bits of an existing regular file, None if nothing is there."""
    try:
        mode = os.lstat(name, dir_fd=folder).st_mode
    except FileNotFoundError:
        return None
    _require_regular(path, mode)
    return stat.S_IMODE(mode)


def _require_regular(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        raise PathDenied("E_PATH_SYMLINK", path, "symbolic links are not followed")
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(path)
    if not stat.S_ISREG(mode):
        raise PathDenied("E_PATH_NOT_REGULAR", path, "neither a regular file nor a folder")


def _deny_link(path: str, name: str, folder: int, cause: OSError) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            raise PathDenied("E_PATH_SYMLINK", path, "symbolic links are not followed") from cause


def _collect(fd: int, above: Sequence[str], found: list[Entry], *, recursive: bool, limit: int) -> None:
    for name in sorted(os.listdir(fd)):
        if len(found) >= limit:
            return
        if canonical_name(name) in NEVER:
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            entry = _entry("/".join((*above, name)), os.lstat(name, dir_fd=fd))
            found.append(entry)
            if recursive and entry.type == "directory":
                below = os.open(name, _FOLDER, dir_fd=fd)
                try:
                    _collect(below, (*above, name), found, recursive=True, limit=limit)
                finally:
                    os.close(below)


def _entry(path: str, stats: os.stat_result) -> Entry:
    kind: FileType = _TYPES.get(stat.S_IFMT(stats.st_mode), "other")
    return Entry(path, kind, stats.st_size, stat.S_IMODE(stats.st_mode), stats.st_mtime_ns)
