"""Bounded output: what is kept of a stream, and lines out of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Self

from system._errors import LineTooLong

CHUNK_BYTES = 1 << 16
_SAMPLE_BYTES = 500


class Kept:
    """The head and the tail of a stream, together at most ``limit`` bytes."""

    def __init__(self, limit: int, *, head: bool = True) -> None:
        self._head_limit = limit // 2 if head else 0
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.cut = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        free = self._head_limit - len(self._head)
        self._head += chunk[:free]
        self._tail += chunk[free:]
        # Twice the limit, so that the shift costs each byte once.
        if len(self._tail) > 2 * self._tail_limit + CHUNK_BYTES:
            self._shift()

    def value(self) -> bytes:
        """Return what is kept, with a line in the gap that says how many bytes were cut."""
        self._shift()
        if not self.cut:
            return bytes(self._head + self._tail)
        return b"%s\n[stepwise: %d bytes cut]\n%s" % (self._head, self.cut, self._tail)

    def _shift(self) -> None:
        surplus = max(0, len(self._tail) - self._tail_limit)
        del self._tail[:surplus]
        self.cut += surplus


@dataclass(slots=True)
class Source:
    """The reading end of a pipe as a stream."""

    reader: asyncio.StreamReader
    transport: asyncio.ReadTransport

    @classmethod
    async def pipe(cls) -> tuple[Self, int]:
        """Make a pipe; return its reading end and the descriptor of the other, which is the caller's."""
        read, write = os.pipe()
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
            )
        except BaseException:
            os.close(write)
            raise
        return cls(reader, transport), write

    async def drain(self, take: Callable[[bytes], None]) -> None:
        """Read to the end and pass every chunk on."""
        while chunk := await self.reader.read(CHUNK_BYTES):
            take(chunk)

    async def lines(self, limit: int) -> AsyncIterator[bytes]:
        """Yield each line without its newline, the last also if it has none. Raises LineTooLong."""
        buffer = bytearray()
        while chunk := await self.reader.read(CHUNK_BYTES):
            searched = len(buffer)
            buffer += chunk
            begin = 0
            while (end := buffer.find(b"\n", max(begin, searched))) >= 0:
                yield _checked(buffer[begin:end], limit)
                begin = end + 1
            del buffer[:begin]
            if len(buffer) > limit:
                _checked(buffer, limit)
        if buffer:
            yield bytes(buffer)


def _checked(line: bytearray, limit: int) -> bytes:
    if len(line) > limit:
        raise LineTooLong(limit, bytes(line[:_SAMPLE_BYTES]))
    return bytes(line)
