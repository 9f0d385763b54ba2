"""Child processes as the worker uses them: real programs under the real guard."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from process_kit import TREE, no_launcher_is_left, python

from system.leftovers import end_leftovers, leftovers
from system.processes import (
    ALLOWED_ENV,
    Child,
    Finished,
    LineTooLong,
    SpawnFailed,
    StdinClosed,
    child_env,
    run,
    shutdown,
)

__all__ = ["no_launcher_is_left"]  # a fixture of each test here

ENV = {"PATH": "/usr/bin:/bin"}
STAY = "import signal; print('up', flush=True); signal.pause()"


async def sh(
    script: str,
    *args: str,
    cwd: Path = Path("/"),
    stdin: bytes = b"",
    timeout_s: float = 60,
    grace_s: float = 5,
    max_output: int = 10_000_000,
    on_output: Callable[[bytes], None] | None = None,
) -> Finished:
    return await run(
        ["/bin/sh", "-c", script, "sh", *args],
        cwd=cwd,
        env=ENV,
        stdin=stdin,
        timeout_s=timeout_s,
        grace_s=grace_s,
        max_output=max_output,
        on_output=on_output,
    )


def open_descriptors() -> list[str]:
    return sorted(str(each) for each in Path("/proc/self/fd").iterdir())


class Pids:
    """Collects the pids that TREE prints."""

    def __init__(self) -> None:
        self.output = b""
        self.complete = asyncio.Event()

    def __call__(self, chunk: bytes) -> None:
        self.output += chunk
        if self.output.count(b"\n") == 3:
            self.complete.set()

    def all(self) -> list[int]:
        return [int(line.split()[1]) for line in self.output.splitlines()]

    def alive(self) -> list[int]:
        return [pid for pid in self.all() if psutil.pid_exists(pid)]


async def test_exit_code_and_both_streams_are_reported() -> None:
    finished = await sh("echo out; echo err >&2; exit 3")
    assert (finished.exit_code, finished.signal, finished.stopped_by) == (3, None, "exited")
    assert (finished.stdout, finished.stderr) == (b"out\n", b"err\n")
    assert not finished.ok
    assert not finished.truncated
    assert (await sh("exit 0")).ok


async def test_the_signal_that_ended_a_child_is_reported() -> None:
    finished = await sh("kill -SEGV $$")
    assert (finished.exit_code, finished.signal, finished.stopped_by) == (None, signal.SIGSEGV, "exited")
    assert not finished.ok


@pytest.mark.parametrize("content", [b"", b"one\n", b"x" * 3_000_000])
async def test_stdin_is_passed_whole(content: bytes) -> None:
    assert (await sh("cat", stdin=content)).stdout == content


async def test_a_child_that_does_not_read_its_stdin_does_not_hang() -> None:
    assert (await sh("exit 0", stdin=b"x" * 3_000_000)).ok


async def test_the_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    finished = await run(
        ["/usr/bin/env", "-0"], cwd=Path("/"), env={"A": "ä\n=", "B": "\udcff"}, timeout_s=60
    )
    assert sorted(finished.stdout.split(b"\0")) == [b"", "A=ä\n=".encode(), b"B=\xff"]


async def test_what_goes_into_a_pipe_is_not_in_the_environment() -> None:
    code = (
        "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}), open('/proc/self/environ').read().count('secret'));"
        "print(os.read(int(os.environ['KEY_FD']), 99), os.read(int(os.environ['KEY_FD']), 99))"
    )
    env = {"KEY": "secret \udcff", "OTHER": "stays"}
    pipes = {"KEY": "KEY_FD", "UNSET": "UNSET_FD"}
    async with await Child.start(python(code), cwd=Path("/"), env=env, pipes=pipes) as child:
        assert [line async for line in child.lines()] == [b"['KEY_FD', 'OTHER'] 0", b"b'secret \\xff' b''"]


async def test_a_value_that_has_no_room_in_a_pipe_is_refused() -> None:
    env = {"KEY": "x" * 3_000_000}
    with pytest.raises(SpawnFailed) as refused:
        await Child.start(["/bin/true"], cwd=Path("/"), env=env, pipes={"KEY": "KEY_FD"})
    assert refused.value.code == "E_SPAWN"


async def test_a_child_has_its_own_session_default_signals_and_three_descriptors(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "print(os.getpid() == os.getsid(0), sorted(os.listdir('/proc/self/fd'))[:-1], os.getcwd())\n"
        "print(*[line for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))])"
    )
    shown = (
        (await run(python(code), cwd=tmp_path, env={}, timeout_s=60)).stdout.decode().split("\n", maxsplit=1)
    )
    assert shown[0] == f"True ['0', '1', '2'] {tmp_path}"
    blocked, ignored = (int(line.split()[1], 16) for line in shown[1].split("\n") if line.strip())
    interpreters_own = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert blocked == 0
    standard = (1 << 31) - 1  # 32 and 33 belong to the C library
    assert ignored & ~interpreters_own & standard == 0


async def test_sigpipe_ends_a_child_as_it_does_in_a_shell() -> None:
    assert (await sh("yes | head -n 1")).stdout == b"y\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [
        (["no-such-program"], "/", "E_PROGRAM_NOT_FOUND"),
        (["/no/such/program"], "/", "E_PROGRAM_NOT_FOUND"),
        (["/etc/passwd"], "/", "E_NOT_EXECUTABLE"),
        (["/bin"], "/", "E_NOT_EXECUTABLE"),
        (["/bin/true"], "/no/such/folder", "E_BAD_CWD"),
        (["/bin/true"], "/etc/passwd", "E_BAD_CWD"),
        (["/bin/echo", "a\0b"], "/", "E_BAD_ARGUMENT"),
        (["/bin/echo", "x" * 3_000_000], "/", "E_SPAWN"),
        ([], "/", "E_BAD_ARGUMENT"),
    ],
)
async def test_a_program_that_cannot_start_says_why(argv: list[str], cwd: str, code: str) -> None:
    with pytest.raises(SpawnFailed) as caught:
        await run(argv, cwd=Path(cwd), env=ENV, timeout_s=60)
    assert caught.value.code == code
    assert caught.value.argv0 == (argv[0] if argv else "")
    assert caught.value.reason
    # A machine that has no process now may have one later; all else stays as it is.
    assert caught.value.retryable == (code == "E_SPAWN")


async def test_a_program_is_never_looked_up_in_the_childs_own_directory(tmp_path: Path) -> None:
    trap = tmp_path / "git"
    trap.write_text("#!/bin/sh\necho trapped\n")
    trap.chmod(0o755)
    for path in (".", "", f":{tmp_path.name}"):
        with pytest.raises(SpawnFailed):
            await run(["git"], cwd=tmp_path, env={"PATH": path}, timeout_s=60)


async def test_a_timeout_ends_the_whole_tree_before_it_returns() -> None:
    pids = Pids()
    finished = await run(python(TREE), cwd=Path("/"), env={}, timeout_s=3, grace_s=0.2, on_output=pids)
    assert finished.timed_out
    assert finished.stopped_by == "killed"
    assert finished.signal == signal.SIGTERM
    assert finished.leftovers == 2
    assert not finished.ok
    assert len(pids.all()) == 3
    assert pids.alive() == []


async def test_a_child_that_obeys_sigterm_is_terminated_and_not_killed() -> None:
    finished = await run(["/bin/sleep", "1000"], cwd=Path("/"), env={}, timeout_s=0.1, grace_s=60)
    assert (finished.stopped_by, finished.timed_out) == ("terminated", True)
    assert (finished.signal, finished.leftovers) == (signal.SIGTERM, 0)


async def test_an_exit_code_0_on_sigterm_is_not_success() -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); " + STAY
    async with await Child.start(python(code), cwd=Path("/"), env={}) as child:
        assert await anext(child.lines()) == b"up"
        assert await child.stop(60) == "terminated"
        finished = await child.wait()
    assert finished.exit_code == 0
    assert not finished.ok


async def test_a_stopped_child_is_woken_up_to_be_terminated() -> None:
    async with await Child.start(["/bin/sleep", "1000"], cwd=Path("/"), env={}) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert await child.stop(60) == "terminated"


async def test_cancelling_the_task_ends_the_whole_tree_before_the_cancellation_goes_on() -> None:
    pids = Pids()
    task = asyncio.create_task(
        run(python(TREE), cwd=Path("/"), env={}, timeout_s=60, grace_s=0.2, on_output=pids)
    )
    await pids.complete.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pids.alive() == []


async def test_what_outlives_its_parent_is_ended_and_counted() -> None:
    finished = await sh("setsid sleep 1000 & setsid sh -c 'sleep 1000 & exit' & wait $!; echo done")
    assert finished.stdout == b"done\n"
    assert (finished.exit_code, finished.stopped_by, finished.leftovers) == (0, "exited", 2)
    assert finished.ok


async def test_output_over_the_limit_keeps_head_and_tail_and_says_what_was_cut() -> None:
    finished = await sh("echo begin; head -c 50000000 /dev/zero; echo end", max_output=1000)
    assert finished.ok
    assert finished.truncated
    cut = 50_000_000 + len("begin\nend\n") - 1000
    head, marker, tail = finished.stdout.split(b"\n[stepwise: ")[0], b"%d bytes cut]\n" % cut, finished.stdout
    assert (len(head), head[:6]) == (500, b"begin\n")
    assert marker in finished.stdout
    assert tail.endswith(b"\0end\n")
    assert len(finished.stdout.partition(marker)[2]) == 500


async def test_output_of_exactly_the_limit_is_whole() -> None:
    finished = await sh("printf 0123456789", max_output=10)
    assert (finished.stdout, finished.truncated) == (b"0123456789", False)


async def test_each_chunk_of_both_streams_is_shown_as_it_comes() -> None:
    seen: list[bytes] = []
    await sh("echo a; echo b >&2", on_output=seen.append)
    assert sorted(seen) == [b"a\n", b"b\n"]


async def test_a_callback_that_raises_ends_the_child_and_the_error_comes_out() -> None:
    class Refused(Exception):
        pass

    def refuse(chunk: bytes) -> None:
        raise Refused(chunk.decode())

    with pytest.raises(Refused) as caught:
        await sh("echo $$; exec sleep 1000", on_output=refuse)
    assert not psutil.pid_exists(int(str(caught.value)))


async def test_a_hundred_children_run_at_once() -> None:
    results = await asyncio.gather(*(sh('echo "$1"', str(number)) for number in range(100)))
    assert [int(each.stdout) for each in results] == list(range(100))


async def test_neither_descriptors_nor_processes_pile_up() -> None:
    async def both() -> None:
        await asyncio.gather(*(sh("echo x", stdin=b"y") for _ in range(10)))
        with pytest.raises(SpawnFailed):
            await run(["no-such-program"], cwd=Path("/"), env=ENV, timeout_s=60)
        child = await Child.start(python(STAY), cwd=Path("/"), env={})
        await child.stop(5)
        await asyncio.sleep(0)

    await shutdown()
    others = set(psutil.Process().children())
    await both()
    descriptors = open_descriptors()
    for _ in range(20):
        await both()
    assert open_descriptors() == descriptors
    (launcher,) = set(psutil.Process().children()) - others
    psutil.wait_procs(launcher.children(recursive=True), timeout=30)  # a guard reports, then ends
    assert launcher.children(recursive=True) == []
    await shutdown()
    assert set(psutil.Process().children()) == others


async def test_shutdown_ends_what_still_runs() -> None:
    await shutdown()
    others = psutil.Process().children()
    async with await Child.start(python(STAY), cwd=Path("/"), env={}) as child:
        waiting = asyncio.create_task(child.wait())
        await shutdown()
        assert (await waiting).stopped_by == "terminated"
        assert psutil.Process().children() == others


def test_child_env_lets_through_what_is_allowed_and_nothing_else() -> None:
    base = {"PATH": "/bin", "HOME": "/root", "GITHUB_TOKEN": "t", "LANG": "C"}
    assert child_env(base, extra={"HOME": "/private"}) == {"PATH": "/bin", "LANG": "C", "HOME": "/private"}
    assert child_env(base, {"LANG", "MISSING"}, {}) == {"LANG": "C"}
    assert child_env(base, ()) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "t"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("HARMLESS", "ghp_" + "a1B2" * 9),
        ("INDEX_URL", "https://me:hunter2secret@example.invalid/simple"),
    ],
)
def test_a_secret_never_passes_to_a_child_whoever_allows_it(name: str, value: str) -> None:
    assert child_env({name: value, "LANG": "C"}, {name, "LANG"}) == {"LANG": "C"}
    assert not {"HOME", "TMPDIR"} & ALLOWED_ENV


def test_child_env_starts_from_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("SECRET_TOKEN", "t")
    assert child_env()["TZ"] == "UTC"
    assert "SECRET_TOKEN" not in child_env()


async def test_a_streaming_child_answers_line_by_line() -> None:
    async with await Child.start(["/bin/cat"], cwd=Path("/"), env={}) as child:
        lines = child.lines()
        for line in (b"one", b"", b"x" * 200_000):
            await child.write(line + b"\n")
            assert await anext(lines) == line
        await child.write(b"no newline")
        child.close_stdin()
        assert [line async for line in lines] == [b"no newline"]
        finished = await child.wait()
    assert finished.ok
    assert finished.stdout == b""


@pytest.mark.parametrize("end", ["\\n", ""])
async def test_a_line_over_the_limit_is_an_error_with_a_sample(end: str) -> None:
    code = f"import sys; sys.stdout.write('short\\n' + 'y' * 3_000_000 + '{end}')"
    async with await Child.start(python(code), cwd=Path("/"), env={}, max_line=1_000_000) as child:
        lines = child.lines()
        assert await anext(lines) == b"short"
        with pytest.raises(LineTooLong) as caught:
            await anext(lines)
        assert caught.value.limit == 1_000_000
        assert caught.value.sample == b"y" * 500
        assert (await child.wait()).ok


async def test_only_the_tail_of_a_streaming_childs_stderr_is_kept() -> None:
    code = "import sys; sys.stderr.write('e' * 5_000_000 + 'last'); print('done')"
    async with await Child.start(python(code), cwd=Path("/"), env={}) as child:
        assert [line async for line in child.lines()] == [b"done"]
        finished = await child.wait()
    assert finished.truncated
    assert finished.stderr.endswith(b"eeelast")
    assert len(finished.stderr) < 66_000


async def test_waiting_drops_what_nobody_reads_so_that_the_child_can_end() -> None:
    async with await Child.start(
        ["/usr/bin/head", "-c", "5000000", "/dev/zero"], cwd=Path("/"), env={}
    ) as child:
        assert (await child.wait()).ok
        assert (await child.wait()).ok


async def test_an_interrupt_reaches_the_childs_process_group() -> None:
    code = (
        "import os, signal, sys\n"
        "def leave(*_):\n    os.write(1, b'interrupted\\n')\n    sys.exit(4)\n"
        "signal.signal(signal.SIGINT, leave)\n"
    ) + STAY
    async with await Child.start(python(code), cwd=Path("/"), env={}) as child:
        lines = child.lines()
        assert await anext(lines) == b"up"
        child.interrupt()
        assert await anext(lines) == b"interrupted"
        finished = await child.wait()
        assert (finished.exit_code, finished.stopped_by) == (4, "exited")
        child.interrupt()


async def test_stop_says_what_it_took() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAY
    for code, grace_s, expected in ((STAY, 60.0, "terminated"), (deaf, 0.1, "killed")):
        child = await Child.start(python(code), cwd=Path("/"), env={})
        assert await anext(child.lines()) == b"up"
        assert await child.stop(grace_s) == expected
        assert await child.stop(grace_s) == expected
    child = await Child.start(["/bin/true"], cwd=Path("/"), env={})
    await child.wait()
    assert await child.stop(0) == "exited"


async def test_writing_to_a_child_that_has_ended_is_a_typed_error() -> None:
    async with await Child.start(["/bin/true"], cwd=Path("/"), env={}) as child:
        await child.wait()
        with pytest.raises(StdinClosed):
            await child.write(b"x")


async def test_leftovers_are_found_by_their_run_and_ended_with_their_descendants() -> None:
    run_id = f"run-{uuid4()}"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAY
    hidden = f"import os, signal; os.fork() or os.execve({sys.executable!r}, {python(deaf)!r}, {{}}); signal.pause()"
    async with (
        await Child.start(python(hidden), cwd=Path("/"), env={"STEPWISE_RUN": run_id}) as mine,
        await Child.start(python(STAY), cwd=Path("/"), env={"STEPWISE_RUN": f"{run_id}2"}) as other,
    ):
        assert await anext(mine.lines()) == b"up"
        assert await anext(other.lines()) == b"up"
        assert mine.pid in leftovers(run_id)
        assert len(leftovers(run_id)) == 2
        assert await end_leftovers(run_id, 0.1) == []
        assert leftovers(run_id) == []
        assert leftovers(f"{run_id}2") == [other.pid]
        assert (await mine.wait()).signal == signal.SIGTERM


async def test_this_process_and_its_ancestors_are_never_leftovers() -> None:
    run_id = f"run-{uuid4()}"
    code = f"from system.leftovers import leftovers; print(leftovers({run_id!r}))"
    root = Path(__file__).parents[2]
    finished = await run(
        ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", code],
        cwd=root,
        env={"STEPWISE_RUN": run_id},
        timeout_s=60,
    )
    assert (finished.stdout, finished.exit_code) == (b"[]\n", 0), finished.stderr
