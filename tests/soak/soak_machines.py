"""Server and workers of a batch, and what is done to them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conftest import Rig, _rig
from looking import ends
from soak_driver import Player
from soak_plans import Batch, Blow
from temporalio.testing import WorkflowEnvironment

from schemas.converter import build_data_converter
from system.devserver import DevServer, temporal_binary

DRAIN_S: Final = 40.0
NO_SERVER: Final = 2
"""Exit code of a worker that cannot start; whoever runs it starts it again."""
RETURN_S: Final = 2.0
"""After this a machine that was replaced is back."""


@dataclass
class Slot:
    """A place for a worker: its disk, and the process that has it now."""

    disk: str
    process: subprocess.Popen[bytes]


@dataclass
class Machines:
    """The workers of a batch; those that die are started again."""

    rig: Rig
    environment: dict[str, str]
    slots: list[Slot] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    _disks: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, disk: str | None = None, *, crash_at: str = "") -> None:
        """Start one more worker, on an empty disk unless one is named; it kills itself where it is told to."""
        self._disks += 1
        name = disk or f"disk-{self._disks}"
        process = self.rig.worker(name, **self.environment, STEPWISE_CRASH_AT=crash_at)
        self.slots.append(Slot(name, process))
        self._changed.set()

    async def keep(self) -> None:
        """Start workers again that died by themselves, for ever."""
        while True:
            for slot in self.slots:
                code = slot.process.poll()
                if code is None:
                    continue
                self.did["worker killed in a phase" if code == -signal.SIGKILL else "worker ended"] += 1
                if code not in {-signal.SIGKILL, NO_SERVER}:
                    self.findings.append(f"a worker on {slot.disk} ended by itself with {code}")
                slot.process = self.rig.worker(slot.disk, **self.environment)
            await self._something()

    async def _something(self) -> None:
        """Wait until a worker ends, or one more is there."""
        self._changed.clear()
        waits = {asyncio.create_task(ends(slot.process)) for slot in self.slots}
        waits.add(asyncio.create_task(self._changed.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def strike(self, blow: Blow) -> None:
        """Do what a blow says, and bring back what it took."""
        if blow.strike == "server":
            self.did["server killed"] += 1
            await asyncio.to_thread(self.rig.server.kill)
            await asyncio.sleep(blow.pause_s)
            await asyncio.to_thread(self.rig.server.restart)
            return
        slot = self.slots.pop(blow.worker % len(self.slots))
        if blow.strike == "drain":
            self.did["worker drained"] += 1
            slot.process.terminate()
            # One that has not come to serve yet ends at once.
            code = await asyncio.to_thread(_ended, slot.process)
            if code not in {0, -signal.SIGKILL, -signal.SIGTERM}:
                self.findings.append(f"a worker on {slot.disk} drained with {code}")
        else:
            self.did["worker killed"] += 1
            slot.process.kill()
            await asyncio.to_thread(slot.process.wait)
        await asyncio.sleep(blow.pause_s)
        self.add(slot.disk if blow.back == "same" else None)
        if blow.back == "both":
            self._later.add(asyncio.create_task(self._return(slot.disk)))

    async def _return(self, disk: str) -> None:
        await asyncio.sleep(RETURN_S)
        self.add(disk)

    async def settle(self) -> None:
        """Wait for what is still to come back."""
        await asyncio.gather(*self._later)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(DRAIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return 99


async def struck(machines: Machines, blows: Sequence[Blow], players: Sequence[Player]) -> None:
    """Do each blow at its moment, one after another."""
    for blow in blows:
        player = players[blow.plan]
        await player.started.wait()
        await player.moment(blow.at)
        if all(one.ended for one in players):
            return
        await machines.strike(blow)


@dataclass(frozen=True)
class _Place:
    """Where a server is; all that a rig asks of one."""

    address: str


@asynccontextmanager
async def server_of(batch: Batch, folder: Path) -> AsyncIterator[tuple[Rig, WorkflowEnvironment | None]]:
    """Hold a server for a batch: for a patient one, one that can skip time, and the clock of that one."""
    if batch.kind != "patient":
        config: dict[str, Any] = {}
        if batch.continue_after is not None:
            config["limit.historyCount.suggestContinueAsNew"] = batch.continue_after
        db = folder / "temporal.sqlite"
        server = await asyncio.to_thread(lambda: DevServer.start(db=db, ui=False, dynamic_config=config))
        try:
            yield await _rig(server, folder, f"soak-{batch.number}"), None
        finally:
            await asyncio.to_thread(server.stop)
        return
    program = temporal_binary().with_name("temporal-test-server")
    env = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(program), data_converter=build_data_converter()
    )
    async with env:
        rig_folder = folder / "rig"
        rig_folder.mkdir()
        place: Any = _Place(env.client.service_client.config.target_host)
        rig = Rig(server=place, folder=rig_folder, client=env.client, task_queue=f"q-soak-{batch.number}")
        yield rig, env
