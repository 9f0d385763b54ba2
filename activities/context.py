"""What every activity of this worker works with; made once when the worker starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from temporalio.client import Client

from activities.folder import Held, RunFolder
from activities.running import Running
from activities.sessions import SessionRegistry
from flows.bundle import Bundle, read_bundle
from schemas.calls import Lease
from schemas.common import ArtifactRef
from schemas.run_record import RunRecord
from schemas.settings import WorkerSettings
from store.evidence import Evidence
from store.journal import Journal
from store.receipts import Receipts
from store.results import Results
from store.runs import Runs
from system.repository import Repository
from transports.port import Transport

P = ParamSpec("P")
T = TypeVar("T")
_MAX_CACHED: Final = 256


def now() -> datetime:
    """Return the worker's time, in UTC."""
    return datetime.now(UTC)


@dataclass
class OpenRun:
    """What this process keeps in memory of a run it holds.

    ``head`` is the engine's last commit on the run's branch; ``settled`` says that the files are known to be that
    commit's.
    """

    held: Held
    repository: Repository
    head: str
    settled: bool = False


@dataclass
class WorkerContext:
    """The worker's settings, its store, its transports, and what runs in it.

    ``client`` is None where nobody can be asked about the namespace. ``crash_at`` is called at named points of
    the phases: see ``crash_point``.
    """

    settings: WorkerSettings
    worker_id: str
    evidence: Evidence
    transports: Mapping[str, Transport]
    client: Client | None = None
    crash_at: Callable[[str], None] = lambda _: None
    host: str = field(default_factory=socket.gethostname)

    def __post_init__(self) -> None:
        self.data_dir: Path = self.settings.data_dir.expanduser().absolute()
        self.runs = Runs(self.evidence)
        self.results = Results(self.evidence)
        self.journal = Journal(self.evidence)
        self.receipts = Receipts(self.evidence)
        self.running = Running()
        self.sessions = SessionRegistry(park_s=self.settings.park_s)
        self.slots = asyncio.Semaphore(self.settings.max_agents)
        self.admission = asyncio.Lock()
        self.admitted: set[str] = set()
        self.open_runs: dict[str, OpenRun] = {}
        self.search_attributes: bool | None = None
        self._bundles: dict[str, Bundle] = {}

    @property
    def queue(self) -> str:
        """The task queue of the phases that need this worker's disk."""
        return f"stepwise-{self.worker_id}"

    @property
    def control_queue(self) -> str:
        """The task queue on which this worker is asked about its runs."""
        return f"{self.queue}-ctl"

    @property
    def runs_dir(self) -> Path:
        """The folder of all runs on this disk."""
        return self.data_dir / "runs"

    @property
    def spool(self) -> Path:
        """The folder in which attempts' logs grow."""
        return self.data_dir / "spool"

    def store_path(self, key: str) -> str:
        """Return where a stored file is for people: a path where the store is a folder, else its URL."""
        store = self.settings.store
        root = unquote(urlsplit(store).path) if store.startswith("file://") else store
        return f"{root or self.data_dir / 'store'}/{key}"

    def folder(self, run_id: str) -> RunFolder:
        """Return the run's folder; it need not exist."""
        return RunFolder(self.runs_dir / run_id)

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something that reads or writes a few small files, without holding up the others for long.

        On a disk of this machine that does not wait for the platter, it takes less time than handing it to a thread.
        """
        if self.settings.fsync or self.settings.store_shared:
            return await asyncio.to_thread(call, *args, **kwargs)
        return call(*args, **kwargs)

    async def bundle(self, ref: ArtifactRef) -> Bundle:
        """Return the pinned flow; raises NotStored, EvidenceCorrupt, EvidenceConflict."""
        known = self._bundles.get(ref.sha256)
        if known is None:
            known = read_bundle(await self.blocking(self.evidence.read, ref), digest=ref.sha256)
            while len(self._bundles) >= _MAX_CACHED:
                del self._bundles[next(iter(self._bundles))]
            self._bundles[ref.sha256] = known
        return known

    async def check_lease(self, run_id: str, lease: Lease) -> RunRecord:
        """Return the run's record if the lease holds. Raises LeaseLost, NotStored, StoreUnavailable."""
        return await self.blocking(self.runs.check, run_id, lease)


def crash_point(name: str) -> Callable[[str], None]:
    """Return what kills this process, as ``kill -9`` does, when it comes to the point ``name``; for tests.

    Nothing is called where the name is empty.
    """

    def crash(reached: str) -> None:
        if reached == name:
            os.kill(os.getpid(), signal.SIGKILL)

    return crash if name else lambda _: None
