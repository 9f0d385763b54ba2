"""Blobs in a folder: written aside, moved into place whole; what a killed writer leaves is out of the way."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from schemas.common import ArtifactRef
from schemas.errors import BadInput, EvidenceConflict
from store.errors import EvidenceCorrupt, NotStored, StoreUnavailable
from store.keys import MAX_KEY_BYTES, check_key
from system.files import create_exclusive, move_exclusive, write_atomic
from system.untrusted import read_regular

_TEMPORARY: Final = ".tmp"
_LOCKS: Final = ".locks"
STALE_S: Final = 3_600.0
"""Age in seconds from which a file in the folder of temporary ones belongs to a writer that is gone."""

_OURS: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""Names of the files this store writes aside; nothing else is removed from there."""
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EINVAL, errno.ENXIO})
"""How reading a link, a FIFO, a device or a socket fails."""


@contextmanager
def _io(key: str) -> Iterator[None]:
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise EvidenceConflict(
            "E_STORE_FOLDER", f"{key} cannot be a file and a folder at once", key=key
        ) from error
    except OSError as error:
        raise StoreUnavailable(
            "E_STORE_UNAVAILABLE", f"the store failed at {key}: {error.strerror or error}", key=key
        ) from error


class FileBlobs:
    """A store in the folder ``root``, which is made; ``fsync`` flushes files and folders before a write returns.

    Temporary files live in one folder of it and are removed here, when older than an hour. Threads and processes,
    also on several machines of a shared mount, may use one folder. Calls block; they raise StoreUnavailable.
    """

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self._root = root
        self._fsync = fsync
        self._aside = root / _TEMPORARY
        with _io(_TEMPORARY):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in (_TEMPORARY, _LOCKS):
                (root / name).mkdir(mode=0o700, exist_ok=True)
                if (root / name).is_symlink():
                    raise StoreUnavailable(
                        "E_STORE_LINK", f"{root / name} leads out of the store", mend="remove that link"
                    )
            self._remove_stale()

    def create(self, key: str, data: bytes, media_type: str) -> ArtifactRef:
        """Store ``data`` under a new key; the same data again is fine, other data raises EvidenceConflict."""
        path = self._path(key)
        digest = hashlib.sha256(data).hexdigest()
        with _io(key):
            made = create_exclusive(path, data, fsync=self._fsync, aside=self._aside)
            if not made and hashlib.sha256(self._read(key)).hexdigest() != digest:
                raise EvidenceConflict("E_EVIDENCE_CONFLICT", f"{key} is stored with other content", key=key)
        return ArtifactRef(uri=key, sha256=digest, bytes=len(data), media_type=media_type)

    def adopt(self, key: str, path: Path, media_type: str) -> ArtifactRef:
        """Store a finished file as ``create`` does, and take it away: moved where it can be, copied elsewhere."""
        with _io(key):
            # A store that is not mounted must not come to be anew.
            self._aside.stat()
            if not move_exclusive(path, self._path(key), fsync=self._fsync):
                ref = self.create(key, path.read_bytes(), media_type)
                path.unlink()
                return ref
            with self._path(key).open("rb") as file:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        return ArtifactRef(uri=key, sha256=digest, bytes=size, media_type=media_type)

    def read(self, key: str) -> bytes:
        """Return what is stored under ``key``; raises NotStored, EvidenceCorrupt for what is no file any more."""
        with _io(key):
            try:
                return self._read(key)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise NotStored("E_NOT_STORED", f"nothing is stored under {key}", key=key) from None

    def swap(self, key: str, data: bytes, expected_sha256: str | None) -> bool:
        """Replace what is stored if its digest is the expected one (None: nothing is stored); say whether."""
        path = self._path(key)
        with _io(key), self._lock(key):
            stored = hashlib.sha256(self._read(key)).hexdigest() if os.path.lexists(path) else None
            if stored != expected_sha256:
                return False
            write_atomic(path, data, fsync=self._fsync, aside=self._aside)
        return True

    def remove(self, key: str) -> None:
        """Remove what is stored under ``key``, if anything is, and the folders of it that are empty then."""
        path = self._path(key)
        if self._leads_away(path.parent):
            return
        with _io(key):
            path.unlink(missing_ok=True)
            # The first folder is every run's: another writer may be about to put something into it.
            for folder in list(path.relative_to(self._root).parents)[:-2]:
                with suppress(OSError):
                    (self._root / folder).rmdir()

    def exists(self, key: str) -> bool:
        """Whether something is stored under ``key``."""
        path = self._path(key)
        with _io(key):
            return path.is_file()

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return sorted(self._under(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the keys that start with ``prefix``, sorted, each with its size in bytes."""
        found: dict[str, int] = {}
        with _io(prefix):
            for key in sorted(self._under(prefix)):
                with suppress(FileNotFoundError):
                    found[key] = (self._root / key).lstat().st_size
        return found

    def _under(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        top = self._path(folder) if folder else self._root
        found: list[str] = []
        if self._leads_away(top):
            return found
        with _io(prefix):
            for place, folders, files in os.walk(top, onerror=self._raise_unless_gone):
                relative = Path(place).relative_to(self._root)
                if relative == Path():
                    folders[:] = [name for name in folders if not name.startswith(".")]
                elif len(os.fsencode(relative)) > MAX_KEY_BYTES:
                    folders.clear()
                found += ((relative / name).as_posix() for name in files)
        # What no key can name, this store has not written.
        return [key for key in found if key.startswith(prefix) and _is_key(key)]

    def folders(self, prefix: str) -> list[str]:
        """Return the names between ``prefix`` (which ends in a slash) and the next slash, sorted."""
        top = self._path(prefix.removesuffix("/"))
        with _io(prefix):
            try:
                return sorted(
                    entry.name
                    for entry in top.iterdir()
                    if entry.is_dir() and not entry.is_symlink() and _is_key(entry.name)
                )
            except (FileNotFoundError, NotADirectoryError):
                return []

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _read(self, key: str) -> bytes:
        try:
            return read_regular(self._path(key))
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise EvidenceCorrupt(
                "E_EVIDENCE_CORRUPT", f"{key} is no file any more: somebody put something else there", key=key
            ) from None

    def _leads_away(self, folder: Path) -> bool:
        """Whether a link stands on the way to a folder. The first folder may be one: a disk of its own, say."""
        parts = folder.relative_to(self._root).parts
        return any(self._root.joinpath(*parts[:count]).is_symlink() for count in range(2, len(parts) + 1))

    @staticmethod
    def _raise_unless_gone(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        name = hashlib.sha256(key.encode()).hexdigest()[:2]
        with (self._root / _LOCKS / name).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _remove_stale(self) -> None:
        oldest = time.time() - STALE_S
        for path in self._aside.iterdir():
            with suppress(FileNotFoundError):
                if _OURS.fullmatch(path.name) and path.lstat().st_mtime < oldest:
                    path.unlink()


def is_store(root: Path) -> bool:
    """Whether a store was ever made in a folder."""
    return any((root / name).is_dir() for name in (_LOCKS, "runs"))


def _is_key(name: str) -> bool:
    try:
        return check_key(name) == name
    except (BadInput, UnicodeEncodeError):
        return False
