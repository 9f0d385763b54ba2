"""What tests of child processes share: programs to run, and the end of the launcher behind each test."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from system.processes import shutdown

TREE = """
import os, signal
def stay(kind):
    os.write(1, f"{kind} {os.getpid()}\\n".encode())
    while True:
        signal.pause()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay("deaf")
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    stay("daemon")
os.wait()
stay("child")
"""
"""Prints the pids of itself, of a child that ignores SIGTERM and of one in a session of its own."""


def python(code: str) -> list[str]:
    """Return the command that runs a program in a small interpreter."""
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.fixture(autouse=True)
async def no_launcher_is_left() -> AsyncIterator[None]:
    """End the launcher after each test of a module that imports this."""
    yield
    await shutdown()
