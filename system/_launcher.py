"""The worker's side of the guard: one launcher, and one control socket for each running child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from system._errors import SPAWN_CODES, GuardUnavailable, SpawnFailed
from system._tree import KILL_LIMIT_S, KILL_ORDER, NO_SUBREAPER, Message, birth

StoppedBy = Literal["exited", "terminated", "killed", "lost"]
"""How a child ended: by itself, by SIGTERM, by SIGKILL, or killed because its guard was."""

GUARD_SCRIPT: Final = Path(__file__).with_name("guard.py")
_ATTEMPTS: Final = 3
_HAND_OVER_LIMIT_S: Final = 10.0
_SLACK_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the guard measured, after the last descendant was gone."""

    exit_code: int | None = None
    signal: int | None = None
    stopped_by: StoppedBy
    leftovers: int = 0
    survivors: int = 0


class Launcher:
    """Starts the launcher process when it is first needed, and again when it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self.live: set[Guarded] = set()

    def send(self, packet: bytes, descriptors: Sequence[int]) -> None:
        """Hand descriptors over, starting the launcher if need be.

        Raises BlockingIOError when it is busy, GuardUnavailable where there can be none.
        """
        with self._lock:
            for _ in range(_ATTEMPTS):
                connection = self._socket or self._start()
                try:
                    socket.send_fds(connection, [packet], descriptors)
                except (BrokenPipeError, ConnectionResetError):
                    self._forget()
                else:
                    return
        raise GuardUnavailable("the launcher ends as soon as it is started")

    def kill_guard(self, pid: int) -> None:
        """Have a guard killed that does not answer; its descendants are killed by the launcher."""
        with contextlib.suppress(OSError, GuardUnavailable):
            self.send(KILL_ORDER + str(pid).encode(), ())

    def close(self, timeout_s: float) -> None:
        """End the launcher and wait for it; blocks for at most ``timeout_s`` seconds."""
        with self._lock:
            process = self._let_go()
        if process is not None:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> socket.socket:
        if sys.platform != "linux":
            raise GuardUnavailable(f"{sys.platform} has no child subreaper")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # An empty environment: whoever reads /proc/<guard>/environ finds no secret, and no run id.
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-X", "utf8"),
                    *(str(GUARD_SCRIPT), "--launcher", str(theirs.fileno())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                close_fds=True,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={},
                start_new_session=True,
            )
        ours.setblocking(False)
        self._socket = ours
        return ours

    def _forget(self) -> None:
        """Drop a launcher that is gone; raises GuardUnavailable if it said that it cannot work here."""
        process = self._let_go()
        if process is not None and process.wait() == NO_SUBREAPER:
            raise GuardUnavailable("the kernel has no child subreaper")

    def _let_go(self) -> subprocess.Popen[bytes] | None:
        process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        return process


LAUNCHER: Final = Launcher()
"""The launcher of this process."""


class Guarded:
    """A child that runs under a guard."""

    def __init__(self, control: _Control, *, guard_pid: int, pid: int) -> None:
        self.pid = pid
        self._guard_pid = guard_pid
        self._control = control
        self._report = asyncio.create_task(_read_report(control, pid, birth(pid)))
        LAUNCHER.live.add(self)

    async def ended(self, within_s: float | None = None) -> Report | None:
        """Wait for the report; None if it did not come within ``within_s`` seconds."""
        done, _ = await asyncio.wait({self._report}, timeout=within_s)
        return self._report.result() if done else None

    async def stop(self, grace_s: float) -> Report:
        """End the whole tree: SIGTERM, SIGKILL after ``grace_s`` seconds; bounded also if the guard hangs."""
        self.begin_stop(grace_s)
        report = await self.ended(grace_s + KILL_LIMIT_S + _SLACK_S)
        if report is None:
            LAUNCHER.kill_guard(self._guard_pid)
            report = await self.ended(_SLACK_S)
        return report or Report(stopped_by="lost")

    def begin_stop(self, grace_s: float) -> None:
        """Order the end of the tree without waiting for it."""
        self._control.order({"stop": grace_s})

    def interrupt(self) -> None:
        """Send SIGINT to the child's process group; nothing happens when it has ended."""
        self._control.order({"interrupt": True})

    def let_go(self) -> None:
        """Show the guard an end of file, so that it ends the tree; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._control.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go for good; what still runs is ended by the guard."""
        LAUNCHER.live.discard(self)
        self._report.cancel()
        self._report.add_done_callback(lambda _: self._control.socket.close())


