"""Workers and commands by fork from a process that has imported all they need: that takes longer than most tests.

Run as a program it is that process: it forks one for each request on its stdin, and tells of each end on stdout.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG: Final = 1
_APPENDED: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Forked(subprocess.Popen[bytes]):
    """What was forked: it is waited for and signalled like any other process."""

    def __init__(self, pid: int, ended: threading.Event) -> None:
        self.pid = pid
        self.args = ["forked"]
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self.code = 0
        self.ended = ended

    def poll(self) -> int | None:
        """Return how it ended, if it did."""
        if self.ended.is_set():
            self.returncode = self.code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.returncode = self.code
        return self.code

    def send_signal(self, sig: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def __del__(self, _maxsize: int = 0, _warn: Any = None) -> None:
        """Nothing is held that would have to be let go."""


class Forks:
    """The process that forks, and what became of those it forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_the_test,  # noqa: PLW1509 - a killed test run leaves nothing behind
        )
        self._lock = threading.Lock()
        self._children: dict[int, Forked] = {}
        self._born: dict[int, threading.Event] = {}
        self._made: dict[int, Forked] = {}
        self._count = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def worker(self, env: Mapping[str, str], cwd: Path, log: Path) -> Forked:
        """Start a worker with this whole environment; what it writes goes to the end of ``log``."""
        return self._fork(env, cwd, None, log, log)

    def command(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, *, within_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run ``stepwise`` with these arguments and this whole environment to its end."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            process = self._fork(env, cwd, list(argv), out, err)
            try:
                code = process.wait(within_s)
            finally:
                process.send_signal(signal.SIGKILL)
            return subprocess.CompletedProcess(list(argv), code, out.read_text(), err.read_text())

    def _fork(
        self, env: Mapping[str, str], cwd: Path, argv: list[str] | None, out: Path, err: Path
    ) -> Forked:
        born = threading.Event()
        with self._lock:
            self._count += 1
            number = self._count
            self._born[number] = born
            request = {"number": number, "env": dict(env), "cwd": str(cwd), "argv": argv}
            request |= {"out": str(out), "err": str(err)}
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        assert born.wait(60), "nothing was forked"
        return self._made.pop(number)

    def close(self) -> None:
        """End the process, and with it all that is left of those it forked."""
        self._process.kill()
        self._listener.join()
        self._process.communicate()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "born" in said:
                made = Forked(said["pid"], threading.Event())
                self._children[said["pid"]] = self._made[said["born"]] = made
                self._born.pop(said["born"]).set()
            else:
                ended = self._children.pop(said["ended"])
                ended.code = said["code"]
                ended.ended.set()


def die_with_the_test() -> None:
    """Ask the kernel to kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(request: Mapping[str, Any]) -> None:
    """Be the worker, or the command; never returns."""
    code = 1
    try:
        os.setsid()
        die_with_the_test()
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(request[name], _APPENDED, 0o600) for name in ("out", "err"))
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        os.closerange(3, 256)
        if request["argv"] is None:
            import worker

            code = worker.main()
        else:
            import cli.main

            sys.argv = ["stepwise", *request["argv"]]
            cli.main.main()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _tell(**said: int) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


def _serve() -> None:
    sys.path.insert(0, str(ROOT))
    sys.argv = ["worker.py"]
    import cli.main
    import worker

    assert worker
    for module, _ in cli.main.COMMANDS.values():
        importlib.import_module(module)
    children: dict[int, int] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([0, *children], [], [])
        for watched in ready:
            if watched in children:
                pid = children.pop(watched)
                _, status = os.waitpid(pid, 0)
                os.close(watched)
                _tell(ended=pid, code=os.waitstatus_to_exitcode(status))
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 20)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(request)
            children[os.pidfd_open(pid)] = pid
            _tell(born=request["number"], pid=pid)


if __name__ == "__main__":
    _serve()
