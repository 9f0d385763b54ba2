"""What launcher and guard are made of: signals, control channel and the tree of descendants.

Imported by the guard script without site-packages: the standard library alone, and only its light modules.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Collection, Sequence
from typing import Any

KILL_LIMIT_S = 5.0
"""How long, in seconds, SIGKILL is repeated before a guard reports the rest as survivors."""
DEFAULT_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL when nobody says otherwise."""
NO_SUBREAPER = 78
"""Exit code of a launcher on a kernel that does not let it become a subreaper."""
KILL_ORDER = b"K"
"""First byte of the launcher packet that ends a guard which does not answer; its pid follows."""
TERM_RESCAN_MS = 100
"""How often, in milliseconds, new descendants are looked for between SIGTERM and SIGKILL."""
KILL_RESCAN_MS = 20
"""How often, in milliseconds, SIGKILL is repeated."""
STDIO = (0, 1, 2)
"""The standard streams."""
Message = dict[str, Any]
"""One JSON line of the control channel."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4
# Ignored by launcher and guard: a signal to their whole group or cgroup must not take the guard away
# while its worker is still draining. They end by end of file.
IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


class Wake:
    """A pipe that becomes readable when one of the given signals arrives."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.fd, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in signals:
            signal.signal(number, lambda *_: None)
        inherited = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if inherited >= 0:
            os.close(inherited)

    def drain(self) -> bytes:
        """Return the numbers of the signals that came, one byte each."""
        try:
            return os.read(self.fd, 4096)
        except BlockingIOError:
            return b""


class Channel:
    """JSON lines over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Write one message; a peer that is gone is no error, the end of file says so."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def receive(self) -> list[Message] | None:
        """Read once and return the complete messages, or None at the end of the stream."""
        try:
            chunk = self.connection.recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def become_subreaper() -> bool:
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def conceal() -> bool:
    return _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(option, value, 0, 0, 0) == 0)


def reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def ignore_signals() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def release(descriptors: Sequence[int]) -> None:
    """Let go of the child's streams, so that their other ends see its end of file and nothing else."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=descriptor in STDIO)
    os.close(null)


def birth(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None if it has ended."""
    try:
        return int(_stat(pid)[19])
    except (OSError, ValueError, IndexError):
        return None


def _stat(pid: int | str) -> list[bytes]:
    """Return what ``/proc`` says of a process after its name, which may hold anything: first its state and parent."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        return file.read().rpartition(b")")[2].split()


def descendants(skip: Collection[int] = ()) -> dict[int, bool]:
    """Map each descendant of this process to whether it runs; the subtrees of ``skip`` are left out."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for name in (entry.name for entry in os.scandir("/proc")):
        if name.isdigit():
            try:
                state, parent = _stat(name)[:2]
            except (OSError, ValueError):
                continue
            children.setdefault(int(parent), []).append((int(name), state not in (b"Z", b"X")))
    found: dict[int, bool] = {}
    pending = [os.getpid()]
    while pending:
        for pid, runs in children.get(pending.pop(), ()):
            if pid not in skip:
                found[pid] = runs
                pending.append(pid)
    return found


def send_signal(pid: int, *numbers: signal.Signals) -> None:
    try:
        for number in numbers:
            os.kill(pid, number)
    except OSError:
        return
