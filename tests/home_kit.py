"""A worker in the process of the test, where what it does can be held up at any place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from conftest import Rig
from looking import pauses

from system.settings import load
from worker import build_engine, running


@asynccontextmanager
async def at_home(rig: Rig, folder: Path, **settings: str) -> AsyncIterator[Rig]:
    """Yield a rig on the same server with one worker, which runs in this process and has no other runs."""
    home = replace(rig, folder=folder, task_queue=f"{rig.task_queue}-{folder.name}", processes=[])
    env = home.env("home", **settings)
    async with running(build_engine(load(env), rig.client, f"home-{folder.name}", env)):
        yield home


async def begun_at_home(path: Path) -> None:
    """Wait until a command that waits for ``path`` runs, and let the worker of this process work meanwhile."""
    async with asyncio.timeout(60):
        for pause in pauses():
            if await asyncio.to_thread(Path(f"{path}.begun").exists):
                return
            await asyncio.sleep(pause)
