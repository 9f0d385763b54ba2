"""The guard when the worker, the launcher, a guard or a parent is killed."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from process_kit import TREE, no_launcher_is_left, python

from system import _launcher
from system._tree import NO_SUBREAPER
from system.leftovers import end_leftovers
from system.processes import Child, GuardUnavailable, guarded_argv, run

pytestmark = pytest.mark.chaos

__all__ = ["no_launcher_is_left"]  # a fixture of each test here

ROOT = Path(__file__).parents[2]
TREE_ARGV = python(TREE)
WORKER = """
import asyncio, sys
from pathlib import Path
from system.processes import Child
async def main():
    child = await Child.start(sys.argv[1:], cwd=Path("/"), env={}, grace_s=0.2)
    async for line in child.lines():
        print(line.decode(), flush=True)
asyncio.run(main())
"""
EXIT_WAIT_MS = 30_000


class Ends:
    """Holds processes by descriptor and waits for the end of each."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def hold(self, *pids: int) -> None:
        for pid in pids:
            self.held[pid] = os.pidfd_open(pid)

    def still_running(self) -> list[int]:
        poll = select.poll()
        return [pid for pid, descriptor in self.held.items() if not self._ended(poll, descriptor)]

    def close(self) -> None:
        for descriptor in self.held.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)

    @staticmethod
    def _ended(poll: select.poll, descriptor: int) -> bool:
        poll.register(descriptor, select.POLLIN)
        ended = bool(poll.poll(EXIT_WAIT_MS))
        poll.unregister(descriptor)
        return ended


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Whatever a failing guard leaves behind is killed with the test."""
    with contextlib.closing(Ends()) as held:
        yield held


def pid_of(line: bytes) -> int:
    return int(line.split()[1])


async def tree(ends: Ends, *, run_id: str = "none", grace_s: float = 0.2, away: Ends | None = None) -> Child:
    """Start the tree and hold each of its three processes; ``away`` holds the one that has left it, if it is given."""
    child = await Child.start(TREE_ARGV, cwd=Path("/"), env={"STEPWISE_RUN": run_id}, grace_s=grace_s)
    lines = child.lines()
    for _ in range(3):
        line = await anext(lines)
        (away if away is not None and line.startswith(b"daemon") else ends).hold(pid_of(line))
    return child


def launcher() -> psutil.Process:
    (process,) = [child for child in psutil.Process().children() if "--launcher" in child.cmdline()]
    return process


def guard_of(child: Child) -> psutil.Process:
    parent = psutil.Process(child.pid).parent()
    assert parent is not None
    return parent


@contextlib.contextmanager
def started(argv: list[str], ends: Ends, lines: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that prints a tree; holds the tree, and everything between it and the program."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            for _ in range(lines):
                assert process.stdout is not None
                ends.hold(pid_of(process.stdout.readline()))
            ends.hold(*[each.pid for each in psutil.Process(process.pid).children(recursive=True)])
            yield process
        finally:
            process.kill()


def test_everything_ends_when_the_worker_is_killed(ends: Ends) -> None:
    with started([sys.executable, "-c", WORKER, *TREE_ARGV], ends, 3) as worker:
        assert len(ends.held) >= 5  # three of the tree, its guard, the launcher
        worker.kill()
        assert ends.still_running() == []


def test_a_stopped_guard_still_ends_its_tree_when_the_worker_is_killed(ends: Ends) -> None:
    with started([sys.executable, "-c", WORKER, *TREE_ARGV], ends, 3) as worker:
        (launched,) = psutil.Process(worker.pid).children()
        (guard,) = launched.children()
        guard.suspend()
        worker.kill()
        assert ends.still_running() == []


async def test_the_launcher_kills_what_a_killed_guard_leaves_behind(ends: Ends) -> None:
    child = await tree(ends)
    guard_of(child).kill()
    finished = await child.wait()
    assert (finished.exit_code, finished.signal, finished.stopped_by) == (None, None, "lost")
    assert not finished.ok
    assert ends.still_running() == []
    assert (await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)).ok


async def test_a_guard_that_hangs_is_killed_and_its_tree_with_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launcher, "KILL_LIMIT_S", 0.1)
    monkeypatch.setattr(_launcher, "_SLACK_S", 0.3)
    child = await tree(ends)
    guard_of(child).suspend()
    assert await child.stop(0.1) == "lost"
    assert ends.still_running() == []


async def test_a_launcher_killed_between_two_runs_is_started_again() -> None:
    for _ in range(3):
        assert (await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)).ok
        killed = launcher()
        killed.kill()
        assert killed.wait(60) is not None or not killed.is_running()


async def test_a_launcher_that_is_just_being_killed_costs_no_run() -> None:
    for _ in range(10):
        assert (await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)).ok
        launcher().kill()
        assert (await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)).ok


async def test_guards_go_on_without_their_launcher(ends: Ends) -> None:
    child = await tree(ends)
    launcher().kill()
    assert await child.stop(0.2) == "killed"
    assert (await child.wait()).leftovers == 2
    assert ends.still_running() == []


async def test_a_program_that_has_lost_both_guard_and_launcher_does_not_go_on(ends: Ends) -> None:
    with contextlib.closing(Ends()) as away:
        child = await tree(ends, away=away)
        guard = guard_of(child)
        launcher().kill()
        guard.kill()
        assert (await child.wait()).stopped_by == "lost"
        assert ends.still_running() == []


async def test_what_survives_both_guard_and_launcher_is_found_by_its_run(ends: Ends) -> None:
    run_id = f"chaos-{uuid4()}"
    child = await tree(ends, run_id=run_id)
    guard = guard_of(child)
    launcher().kill()
    guard.kill()
    assert (await child.wait()).stopped_by == "lost"
    assert await end_leftovers(run_id, 0.2) == []
    assert ends.still_running() == []


async def test_a_launcher_that_cannot_work_here_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "launcher.py"
    monkeypatch.setattr(_launcher, "GUARD_SCRIPT", script)
    for code, reason in ((NO_SUBREAPER, "subreaper"), (1, "launcher")):
        script.write_text(f"raise SystemExit({code})")
        with pytest.raises(GuardUnavailable, match=reason):
            await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)


async def test_elsewhere_than_on_linux_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(GuardUnavailable, match="darwin"):
        await run(["/bin/true"], cwd=Path("/"), env={}, timeout_s=60)


def test_in_place_streams_environment_and_exit_code_pass_straight_through(tmp_path: Path) -> None:
    script = 'cat; pwd; echo "$WORD" >&2; exit 9'
    finished = subprocess.run(
        guarded_argv(["/bin/sh", "-c", script]),
        input=b"in\n",
        capture_output=True,
        cwd=tmp_path,
        env={"WORD": "word", "PATH": "/bin"},
        check=False,
    )
    assert finished.returncode == 9
    assert finished.stdout == f"in\n{tmp_path}\n".encode()
    assert finished.stderr == b"word\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["/bin/sh", "-c", "kill -KILL $$"], 137),
        (["no-such-program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_in_place_an_end_without_exit_code_gets_the_usual_one(argv: list[str], code: int) -> None:
    finished = subprocess.run(guarded_argv(argv), capture_output=True, check=False)
    assert finished.returncode == code
    assert bool(finished.stderr) == (code != 137)


def test_in_place_a_closed_output_is_seen_while_the_program_still_runs(ends: Ends) -> None:
    script = f"import os; {TREE.splitlines()[1]}; os.write(1, b'x %d\\n' % os.getpid()); os.close(1); signal.pause()"
    with started(guarded_argv([sys.executable, "-I", "-S", "-c", script]), ends, 1) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_in_place_the_tree_ends_with_the_guard(ends: Ends, number: signal.Signals) -> None:
    with started(guarded_argv(TREE_ARGV, grace_s=0.2), ends, 3) as process:
        process.send_signal(number)
        assert ends.still_running() == []
        assert process.wait() == (-9 if number == signal.SIGKILL else 128 + signal.SIGTERM)


def test_in_place_an_interrupt_goes_to_the_program(ends: Ends) -> None:
    with started(guarded_argv(TREE_ARGV, grace_s=0.2), ends, 3) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait() in {1, 128 + signal.SIGINT}
        assert ends.still_running() == []


def test_in_place_the_tree_ends_when_its_inner_guard_is_killed(ends: Ends) -> None:
    with started(guarded_argv(TREE_ARGV, grace_s=0.2), ends, 3) as process:
        (inner,) = psutil.Process(process.pid).children()
        inner.kill()
        assert ends.still_running() == []
        assert process.wait() == 137


def test_in_place_the_tree_ends_with_its_parent(ends: Ends) -> None:
    parent = (
        "import os, subprocess, sys; from system.processes import guarded_argv; "
        "subprocess.Popen(guarded_argv(sys.argv[1:], grace_s=0.2)).wait()"
    )
    with started([sys.executable, "-c", parent, *TREE_ARGV], ends, 3) as process:
        assert len(ends.held) >= 5
        process.kill()
        assert ends.still_running() == []


def test_in_place_nothing_is_left_when_the_parent_is_already_gone(ends: Ends) -> None:
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    argv = guarded_argv(["/bin/sleep", "1000"])
    argv[argv.index("--parent") + 1] = str(gone.pid)
    assert subprocess.run(argv, check=False).returncode == 128 + signal.SIGTERM
    assert ends.held == {}


def test_in_place_the_tree_ends_at_the_end_of_file_of_a_watched_pipe(ends: Ends) -> None:
    read, write = os.pipe()
    argv = guarded_argv(TREE_ARGV, grace_s=0.2)
    argv[argv.index("--") : argv.index("--")] = ["--watch", str(read)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=[read]) as process:
        os.close(read)
        assert process.stdout is not None
        ends.hold(process.pid, *[pid_of(process.stdout.readline()) for _ in range(3)])
        os.write(write, b"still here")
        assert process.poll() is None
        os.close(write)
        assert ends.still_running() == []
