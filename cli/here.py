"""What commands about past runs read: the evidence store, and this machine's worker folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cli.session import settings
from schemas.errors import BadInput
from schemas.settings import WorkerSettings
from store.blobs import is_store, open_blobs, store_folder
from store.evidence import Evidence
from store.redaction import Redactor
from system.settings import Loaded, resolved


@dataclass(frozen=True)
class Here:
    """The settings of this environment, and the store they (or a command's option) name."""

    loaded: Loaded
    settings: WorkerSettings
    evidence: Evidence

    @property
    def spool(self) -> Path:
        """Where the logs of attempts grow that this machine's worker has under way."""
        return self.settings.data_dir / "spool"

    @property
    def runs_dir(self) -> Path:
        """Where this machine's worker has its clones."""
        return self.settings.data_dir / "runs"

    @property
    def worker_id(self) -> str:
        """Who this machine's worker is; empty where none ever ran."""
        try:
            return (self.settings.data_dir / "worker_id").read_text().strip()
        except OSError:
            return ""


def open_here(store: str = "", loaded: Loaded | None = None) -> Here:
    """Return settings and store; ``store`` is a URL that goes before the settings'. Raises BadInput E_STORE."""
    loaded = loaded or settings()
    own = resolved(loaded.settings)
    url = store or own.store
    if not is_store(store_folder(url)):
        # Opening a store makes its folders; in one that was mistyped they must not come to be.
        raise BadInput(
            "E_STORE", f"there is no store at {url}", mend="name it with --store or STEPWISE_STORE"
        )
    # Whoever can read the folder may look at it, wherever the server is.
    blobs = open_blobs(url, fsync=own.fsync, shared=True, temporal_is_loopback=True)
    return Here(loaded, own, Evidence(blobs, Redactor()))
