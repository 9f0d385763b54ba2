"""Who this worker is: an id written once into its data directory, which is its own for as long as it runs."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Final

from schemas.errors import BadInput
from system.files import write_atomic

_ID_FILE = "worker_id"
_LOCK_FILE = "worker.lock"
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9-]+")

_RELEASE_S: Final = 2.0
"""How long a worker that was killed a moment ago may still seem to hold its directory: a child it was starting does."""
_LOOK_S: Final = 0.05


class WorkerIdentity:
    """A worker's id, and the lock on its data directory; the lock ends with the process."""

    def __init__(self, worker_id: str, lock: int) -> None:
        self.worker_id = worker_id
        self._lock = lock

    def release(self) -> None:
        """Let go of the data directory; may be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def claim_data_dir(data_dir: Path) -> WorkerIdentity:
    """Lock ``data_dir`` and read (or write, the first time) the worker's id in it.

    Raises BadInput when another worker has the directory.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(data_dir / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _RELEASE_S
    while not _locked(lock):
        if time.monotonic() > until:
            os.close(lock)
            raise BadInput(
                "E_DATA_DIR_IN_USE",
                f"another worker uses the data directory {data_dir}",
                mend="give each worker its own STEPWISE_DATA_DIR, or stop the other one",
            )
        time.sleep(_LOOK_S)
    return WorkerIdentity(_own_id(data_dir / _ID_FILE), lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _own_id(path: Path) -> str:
    if path.exists() and (known := path.read_text().strip()):
        return known
    host = _NOT_IN_A_NAME.sub("-", socket.gethostname().lower()).strip("-")[:40]
    worker_id = f"{host or 'worker'}-{secrets.token_hex(4)}"
    write_atomic(path, f"{worker_id}\n".encode())
    return worker_id