class _Control:
    """JSON lines over our end of a control socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._buffer = b""

    async def receive(self) -> Message | None:
        """Return the next message, None at the end of the stream."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            try:
                chunk = await loop.sock_recv(self.socket, 1 << 16)
            except OSError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def order(self, message: Message) -> None:
        """Send a short message at once; a guard that has ended needs no order."""
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(message).encode() + b"\n")

    async def abandon(self, within_s: float) -> None:
        """Show the guard an end of file and wait until it has ended the tree, at most ``within_s`` seconds."""
        with contextlib.suppress(OSError, TimeoutError):
            self.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(within_s):
                while await self.receive() is not None:
                    continue


async def _read_report(control: _Control, pid: int, born: int | None) -> Report:
    message = await control.receive()
    if message:
        return Report(**message)
    if born is not None:
        # The launcher ends what a guard leaves behind, but it may have been killed as well.
        from system.leftovers import end_tree  # noqa: PLC0415 - slow, and hardly ever needed

        await end_tree(pid, born)
    return Report(stopped_by="lost")


async def spawn(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pipes: Mapping[str, str],
    grace_s: float,
    stdio: tuple[int, int, int],
) -> Guarded:
    """Start a program under a guard; ``stdio`` stays the caller's to close.

    Raises SpawnFailed when the program does not come to run and GuardUnavailable where there is no guard.
    """
    if not argv:
        raise SpawnFailed("E_BAD_ARGUMENT", "", "argv is empty")
    packet = _request(argv, cwd, env, pipes, grace_s)
    for _ in range(_ATTEMPTS):
        ours, theirs = socket.socketpair()
        control = _Control(ours)
        try:
            with theirs:
                await _hand_over(argv[0], (*stdio, theirs.fileno()))
            child = await _agree(control, packet, argv[0])
        except asyncio.CancelledError:
            await control.abandon(grace_s + KILL_LIMIT_S + _SLACK_S)
            ours.close()
            raise
        except BaseException:
            ours.close()
            raise
        if child is not None:
            return child
        ours.close()
    raise GuardUnavailable("the launcher ends before it answers")


def _request(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], pipes: Mapping[str, str], grace_s: float
) -> bytes:
    request = {
        "argv": list(argv),
        "cwd": str(cwd.absolute()),
        "env": dict(env),
        "pipes": dict(pipes),
        "grace_s": grace_s,
    }
    return json.dumps(request).encode() + b"\n"


async def _agree(control: _Control, packet: bytes, argv0: str) -> Guarded | None:
    """Send the request and read what became of it; None when no guard has read it."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(control.socket, packet)
    hello = await control.receive()
    if hello is None:
        return None
    answer = hello if "spawn_error" in hello else await control.receive()
    if answer is None:
        raise SpawnFailed("E_SPAWN", argv0, "the guard was killed")
    if failure := answer.get("spawn_error"):
        raise SpawnFailed(SPAWN_CODES[failure["code"]], argv0, failure["reason"])
    return Guarded(control, guard_pid=hello["guard"], pid=answer["started"])


async def _hand_over(argv0: str, descriptors: Sequence[int]) -> None:
    limit = time.monotonic() + _HAND_OVER_LIMIT_S
    while True:
        try:
            LAUNCHER.send(b"S", descriptors)
        except OSError as error:
            # Full queue, or too many descriptors on their way: the launcher takes one within a millisecond.
            if time.monotonic() > limit:
                raise SpawnFailed(
                    "E_SPAWN", argv0, f"the launcher does not take requests: {error}"
                ) from error
            await asyncio.sleep(0.002)
        else:
            return
