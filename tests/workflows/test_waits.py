"""Waits of days, on a server that skips time: deadlines, silence, and what goes on by itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Rig
from flow_kit import (
    OK,
    file_at,
    flow,
    gate,
    kinds,
    linear,
    loop,
    make_repository,
    partial_of,
    script,
    step,
    transcript_of,
    turn,
    write,
)
from run_kit import READ_ONLY
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from schemas.converter import build_data_converter
from schemas.run import FlowResult

HOUR = 3_600


@dataclass
class Skipping:
    """A real worker on a server whose time jumps ahead while somebody waits for a result."""

    env: WorkflowEnvironment
    rig: Rig
    repo: Path
    handles: dict[str, WorkflowHandle[Any, Any]] = field(default_factory=dict)

    async def start(
        self, name: str, spec: Mapping[str, Any], play: Any = "noop", *, signal: str | None = None
    ) -> None:
        """Start a run, with a signal if there is one."""
        given = {"spec": spec, "repo": str(self.repo), "task": "t", "scenario": play}
        self.handles[name] = await self.env.client.start_workflow(
            "Flow", given, id=name, task_queue=self.rig.task_queue, start_signal=signal
        )

    async def ended(self, name: str) -> tuple[str, FlowResult]:
        """Let time run until the run ends; return the type of its error (empty: it completed) and its result."""
        try:
            # Time jumps only while the handle that the start returned is asked for its result.
            found = await self.handles[name].result()
        except WorkflowFailureError as error:
            cause = error.cause
        else:
            return "", FlowResult.model_validate(found)
        assert isinstance(cause, ApplicationError), repr(cause)
        return cause.type or "", FlowResult.model_validate(cause.details[0])


@dataclass(frozen=True)
class Address:
    """Where the server is; all that a rig asks of one."""

    address: str


@pytest.fixture
async def skipping(tmp_path: Path) -> AsyncIterator[Skipping]:
    """A server that skips time, with a real worker."""
    env = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=str(Path(sys.executable).parent / "temporal-test-server"),
        data_converter=build_data_converter(),
    )
    async with env:
        folder = tmp_path / "rig"
        folder.mkdir()
        place: Any = Address(env.client.service_client.config.target_host)
        rig = Rig(server=place, folder=folder, client=env.client, task_queue="waits")
        rig.worker(STEPWISE_HOLD_S="0.05")
        try:
            yield Skipping(env, rig, make_repository(tmp_path / "repo"))
        finally:
            rig.kill_all()


def asks(approval: str = "none", **human: Any) -> dict[str, Any]:
    """Return a flow whose first step waits for a human: for an approval, or because it is BLOCKED."""
    first = step(
        "only", linear("end"), approval=approval, gates=[gate("there")], **({"human": human} if human else {})
    )
    return flow(first, step("end", **READ_ONLY))


async def waited(skipping: Skipping, name: str) -> timedelta:
    """Return how long a run took in the server's time."""
    described = await skipping.env.client.get_workflow_handle(name).describe()
    assert described.close_time is not None
    return described.close_time - described.start_time


@pytest.mark.parametrize(
    ("approval", "human", "at_least"),
    [
        ("none", {}, timedelta(days=7)),
        ("none", {"deadline": HOUR}, timedelta(hours=1)),
        ("before", {"deadline": HOUR}, timedelta(hours=1)),
        ("after", {"deadline": HOUR}, timedelta(hours=1)),
    ],
)
async def test_silence_ends_a_run_as_needs_human_and_approves_nothing(
    skipping: Skipping, approval: str, human: dict[str, Any], at_least: timedelta
) -> None:
    play = script(
        only=turn(OK) if approval != "none" else turn({"do": "fail", "retryable": True}, {"do": "fail"})
    )
    spec = asks(approval, **human)
    await skipping.start("silent", spec, play)
    type_, result = await skipping.ended("silent")
    assert type_ == result.outcome == "needs_human"
    assert "nobody answered the wait for" in result.summary
    assert at_least <= await waited(skipping, "silent") < at_least + timedelta(hours=1)
    skipping.rig.check_evidence(result)
    receipts = skipping.rig.receipts(result.run_id)
    assert [one.step_id for one in receipts] == {"none": ["only"] * 2, "before": [], "after": ["only"]}[
        approval
    ]
    assert kinds(skipping.rig, result.run_id)[-2:] == ["waiting", "run_completed"]


async def test_a_pause_that_nobody_ends_ends_the_run(skipping: Skipping) -> None:
    await skipping.start("paused", asks(deadline=HOUR), signal="pause")
    type_, result = await skipping.ended("paused")
    assert (type_, result.outcome) == ("needs_human", "needs_human")
    assert result.summary == "nobody answered the wait for pause in time"


