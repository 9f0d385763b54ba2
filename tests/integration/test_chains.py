"""Flows that follow each other: one run, one workspace, one chain of receipts, one outcome."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, _rig
from flow_kit import (
    OK,
    event_types,
    files_at,
    flow,
    gate,
    git,
    linear,
    make_repository,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from home_kit import at_home
from interrupt_kit import holding, interrupted
from run_kit import READ_ONLY, update

import worker
from schemas.run import FlowResult
from system.devserver import DevServer
from transports.stub import StubTransport


def write_flows(folder: Path, *flows: Mapping[str, Any]) -> None:
    """Write flow files into a folder."""
    for one in flows:
        (folder / one["name"]).write_text(one["text"])


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the worker looks for flows; all of them have a step named ``only``."""
    folder = tmp_path_factory.mktemp("flows")
    there, more = gate("there"), gate("more", "test", "-f", "more")
    to = {"on_complete": {"flow": "second"}}
    failing = {"on_failure": {"flow": "tidy"}}
    two = [step("only", linear("end"), gates=[there]), step("end", **READ_ONLY)]
    write_flows(
        folder,
        flow(*two, name="first", **to, **failing),
        flow(step("only", linear("end"), gates=[more]), step("end", **READ_ONLY), name="second"),
        flow(step("only"), name="tidy"),
        flow(step("only", gates=[there]), name="to-talk", on_complete={"flow": "talk"}),
        flow(step("only", **READ_ONLY), name="talk", on_complete={"flow": "second"}),
        flow(step("only", gates=[there]), name="to-plain", on_complete={"flow": "plain"}),
        flow(step("only"), name="plain"),
        flow(step("only", approval="before"), name="asks", **to, **failing),
    )
    return folder


@pytest.fixture(scope="module")
def chained(server: DevServer, tmp_path_factory: pytest.TempPathFactory, flows: Path) -> Iterator[Rig]:
    """A rig whose worker knows the chained flows."""
    made = asyncio.run(_rig(server, tmp_path_factory.mktemp("chained"), f"chained-{os.urandom(4).hex()}"))
    made.worker(STEPWISE_FLOW_PATHS=str(flows))
    try:
        yield made
    finally:
        made.kill_all()


def start(rig: Rig, name: str, repo: Path, flow_name: str, play: Any) -> None:
    rig.start(name, {"flow": flow_name, "repo": str(repo), "task": "t", "scenario": play})


def turns(*given: Any) -> dict[str, Any]:
    """Return the script of step ``only``, which every flow has."""
    return script(only=list(given))


async def executions(rig: Rig, name: str) -> list[str]:
    """Return how each execution of a workflow id ended, oldest first."""
    handle = rig.client.get_workflow_handle(name)
    run_id = (await handle.describe()).run_id
    ends: list[str] = []
    while run_id:
        types = await event_types(rig, name, run_id)
        ends.insert(0, types[-1].removeprefix("WORKFLOW_EXECUTION_"))
        history = await rig.client.get_workflow_handle(name, run_id=run_id).fetch_history()
        run_id = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return ends


async def ended(rig: Rig, name: str, outcome: str) -> FlowResult:
    result = await rig.result(name)
    assert result.outcome == outcome, result
    rig.check_evidence(result)
    return result


def places(rig: Rig, run_id: str) -> list[tuple[str, str, int, str]]:
    """Return flow, step, visit and status of each receipt."""
    return [(one.flow_key, one.step_id, one.visit, one.verification_status) for one in rig.receipts(run_id)]


async def test_a_verified_flow_is_followed_on_the_same_run_and_workspace(chained: Rig, repo: Path) -> None:
    start(chained, "follow", repo, "first", turns(turn(OK, write("more", "x"))))
    result = await ended(chained, "follow", "verified")
    assert await executions(chained, "follow") == ["CONTINUED_AS_NEW", "COMPLETED"]
    assert result.run_id == await chained.run_id("follow")
    assert places(chained, result.run_id) == [
        ("first", "only", 1, "VERIFIED"),
        ("first", "end", 1, "UNVERIFIED"),
        ("second", "only", 1, "VERIFIED"),
        ("second", "end", 1, "UNVERIFIED"),
    ]
    assert {Path(path).name for path in chained.folder.glob("disk/runs/follow-*")} == {result.run_id}
    handle = chained.client.get_workflow_handle("follow")
    receipts = await handle.query("receipts")
    assert receipts["total"] == 4
    assert receipts["head"] == result.receipts_head
    created = [event for event in chained.journal(result.run_id) if event.kind == "run_created"]
    assert [(event.model_extra or {})["flow"] for event in created] == ["first", "second"]


async def test_a_later_step_of_the_same_name_reads_the_handoffs_of_the_flow_before(
    chained: Rig, repo: Path
) -> None:
    play = script(
        only=turn(OK, write("more", "x"), summary="What the step only says."),
        end=turn(summary="What the step end says."),
    )
    start(chained, "handoff", repo, "first", play)
    result = await ended(chained, "handoff", "verified")
    receipts = chained.receipts(result.run_id)
    assert "What the step end says." in transcript_of(chained, receipts[2])
    assert "What the step only says." in transcript_of(chained, receipts[3])
    assert [one.context_cut for one in receipts] == [[], [], [], []]


async def test_both_flows_commit_under_their_own_name(chained: Rig, repo: Path) -> None:
    play = script(only=turn(OK, {"do": "edit", "path": "more", "append": "x"}))
    start(chained, "commits", repo, "first", play)
    result = await ended(chained, "commits", "verified")
    assert result.git is not None
    log = git(result.git.workspace, "log", "--format=%s|%(trailers:key=Stepwise-Visit,valueonly,separator=)")
    assert log.splitlines() == [
        "second/only #1|second/only#1",
        "first/only #1|first/only#1",
        "first|",
    ]


