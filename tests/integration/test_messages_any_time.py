"""Messages at any time: none is lost, none counts twice, whatever the run does when it comes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig, _rig
from flow_kit import (
    OK,
    event_types,
    flow,
    gate,
    hold,
    linear,
    loop,
    script,
    step,
    transcript_of,
    turn,
)
from run_kit import (
    READ_ONLY,
    TWO_STEPS,
    ended,
    resume,
    said,
    signal,
    start,
    update,
    waiting,
    working,
)
from temporalio.service import RPCError

from cli.replay import replay_history
from system.devserver import DevServer

MANY = 60
"""Messages that each run of a storm is sent, beside those that answer its waits."""
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("pause", {"reason": "x"}),
    ("resume", {}),
    ("interrupt", {}),
    ("interrupt", {"reason": "y"}),
    ("steer", {"text": "mind the gap"}),
    ("approve", {}),
    ("reject", {}),
    ("answer", {"answers": {"1": "z"}}),
    ("extend_budget", {"tokens": 5}),
]
BAD: list[tuple[str, Any]] = [
    ("pause", "now"),
    ("pasue", {}),
    ("resume", {"action": "jump"}),
    ("extend_budget", {"tokens": -1}),
    ("steer", [1, 2]),
]
NOT_HUMAN: list[tuple[str, Any]] = [
    ("_asked", "nonsense"),
    (
        "_asked",
        {"id": "q", "key": {"run_id": "other", "flow_key": "f", "step_id": "s", "visit": 1, "attempt": 1}},
    ),
    ("_settled", {}),
]


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[Rig]:
    """A rig on a server that has every run continue as new after nearly every step; its worker knows a chain."""
    flows = tmp_path / "flows"
    flows.mkdir()
    looped = loop("ask", "end", max_iterations=5, on_exhausted="advance")
    for one in (
        flow(
            step("first", linear("ask"), gates=[gate("there")]),
            step("ask", linear("judge")),
            step("judge", looped),
            step("end", **READ_ONLY),
            name="one",
            on_complete={"flow": "two"},
        ),
        flow(step("first", linear("end"), gates=[gate("there")]), step("end", **READ_ONLY), name="two"),
    ):
        (flows / one["name"]).write_text(one["text"])
    with DevServer.start(ui=False, dynamic_config={"limit.historyCount.suggestContinueAsNew": 20}) as server:
        made = await _rig(server, tmp_path, "short")
        made.worker(STEPWISE_FLOW_PATHS=str(flows))
        try:
            yield made
        finally:
            made.kill_all()


ANSWERS = {"budget": "extend_budget", "approval": "approve", "answer": "answer"}


class Storm:
    """People who all speak to one run, and one of them who answers whatever it waits for."""

    def __init__(self, rig: Rig, name: str, seed: int) -> None:
        self._rig = rig
        self._name = name
        self._chance = random.Random(seed)  # noqa: S311 - the same storm each time
        self.sent: Counter[str] = Counter()

    async def say(self, name: str, given: Any) -> bool:
        """Send a signal, and count it if the server took it; False once the run has ended."""
        try:
            await signal(self._rig, self._name, name, given)
        except RPCError:
            return False
        if not name.startswith("_"):
            self.sent[name] += 1
        return True

    async def speak(self) -> None:
        """Send messages of every kind, at any time."""
        for number in range(MANY):
            name, given = self._chance.choice([*GOOD * 2, *BAD, *NOT_HUMAN])
            if isinstance(given, dict) and (name, given) in GOOD:
                given = {**given, "by": f"p{number}"}
            if not await self.say(name, given):
                return
            await asyncio.sleep(self._chance.choice([0, 0, 0.01, 0.05]))

    async def answer(self) -> None:
        """Let the run go on, until it has ended."""
        while True:
            status = await self._rig.status(self._name)
            if status and status["outcome"]:
                return
            waits = (status or {}).get("waiting")
            if waits and not await self.say(ANSWERS.get(waits["kind"], "resume"), {"by": "keeper"}):
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(200)
async def test_a_storm_of_messages_over_runs_that_continue_as_new_loses_none_and_counts_none_twice(
    short: Rig, repo: Path
) -> None:
    async def weathered(number: int) -> int:
        name = f"storm-{number}"
        given = {"flow": "one", "repo": str(repo), "task": "t", "scenario": script(first=turn(OK))}
        await short.client.start_workflow(
            "Flow",
            given,
            id=name,
            task_queue=short.task_queue,
            start_signal="steer",
            start_signal_args=[{"by": "start"}],
        )
        storm = Storm(short, name, seed=number)
        storm.sent["steer"] += 1
        await asyncio.gather(storm.speak(), storm.answer())
        result = await ended(short, name, "verified")

        heard = said(short, result.run_id, "human_message") + said(short, result.run_id, "message_refused")
        assert Counter(one["name"] for one in heard) == storm.sent
        by = Counter(one["by"] for one in heard if one.get("by", "keeper") != "keeper")
        assert set(by.values()) == {1}, "one said it, and once"
        waits = Counter(one.get("reason", "") for one in said(short, result.run_id, "waiting"))
        stops = [
            one
            for one in said(short, result.run_id, "human_message")
            if (one["name"], one["verdict"]) == ("interrupt", "accepted")
        ]
        for stop in stops:
            why = f": {stop['reason']}" if "reason" in stop else ""
            assert waits[f"interrupted by {stop['by']}{why}"] == 1, "each interrupt held the run, once"
        assert sum(count for reason, count in waits.items() if "interrupted" in reason) == len(stops)
        types = []
        run = (await short.client.get_workflow_handle(name).describe()).run_id
        while run:
            types.append(await event_types(short, name, run))
            history = await short.client.get_workflow_handle(name, run_id=run).fetch_history()
            report = await replay_history(history)
            assert report.failure is None, "whenever a message came, each execution replays"
            run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        assert len(types) > 5
        assert all("WORKFLOW_TASK_FAILED" not in one or _only_unhandled(one) for one in types)
        return len(stops)

    assert sum(await asyncio.gather(*(weathered(number) for number in range(4)))) > 0


def _only_unhandled(types: list[str]) -> bool:
    """Tell whether a run went on after each task that failed: a message had come while it was worked on."""
    return types[-1] != "WORKFLOW_TASK_FAILED"


async def test_words_sent_with_the_start_are_in_the_first_prompt(desk: Rig, repo: Path) -> None:
    given = {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(OK))}
    await desk.client.start_workflow(
        "Flow",
        given,
        id="early-words",
        task_queue=desk.task_queue,
        start_signal="steer",
        start_signal_args=[{"text": "Mind the gap.", "by": "ann"}],
    )
    result = await ended(desk, "early-words", "verified")
    assert "Mind the gap." in transcript_of(desk, result.receipts[0])
    assert [one["verdict"] for one in said(desk, result.run_id, "human_message")] == ["queued"]


async def test_words_that_no_agent_heard_are_the_next_ones_also_over_a_wait_and_a_failure(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    spec = flow(step("only", linear("end"), retries={"agent": 2}), step("end", **READ_ONLY))
    failing = turn(hold(go), {"do": "fail"})
    start(desk, "words", repo, spec, script(only={"turns": [failing], "resumed": turn(OK)}))
    await working(desk, "words")
    await update(desk, "words", "pause")
    go.touch()
    await waiting(desk, "words", "pause")
    await resume(desk, "words", note="Be quick.")
    result = await ended(desk, "words", "unverified")
    assert [one.execution_status for one in result.receipts] == ["failed", "succeeded", "succeeded"]
    assert "Be quick." in transcript_of(desk, result.receipts[1])
    assert "Be quick." not in transcript_of(desk, result.receipts[2]), "it was for that step"


async def test_a_note_of_a_withdrawn_pause_reaches_the_next_agent(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    start(desk, "withdrawn-note", repo, TWO_STEPS, script(only=turn(hold(go), OK)))
    await working(desk, "withdrawn-note")
    await update(desk, "withdrawn-note", "pause")
    verdict = await update(desk, "withdrawn-note", "resume", {"note": "Look twice."})
    assert verdict["message"] == "the pause is withdrawn"
    go.touch()
    result = await ended(desk, "withdrawn-note", "verified")
    assert "Look twice." in transcript_of(desk, result.receipts[1])


async def test_messages_while_the_run_ends_are_refused_and_stand_in_the_journal(
    desk: Rig, repo: Path
) -> None:
    start(desk, "late", repo, flow(step("only")), script(only=turn(OK)))
    sent = 0
    while True:
        try:
            await signal(desk, "late", "approve", {"by": str(sent)})
        except RPCError:
            break
        sent += 1
        await asyncio.sleep(0.01)
    result = await desk.result("late")
    desk.check_evidence(result)
    assert len(said(desk, result.run_id, "message_refused")) == sent
