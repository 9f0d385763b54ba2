"""Child processes for the worker: bounded in time and output, and never outliving it.

Every child runs under the guard (``system/guard.py``): its whole tree is ended when it exits, when it is stopped,
when the awaiting task is cancelled, and when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from system._errors import (
    GuardUnavailable,
    LineTooLong,
    ProcessError,
    SpawnCode,
    SpawnFailed,
    StdinClosed,
)
from system._launcher import GUARD_SCRIPT, LAUNCHER, Guarded, Report, StoppedBy, spawn
from system._output import Kept, Source
from system._tree import DEFAULT_GRACE_S, conceal

__all__ = [
    "ALLOWED_ENV",
    "Child",
    "Finished",
    "GuardUnavailable",
    "LineTooLong",
    "ProcessError",
    "SpawnCode",
    "SpawnFailed",
    "StdinClosed",
    "StoppedBy",
    "child_env",
    "guarded_argv",
    "keep_to_itself",
    "run",
    "shutdown",
]

ALLOWED_ENV: Final = frozenset({"PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM"})
"""What a child sees of the worker's environment by default: nothing secret, no HOME, no TMPDIR."""
LOST: Final = "its guard was killed"
DEFAULT_MAX_LINE: Final = 1_000_000
"""Longest line of a streaming child, in bytes."""
STDERR_TAIL: Final = 64 * 1024
"""How many bytes of a streaming child's stderr are kept."""
# After the report nobody of the tree holds the pipes; this bounds the wait for a stranger who was given one.
_DRAIN_LIMIT_S: Final = 5.0
_SHUTDOWN_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a child ended and what it printed; of exit_code and signal at most one is set."""

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    """Bytes were cut out of stdout or stderr; a line in the gap says how many."""
    timed_out: bool
    stopped_by: StoppedBy
    leftovers: int
    """Other processes of its tree that the guard had to end."""
    survivors: int
    """Processes that even SIGKILL did not end within 5 s."""
    duration_ms: int

    @property
    def ok(self) -> bool:
        """Whether the child ended by itself, in time, with exit code 0."""
        return self.exit_code == 0 and self.stopped_by == "exited" and not self.timed_out


def how_ended(exit_code: int | None, signal: int | None) -> str:
    """Say how a child ended, of which nothing is known if its guard was killed."""
    if signal is not None:
        return f"signal {signal}"
    return LOST if exit_code is None else f"exit code {exit_code}"


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes = b"",
    timeout_s: float,
    grace_s: float = DEFAULT_GRACE_S,
    max_output: int = 10_000_000,
    on_output: Callable[[bytes], None] | None = None,
) -> Finished:
    """Run a program to its end; ``env`` is its whole environment, ``max_output`` bounds each of its streams.

    After ``timeout_s`` seconds, when the task is cancelled or ``on_output`` (called with each chunk of both
    streams) raises, the whole tree gets SIGTERM and after ``grace_s`` seconds SIGKILL, before this returns or
    raises. Raises SpawnFailed when the program does not come to run.
    """
    begun = time.monotonic()
    kept = Kept(max_output), Kept(max_output)
    guarded, *sources = await _start(
        argv, cwd=cwd, env=env, pipes={}, grace_s=grace_s, stdin=_input_file(stdin)
    )

    async def drain(source: Source, into: Kept) -> None:
        def take(chunk: bytes) -> None:
            into.add(chunk)
            if on_output is not None:
                on_output(chunk)

        try:
            await source.drain(take)
        except Exception:
            guarded.begin_stop(grace_s)
            raise

    drains = [asyncio.create_task(drain(*each)) for each in zip(sources, kept, strict=True)]
    try:
        report = await guarded.ended(timeout_s)
        timed_out = report is None
        report = report or await guarded.stop(grace_s)
        await _settle(drains)
    except asyncio.CancelledError:
        await guarded.stop(grace_s)
        raise
    finally:
        _close(guarded, *sources, tasks=drains)
    return _finished(report, begun, stdout=kept[0], stderr=kept[1], timed_out=timed_out)


class Child:
    """A long-lived child that is read line by line; as a context manager it is stopped at the end."""

    def __init__(
        self,
        guarded: Guarded,
        stdout: Source,
        stderr: Source,
        stdin: asyncio.StreamWriter,
        *,
        argv0: str,
        grace_s: float,
        max_line: int,
    ) -> None:
        self.argv0 = argv0
        self.pid = guarded.pid
        self._guarded = guarded
        self._stdout = stdout
        self._stderr = stderr
        self._stdin = stdin
        self._grace_s = grace_s
        self._max_line = max_line
        self._begun = time.monotonic()
        self._unread = asyncio.Event()
        self._unread.set()
        self._kept = Kept(STDERR_TAIL, head=False)
        self._draining = asyncio.create_task(stderr.drain(self._kept.add))
        self._dropping: asyncio.Task[None] | None = None
        self._finished: Finished | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        pipes: Mapping[str, str] | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        max_line: int = DEFAULT_MAX_LINE,
    ) -> Self:
        """Start a program with pipes on its three streams; raises SpawnFailed and GuardUnavailable.

        ``pipes`` names variables of ``env`` that are not left in it, where all that the program runs could read
        them: the value goes into a pipe, and the number of its descriptor into the variable named in its place.
        ``grace_s`` is what its descendants get when it exits or this process dies, ``max_line`` is in bytes.
        """
        read, write = os.pipe()
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(write, "wb", 0)
            )
        except BaseException:
            os.close(read)
            raise
        stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        try:
            guarded, stdout, stderr = await _start(
                argv, cwd=cwd, env=env, pipes=pipes or {}, grace_s=grace_s, stdin=read
            )
        except BaseException:
            stdin.close()
            raise
        return cls(guarded, stdout, stderr, stdin, argv0=argv[0], grace_s=grace_s, max_line=max_line)

    async def write(self, data: bytes) -> None:
        """Write to its stdin and wait until the pipe has room; raises StdinClosed when nobody reads."""
        if self._stdin.is_closing():
            raise StdinClosed(self.argv0)
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except OSError as error:
            raise StdinClosed(self.argv0) from error

    def close_stdin(self) -> None:
        """Let it see the end of its stdin, after what was written."""
        self._stdin.close()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield each line of stdout without its newline, for one reader; raises LineTooLong."""
        if self._dropping is not None:
            return
        self._unread.clear()
        try:
            async for line in self._stdout.lines(self._max_line):
                yield line
        finally:
            self._unread.set()

    def interrupt(self) -> None:
        """Send SIGINT to its process group; nothing happens when it has ended."""
        self._guarded.interrupt()

    async def wait(self) -> Finished:
        """Wait for its end and return how it ended; stdout is empty there, stderr is the last 64 KiB.

        What nobody reads from ``lines`` is dropped, so that the child is not held up.
        """
        self._drop_unread()
        return self._finished or await self._finish(await self._guarded.ended())

    async def stop(self, grace_s: float) -> StoppedBy:
        """End its whole tree, SIGTERM and after ``grace_s`` seconds SIGKILL; return what it took."""
        if self._finished is None:
            await self._finish(await self._guarded.stop(grace_s))
        return (await self.wait()).stopped_by

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop(self._grace_s)
        finally:
            _close(self._guarded, self._stdout, self._stderr, tasks=[self._draining, self._drop_unread()])
            self._stdin.close()

    def _drop_unread(self) -> asyncio.Task[None]:
        async def drop() -> None:
            await self._unread.wait()
            await self._stdout.drain(lambda _: None)

        self._dropping = self._dropping or asyncio.create_task(drop())
        return self._dropping

    async def _finish(self, report: Report | None) -> Finished:
        dropping = self._drop_unread()
        await _settle([self._draining, dropping] if self._unread.is_set() else [self._draining])
        if self._finished is None:
            self._finished = _finished(report, self._begun, stdout=None, stderr=self._kept, timed_out=False)
            self._stdin.close()
            _close(self._guarded, self._stderr, tasks=[self._draining])
        return self._finished


