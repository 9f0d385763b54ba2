"""What a store must be able to do, and how one is opened by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from policy.secrets import redact
from schemas.common import ArtifactRef
from schemas.errors import BadInput
from store.file_blobs import FileBlobs, is_store

__all__ = ["Blobs", "FileBlobs", "is_store", "open_blobs", "store_folder"]

_THIS_MACHINE: Final = frozenset({"", "localhost"})


class Blobs(Protocol):
    """Named bytes. Every call blocks, may come from any thread, and raises StoreUnavailable."""

    def create(self, key: str, data: bytes, media_type: str) -> ArtifactRef:
        """Store whole or not at all under a new key; the same data again is fine, other data: EvidenceConflict."""

    def adopt(self, key: str, path: Path, media_type: str) -> ArtifactRef:
        """Store a finished file of this machine as ``create`` does, and take it away from where it is."""

    def read(self, key: str) -> bytes:
        """Return what is stored under ``key``; raises NotStored."""

    def swap(self, key: str, data: bytes, expected_sha256: str | None) -> bool:
        """Replace if the stored digest is the expected one (None: nothing stored); say whether. For run.json."""

    def remove(self, key: str) -> None:
        """Remove what is stored under ``key``, if anything is. For runs that are refused, and for retention."""

    def exists(self, key: str) -> bool:
        """Whether something is stored under ``key``."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the keys that start with ``prefix``, sorted, each with its size in bytes."""

    def folders(self, prefix: str) -> list[str]:
        """Return the names between ``prefix`` (which ends in a slash) and the next slash, sorted."""


def open_blobs(url: str, *, fsync: bool, shared: bool, temporal_is_loopback: bool) -> Blobs:
    """Open the store at ``url``; raises BadInput for one that cannot be used, StoreUnavailable for a broken one."""
    folder = store_folder(url)
    if not (shared or temporal_is_loopback):
        raise BadInput(
            "E_STORE_NOT_SHARED",
            f"the store {redact(url)!r} is on this machine, but Temporal is not: other workers may not see it",
            mend="if every worker mounts that folder, set store_shared to true (STEPWISE_STORE_SHARED=true)",
        )
    return FileBlobs(folder, fsync=fsync)


def store_folder(url: str) -> Path:
    """Return the folder that a store's URL names, which may not be there. Raises BadInput for any other URL."""
    shown = redact(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(
            "E_STORE_URL",
            f"the store URL {shown!r} cannot be read: {error}",
            mend="write file:///path/to/store",
        ) from None
    if parts.scheme == "s3":
        raise BadInput(
            "E_STORE_S3",
            f"this version keeps evidence in files only, not in {shown!r}",
            mend="use a file:// URL; S3-compatible stores will need the extra stepwise[s3]",
        )
    if parts.scheme != "file":
        raise BadInput(
            "E_STORE_URL", f"the store {shown!r} is no file:// URL", mend="write file:///path/to/store"
        )
    path = unquote(parts.path)
    if parts.netloc.lower() not in _THIS_MACHINE or not path.startswith("/"):
        raise BadInput(
            "E_STORE_URL",
            f"the store {shown!r} does not name an absolute path on this machine",
            mend="write file:///path/to/store",
        )
    vague = any(part == ".." or part.startswith("~") for part in path.split("/"))
    if vague or parts.query or parts.fragment or "\0" in path:
        raise BadInput(
            "E_STORE_URL", f"the store {shown!r} holds '~', '..', '?' or '#'", mend="write the path in full"
        )
    return Path(path)
