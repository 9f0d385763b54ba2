"""What the stub does with a scenario: real edits and commands, turns that end early, sessions that go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from pipes import hear

import pytest
import pytest_asyncio
from stub_kit import EDIT, PYTHON, Script, Stage, code_of, staged

from schemas.flow import FlowSpec
from schemas.handoff import HandoffDraft
from schemas.routing import RoutingSignal
from system import processes
from system.leftovers import leftovers
from transports.port import TransportError, WorkOutcome, WorkRequest
from transports.stub_progress import session_id_of

ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as made:
        yield made


async def test_edits_are_really_made(stage: Stage) -> None:
    outcome = await stage.play(
        EDIT,
        {"do": "edit", "path": "a.txt", "append": "two one\n"},
        {"do": "edit", "path": "a.txt", "replace": "one", "with": "1"},
        {"do": "edit", "path": "deep/b.txt", "content": "b"},
        {"do": "edit", "path": "c.txt", "content": "c"},
        {"do": "edit", "path": "c.txt", "delete": True},
    )
    assert outcome == WorkOutcome(end="completed")
    assert stage.file("a.txt") == "1\ntwo one\n"
    assert stage.file("deep/b.txt") == "b"
    assert not (stage.workspace / "c.txt").exists()
    assert all(call.success and call.source == "stub" and not call.blocked for call in stage.calls())
    assert len({call.call_id for call in stage.calls()}) == 6


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        ({"path": "../out.txt", "content": "x"}, "E_PATH_OUTSIDE"),
        ({"path": "/etc/stepwise-test", "content": "x"}, "E_PATH_ABSOLUTE"),
        ({"path": ".git/hooks/pre-commit", "content": "x"}, "E_PATH_PROTECTED"),
        ({"path": "link/out.txt", "content": "x"}, "E_PATH_SYMLINK"),
    ],
)
async def test_an_edit_outside_of_the_workspace_is_blocked(stage: Stage, edit: Script, code: str) -> None:
    (stage.workspace / "link").symlink_to(stage.folder)
    assert (await stage.play({"do": "edit", **edit})).end == "completed"
    (call,) = stage.calls()
    assert call.blocked
    assert not call.success
    assert str(call.blocked_reason).startswith(f"{code}: ")
    assert sorted(path.name for path in stage.folder.iterdir()) == ["private", "scenario.json", "workspace"]
    assert [path.name for path in stage.workspace.iterdir()] == ["link"]


@pytest.mark.parametrize(
    "edit",
    [
        {"path": "a.txt", "replace": "nowhere", "with": "x"},
        {"path": "a.txt", "replace": "one"},
        {"path": "a.txt", "content": "x", "append": "y"},
        {"path": "a.txt"},
        {"path": "missing.txt", "replace": "x", "with": "y"},
        {"path": "missing.txt", "delete": True},
        {"path": "a.txt/below", "content": "x"},
    ],
)
async def test_an_edit_that_does_not_fit_is_a_failed_call_and_changes_nothing(
    stage: Stage, edit: Script
) -> None:
    assert (await stage.play(EDIT, {"do": "edit", **edit}, {"do": "say", "text": "on"})).end == "completed"
    first, second = stage.calls()
    assert first.success
    assert not second.success
    assert not second.blocked
    assert second.output
    assert stage.file("a.txt") == "one\n"
    assert stage.texts() == ["on"]


async def test_commands_run_in_the_workspace_with_the_given_environment_and_a_private_home(
    stage: Stage,
) -> None:
    show = "import os; print(os.getcwd(), os.environ['COLOUR'], os.environ['HOME'], os.environ['TMPDIR'])"
    await stage.play({"do": "run", "argv": [*PYTHON, show]})
    (call,) = stage.calls()
    private = stage.folder / "private" / "attempt-1"
    assert call.success
    assert call.output == f"{stage.workspace} blue {private}/home {private}/tmp\n"


@pytest.mark.parametrize(
    ("argv", "seconds", "says"),
    [
        ([*PYTHON, "import sys; print('no'); sys.exit(3)"], None, "exit code 3\nno\n"),
        ([*PYTHON, "import os; os.kill(os.getpid(), 9)"], None, "signal 9\n"),
        ([*PYTHON, "import os; os.kill(os.getppid(), 9)"], None, "its guard was killed\n"),
        (["/nowhere/program"], None, "cannot start /nowhere/program"),
        ([*PYTHON, "import signal; signal.pause()"], 0.2, "ended after 0.2 seconds"),
    ],
)
async def test_a_command_that_fails_is_a_failed_call_and_the_turn_goes_on(
    stage: Stage, argv: list[str], seconds: float | None, says: str
) -> None:
    run = {"do": "run", "argv": argv, "timeout": seconds}
    assert (await stage.play(run, EDIT)).end == "completed"
    assert not stage.calls()[0].success
    assert says in str(stage.calls()[0].output)
    assert stage.file("a.txt") == "one\n"


async def test_a_read_only_session_blocks_every_edit_and_command(stage: Stage) -> None:
    touch = {"do": "run", "argv": [*PYTHON, "open('b.txt', 'w')"]}
    assert (await stage.play(EDIT, touch, read_only=True)).end == "completed"
    assert [call.blocked_reason is not None and call.blocked for call in stage.calls()] == [True, True]
    assert all(str(call.blocked_reason).startswith("read_only: ") for call in stage.calls())
    assert list(stage.workspace.iterdir()) == []


async def test_many_calls_are_reported_one_by_one_with_their_output_cut(stage: Stage) -> None:
    await stage.play({"do": "calls", "count": 450, "bytes": 5000, "name": "search"})
    assert len(stage.calls()) == len({call.call_id for call in stage.calls()}) == 450
    assert {call.tool_name for call in stage.calls()} == {"search"}
    assert str(stage.calls()[0].output).endswith("[5000 characters in all]")


async def test_tokens_end_the_turn_before_the_next_action_once_the_budget_is_used_up(stage: Stage) -> None:
    tokens = {"do": "tokens", "prompt": 60, "completion": 40, "cost_usd": 0.25}
    session = await stage.open(stage.spec({"work": [tokens, tokens, EDIT]}))
    first = await session.work(WorkRequest("go", max_tokens=150), stage.emit)
    assert (first.end, first.stop_reason) == ("budget", "tokens")
    usages = [event.usage for event in stage.events if event.kind == "usage"]
    assert [(usage.total, usage.cost_usd) for usage in usages] == [(100, 0.25), (100, 0.25)]
    assert not (stage.workspace / "a.txt").exists()
    assert (await session.work(WorkRequest("go on", max_tokens=150), stage.emit)).end == "completed"
    assert stage.file("a.txt") == "one\n"


async def test_a_budget_that_is_used_up_by_the_last_action_ends_nothing(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [{"do": "tokens", "prompt": 100}]}))
    assert (await session.work(WorkRequest("go", max_tokens=100), stage.emit)).end == "completed"


async def test_seconds_end_the_turn_before_the_next_action(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT]}))
    outcome = await session.work(WorkRequest("go", max_seconds=0), stage.emit)
    assert (outcome.end, outcome.stop_reason) == ("budget", "seconds")
    assert stage.calls() == []


async def test_a_rate_limit_ends_the_turn_once_and_the_session_goes_on_behind_it(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [{"do": "rate_limit", "seconds": 30}, EDIT]}))
    outcome = await session.work(WorkRequest("go"), stage.emit)
    (limited,) = [event for event in stage.events if event.kind == "rate_limited"]
    assert outcome.end == "rate_limited"
    assert outcome.retry_at is not None
    assert outcome.retry_at == limited.reset_at
    assert (await session.work(WorkRequest("go"), stage.emit)).end == "completed"


async def test_a_failure_has_the_code_and_words_of_the_scenario(stage: Stage) -> None:
    fail = {"do": "fail", "code": "out_of_luck", "message": "sorry", "retryable": False}
    outcome = await stage.play(fail, EDIT)
    assert outcome.error is not None
    assert (outcome.end, code_of(outcome), outcome.error.retryable) == ("failed", "out_of_luck", False)
    assert not (stage.workspace / "a.txt").exists()
    assert [event.kind for event in stage.events][-2:] == ["error", "turn_ended"]


async def test_a_crashed_child_fails_the_turn_and_is_not_crashed_again(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [{"do": "crash_child"}, EDIT]}))
    outcome = await session.work(WorkRequest("go"), stage.emit)
    assert outcome.error is not None
    assert (code_of(outcome), outcome.error.retryable) == ("agent_crashed", True)
    assert (await session.work(WorkRequest("go"), stage.emit)).end == "completed"


async def test_a_worker_is_not_killed_where_that_is_not_allowed(stage: Stage) -> None:
    outcome = await stage.play({"do": "crash_worker"})
    assert code_of(outcome) == "not_allowed"


WORKER = """
import asyncio, pickle, sys
from transports.port import WorkRequest
from transports.stub import StubTransport

