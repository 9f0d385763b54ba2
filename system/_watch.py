"""The guard of one child: starts it, waits for its end, and ends whatever came from it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from system._tree import (
    KILL_LIMIT_S,
    KILL_RESCAN_MS,
    STDIO,
    TERM_RESCAN_MS,
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


def _execute(request: Message, stdio: Sequence[int]) -> NoReturn:
    """Turn this forked process into the program of the request."""
    os.setsid()
    reset_signals()
    if request["cwd"] is not None:
        try:
            os.chdir(request["cwd"])
        except (OSError, ValueError) as error:
            raise SpawnError("bad_cwd", str(error)) from error
    for target, descriptor in enumerate(stdio):
        os.dup2(descriptor, target)
    for descriptor in [int(entry.name) for entry in os.scandir("/proc/self/fd")]:
        if descriptor not in STDIO:
            try:
                os.set_inheritable(descriptor, False)
            except OSError:  # the descriptor of the listing itself
                continue
    argv, env = request["argv"], _piped(request["env"], request.get("pipes", {}))
    refused: OSError = FileNotFoundError(2, "not found in PATH", argv[0])
    for candidate in _candidates(argv[0], env):
        try:
            os.execve(candidate, argv, env)  # noqa: S606 - never a shell
        except (FileNotFoundError, NotADirectoryError) as error:
            if candidate == argv[0]:
                refused = error
        except PermissionError as error:
            refused = error
        except (ValueError, TypeError) as error:
            raise SpawnError("bad_argument", str(error)) from error
    code = "not_executable" if isinstance(refused, PermissionError) else "program_not_found"
    raise SpawnError(code, str(refused))


def _piped(env: Mapping[str, str], pipes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with some of its values in pipes, and in their place where to read each from."""
    left = dict(env)
    for name, place in pipes.items():
        value = left.pop(name, None)
        if value is None:
            continue
        read, write = os.pipe()
        os.set_blocking(write, False)  # what has no room in a pipe is refused: nobody reads it yet
        with open(write, "wb") as file:  # noqa: PTH123
            file.write(value.encode("utf-8", "surrogateescape"))
        os.set_inheritable(read, True)
        left[place] = str(read)
    return left


def _candidates(program: str, env: Mapping[str, str]) -> list[str]:
    if "/" in program:
        return [program]
    # An empty or relative entry would run a program out of the child's directory, which is not trusted.
    folders = [folder for folder in env.get("PATH", os.defpath).split(":") if folder.startswith("/")]
    return [f"{folder}/{program}" for folder in folders]


class SpawnError(Exception):
    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def _start_child(request: Message, stdio: Sequence[int]) -> int:
    """Fork and execute the program, return its pid; raises SpawnError if it did not come to run."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _execute(request, stdio)
        except SpawnError as error:
            failure = [error.code, error.reason]
        except BaseException as error:  # noqa: BLE001 - a forked copy must end here, whatever happens
            failure = ["spawn_failed", str(error) or repr(error)]
        os.write(write, json.dumps(failure).encode())
        os._exit(127)
    os.close(write)
    with open(read, "rb") as file:  # noqa: PTH123
        answer = file.read()
    if answer:
        os.waitpid(pid, 0)
        raise SpawnError(*json.loads(answer))
    return pid


class Watch:
    """Waits for the end of one child and of all that came from it."""

    def __init__(self, channel: Channel, wake: Wake, child: int, grace_s: float) -> None:
        self.channel = channel
        self.wake = wake
        self.child = child
        self.grace_s = grace_s
        self.status: int | None = None
        self.stopped_by = "exited"
        self.deadline: float | None = None
        self.signalled: set[int] = set()
        self.poll = select.poll()
        self.poll.register(channel.connection, select.POLLIN)
        self.poll.register(wake.fd, select.POLLIN)

    def obey(self, orders: list[Message] | None) -> None:
        """Follow the orders; the end of the stream (None) is the order to stop."""
        if orders is None:
            self.poll.unregister(self.channel.connection)
            orders = [{"stop": self.grace_s}]
        for order in orders:
            if "stop" in order:
                self._reap()  # a child that has just ended was not stopped
                self._end_within(order["stop"])
                if self.status is None and self.stopped_by == "exited":
                    self.stopped_by = "terminated"
            elif "interrupt" in order and self.status is None:
                try:
                    os.killpg(self.child, signal.SIGINT)
                except OSError:  # it ended just now
                    continue

    def run(self) -> Message:
        """Return the report once no descendant is left, or some outlived SIGKILL."""
        survivors = 0
        while self._reap():
            now = time.monotonic()
            timeout = None
            if self.deadline is not None:
                killing = now >= self.deadline
                running = self._sweep(killing=killing)
                if now >= self.deadline + KILL_LIMIT_S:
                    survivors = running
                    break
                rest_ms = KILL_RESCAN_MS if killing else 1 + int((self.deadline - now) * 1000)
                timeout = min(rest_ms, TERM_RESCAN_MS)
            for descriptor, _ in self.poll.poll(timeout):
                if descriptor == self.wake.fd:
                    self.wake.drain()
                else:
                    self.obey(self.channel.receive())
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        return {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "stopped_by": self.stopped_by,
            "leftovers": len(self.signalled - {self.child}),
            "survivors": survivors,
        }

    def _end_within(self, grace_s: float) -> None:
        limit = time.monotonic() + grace_s
        self.deadline = limit if self.deadline is None else min(limit, self.deadline)

    def _reap(self) -> bool:
        """Collect what has ended; False once there is no descendant (an orphan becomes our own child)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status
                self._end_within(self.grace_s)

    def _sweep(self, *, killing: bool) -> int:
        found = descendants()
        for pid, runs in found.items():
            if killing:
                if runs and self.stopped_by == "terminated":
                    self.stopped_by = "killed"
                send_signal(pid, signal.SIGKILL)
            elif pid not in self.signalled:
                send_signal(pid, signal.SIGTERM, signal.SIGCONT)
            if runs:
                self.signalled.add(pid)
        return sum(found.values())


def guard(control: socket.socket, stdio: Sequence[int]) -> int:
    """Be the guard of one child; the exit code is not 0 if something of it may still run."""
    os.setsid()
    ignore_signals()
    become_subreaper()
    wake = Wake(signal.SIGCHLD)
    channel = Channel(control)
    channel.send({"guard": os.getpid()})
    messages: list[Message] | None = []
    while messages is not None and not messages:
        messages = channel.receive()
    if messages is None:
        return 0
    request, *orders = messages
    try:
        child = _start_child(request, stdio)
    except SpawnError as error:
        channel.send({"spawn_error": {"code": error.code, "reason": error.reason}})
        return 0
    release(stdio)
    channel.send({"started": child})
    watch = Watch(channel, wake, child, request["grace_s"])
    watch.obey(orders)
    report = watch.run()
    channel.send(report)
    return 1 if report["survivors"] else 0
