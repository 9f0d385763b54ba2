"""What a worker process holds while nothing runs, seen from outside: processes, descriptors, files, memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import psutil

STAYS: Final = frozenset({"runs", "spool", "store", "worker.lock", "worker_id"})
"""What a worker has in its data folder while nothing runs; ``spool`` is empty then."""
STAYS_OF_RUN: Final = frozenset({"held.json", "ws"})
"""What is left there of a run that has ended: its clone, and who had it."""
LAUNCHER: Final = "--launcher"
"""An argument of the process that starts all others of a worker."""


@dataclass(frozen=True)
class Held:
    """What a worker process holds.

    ``processes`` are all below it but its launcher; ``descriptors`` and ``threads`` say of what kind each is;
    ``temporary`` is what is in the folders that are to be empty, ``data`` what its data folder must not have.
    """

    processes: tuple[str, ...]
    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    temporary: tuple[str, ...]
    data: tuple[str, ...]
    rss_kb: int


def held(worker: psutil.Process, *, server: str, data: Path, store: Path, empty: Iterable[Path]) -> Held:
    """Return what a worker holds, whose folders these are; ``empty`` are those in which nothing may be.

    Connections to the Temporal server at ``server`` are left out: every five minutes it asks for new ones, and those
    before stay for a while.
    """
    port = int(server.rpartition(":")[2])
    to_server = {
        one.fd
        for one in worker.net_connections("tcp")
        if one.raddr and one.raddr.port == port and one.fd >= 0
    }
    return Held(
        processes=tuple(children(worker)),
        descriptors=tuple(sorted(descriptors(worker.pid, but=to_server))),
        threads=tuple(sorted(_threads(worker.pid))),
        temporary=tuple(path for folder in empty for path in below(folder)),
        data=tuple(unwanted(data, store)),
        rss_kb=worker.memory_info().rss // 1024,
    )


def gained(before: Held, after: Held) -> list[str]:
    """Return what is held after and was not before, each with its kind: ``descriptors: pipe:[]``. Memory is left out."""
    return [
        f"{field.name}: {one}"
        for field in fields(Held)
        if field.name != "rss_kb"
        for one in (Counter(getattr(after, field.name)) - Counter(getattr(before, field.name))).elements()
    ]


def children(process: psutil.Process) -> list[str]:
    """Return the command lines of all processes below one, but for the launcher that starts them."""
    launchers = [child for child in process.children() if LAUNCHER in _line(child)][:1]
    lines = [_line(child) for child in process.children(recursive=True) if child not in launchers]
    return sorted(line for line in lines if line)


def _line(process: psutil.Process) -> str:
    """Return a process's command line, or its name where it is a zombie; nothing where it is gone meanwhile."""
    try:
        with suppress(psutil.ZombieProcess):
            return " ".join(process.cmdline()) or process.name()
        return f"{process.name()} (a zombie)"
    except psutil.NoSuchProcess:
        return ""


def descriptors(pid: int, *, but: Container[int] = ()) -> Iterator[str]:
    """Yield of what kind each descriptor of a process is, ``but`` for these: where it leads, without numbers."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if int(link.name) in but:
            continue
        try:
            yield re.sub(r"\d+", "", str(link.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile, such as that of the listing itself


def _threads(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            yield (thread / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile


def below(folder: Path) -> list[str]:
    """Return all that is in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def unwanted(data: Path, store: Path) -> list[str]:
    """Return what a data folder has, while nothing runs, that it must not have: whatever is not known to stay."""
    found = [path for path in data.iterdir() if path.name not in STAYS]
    found += (data / "spool").glob("*")
    found += (store / ".tmp").glob("*")
    for run in (data / "runs").glob("*"):
        found += [path for path in run.iterdir() if path.name not in STAYS_OF_RUN] if run.is_dir() else [run]
        found += (run / "ws" / ".git").rglob("*.lock")
    return sorted(str(path.relative_to(data.parent)) for path in found)