async def main():
    spec = pickle.load(sys.stdin.buffer)
    session = await StubTransport(may_crash_worker=True).open_session(spec, lambda event: None)
    await session.work(WorkRequest("go"), lambda event: None)

asyncio.run(main())
"""


async def test_a_session_outlives_the_kill_of_its_worker_and_goes_on_behind_it(stage: Stage) -> None:
    import pickle

    second = {"do": "edit", "path": "b.txt", "content": "two\n"}
    turn = {"work": [{"do": "edit", "path": "a.txt", "append": "one\n"}, {"do": "crash_worker"}, second]}
    spec = stage.spec(turn)
    killed = await processes.run(
        [sys.executable, "-c", WORKER],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=pickle.dumps(spec),
        timeout_s=60,
    )
    assert killed.signal == signal.SIGKILL, killed.stderr
    assert not (stage.workspace / "b.txt").exists()
    left = session_id_of(spec.run_id, spec.place)
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=left))
    assert (await resumed.work(WorkRequest("go on"), stage.emit)).end == "completed"
    assert stage.file("a.txt") == "one\n"
    assert stage.file("b.txt") == "two\n"


async def test_a_file_that_is_waited_for_holds_the_turn_open(stage: Stage) -> None:
    flag = stage.folder / "flag"
    turn = {"work": [EDIT, {"do": "wait_for_file", "path": str(flag)}, {"do": "say", "text": "on"}]}
    session = await stage.open(stage.spec(turn))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_ended")
    assert stage.texts() == []
    flag.touch()
    assert (await work).end == "completed"
    assert stage.texts() == ["on"]


async def test_an_interrupt_ends_a_command_and_a_resumed_session_runs_it_again(stage: Stage) -> None:
    up = stage.signal_file()
    wait = f"import os, signal; open('ran.txt', 'a').write('x'); os.path.exists('go') or (open({str(up)!r}, 'w').close(), signal.pause())"
    run = {"do": "run", "argv": [*PYTHON, wait]}
    turn = {"work": [{"do": "edit", "path": "a.txt", "append": "one\n"}, run, {"do": "say", "text": "on"}]}
    session = await stage.open(stage.spec(turn))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await hear(up)
    report = await session.interrupt(30)
    assert report.method == "cooperative"
    assert code_of(await work) == "interrupted"
    assert [call.success for call in stage.calls()] == [True, False]
    assert leftovers(stage.folder.name) == []
    await session.aclose()
    (stage.workspace / "go").touch()
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=session.session_id))
    assert (await resumed.work(WorkRequest("go on"), stage.emit)).end == "completed"
    assert stage.file("ran.txt") == "xx"
    assert stage.file("a.txt") == "one\n"


async def test_an_interrupt_without_a_turn_has_no_effect_on_the_next_one(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT]}))
    assert (await session.interrupt(0)).method == "cooperative"
    assert (await session.work(WorkRequest("go"), stage.emit)).end == "completed"


async def test_a_hang_that_was_killed_is_not_hung_on_again(stage: Stage) -> None:
    turn = {"work": [{"do": "hang"}, EDIT]}
    session = await stage.open(stage.spec(turn))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_started")
    assert (await session.interrupt(0.05)).method == "killed"
    assert code_of(await work) == "interrupted"
    resumed = await stage.open(stage.spec(turn, attempt=2, resume=session.session_id))
    assert (await resumed.work(WorkRequest("go on"), stage.emit)).end == "completed"


async def test_a_hang_that_somebody_else_kills_is_a_crash(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [{"do": "hang"}, EDIT]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_started")
    for pid in leftovers(stage.folder.name):
        os.kill(pid, signal.SIGKILL)
    assert code_of(await work) == "agent_crashed"
    assert (await session.work(WorkRequest("go on"), stage.emit)).end == "completed"
    assert stage.file("a.txt") == "one\n"


async def test_a_turn_that_is_cancelled_twice_still_ends_its_command(stage: Stage) -> None:
    up = stage.signal_file()
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(up)!r}, 'w').close(); signal.pause()"
    session = await stage.open(stage.spec({"work": [{"do": "run", "argv": [*PYTHON, stubborn]}]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await hear(up)
    work.cancel()
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert leftovers(stage.folder.name) == []


async def test_only_one_turn_runs_at_a_time(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT, {"do": "stall", "seconds": 3600}]}))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_ended")
    assert code_of(await session.work(WorkRequest("me too"), stage.emit)) == "session_busy"
    assert await session.steer("mind the gap")
    await session.aclose()
    assert code_of(await work) == "interrupted"
    assert code_of(await session.work(WorkRequest("more"), stage.emit)) == "session_closed"


async def test_a_resumed_turn_is_played_from_its_start_and_its_phases_follow(stage: Stage) -> None:
    first = {"work": [EDIT, {"do": "stall", "seconds": 3600}]}
    again = {
        "work": [{"do": "edit", "path": "b.txt", "append": "two\n"}],
        "finalize": {"value": {"status": "VERIFIED"}},
    }
    session = await stage.open(stage.spec(first, resumed=again))
    work = asyncio.create_task(session.work(WorkRequest("go"), stage.emit))
    await stage.heard("tool_ended")
    await session.interrupt(30)
    await work
    for _ in range(2):  # the second opening is the same attempt's: nothing is left to do
        spec = stage.spec(first, resumed=again, attempt=2, resume=session.session_id)
        resumed = await stage.open(spec)
        assert resumed.mode == "resumed"
        assert (await resumed.work(WorkRequest("go on"), stage.emit)).end == "completed"
    assert stage.file("b.txt") == "two\n"
    result = await resumed.structured("?", HandoffDraft, stage.emit, timeout_s=60)
    assert result.value is not None
    assert result.value["status"] == "VERIFIED"


async def test_a_session_opened_again_by_its_own_attempt_is_no_resumed_attempt(stage: Stage) -> None:
    turn = {"work": [EDIT], "finalize": {"value": {"summary": "as planned"}}}
    session = await stage.open(stage.spec(turn, resumed={}))
    await session.work(WorkRequest("go"), stage.emit)
    again = await stage.open(stage.spec(turn, resumed={}, resume=session.session_id))
    result = await again.structured("?", HandoffDraft, stage.emit, timeout_s=60)
    assert result.value is not None
    assert result.value["summary"] == "as planned"


@pytest.mark.parametrize("resume", ["stub-000000000000000000000000", "../scenario", "", "stub-x"])
async def test_an_unknown_session_is_refused(stage: Stage, resume: str) -> None:
    with pytest.raises(TransportError) as raised:
        await stage.open(stage.spec({}, resume=resume))
    assert raised.value.resume_refused
    assert raised.value.error.code == "unknown_session"


async def test_a_torn_line_takes_nothing_from_the_session_file(stage: Stage) -> None:
    add = {"do": "edit", "path": "a.txt", "append": "x"}
    turn = {"work": [add, {"do": "rate_limit", "seconds": 1}, add, {"do": "rate_limit", "seconds": 1}, add]}
    session = await stage.open(stage.spec(turn))
    await session.work(WorkRequest("go"), stage.emit)
    file = stage.folder / "private" / "sessions" / "stub.jsonl"
    for attempt in (2, 3):
        torn = file.read_bytes().splitlines()[-1][:-3]
        with file.open("ab") as end:
            end.write(b"\n" + torn)
        resumed = await stage.open(stage.spec(turn, attempt=attempt, resume=session.session_id))
        await resumed.work(WorkRequest("go on"), stage.emit)
        assert stage.file("a.txt") == "x" * attempt


async def test_sessions_of_a_run_keep_their_progress_apart(stage: Stage) -> None:
    turn = {"work": [{"do": "rate_limit", "seconds": 1}, EDIT]}
    first = await stage.open(stage.spec(turn))
    second = await stage.open(stage.spec(turn, attempt=2))
    await first.work(WorkRequest("go"), stage.emit)
    again = await stage.open(stage.spec(turn, attempt=3, resume=second.session_id))
    assert (await again.work(WorkRequest("go"), stage.emit)).end == "rate_limited"
    again = await stage.open(stage.spec(turn, attempt=3, resume=first.session_id))
    assert (await again.work(WorkRequest("go"), stage.emit)).end == "completed"


async def test_a_session_that_is_begun_anew_forgets_what_the_attempt_did_before(stage: Stage) -> None:
    turn = {"work": [{"do": "edit", "path": "a.txt", "append": "x"}]}
    for _ in range(2):
        await (await stage.open(stage.spec(turn))).work(WorkRequest("go"), stage.emit)
    assert stage.file("a.txt") == "xx"


async def test_by_default_the_stub_claims_nothing_and_says_what_it_did(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT, {"do": "say", "text": "done"}]}))
    await session.work(WorkRequest("go"), stage.emit)
    draft = await session.structured("?", HandoffDraft, stage.emit, timeout_s=60)
    assert session.mode == "hot"
    assert draft.value is not None
    assert (draft.value["status"], draft.value["summary"]) == ("UNVERIFIED", "stub did 2 actions")
    signal_ = await session.structured("?", RoutingSignal, stage.emit, timeout_s=60)
    assert signal_.value is not None
    assert (signal_.value["decision"], signal_.value["next_step_id"]) == ("advance", None)


async def test_fields_of_the_scenario_override_the_default_and_are_validated(stage: Stage) -> None:
    turn = {
        "finalize": {"value": {"status": "DONE"}},
        "route": {"value": {"decision": "branch", "route": "left"}},
    }
    session = await stage.open(stage.spec(turn))
    bad = await session.structured("?", HandoffDraft, stage.emit, timeout_s=60)
    assert bad.error is not None
    assert (bad.error.code, bad.reprompts) == ("structured_output_invalid", 3)
    good = await session.structured("?", RoutingSignal, stage.emit, timeout_s=60)
    assert good.value is not None
    assert (good.value["decision"], good.value["route"]) == ("branch", "left")


async def test_raw_answers_are_given_one_per_try_before_the_good_one(stage: Stage) -> None:
    session = await stage.open(stage.spec({"finalize": {"raw": ["no", "```json\n{}\n```"]}}))
    result = await session.structured("?", HandoffDraft, stage.emit, timeout_s=60)
    assert result.reprompts == 2
    assert result.value is not None
    assert result.value["status"] == "UNVERIFIED"


async def test_actions_before_an_answer_change_the_workspace_once(stage: Stage) -> None:
    finalize = {"actions": [{"do": "edit", "path": "late.txt", "append": "x"}], "raw": ["no"]}
    session = await stage.open(stage.spec({"finalize": finalize}))
    assert (await session.structured("?", HandoffDraft, stage.emit, timeout_s=60)).error is None
    assert (await session.structured("?", HandoffDraft, stage.emit, timeout_s=60)).error is None
    assert stage.file("late.txt") == "x"


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ({"do": "fail", "code": "out_of_luck"}, "out_of_luck"),
        ({"do": "rate_limit", "seconds": 3}, "rate_limited"),
        ({"do": "ask", "question": "Which?"}, "question"),
        ({"do": "stall", "seconds": 3600}, "structured_timeout"),
        ({"do": "hang"}, "structured_timeout"),
    ],
)
async def test_a_structured_turn_that_is_lost_is_an_error(stage: Stage, action: Script, code: str) -> None:
    session = await stage.open(stage.spec({"finalize": {"actions": [action]}}))
    result = await session.structured("?", HandoffDraft, stage.emit, timeout_s=0.3)
    assert result.value is None
    assert result.error is not None
    assert result.error.code == code
    assert leftovers(stage.folder.name) == []


async def test_a_rate_limit_of_a_structured_turn_says_until_when_and_the_next_one_has_an_answer(
    stage: Stage,
) -> None:
    limit = {"do": "rate_limit", "seconds": 30}
    session = await stage.open(stage.spec({"finalize": {"actions": [limit]}}))
    limited = await session.structured("?", HandoffDraft, stage.emit, timeout_s=600)
    (told,) = [event for event in stage.events if event.kind == "rate_limited"]
    assert (limited.value, limited.rate_limited) == (None, True)
    assert limited.retry_at is not None
    assert limited.retry_at == told.reset_at
    again = await session.structured("?", HandoffDraft, stage.emit, timeout_s=600)
    assert again.value is not None
    assert not again.rate_limited


async def test_a_structured_turn_can_be_interrupted(stage: Stage) -> None:
    actions = [EDIT, {"do": "stall", "seconds": 3600}]
    session = await stage.open(stage.spec({"finalize": {"actions": actions}}))
    asking = asyncio.create_task(session.structured("?", HandoffDraft, stage.emit, timeout_s=600))
    await stage.heard("tool_ended")
    assert (await session.interrupt(30)).method == "cooperative"
    result = await asking
    assert result.error is not None
    assert result.error.code == "interrupted"


async def test_a_schema_the_stub_does_not_know_is_an_error(stage: Stage) -> None:
    session = await stage.open(stage.spec({}))
    result = await session.structured("?", FlowSpec, stage.emit, timeout_s=60)
    assert result.error is not None
    assert result.error.code == "unsupported_schema"


async def test_a_workspace_that_is_gone_is_a_failed_call_and_no_exception(stage: Stage) -> None:
    stage.workspace.rmdir()
    assert (await stage.play(EDIT, {"do": "run", "argv": [*PYTHON, ""]})).end == "completed"
    assert [call.success for call in stage.calls()] == [False, False]


async def test_a_session_file_that_cannot_be_written_fails_the_turn(stage: Stage) -> None:
    session = await stage.open(stage.spec({"work": [EDIT]}))
    sessions = stage.folder / "private" / "sessions"
    next(sessions.iterdir()).unlink()
    sessions.rmdir()
    sessions.touch()
    assert code_of(await session.work(WorkRequest("go"), stage.emit)) == "stub_error"


async def test_a_turn_of_nothing_starts_no_process_and_flushes_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        pytest.fail("it was called")

    monkeypatch.setattr(os, "fsync", forbidden)
    monkeypatch.setattr("transports.stub_tools.run", forbidden)
    session = await stage.open(stage.spec())
    assert (await session.work(WorkRequest("go"), stage.emit)).end == "completed"
    assert [event.kind for event in stage.events] == ["session_opened", "turn_ended"]
