"""A history stays small: whatever an agent does in a step, and however many steps a run has."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, _rig
from flow_kit import OK, event_types, flow, gate, linear, loop, script, step, turn
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from system.devserver import DevServer

MAX_STEP_BYTES = 12 * 1024
MAX_CARRIED_BYTES = 64 * 1024


async def history(rig: Rig, name: str, run_id: str | None = None) -> list[HistoryEvent]:
    return list((await rig.client.get_workflow_handle(name, run_id=run_id).fetch_history()).events)


def size(events: list[HistoryEvent]) -> int:
    """Return the bytes of all events but the first, which holds what a person sent."""
    return sum(event.ByteSize() for event in events[1:])


async def played(rig: Rig, name: str, repo: Path, spec: Any, play: Any) -> list[HistoryEvent]:
    rig.start(name, {"spec": spec, "repo": str(repo), "task": "t", "scenario": play})
    result = await rig.result(name)
    rig.check_evidence(result)
    return await history(rig, name)


async def test_a_thousand_tool_calls_cost_the_history_no_more_than_ten(rig: Rig, repo: Path) -> None:
    # Ten megabytes of output, on a machine that does other things too: no phase is to be taken for lost.
    rig.worker(STEPWISE_HEARTBEAT_S="15", STEPWISE_SCHEDULE_TO_START_S="30")
    spec = flow(step("only", gates=[gate("there")]))
    found = {}
    for count in (10, 1_000):
        calls = {"do": "calls", "count": count, "bytes": 10_000}
        found[count] = await played(rig, f"calls-{count}", repo, spec, script(only=turn(calls, OK)))
    few, many = found[10], found[1_000]

    def shape(events: list[HistoryEvent]) -> Counter[str]:
        # Workflow tasks come and go with the machine's load; what a step costs are the others.
        names = (EventType.Name(event.event_type) for event in events)
        return Counter(name for name in names if "WORKFLOW_TASK" not in name)

    assert shape(many) == shape(few)
    receipts = [rig.receipts(await rig.run_id(f"calls-{count}"))[0] for count in (10, 1_000)]
    assert [one.tool_calls.count for one in receipts] == [11, 1_001]
    assert abs(size(many) - size(few)) < 1_024, (size(few), size(many))


@pytest.mark.parametrize(
    ("gates", "target", "visits", "steps"),
    [([], "other", (8, 10), 4), ([gate("odd", "sh", "-c", "seq 1 9999; exit 1")], "only", (16, 18), 2)],
)
async def test_a_step_costs_at_most_twelve_kilobytes(
    desk: Rig, repo: Path, gates: list[Any], target: str, visits: tuple[int, int], steps: int
) -> None:
    first, last = visits
    looped = loop(target, "end", max_iterations=last, on_exhausted="advance")
    spec = flow(step("other", linear("only")), step("only", looped, gates=gates), step("end"))
    # Something changes each time, or the loop would end because nothing does.
    play = script(only=turn({"do": "edit", "path": "more", "append": "x"}))
    events = await played(desk, f"size-{target}", repo, spec, play)
    begun = {
        event.activity_task_scheduled_event_attributes.activity_id: number
        for number, event in enumerate(events)
    }
    # By then as many handoffs are listed with each call as ever will be.
    between = events[begun[f"only.work.{first}.1"] : begun[f"only.work.{last}.1"]]
    cost = sum(event.ByteSize() for event in between) / steps
    assert 4_096 < cost <= MAX_STEP_BYTES


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on a server that suggests to continue as new after a few hundred events."""
    with DevServer.start(ui=False, dynamic_config={"limit.historyCount.suggestContinueAsNew": 600}) as server:
        made = await _rig(server, tmp_path, "short")
        made.worker()
        try:
            yield made
        finally:
            made.kill_all()


@pytest.mark.timeout(400)
async def test_three_hundred_visits_continue_as_new_and_keep_everything(short: Rig, repo: Path) -> None:
    # Eight rounds of a loop around one of eighteen, and five steps beside them.
    rounds, turns = 8, 18
    spec = flow(
        step("first", linear("second")),
        step("second", linear("third")),
        step("third", linear("fourth")),
        step("fourth", linear("ask")),
        step("ask", linear("judge")),
        step("judge", loop("ask", "close", max_iterations=turns, on_exhausted="advance")),
        step("close", loop("ask", "end", max_iterations=rounds, on_exhausted="advance")),
        step("end"),
    )
    visits = rounds * (2 * turns + 1) + 5
    assert visits > 300
    short.start("long", {"spec": spec, "repo": str(repo), "task": "t", "scenario": "noop"})
    handle = short.client.get_workflow_handle("long")
    # People speak to it all the time: nothing of that may be lost when it continues.
    messages = 0
    for _ in range(6):
        await handle.execute_update("pause")
        status = await short.until("long", lambda now: (now.get("waiting") or {}).get("kind") == "pause")
        await handle.execute_update("resume")
        messages += 2
        await short.until("long", later_than(status["receipts_head"]))
    result = await short.result("long", within_s=300)
    assert result.outcome == "nothing_to_do"
    short.check_evidence(result)

    executions = await lengths(short, "long")
    assert len(executions) >= 3
    assert all(events <= 700 for events, _ in executions), executions
    assert all(carried <= MAX_CARRIED_BYTES for _, carried in executions), executions

    assert {one.step_id: one.visits for one in result.steps} == {
        **dict.fromkeys(("first", "second", "third", "fourth", "end"), 1),
        "ask": rounds * turns,
        "judge": rounds * turns,
        "close": rounds,
    }
    assert len(result.decisions) == 50
    assert result.decisions_truncated
    routing = await handle.query("routing")
    assert (routing["total"], routing["truncated"], len(routing["decisions"])) == (visits, True, 50)
    receipts = await handle.query("receipts")
    assert (receipts["total"], receipts["truncated"]) == (visits, True)
    stored = short.receipts(result.run_id)
    assert len(stored) == visits
    assert receipts["head"] == result.receipts_head
    exits = Counter(one.termination_reason for one in stored if one.step_id == "judge")
    assert exits == {None: rounds * (turns - 1), "max_iterations": rounds}
    journal = short.journal(result.run_id)
    assert [event.kind for event in journal].count("routed") == visits
    assert [event.kind for event in journal].count("human_message") == messages


def later_than(head: str) -> Callable[[dict[str, Any]], bool]:
    """Return what holds once there is another receipt."""
    return lambda now: now["receipts_head"] != head


async def lengths(rig: Rig, name: str) -> list[tuple[int, int]]:
    """Return events, and bytes of what was carried over, of each execution of a workflow id."""
    found = []
    run_id = (await rig.client.get_workflow_handle(name).describe()).run_id
    while run_id:
        events = await history(rig, name, run_id)
        assert "WORKFLOW_TASK_FAILED" not in await event_types(rig, name, run_id)
        started = events[0].workflow_execution_started_event_attributes
        found.append((len(events), sum(one.ByteSize() for one in started.input.payloads)))
        run_id = started.continued_execution_run_id
    return found
