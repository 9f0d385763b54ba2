"""Processes of a run that no guard holds any more, found by the run id in their environment."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import psutil

from system._tree import KILL_LIMIT_S

RUN_VARIABLE: Final = "STEPWISE_RUN"
"""The environment variable that marks each process of a run."""


def leftovers(run_id: str) -> list[int]:
    """Return the pids of the processes that carry this run id, and of their descendants.

    Never this process or one of its ancestors. A process that is not ours to read is not seen.
    """
    return [process.pid for process in _find(run_id)]


async def end_leftovers(run_id: str, grace_s: float) -> list[int]:
    """End the leftovers: SIGTERM, SIGKILL after ``grace_s`` seconds; return the pids that are still there.

    Bounded by ``grace_s`` + 5 s. A process that starts meanwhile is found too.
    """
    return await asyncio.to_thread(_end, run_id, grace_s)


def _end(run_id: str, grace_s: float) -> list[int]:
    found = _find(run_id)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
            process.resume()
    psutil.wait_procs(found, timeout=grace_s)
    for _ in range(int(KILL_LIMIT_S)):
        found = list({*(process for process in found if _lives(process)), *_find(run_id)})
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
    return sorted(process.pid for process in found if _lives(process))


def _find(run_id: str) -> list[psutil.Process]:
    own = psutil.Process()
    spared = {own, *own.parents()}
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process not in spared and process.environ().get(RUN_VARIABLE) == run_id:
                found |= {process, *process.children(recursive=True)}
    return sorted((process for process in found - spared if _lives(process)), key=lambda each: each.pid)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