async def test_what_the_first_flow_proved_must_hold_at_the_end_of_the_second(
    chained: Rig, repo: Path
) -> None:
    # The same script plays in both flows: it makes `ok` and takes it away again where it is there.
    toggle = {"do": "run", "argv": ["sh", "-c", "test -f more && rm ok || touch ok more"]}
    start(chained, "broken", repo, "first", turns(turn(toggle)))
    result = await ended(chained, "broken", "unverified")
    assert result.summary == "failed on the final tree: first:only/there"
    assert places(chained, result.run_id)[2:] == [
        ("second", "only", 1, "VERIFIED"),
        ("second", "end", 1, "UNVERIFIED"),
        ("first", "_final", 1, "UNVERIFIED"),
    ]


async def test_a_flow_without_gates_keeps_what_the_one_before_it_proved(chained: Rig, repo: Path) -> None:
    grow = {"do": "edit", "path": "more", "append": "x"}
    start(chained, "kept", repo, "to-plain", turns(turn(OK, grow)))
    result = await ended(chained, "kept", "verified")
    assert places(chained, result.run_id) == [
        ("to-plain", "only", 1, "VERIFIED"),
        ("plain", "only", 1, "UNVERIFIED"),
        ("to-plain", "_final", 1, "VERIFIED"),
    ]
    final = chained.receipts(result.run_id)[-1]
    assert result.git is not None
    assert final.gates[0].tree == result.git.tree


async def test_three_flows_make_one_chain(chained: Rig, repo: Path) -> None:
    start(chained, "three", repo, "to-talk", turns(turn(OK, write("more", "x"))))
    result = await ended(chained, "three", "verified")
    flows_seen = [flow_key for flow_key, *_ in places(chained, result.run_id)]
    assert flows_seen == ["to-talk", "talk", "second", "second"]
    assert len(await executions(chained, "three")) == 3


async def test_after_a_failure_the_run_keeps_the_first_outcome(chained: Rig, repo: Path) -> None:
    start(chained, "tidied", repo, "first", turns(turn(write("wrong", "x"))))
    result = await ended(chained, "tidied", "unverified")
    assert result.summary == "failed on the final tree: only/there"
    assert [place[:2] for place in places(chained, result.run_id)] == [
        ("first", "only"),
        ("first", "end"),
        ("tidy", "only"),
    ]
    assert await executions(chained, "tidied") == ["CONTINUED_AS_NEW", "FAILED"]
    assert result.git is not None
    assert files_at(result.git) == ["README.md", "wrong"]


async def test_a_second_flow_that_fails_fails_the_run(chained: Rig, repo: Path) -> None:
    start(chained, "second-fails", repo, "first", turns(turn(OK)))
    result = await ended(chained, "second-fails", "unverified")
    assert result.summary == "failed on the final tree: only/more"


async def test_nothing_to_do_is_followed_too(chained: Rig, repo: Path, tmp_path: Path) -> None:
    done = make_repository(tmp_path / "done", {"ok": "yes\n", "more": "x\n"})
    start(chained, "nothing", done, "first", "noop")
    result = await ended(chained, "nothing", "nothing_to_do")
    assert [place[0] for place in places(chained, result.run_id)] == ["first", "first", "second", "second"]
    assert result.git is not None
    assert result.git.head == result.git.base
    assert repo != done


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_a_run_that_people_stopped_is_followed_by_nothing(chained: Rig, repo: Path, how: str) -> None:
    name = f"stopped-{how}"
    start(chained, name, repo, "asks", turns(turn()))
    await chained.until(name, lambda now: now.get("waiting") is not None)
    handle = chained.client.get_workflow_handle(name)
    if how == "abort":
        await handle.signal("abort")
        assert (await chained.result(name)).outcome == "stopped"
    else:
        await handle.cancel()
        await chained.until(name, lambda now: now["outcome"] == "cancelled")
    assert len(await executions(chained, name)) == 1


async def test_a_chain_to_a_flow_that_is_gone_is_refused_before_the_first_step(
    chained: Rig, repo: Path
) -> None:
    spec = flow(step("only"), on_complete={"flow": "gone"})
    given = {"spec": spec, "repo": str(repo), "task": "t", "scenario": "noop"}
    done = chained.temporal(
        *("workflow", "execute", "--type", "Flow", "--task-queue", chained.task_queue),
        *("--workflow-id", "gone", "--input", json.dumps(given)),
    )
    assert done.returncode == 1
    assert "small.yaml" in done.stdout
    assert "'gone'" in done.stdout


class Other(StubTransport):
    """A second transport, which a person may choose."""

    name = "other"


async def test_a_transport_that_a_person_chose_for_a_step_is_not_that_of_the_next_flows_step_of_the_same_name(
    chained: Rig, repo: Path, tmp_path: Path, flows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "open_transports", lambda _: {"stub": StubTransport(), "other": Other()})
    go = tmp_path / "go"
    async with at_home(chained, tmp_path, STEPWISE_FLOW_PATHS=str(flows)) as home:
        start(home, "chosen", repo, "to-plain", turns(holding("finalize", go)))
        await home.until("chosen", lambda now: now.get("phase") == "finalize")
        await update(home, "chosen", "interrupt")
        go.touch()
        await interrupted(home, "chosen")
        await update(home, "chosen", "resume", {"transport": "other"})
        result = await ended(home, "chosen", "verified")
        transports = [(one.flow_key, one.transport) for one in home.receipts(result.run_id)]
    assert transports == [("to-plain", "stub"), ("plain", "stub")]
