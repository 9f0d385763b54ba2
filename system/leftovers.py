"""Processes that no guard holds any more: below one that lost its guard, or of a run by the id in their environment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from system._tree import KILL_LIMIT_S, birth

RUN_VARIABLE: Final = "STEPWISE_RUN"
"""The environment variable that marks each process of a run."""


def leftovers(run_id: str, *, home: Path | None = None) -> list[int]:
    """Return the pids of the processes that carry this run id, and of their descendants.

    With ``home`` only those whose HOME is inside it: another worker on this machine may hold the run by now. Never
    this process or one of its ancestors. A process that is not ours to read is not seen.
    """
    return [process.pid for process in _find(run_id, home)]


async def end_leftovers(run_id: str, grace_s: float, *, home: Path | None = None) -> list[int]:
    """End the leftovers: SIGTERM, SIGKILL after ``grace_s`` seconds; return the pids that are still there.

    Bounded by ``grace_s`` + 5 s. A process that starts meanwhile is found too. ``home`` is as for ``leftovers``.
    """
    return await asyncio.to_thread(_end, run_id, grace_s, home)


async def end_tree(pid: int, born: int) -> None:
    """Kill a process and all below it, bounded by 5 s; nothing if that process has ended.

    What has left its tree is found by ``end_leftovers``.
    """
    await asyncio.to_thread(_end_tree, pid, born)


def _end_tree(pid: int, born: int) -> None:
    try:
        root = psutil.Process(pid)
    except psutil.Error:
        return
    # Only now: the number could have become another's before.
    if birth(pid) != born:
        return
    held: set[psutil.Process] = set()
    while found := _tree(root) - held:
        # What stands still starts nothing that would not be seen.
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()
        held |= found
    for process in held:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(held, timeout=KILL_LIMIT_S)


def _tree(root: psutil.Process) -> set[psutil.Process]:
    try:
        return {process for process in [root, *root.children(recursive=True)] if _lives(process)}
    except psutil.Error:
        return set()


def _end(run_id: str, grace_s: float, home: Path | None) -> list[int]:
    found = _find(run_id, home)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
            process.resume()
    psutil.wait_procs(found, timeout=grace_s)
    for _ in range(int(KILL_LIMIT_S)):
        found = list({*(process for process in found if _lives(process)), *_find(run_id, home)})
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1.0)
    return sorted(process.pid for process in found if _lives(process))


def _find(run_id: str, home: Path | None) -> list[psutil.Process]:
    own = psutil.Process()
    spared = {own, *own.parents()}
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process not in spared and _belongs(process.environ(), run_id, home):
                found |= {process, *process.children(recursive=True)}
    return sorted((process for process in found - spared if _lives(process)), key=lambda each: each.pid)


def _belongs(environment: Mapping[str, str], run_id: str, home: Path | None) -> bool:
    if environment.get(RUN_VARIABLE) != run_id:
        return False
    return home is None or Path(environment.get("HOME", "/")).is_relative_to(home)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