async def test_a_wait_that_is_to_be_kept_outlasts_any_deadline(skipping: Skipping) -> None:
    await skipping.start(
        "kept", asks("before", deadline=HOUR, on_silence="keep_waiting"), script(only=turn(OK))
    )
    status = await skipping.rig.until("kept", lambda now: now.get("waiting") is not None)
    assert status["waiting"]["deadline"] is None
    await skipping.env.sleep(timedelta(days=30))
    status = await skipping.rig.status("kept")
    assert status["waiting"]["kind"] == "approval"
    await skipping.env.client.get_workflow_handle("kept").execute_update("approve", {})
    type_, result = await skipping.ended("kept")
    assert (type_, result.outcome) == ("", "verified")
    assert await waited(skipping, "kept") >= timedelta(days=30)


async def test_each_wait_has_its_own_deadline(skipping: Skipping) -> None:
    await skipping.start("twice", asks("after", deadline=2 * HOUR), script(only=turn(OK)))
    first = await skipping.rig.until("twice", lambda now: now.get("waiting") is not None)
    await skipping.env.sleep(timedelta(hours=1))
    await skipping.env.client.get_workflow_handle("twice").execute_update("reject", {"reason": "again"})
    second = await skipping.rig.until("twice", lambda now: now["attempt"] == 2 and now["waiting"] is not None)
    assert second["waiting"]["deadline"] > first["waiting"]["deadline"]
    type_, _ = await skipping.ended("twice")
    assert type_ == "needs_human"
    assert await waited(skipping, "twice") >= timedelta(hours=3)


async def test_a_rate_limit_of_hours_ends_by_itself(skipping: Skipping) -> None:
    limit = {"do": "rate_limit", "seconds": 5 * HOUR}
    await skipping.start("limited", asks(), script(only=turn(write("first", "x"), limit, OK)))
    type_, result = await skipping.ended("limited")
    assert (type_, result.outcome) == ("", "verified")
    assert await waited(skipping, "limited") >= timedelta(hours=4)
    limited, again, _ = skipping.rig.receipts(result.run_id)
    assert partial_of(skipping.rig, limited).reason == "rate_limit"
    assert (again.attempt, again.session) == (2, "resumed")
    skipping.rig.check_evidence(result)


async def test_a_provider_that_says_soon_again_and_again_is_asked_less_and_less_often(
    skipping: Skipping,
) -> None:
    limit = {"do": "rate_limit", "seconds": 0.1}
    only = turn(*[limit] * 6, write("first", "x"), {"do": "run", "argv": ["true"]}, limit, OK)
    await skipping.start("soon", asks(), script(only=only))
    _, result = await skipping.ended("soon")
    assert result.outcome == "verified"
    assert len(skipping.rig.receipts(result.run_id)) == 9
    until = timedelta(minutes=2)
    assert until <= await waited(skipping, "soon") < 2 * until, "what is done in between lets it begin anew"


async def test_a_loop_whose_time_is_up_while_it_waits_ends_by_its_clock(skipping: Skipping) -> None:
    looped = step("only", loop("only", "end", timeout=HOUR, on_exhausted="advance"), gates=[gate("there")])
    limit = {"do": "rate_limit", "seconds": 2 * HOUR}
    await skipping.start("clock", flow(looped, step("end", **READ_ONLY)), script(only=turn(limit)))
    type_, result = await skipping.ended("clock")
    assert type_ == result.outcome == "unverified"
    assert [(one.step_id, one.decision, one.exit) for one in result.decisions] == [
        ("only", "advance", "timeout"),
        ("end", "terminate", None),
    ]


# What silence means, for each kind of wait.

ASK = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"], "save_to": "answer.txt"}
CALL = {"do": "run", "argv": ["touch", "touched"], "ask": True, "reason": "it touches a file"}
USE = {"do": "tokens", "prompt": 9}
FAIL = {"do": "fail"}


