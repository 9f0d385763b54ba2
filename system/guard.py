"""The process guard: no descendant of a child outlives the child, the order to end it, or its worker.

A script of the standard library alone, since it must start fast and stay small. Two ways in:

``guard.py --launcher FD``
    serves one worker. Each packet on the SOCK_SEQPACKET socket FD carries stdin, stdout, stderr and a control
    socket; the launcher forks a guard for them, which costs a fraction of a new interpreter.
``guard.py [--parent PID] [--watch FD] [--grace S] -- PROGRAM ARGUMENT...``
    guards one program in place: standard streams, environment and exit code pass straight through (128 + n
    for signal n). The program ends with this process, with the parent, or at the end of file of FD.

A guard speaks JSON lines on its control socket. It reads the request ``{argv, cwd, env, pipes (none), grace_s}`` and orders
``{"stop": grace_s}`` or ``{"interrupt": true}``; it writes ``{"guard": pid}``, then ``{"started": pid}`` or
``{"spawn_error": {code, reason}}``, then, when no descendant is left, the report.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

# Run as a script without site-packages, the package that holds this file is not on the path.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

from system._tree import (
    DEFAULT_GRACE_S,
    KILL_LIMIT_S,
    KILL_ORDER,
    KILL_RESCAN_MS,
    NO_SUBREAPER,
    STDIO,
    Channel,
    Message,
    Wake,
    become_subreaper,
    descendants,
    ignore_signals,
    release,
    reset_signals,
    send_signal,
)
from system._watch import guard

_LOST_EXIT = 128 + signal.SIGKILL


class _Guards:
    """The guards forked here. What a killed guard leaves behind becomes our child and is killed."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._orphans = False

    def fork(self, control: socket.socket, stdio: Sequence[int], close: Sequence[int]) -> None:
        """Fork a guard; ``close`` are descriptors it must not hold. Raises OSError when the fork fails."""
        pid = os.fork()
        if pid:
            self.pids.add(pid)
            return
        code = 1
        try:
            for descriptor in close:
                os.close(descriptor)
            code = guard(control, stdio)
        finally:
            os._exit(code)

    def tend(self) -> int | None:
        """Reap the dead and kill orphans; return in how many ms to come again, None if only on SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._orphans = False
                return None
            if pid == 0:
                break
            self._orphans |= pid not in self.pids or status != 0
            self.pids.discard(pid)
        if not self._orphans:
            return None
        orphans = descendants(skip=self.pids)
        for pid in orphans:
            send_signal(pid, signal.SIGKILL)
        self._orphans = bool(orphans)
        return KILL_RESCAN_MS if orphans else None

    def kill(self, pid: int) -> None:
        """Kill a guard that does not answer, if it still is one of ours."""
        if pid in self.pids:
            send_signal(pid, signal.SIGKILL)

    def finished(self) -> bool:
        """Tell whether neither a guard nor an orphan is left."""
        return not self.pids and not self._orphans


def _launch(requests: socket.socket) -> None:
    """Serve one worker until it is gone and its guards have ended."""
    ignore_signals()
    wake = Wake(signal.SIGCHLD)
    guards = _Guards()
    poll = select.poll()
    poll.register(wake.fd, select.POLLIN)
    poll.register(requests, select.POLLIN)
    gone_at: float | None = None
    while True:
        timeout = guards.tend()
        if gone_at is not None:
            if guards.finished() or (not guards.pids and time.monotonic() > gone_at + KILL_LIMIT_S):
                return
            if guards.pids:
                gone_at = time.monotonic()
            for pid in guards.pids:  # a stopped guard could not see the end of its worker
                send_signal(pid, signal.SIGCONT)
        for descriptor, _ in poll.poll(timeout):
            if descriptor == wake.fd:
                wake.drain()
            elif not _serve(requests, guards, wake):
                poll.unregister(requests)
                gone_at = time.monotonic()


def _serve(requests: socket.socket, guards: _Guards, wake: Wake) -> bool:
    """Take one packet of the worker; False when the worker is gone."""
    try:
        packet, descriptors, _, _ = socket.recv_fds(requests, 64, 4, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return False
    if packet.startswith(KILL_ORDER):
        guards.kill(int(packet[1:]))
    elif len(descriptors) == len(STDIO) + 1:
        control = socket.socket(fileno=descriptors.pop())
        try:
            guards.fork(control, descriptors, (requests.fileno(), wake.fd))
        except OSError as error:
            Channel(control).send({"spawn_error": {"code": "spawn_failed", "reason": str(error)}})
        control.close()
    for descriptor in descriptors:
        os.close(descriptor)
    return bool(packet)


def _stand_alone(argv: Sequence[str], parent: int | None, watched: int | None, grace_s: float) -> int:
    """Guard one program in place and return the exit code to end with."""
    wake = Wake(signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    ours, theirs = socket.socketpair()
    guards = _Guards()
    guards.fork(theirs, STDIO, (ours.fileno(), wake.fd))
    theirs.close()
    channel = Channel(ours)
    channel.send({"argv": list(argv), "cwd": None, "env": dict(os.environ), "grace_s": grace_s})
    poll = select.poll()
    poll.register(wake.fd, select.POLLIN)
    poll.register(ours, select.POLLIN)
    ends = [] if watched is None else [watched]
    expected = os.getppid() if parent is None else parent
    try:
        if expected:  # 0: the parent is outside this process namespace
            ends.append(os.pidfd_open(expected))
    except ProcessLookupError:
        channel.send({"stop": grace_s})
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    code = None
    while code is None:
        for descriptor, _ in poll.poll(guards.tend()):
            if descriptor == wake.fd:
                for number in wake.drain():
                    if number != signal.SIGCHLD:
                        channel.send({"interrupt": True} if number == signal.SIGINT else {"stop": grace_s})
            elif descriptor == ours.fileno():
                code = _exit_code(channel.receive())
            elif descriptor != watched or not os.read(watched, 4096):
                poll.unregister(descriptor)
                channel.send({"stop": grace_s})
    limit = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < limit:
        timeout = guards.tend()
        if guards.finished():
            break
        poll.poll(KILL_RESCAN_MS if timeout is None else timeout)
        wake.drain()
    return code


def _exit_code(messages: list[Message] | None) -> int | None:
    """Read the guard's messages in place: the exit code once there is one."""
    if messages is None:
        return _LOST_EXIT
    for message in messages:
        if "started" in message:
            release(STDIO)
        elif "spawn_error" in message:
            print(f"guard: {message['spawn_error']['reason']}", file=sys.stderr, flush=True)  # noqa: T201
            return 127 if message["spawn_error"]["code"] == "program_not_found" else 126
        elif "stopped_by" in message:
            if message["exit_code"] is not None:
                return int(message["exit_code"])
            return 128 + int(message["signal"] or signal.SIGKILL)
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the launcher or the stand-alone guard; return the exit code. Raises ValueError on bad options."""
    while os.open(os.devnull, os.O_RDWR) <= max(STDIO):  # a standard stream that was closed must not
        continue  # become the number of one of our own descriptors
    reset_signals()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.disable()
    gc.freeze()  # forked guards share these pages
    if not become_subreaper():
        return NO_SUBREAPER
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    if unknown := options.keys() - {"--launcher", "--parent", "--watch", "--grace"}:
        message = f"unknown options: {sorted(unknown)}"
        raise ValueError(message)
    if "--launcher" in options:
        requests = socket.socket(fileno=int(options["--launcher"]))
        requests.set_inheritable(False)
        _launch(requests)
        return 0
    if not arguments[split + 1 :]:
        message = "no program after --"
        raise ValueError(message)
    parent, watched = options.get("--parent"), options.get("--watch")
    return _stand_alone(
        arguments[split + 1 :],
        None if parent is None else int(parent),
        None if watched is None else int(watched),
        float(options.get("--grace", DEFAULT_GRACE_S)),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