def child_env(
    base: Mapping[str, str] | None = None,
    allow: Collection[str] = ALLOWED_ENV,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the allowed variables of ``base`` (default: this process's environment) and all of ``extra``.

    One whose name or value says that it is a secret never passes, whoever allows it.
    """
    from policy.secrets import find, is_secret_name  # noqa: PLC0415 - slow, and many a process needs no environment

    source = os.environ if base is None else base
    passed = {
        name: source[name]
        for name in sorted(allow)
        if name in source and not is_secret_name(name) and not find(source[name])
    }
    return passed | dict(extra or {})


def guarded_argv(argv: Sequence[str], *, grace_s: float = DEFAULT_GRACE_S) -> list[str]:
    """Return the command line that runs ``argv`` under a guard of its own, for who starts processes himself.

    Streams, environment, directory and exit code pass straight through; the tree ends with this process too.
    """
    guard = [sys.executable, "-I", "-S", "-X", "utf8", str(GUARD_SCRIPT)]
    return [*guard, "--parent", str(os.getpid()), "--grace", str(grace_s), "--", *argv]


def keep_to_itself() -> None:
    """Keep the environment and memory of this process from others of the same user, such as gates and agents.

    What it executes is not kept back: a child's environment holds nothing secret. Root can read all the same.
    """
    conceal()


async def shutdown() -> None:
    """Stop what still runs, end the launcher and wait for it, at most 30 s; a later start begins anew."""
    for guarded in list(LAUNCHER.live):
        guarded.let_go()
    await asyncio.to_thread(LAUNCHER.close, _SHUTDOWN_LIMIT_S)


async def _start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pipes: Mapping[str, str],
    grace_s: float,
    stdin: int,
) -> tuple[Guarded, Source, Source]:
    """Start a program with pipes for its output; takes over the descriptor ``stdin``."""
    with contextlib.ExitStack() as given, contextlib.ExitStack() as kept:
        given.callback(os.close, stdin)
        stdout, out = await Source.pipe()
        kept.callback(stdout.transport.close)
        given.callback(os.close, out)
        stderr, err = await Source.pipe()
        kept.callback(stderr.transport.close)
        given.callback(os.close, err)
        guarded = await spawn(argv, cwd=cwd, env=env, pipes=pipes, grace_s=grace_s, stdio=(stdin, out, err))
        kept.pop_all()
    return guarded, stdout, stderr


def _input_file(content: bytes) -> int:
    """Return a descriptor to read ``content`` from: a file in memory needs nobody who feeds a pipe."""
    if not content:
        return os.open(os.devnull, os.O_RDONLY)
    if sys.platform != "linux":
        raise GuardUnavailable(f"{sys.platform} has no child subreaper")
    descriptor = os.memfd_create("stdin")
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _settle(drains: Collection[asyncio.Task[None]]) -> None:
    """Wait until the streams are read to their end, bounded; raises what reading them raised."""
    done, _ = await asyncio.wait(drains, timeout=_DRAIN_LIMIT_S)
    for error in [task.exception() for task in done]:
        if error is not None:
            raise error


def _close(guarded: Guarded, *sources: Source, tasks: Collection[asyncio.Task[None]]) -> None:
    guarded.close()
    for task in tasks:
        task.cancel()
    for source in sources:
        source.transport.close()


def _finished(
    report: Report | None, begun: float, *, stdout: Kept | None, stderr: Kept, timed_out: bool
) -> Finished:
    known = report or Report(stopped_by="lost")
    output, errors = b"" if stdout is None else stdout.value(), stderr.value()
    return Finished(
        exit_code=known.exit_code,
        signal=known.signal,
        stdout=output,
        stderr=errors,
        truncated=bool(stderr.cut or (stdout is not None and stdout.cut)),
        timed_out=timed_out,
        stopped_by=known.stopped_by,
        leftovers=known.leftovers,
        survivors=known.survivors,
        duration_ms=round((time.monotonic() - begun) * 1000),
    )