def silent(first: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Return a flow whose first step waits an hour for a person."""
    human = {"deadline": HOUR, "on_silence": policy}
    only = step("only", linear("end"), **{"gates": [gate("there")], "human": human, **first})
    return flow(only, step("end", **READ_ONLY))


@dataclass(frozen=True)
class Silence:
    """One kind of wait, and how a run ends whose wait nobody answers, by the step's policy.

    ``fail`` is None where a test above shows it.
    """

    kind: str
    play: Mapping[str, Any]
    fail: str | None
    default: str
    step: Mapping[str, Any] = field(default_factory=dict)
    signal: str | None = None
    on_silence: tuple[str, str] = ("the run ends as needs_human", "the run ends as needs_human")


SILENCES = [
    Silence(
        "pause",
        script(only=turn(OK)),
        None,
        "verified",
        signal="pause",
        on_silence=("the run ends as needs_human", "it goes on by itself"),
    ),
    Silence(
        "human",
        script(only={"turns": [turn(write("half", "x"), FAIL)], "resumed": turn(OK)}),
        None,
        "verified",
        step={"retries": {"agent": 0}},
        on_silence=("the run ends as needs_human", "it goes on by itself"),
    ),
    # Nothing is left to go on from, so nobody but a person can say what is to be done.
    Silence("human", script(only=turn(OK, status="BLOCKED")), None, "needs_human", step={"gates": []}),
    Silence(
        "answer",
        script(only=turn(ASK, OK)),
        "needs_human",
        "verified",
        on_silence=("the run ends as needs_human", "the default answers are given"),
    ),
    Silence("approval", script(only=turn(OK)), None, "needs_human", step={"approval": "before"}),
    Silence("approval", script(only=turn(OK)), None, "needs_human", step={"approval": "after"}),
    Silence(
        "approval",
        script(only=turn(CALL, OK)),
        "verified",
        "verified",
        on_silence=("the call is denied", "the call is denied"),
    ),
    Silence(
        "budget",
        script(only=turn(USE, OK)),
        "needs_human",
        "needs_human",
        step={"budget": {"tokens": 5}},
    ),
    Silence(
        "rate_limit",
        script(only=turn({"do": "rate_limit", "seconds": 2 * HOUR}, OK)),
        None,
        "verified",
        on_silence=("it goes on by itself", "it goes on by itself"),
    ),
]


async def test_what_silence_means_for_each_kind_of_wait(skipping: Skipping) -> None:
    async def ends(number: int, silence: Silence, policy: str, outcome: str) -> None:
        name = f"{number}-{silence.kind}-{policy}".replace("_", "-")
        spec = silent(silence.step, policy)
        await skipping.start(name, spec, silence.play, signal=silence.signal)
        type_, result = await skipping.ended(name)
        assert (type_, result.outcome) == ("" if outcome == "verified" else outcome, outcome), name
        if silence.kind != "rate_limit":  # its end is by the clock of the worker, which skips nothing
            assert await waited(skipping, name) >= timedelta(minutes=55), name
        events = skipping.rig.journal(result.run_id)
        waits = [(event.model_extra or {})["waiting_for"] for event in events if event.kind == "waiting"]
        assert waits == [silence.kind], name
        resumed = [(event.model_extra or {})["action"] for event in events if event.kind == "resumed"]
        assert resumed == (["timer"] if outcome == "verified" else []), name
        said = [(event.model_extra or {})["name"] for event in events if event.kind == "human_message"]
        assert said == ([silence.signal] if silence.signal else []), "nobody said anything else"
        skipping.rig.check_evidence(result)
        if silence.kind == "answer" and policy == "default":
            assert file_at(result.git, "answer.txt") == "red"
            (answered,) = [event.model_extra or {} for event in events if event.kind == "question_answered"]
            assert answered["by"] == "default"
        if silence.play == script(only=turn(CALL, OK)):
            receipt = skipping.rig.receipts(result.run_id)[1]
            assert receipt.tool_calls.blocked == 1
            assert "denied_by_deadline: denied: nobody decided in time" in transcript_of(
                skipping.rig, receipt
            )

    for number, silence in enumerate(SILENCES):
        if silence.fail is not None:
            await ends(number, silence, "fail", silence.fail)
        await ends(number, silence, "default", silence.default)


async def test_what_silence_will_mean_is_said_while_it_lasts_and_some_waits_last_for_ever(
    skipping: Skipping,
) -> None:
    few = asyncio.Semaphore(6)

    async def says(name: str, silence: Silence, policy: str, words: str) -> None:
        async with few:
            await skipping.start(name, silent(silence.step, policy), silence.play, signal=silence.signal)
            status = await skipping.rig.until(name, is_waiting_for(silence.kind))
            waiting = status["waiting"]
            assert waiting["on_silence"] == words, name
            assert (waiting["deadline"] is None) == (words == "it waits for ever"), name
            (item,) = await skipping.env.client.get_workflow_handle(name).query("pending")
            assert (item["deadline"], item["on_silence"]) == (waiting["deadline"], words)
            await skipping.env.client.get_workflow_handle(name).signal("abort")

    cases = []
    for number, silence in enumerate(SILENCES):
        ever = "it goes on by itself" if silence.kind == "rate_limit" else "it waits for ever"
        words = dict(zip(("fail", "default", "keep_waiting"), (*silence.on_silence, ever), strict=True))
        cases += [says(f"{number}-{policy}", silence, policy, said) for policy, said in words.items()]
    await asyncio.gather(*cases)


def is_waiting_for(kind: str) -> Callable[[dict[str, Any]], bool]:
    """Return what holds while a run waits for a person and no agent does."""
    return lambda now: (
        bool(now) and (now["waiting"] or {}).get("kind") == kind and "steer" not in now["legal"]
    )
