"""``stepwise replay`` of files and folders: one whole, many in lines, and a debugger in workflow code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory

from cli.main import run
from cli.replay import load_history, replay_history

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "histories" / "data"
HISTORIES = DATA / "histories"
BROKEN = DATA / "broken.json"
FAILED = "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"

Events = list[dict[str, Any]]
Shown = Callable[..., tuple[int, str, str]]


pytestmark = pytest.mark.usefixtures("own_place")


@pytest.fixture
def replayed(capsys: pytest.CaptureFixture[str]) -> Shown:
    def _replayed(*arguments: object) -> tuple[int, str, str]:
        code = run(["replay", *(str(argument) for argument in arguments)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return _replayed


def events_of(name: str) -> Events:
    events: Events = json.loads((HISTORIES / f"{name}.json").read_text(encoding="utf-8"))["events"]
    return events


def written(path: Path, events: Events) -> Path:
    path.write_text(json.dumps({"events": events}), encoding="utf-8")
    return path


def terminated(events: Events) -> Events:
    end = {
        "eventId": str(len(events) + 1),
        "eventTime": events[-1]["eventTime"],
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED",
        "workflowExecutionTerminatedEventAttributes": {"reason": "enough", "identity": "ada"},
    }
    return [*events, end]


# Several histories.


def test_a_folder_is_replayed_with_a_line_for_each_history_and_a_summary(replayed: Shown) -> None:
    code, out, err = replayed(HISTORIES)

    assert (code, err) == (0, "")
    *lines, empty, summary = out.splitlines()
    names = sorted(path.name for path in HISTORIES.iterdir())
    assert [line.partition(":")[0] for line in lines] == [f"ok        {HISTORIES / name}" for name in names]
    assert re.fullmatch(r"ok .*: \d+ events, \d+ decisions?, (completed|failed)", lines[0])
    assert (empty, summary) == ("", f"replay: {len(names)} histories: {len(names)} ok")


def test_of_several_files_the_worst_counts_and_each_is_named(replayed: Shown, tmp_path: Path) -> None:
    notes = tmp_path / "notes.json"
    notes.write_text("[]")

    code, out, _ = replayed(HISTORIES / "fix-success.json", BROKEN, notes)

    assert code == 1
    ok, diverged, bad, _, summary = out.splitlines()
    assert ok.startswith("ok ")
    assert re.match(
        rf"diverged  {re.escape(str(BROKEN))}: event \d+, expected ACTIVITY_TASK_SCHEDULED", diverged
    )
    assert bad.startswith(f"bad       {notes} is no workflow history")
    assert summary == "replay: 3 histories: 1 ok, 1 diverged, 1 bad"


def test_a_bad_file_among_good_ones_is_exit_code_2(replayed: Shown, tmp_path: Path) -> None:
    code, out, _ = replayed(HISTORIES / "fix-success.json", tmp_path / "absent.json")

    assert code == 2
    assert "No such file" in out


def test_a_folder_without_histories_is_refused(replayed: Shown, tmp_path: Path) -> None:
    code, out, _ = replayed(tmp_path)

    assert code == 2
    assert f"bad       {tmp_path} holds no .json file" in out


def test_many_as_json_are_a_list_with_a_summary(replayed: Shown) -> None:
    code, out, _ = replayed(HISTORIES / "fix-success.json", BROKEN, "--json")

    data = json.loads(out)
    assert code == 1
    assert data["summary"] == {"ok": 1, "diverged": 1}
    good, broken = data["histories"]
    assert (good["verdict"], good["workflow_id"], good["closed"]) == ("ok", "fix-success", "completed")
    assert broken["divergence"]["event"] > 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "nothing to replay is named"),
        (["a.json", "--run-id", "x"], "--run-id goes with one workflow id"),
        (["one", "two", "--run-id", "x"], "--run-id goes with one workflow id"),
        (["one", "--from-server", ""], "--from-server stands alone"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    arguments: list[str], expected: str, replayed: Shown
) -> None:
    code, out, err = replayed(*arguments)

    assert (code, out) == (2, "")
    assert expected in err


def test_a_mistyped_file_without_a_server_is_said_to_be_neither(
    replayed: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")

    code, _, err = replayed("histroy")

    assert code == 2
    assert "there is no file histroy, and as for a workflow of this id, no Temporal server answers" in err


# Histories without an end.


async def test_every_beginning_of_a_history_replays_as_far_as_it_goes() -> None:
    whole = load_history(HISTORIES / "fix-loop.json")
    made = [0]
    for length in range(1, len(whole.events) + 1):
        report = await replay_history(WorkflowHistory(whole.workflow_id, whole.events[:length]))
        assert report.failure is None, length
        assert report.closed == ("completed" if length == len(whole.events) else None)
        made.append(len(report.decisions))
    assert made == sorted(made)
    assert made[-1] == 4


def test_a_run_that_goes_on_says_so(replayed: Shown, tmp_path: Path) -> None:
    path = written(tmp_path / "history.json", events_of("fix-loop")[:-1])

    code, out, _ = replayed(path)

    assert code == 0
    assert out.splitlines()[0].endswith("4 routing decisions, still running")


def test_a_terminated_run_is_replayed_up_to_its_end(replayed: Shown, tmp_path: Path) -> None:
    events = events_of("fix-loop")
    half = next(
        number
        for number, event in enumerate(events)
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityId") == "implement.work.2.1"
    )
    path = written(tmp_path / "history.json", terminated(events[: half + 1]))

    code, out, _ = replayed(path)

    assert code == 0
    assert out.splitlines()[0].endswith("1 routing decision, terminated")
    assert out.endswith("replay: ok\n")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_run_that_ended_before_its_first_task_was_done_has_nothing_to_replay(
    length: int, replayed: Shown, tmp_path: Path
) -> None:
    begun = events_of("fix-success")[:length]
    path = written(tmp_path / "ended.json", terminated(begun))
    only = written(tmp_path / "begun.json", begun)

    code, out, _ = replayed(path, only)

    assert code == 0
    assert out.count(" 0 decisions") == 2


# The debugger.

PHRASE = "facts = compose(step, carry)"


@pytest.fixture
def halted(tmp_path: Path) -> Path:
    """A folder with workflow code in which somebody has put a breakpoint."""
    shutil.copytree(ROOT / "workflows", tmp_path / "workflows")
    visit = tmp_path / "workflows" / "visit.py"
    text = visit.read_text(encoding="utf-8")
    assert text.count(PHRASE) == 1
    visit.write_text(text.replace(PHRASE, f"breakpoint()\n        {PHRASE}"), encoding="utf-8")
    return tmp_path


def debugged(place: Path, said: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, *(["-m", "pdb"] if "-c" in arguments else [])]
    return subprocess.run(
        [*program, *(str(argument) for argument in arguments)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_page_shows_the_lines_that_the_debugger_stops_at() -> None:
    page = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
    stops = re.findall(r"^> …/(\S+?)\((\d+|…)\)\w+\(\)\n-> (.+)$", page, re.MULTILINE)
    assert stops
    for name, number, shown in stops:
        lines = [line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
        assert shown in ([lines[int(number) - 1]] if number != "…" else lines)
    for name, number in re.findall(r"^\(Pdb\) b (\S+):(\d+)$", page, re.MULTILINE):
        assert (name, number) in [stop[:2] for stop in stops]


def test_a_breakpoint_in_workflow_code_stops_a_replay_with_debug(halted: Path) -> None:
    history = HISTORIES / "fix-loop.json"
    said = "p step.id, self._visit\nn\np facts.status\nc\np step.id, self._visit\nq\n"

    done = debugged(halted, said, "-m", "cli.main", "replay", history, "--debug")

    assert done.returncode == 0, done.stderr
    assert "visit.py" in done.stdout
    assert "-> facts = compose(step, carry)" in done.stdout
    assert "('implement', 1)" in done.stdout
    assert "'UNVERIFIED'" in done.stdout
    assert "('implement', 2)" in done.stdout
    assert done.stdout.endswith("replay: ok\n")


def test_ctrl_c_leaves_the_debugger(halted: Path) -> None:
    argv = [sys.executable, "-m", "cli.main", "replay", str(HISTORIES / "fix-loop.json"), "--debug"]
    with subprocess.Popen(
        argv,
        cwd=halted,
        env={**os.environ, "PYTHONPATH": f"{halted}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # It has come back to the prompt once, which is where the debugger puts signal handlers back.
        process.stdin.write("c\np 'again'\n")
        process.stdin.flush()
        shown = ""
        while "'again'\n(Pdb) " not in shown:
            character = process.stdout.read(1)
            assert character, shown
            shown += character
        for _ in range(100):
            # One that comes just before the read of the next line is not seen before that line.
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.3)
                break
        assert process.returncode == -signal.SIGINT


def test_without_debug_the_breakpoint_is_refused_and_named(halted: Path) -> None:
    done = debugged(halted, "", "-m", "cli.main", "replay", HISTORIES / "fix-loop.json")

    assert done.returncode == 3
    assert "The workflow's code failed: breakpoint() inside workflow code requires debug_mode" in done.stdout


def test_a_debugger_from_outside_stops_at_a_line_of_workflow_code(tmp_path: Path) -> None:
    lines = (ROOT / "workflows" / "visit.py").read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if PHRASE in line) + 1
    said = "p step.id, facts.status\nclear 1\nc\nq\n"

    done = debugged(
        tmp_path, said, "-c", f"b workflows/visit.py:{number}", "-c", "c",
        "-m", "cli.main", "replay", HISTORIES / "fix-loop.json", "--debug",
    )  # fmt: skip

    assert "('implement', 'UNVERIFIED')" in done.stdout
    assert "replay: ok" in done.stdout


def test_a_divergence_under_debug_is_said_without_looking_for_its_event(replayed: Shown) -> None:
    code, out, _ = replayed(BROKEN, "--debug")

    assert code == 1
    assert "is looked for without --debug" in out
    assert re.search(r"^   got       Activity type of scheduled event", out, re.MULTILINE)


async def test_replays_beside_each_other_each_hear_their_own_decisions_and_leave_the_log_as_it_was() -> None:
    log = logging.getLogger("stepwise.workflows")
    before = (log.level, log.propagate)
    histories = [load_history(HISTORIES / f"{name}.json") for name in ("fix-success", "direct-success")]
    alone = [[one.decision for one in (await replay_history(history)).heard] for history in histories]
    beside = await asyncio.gather(*(replay_history(history) for history in histories))
    assert [[one.decision for one in report.heard] for report in beside] == alone
    assert all(alone)
    assert (log.level, log.propagate) == before
