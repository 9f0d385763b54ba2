"""A worker in the process of the test, where what it does can be held up at any place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from conftest import Rig

from system.settings import load
from worker import build_engine, running


@asynccontextmanager
async def at_home(rig: Rig, folder: Path, **settings: str) -> AsyncIterator[Rig]:
    """Yield a rig on the same server with one worker, which runs in this process and has no other runs."""
    home = replace(rig, folder=folder, task_queue=f"{rig.task_queue}-{folder.name}", processes=[])
    env = home.env("home", **settings)
    async with running(build_engine(load(env), rig.client, f"home-{folder.name}", env)):
        yield home
