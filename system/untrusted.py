"""Files and folders that an agent, or who can write the store, may have replaced: read without waiting, removed without following."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path  # slow to import, for a server of tools that starts with every agent

# Non-blocking, so that a FIFO put in place of a file is found out instead of waited for.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HOLD: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def read_regular(path: Path, *, max_bytes: int = -1) -> bytes:
    """Return a file's bytes, at most ``max_bytes`` of them.

    Raises OSError for whatever is no regular file, a link also: it is neither followed nor waited for.
    """
    fd = os.open(path, _READ)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        with os.fdopen(fd, "rb") as file:
            return file.read(max_bytes)
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def own_folder(path: Path) -> None:
    """Make a folder, in the place of whatever else was put there."""
    if path.is_symlink() or not path.is_dir():
        remove_tree(path)
        path.mkdir(parents=True, exist_ok=True)


def remove_tree(path: Path | str, folder: int | None = None) -> bool:
    """Remove whatever is at ``path``, a link itself and never what it leads to; return whether nothing is left.

    Takes folders of any depth, and those that nobody may read or write. What cannot be removed stays. A relative path
    is taken from the open ``folder``, if one is given.
    """
    try:
        try:
            with _held(path, folder) as top:
                _empty(top)
        except NotADirectoryError:
            os.unlink(path, dir_fd=folder)
        else:
            os.rmdir(path, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return True


def _empty(top: int) -> None:
    """Remove what is in a folder. What lies deeper is moved up first, so that no depth is too much."""
    stuck: set[str] = set()
    while names := set(os.listdir(top)) - stuck:
        for name in names:
            try:
                _remove(name, top)
            except OSError:
                stuck.add(name)


def _remove(name: str, top: int) -> None:
    try:
        with _held(name, top) as folder:
            _flatten(folder, top)
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
    else:
        os.rmdir(name, dir_fd=top)


def _flatten(folder: int, top: int) -> None:
    """Remove the files of ``folder`` and move its folders up into ``top``, under names nobody has."""
    for name in os.listdir(folder):
        with suppress(OSError):
            try:
                with _held(name, folder):
                    os.rename(name, f".{os.urandom(12).hex()}", src_dir_fd=folder, dst_dir_fd=top)
            except NotADirectoryError:
                os.unlink(name, dir_fd=folder)


@contextmanager
def _held(path: Path | str, folder: int | None = None) -> Iterator[int]:
    """Yield a folder's descriptor, once its owner may do everything in it. Raises NotADirectoryError, for a link too."""
    handle = os.open(path, _HOLD, dir_fd=folder)
    try:
        same = f"/proc/self/fd/{handle}"
        if os.fstat(handle).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # by its descriptor, so that it is this very folder whatever has its name by now
            os.chmod(same, stat.S_IRWXU)  # noqa: PTH101
        fd = os.open(same, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        os.close(handle)
