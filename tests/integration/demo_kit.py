"""The demos as people run them: in a folder of their own, with nothing but the checkout."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

import psutil
from conftest import eventually

ROOT = Path(__file__).resolve().parents[2]
DEMO = (sys.executable, "-m", "cli.demo")


def run(
    argv: list[str], folder: Path, asked: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    env = environment(folder) | dict(asked or {})
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of somebody who has nothing but the checkout."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "STEPWISE_CONFIG": ""}


def comes_back(dev: list[str], address: str, folder: Path) -> None:
    """Check that the page of the demo is there again while its server runs."""
    setting, program, *arguments = dev
    name, value = setting.split("=")
    assert program.endswith("stepwise")
    argv = [sys.executable, "-m", "cli.main", *arguments, "--port", "0"]
    with subprocess.Popen(argv, cwd=folder, env={**environment(folder), name: value}, stdout=-3) as server:
        try:
            assert eventually(lambda: answers(address))
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 0


def answers(address: str) -> bool:
    """Return whether something is served at an address."""
    try:
        with urlopen(address, timeout=5) as page:  # noqa: S310 - the demo's own page
            return bool(page.status == 200)
    except OSError:
        return False


def one_demo(folder: Path, asked: Mapping[str, str], argv: Sequence[str] = DEMO) -> str:
    """Run a demo to its good end and return what it said; fails when a process of its own outlives it."""
    env = environment(folder) | dict(asked)
    with subprocess.Popen(
        argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            assert demo.stderr is not None
            said = [demo.stdout.readline()]
            working = working_in(folder)
            # Not by communicate(), which loses what was read ahead with the first line.
            said += demo.stdout
            complaint = demo.stderr.read()
            demo.wait()
        finally:
            demo.kill()
    assert (demo.returncode, complaint) == (0, ""), said
    assert len(working) > 1, "the demo and its server are seen while it runs"
    assert working_in(folder) == []
    return "".join(said)


def working_in(folder: Path) -> list[str]:
    """Return the command of each process that has to do with a folder: by its arguments, its place or a variable."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), process.cwd(), *process.environ().values()]
            if any(str(folder) in text for text in told):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


def check_next(said: str, folder: Path, data: str) -> None:
    """Check that what a demo proposes next works; ``data`` is the data folder of its worker."""
    begin = said.index("\nnext\n")
    dev, replay, verify = [shlex.split(line) for line in said[begin:].split("\n") if line.startswith("  ")]
    assert dev[0] == f"STEPWISE_DATA_DIR={data}", "never the data folder of somebody's own worker"
    address = next(line.split()[-1] for line in said.splitlines() if line.startswith("temporal ui"))
    comes_back(dev, address, folder)
    for program, *arguments in (replay, verify):
        assert program.endswith("stepwise")
        again = run([sys.executable, "-m", "cli.main", *arguments], folder)
        assert again.returncode == 0, again.stdout + again.stderr
