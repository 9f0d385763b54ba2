"""``stepwise replay`` of runs on a server: by id, by query, chain by chain, and decided again as they really were."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, _rig
from flow_kit import OK, failure, flow, gate, hold, linear, loop, script, step, turn, write
from run_kit import READ_ONLY, TWO_STEPS, ended, played, start, waiting, working
from temporalio import workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from cli.main import run
from cli.replay import replay_history
from system.devserver import DevServer

WRONG = {"do": "edit", "path": "nearly", "append": "no\n"}


@dataclass(frozen=True)
class Done:
    """What a command exited with and said."""

    code: int
    out: str
    err: str


Replay = Callable[..., Awaitable[Done]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Run the command as a person does who has set TEMPORAL_ADDRESS, beside this test's own event loop."""

    async def _replay(rig: Rig, *arguments: object) -> Done:
        for name in [name for name in os.environ if name.startswith(("STEPWISE_", "TEMPORAL_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("TEMPORAL_ADDRESS", rig.server.address)
        monkeypatch.setenv("TEMPORAL_CONFIG_FILE", os.devnull)
        code = await asyncio.to_thread(run, ["replay", *(str(argument) for argument in arguments)])
        output = capsys.readouterr()
        return Done(code, output.out, output.err)

    return _replay


def as_file(folder: Path, spec: Mapping[str, Any]) -> Path:
    """Write a flow that could be sent whole; return its file."""
    path = folder / f"changed-{spec['name']}"
    path.write_text(spec["text"])
    return path


def bounded(bound: int) -> dict[str, Any]:
    """Return a flow with a loop of at most ``bound`` iterations, which is then left."""
    looped = loop("only", "end", max_iterations=bound, on_exhausted="advance")
    return flow(step("only", looped, gates=[gate("there")]), step("end", **READ_ONLY))


async def listed(rig: Rig, query: str, count: int) -> None:
    """Return when the server's visibility, which lags behind, shows so many executions."""
    deadline = time.monotonic() + 30
    while len([row async for row in rig.client.list_workflows(query)]) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


# By id.


async def test_a_run_is_replayed_by_its_id_as_from_its_file(
    replay: Replay, desk: Rig, repo: Path, tmp_path: Path
) -> None:
    await played(desk, "by-id", repo, TWO_STEPS, script(only=turn(OK)))
    path = tmp_path / "history.json"
    path.write_text(desk.temporal("workflow", "show", "-w", "by-id", "-o", "json").stdout)

    done = await replay(desk, "by-id")

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("workflow by-id: ")
    assert "1. only #1 (event " in done.out
    assert done == await replay(desk, path)


async def test_what_is_neither_file_nor_workflow_is_refused_in_one_line(replay: Replay, desk: Rig) -> None:
    for arguments in (
        ["absent"],
        ["absent", "--run-id", "01a21f69-ad6f-72ae-93f4-25cdd4ac5bcd"],
        ["absent", "--run-id", "x"],
    ):
        done = await replay(desk, *arguments)
        assert (done.code, done.out) == (2, "")
        (line,) = done.err.splitlines()
        assert "there is no " in line
        assert "workflow absent" in line


async def test_the_newest_run_of_an_id_is_meant_and_an_older_one_can_be_named(
    replay: Replay, desk: Rig, repo: Path, tmp_path: Path
) -> None:
    start(desk, "twice", repo, TWO_STEPS, script(only=turn(hold(tmp_path / "never"))))
    await working(desk, "twice")
    handle = desk.client.get_workflow_handle("twice")
    older = (await handle.describe()).run_id

    going_on = await replay(desk, "twice")
    await handle.terminate("enough")
    cut = await replay(desk, "twice")
    desk.started.remove("twice")
    await played(desk, "twice", repo, TWO_STEPS, script(only=turn(OK)))
    newest = await replay(desk, "twice")
    named = await replay(desk, "twice", "--run-id", older)

    assert [one.code for one in (going_on, cut, newest, named)] == [0, 0, 0, 0]
    assert going_on.out.splitlines()[0].endswith("0 routing decisions, still running")
    assert cut.out.splitlines()[0].endswith("0 routing decisions, terminated")
    assert newest.out.splitlines()[0].endswith("2 routing decisions")
    assert named.out == cut.out


# After a reset, which a run refuses.


async def reset(rig: Rig, workflow_id: str, to: str) -> None:
    """Reset a run at work, and return when it has refused."""
    done = rig.temporal("workflow", "reset", "--workflow-id", workflow_id, "--type", to, "--reason", "test")
    assert done.returncode == 0, done.stderr
    error = await failure(rig, workflow_id)
    assert error.type == "ResetNotSupported"


@pytest.mark.parametrize("to", ["FirstWorkflowTask", "LastWorkflowTask"])
async def test_a_run_that_refused_a_reset_replays_by_id_from_files_and_as_what_if(
    replay: Replay, desk: Rig, repo: Path, tmp_path: Path, to: str
) -> None:
    spec = flow(step("first", linear("only"), **READ_ONLY), step("only"))
    name = f"refused-{to}"
    start(desk, name, repo, spec, script(first=turn(OK), only=turn(hold(tmp_path / "go"), OK)))
    await desk.until(name, lambda now: (now.get("step"), now.get("phase")) == ("only", "work"))
    await reset(desk, name, to)
    await reset(desk, name, to)
    (tmp_path / "go").touch()
    folder = tmp_path / "histories"
    folder.mkdir()
    (folder / "one.json").write_text(desk.temporal("workflow", "show", "-w", name, "-o", "json").stdout)

    done = await replay(desk, name)
    debugged = await replay_history(await desk.client.get_workflow_handle(name).fetch_history(), debug=True)
    files = await replay(desk, folder)
    decided = await replay(desk, name, "--what-if", as_file(tmp_path, spec))

    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("replay: ok\n")
    assert debugged.failure is None
    assert (files.code, files.out.partition(" ")[0]) == (0, "ok")
    # Before its first task no flow is resolved, so that there is nothing to compare.
    assert decided.code == (2 if to == "FirstWorkflowTask" else 0)
    assert "does not replay" not in decided.err


# By query.


@workflow.defn(name="Echo")
class Echo:
    @workflow.run
    async def run(self) -> None:
        return


async def test_every_workflow_a_query_matches_is_replayed(replay: Replay, desk: Rig, repo: Path) -> None:
    for name in ("query-1", "query-2"):
        await played(desk, name, repo, TWO_STEPS, script(only=turn(OK)))
    runner = UnsandboxedWorkflowRunner()
    async with Worker(desk.client, task_queue="echo", workflows=[Echo], workflow_runner=runner):
        await desk.client.execute_workflow(Echo.run, id="query-echo", task_queue="echo")
    query = 'WorkflowId STARTS_WITH "query-"'
    await listed(desk, query, 3)

    done = await replay(desk, "--from-server", query)

    assert (done.code, done.err) == (0, "")
    *lines, _, summary = done.out.splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == [
        "ok        query-1",
        "ok        query-2",
        "skipped   query-echo is a workflow of type Echo, not Flow",
    ]
    assert summary.startswith("replay: 3 histories: ")


@pytest.mark.parametrize(
    ("query", "said"),
    [("this is no query", "the server refuses the query"), ('WorkflowId = "nobody"', "no workflow matches")],
)
async def test_a_query_that_finds_nothing_is_bad_input(
    replay: Replay, desk: Rig, query: str, said: str
) -> None:
    done = await replay(desk, "--from-server", query)

    assert (done.code, done.out) == (2, "")
    assert said in done.err


# Chains.


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on a server that suggests to continue as new after a few steps."""
    with DevServer.start(ui=False, dynamic_config={"limit.historyCount.suggestContinueAsNew": 40}) as server:
        made = await _rig(server, tmp_path, "short")
        made.worker()
        try:
            yield made
        finally:
            made.kill_all()


async def test_a_run_that_continued_as_new_is_replayed_and_decided_again_as_one(
    replay: Replay, short: Rig, repo: Path, tmp_path: Path
) -> None:
    await played(short, "long", repo, bounded(6), script(only=[*[turn(WRONG)] * 4, turn(OK)]))
    chain: list[str] = []
    run_id: str | None = (await short.client.get_workflow_handle("long").describe()).run_id
    while run_id:
        chain.insert(0, run_id)
        events = (await short.client.get_workflow_handle("long", run_id=run_id).fetch_history()).events
        run_id = events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    assert len(chain) >= 3

    whole = await replay(short, "long")
    middle = await replay(short, "long", "--run-id", chain[1])
    await listed(short, 'WorkflowType = "Flow"', len(chain))
    queried = await replay(short, "--from-server", 'WorkflowType = "Flow"', "--json")

    assert (whole.code, whole.err) == (0, "")
    heads = [line for line in whole.out.splitlines() if line.startswith("workflow long, execution ")]
    assert [head.partition("(")[2].partition(")")[0] for head in heads] == chain
    assert all(head.endswith(", continued as new") for head in heads[:-1])
    assert whole.out.count("replay: ok") == len(chain)
    assert middle.out == whole.out
    (only,) = json.loads(queried.out)["histories"]
    assert [one["run_id"] for one in only["executions"]] == chain

    same = await replay(short, "long", "--what-if", as_file(tmp_path, bounded(6)), "--json")
    assert same.code == 0
    assert json.loads(same.out)["compared"] == 6
    fewer = await replay(short, "long", "--what-if", as_file(tmp_path, bounded(3)), "--json")
    (difference,) = json.loads(fewer.out)["differences"]
    assert (difference["visit"], difference["new"]["to"]) == (3, "advance end")
    assert json.loads(fewer.out)["not_compared"] == 3


# Decided again, as it really was.


async def test_what_is_said_to_differ_is_what_a_run_under_the_changed_flow_decides(
    replay: Replay, desk: Rig, repo: Path, tmp_path: Path
) -> None:
    play = script(only=[turn(WRONG), turn(WRONG), turn(OK)])
    await played(desk, "as-it-was", repo, bounded(6), play)

    said = await replay(desk, "as-it-was", "--what-if", as_file(tmp_path, bounded(2)), "--json")

    assert said.code == 1
    (difference,) = json.loads(said.out)["differences"]
    start(desk, "as-it-would-be", repo, bounded(2), play)
    result = await ended(desk, "as-it-would-be", "unverified")
    really = result.decisions[1]
    assert (difference["step"], difference["visit"]) == (really.step_id, really.visit)
    assert difference["new"] == {"to": f"{really.decision} {really.next_step_id}", "why": really.explanation}


async def test_results_that_a_lost_worker_left_are_facts_as_well(
    replay: Replay, rig: Rig, repo: Path, tmp_path: Path
) -> None:
    first = rig.worker(STEPWISE_CRASH_AT="measure.done")
    start(rig, "lost", repo, bounded(6), script(only=[turn(WRONG), turn(OK)]))
    await asyncio.to_thread(first.wait, 60)
    rig.worker()
    await ended(rig, "lost", "verified")

    same = await replay(rig, "lost", "--what-if", as_file(tmp_path, bounded(6)))
    fewer = await replay(rig, "lost", "--what-if", as_file(tmp_path, bounded(1)))

    assert (same.code, same.err) == (0, "")
    assert fewer.code == 1
    assert "   recorded  loop only: No exit of the loop holds after iteration 1 of 6." in fewer.out


async def test_orders_of_people_and_attempts_that_were_stopped_are_decided_again_alike(
    replay: Replay, desk: Rig, repo: Path, tmp_path: Path
) -> None:
    asks = flow(
        step("only", loop("only", "end", max_iterations=1), gates=[gate("there")]), step("end", **READ_ONLY)
    )
    start(desk, "ordered", repo, asks, script(only=turn(write("nearly", "no\n"))))
    handle = desk.client.get_workflow_handle("ordered")
    await waiting(desk, "ordered", "human")
    await handle.execute_update("resume", {"action": "retry", "by": "ada"})
    await desk.until("ordered", lambda now: (now["attempt"], now["state"]) == (2, "waiting"))
    await handle.execute_update("resume", {"action": "continue", "by": "ada"})
    await desk.until("ordered", lambda now: (now["attempt"], now["state"]) == (3, "waiting"))
    await handle.execute_update("resume", {"action": "skip", "by": "ada"})
    await ended(desk, "ordered")

    same = await replay(desk, "ordered", "--what-if", as_file(tmp_path, asks), "--json")

    assert same.code == 0, same.out
    assert json.loads(same.out)["compared"] == len(
        ["escalate", "retry", "escalate", "escalate", "skip", "end"]
    )
