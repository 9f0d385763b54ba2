"""The developer model: it answers what an agent asks, reads along, and decides at the gates; people where it cannot."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from agents_kit import agents
from conftest import Rig
from flow_kit import flow, linear, step, transcript_of
from model_servers.minds import DRAFT, is_structured
from model_servers.script import Ask, HandIn, Reply, Seen, Write, turn
from run_kit import READ_ONLY, ended, said, update, waiting

NAME = "claude-sdk"
COLOURS = ("red", "blue")


class Model:
    """Plays agent and developer: ``work`` answers the agent's requests, ``says`` those of the developer in turn."""

    def __init__(self, work: Callable[[Seen], Reply], *says: Mapping[str, Any]) -> None:
        self.work = work
        self.says = list(says)
        self.asked: list[str] = []

    def __call__(self, seen: Seen) -> Reply:
        if not is_structured(seen):
            return self.work(seen)
        if "# The task" not in seen.asked and "# The decision" not in seen.asked:
            return turn(HandIn(DRAFT))
        self.asked.append(seen.asked)
        return turn(HandIn(self.says.pop(0)))


def answers(*words: str) -> dict[str, Any]:
    """Return the developer's answers, in the order of the questions."""
    return {"answers": [{"number": number, "answer": [word]} for number, word in enumerate(words, 1)]}


def asking(*questions: Ask) -> Callable[[Seen], Reply]:
    """Return an agent that asks these, one after the other, and then writes the last answer down."""

    def work(seen: Seen) -> Reply:
        done = [call for call in seen.calls if call.result is not None]
        if len(done) < len(questions):
            return turn(questions[len(done)])
        if len(done) == len(questions):
            return turn(Write("answer.txt", done[-1].result or ""))
        return turn("Done.")

    return work


def begin(rig: Rig, name: str, repo: Path, *steps: Any, **more: Any) -> None:
    """Start a flow whose steps are done by the model's agent."""
    spec = flow(*(steps or (step("only"),)))
    rig.start(name, {"spec": spec, "repo": str(repo), "task": "Paint it.", "transport": NAME, **more})


def written(rig: Rig, run_id: str) -> str:
    return (rig.folder / "disk" / "runs" / run_id / "ws" / "answer.txt").read_text()


@pytest.mark.parametrize("name", ["claude-sdk", "claude-cli"])
async def test_ten_questions_in_a_row_are_answered_by_the_developer_model(
    rig: Rig, repo: Path, name: str
) -> None:
    questions = [f"Colour of wall {number}?" for number in range(10)]
    # Not all alike, so that an answer to another question is seen.
    colours = [COLOURS[number % 3 == 0] for number in range(10)]
    model = Model(
        asking(*(Ask(question, COLOURS) for question in questions)),
        *[answers(colour.title()) for colour in colours],
    )
    heard: list[Seen] = []

    def listens(seen: Seen) -> Reply:
        if not is_structured(seen):
            heard.append(seen)
        return model(seen)

    with agents({name: listens}) as env:
        rig.worker(**env)
        begin(rig, "ten", repo, transport=name)
        result = await rig.result("ten")
    assert result.outcome == "unverified"
    assert f'"{questions[9]}"="{colours[9]}"' in written(rig, result.run_id)

    assert len(model.asked) == 10
    for number, asked in enumerate(model.asked):
        assert "Paint it." in asked
        assert questions[number] in asked
        assert number == 0 or questions[number - 1] in asked, "it is shown what was said before"
        assert asked.count("[tool") <= 10

    told = [call.result or "" for call in heard[-1].calls[:10]]
    assert [
        f'"{question}"="{colour}"' in result
        for question, colour, result in zip(questions, colours, told, strict=True)
    ] == [True] * 10, "the agent's session has all of its questions with their answers"
    (receipt,) = rig.receipts(result.run_id)
    assert receipt.session == "cold", "one session that was never begun anew"
    lines = map(json.loads, transcript_of(rig, receipt).splitlines())
    given = [one["block"]["answer"] for one in lines if one.get("event_type") == "question_answered"]
    assert [(one["source"], one["answers"]) for one in given] == [
        ("developer", {question: colour}) for question, colour in zip(questions, colours, strict=True)
    ]
    assert said(rig, result.run_id, "waiting") == [], "no person was asked"


async def test_an_answer_that_does_not_fit_is_asked_for_again_with_all_that_was_said_then_people_are_asked(
    rig: Rig, repo: Path
) -> None:
    model = Model(asking(Ask("Which colour?", COLOURS)), answers("green"), answers("yellow"))
    with agents({NAME: model}) as env:
        rig.worker(**env)
        begin(rig, "unfit", repo)
        await waiting(rig, "unfit", "answer")
        assert len(model.asked) == 2
        await update(rig, "unfit", "answer", {"answers": {"1": "red"}, "by": "ann"})
        result = await rig.result("unfit")
    assert '"Which colour?"="red"' in written(rig, result.run_id)


async def test_an_agent_that_asks_again_after_its_answer_gets_one_from_the_whole_history_then_a_person(
    rig: Rig, repo: Path
) -> None:
    same = Ask("Which colour?", COLOURS)
    model = Model(asking(same, same, same), answers("blue"), answers("red"))
    with agents({NAME: model}) as env:
        rig.worker(**env)
        begin(rig, "again", repo)
        await waiting(rig, "again", "answer")
        assert len(model.asked) == 2
        await update(rig, "again", "answer", {"answers": {"1": "blue"}})
        result = await rig.result("again")
    assert '"Which colour?"="blue"' in written(rig, result.run_id)


@pytest.mark.parametrize("off", ["off", ""], ids=["switched-off", "empty-question"])
async def test_without_a_model_to_ask_people_answer_and_an_empty_question_is_nobodys(
    rig: Rig, repo: Path, off: str
) -> None:
    model = Model(asking(Ask("Which colour?" if off else " ", COLOURS)))
    name = f"none-{off}"
    with agents({NAME: model}) as env:
        rig.worker(**env, STEPWISE_DEVELOPER_QA_MODEL=off)
        begin(rig, name, repo)
        if off:
            await waiting(rig, name, "answer")
            await update(rig, name, "answer", {"answers": {"1": "red"}})
        result = await rig.result(name)
    assert ("red" if off else "Your question is empty") in written(rig, result.run_id)
    assert model.asked == []


async def test_the_developer_model_reads_along_and_steers(rig: Rig, repo: Path) -> None:
    def work(seen: Seen) -> Reply:
        if "Mind the door." in str(seen.texts):
            return turn("Done.")
        return turn(Write(f"wall-{len(seen.calls)}.txt", "white\n"))

    reviews = [{"on_track": False, "steer": "Mind the door."}] + [{"on_track": True, "steer": ""}] * 50
    model = Model(work, *reviews)
    with agents({NAME: model}) as env:
        rig.worker(**env)
        begin(rig, "reviewed", repo, step("only", developer={"review_every_turns": 2}))
        result = await rig.result("reviewed")
    (receipt,) = rig.receipts(result.run_id)
    told = [
        one["block"]["text"]
        for one in map(json.loads, transcript_of(rig, receipt).splitlines())
        if one.get("event_type") == "user_prompt"
    ]
    assert "Mind the door." in told
    assert "wall-0.txt" in model.asked[0]


@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_decision_that_is_lost_with_its_worker_is_asked_for_again_and_no_person_is(
    rig: Rig, repo: Path, gate: str
) -> None:
    def decided(seen: Seen) -> Reply:
        if "# The decision" in seen.asked and not model.asked:
            first.kill()
        return model(seen)

    model = Model(lambda _: turn("Done."), *[{"approve": True, "reason": ""}] * 2)
    name = f"lost-{gate}"
    with agents({NAME: decided}) as env:
        first = rig.worker(**env)
        begin(rig, name, repo, step("only", approval=gate, **READ_ONLY), approval="developer")
        await asyncio.to_thread(first.wait, 60)
        rig.worker(**env)
        result = await rig.result(name)
    rig.check_evidence(result)
    assert len(model.asked) == 2
    assert [one.attempt for one in rig.receipts(result.run_id)] == [1]
    assert [(one["name"], one["by"]) for one in said(rig, result.run_id, "human_message")] == [
        ("approve", "developer")
    ]
    assert said(rig, result.run_id, "waiting") == []


@pytest.mark.parametrize("gate", ["before", "after"])
@pytest.mark.parametrize("how", ["abort", "interrupt"])
async def test_a_run_is_stopped_while_the_developer_model_decides(
    rig: Rig, repo: Path, how: str, gate: str
) -> None:
    asked, go = threading.Event(), threading.Event()

    def decides(seen: Seen) -> Reply:
        if "# The decision" in seen.asked:
            asked.set()
            assert go.wait(60)
        return model(seen)

    model = Model(lambda _: turn("Done."), {"approve": True, "reason": ""})
    name = f"{how}-{gate}"
    steps = [step("only", linear("end"), approval=gate, **READ_ONLY), step("end", **READ_ONLY)]
    with agents({NAME: decides}) as env:
        rig.worker(**env)
        begin(rig, name, repo, *steps, approval="developer")
        try:
            assert await asyncio.to_thread(asked.wait, 60)
            await update(rig, name, how)
            if how == "abort":
                await ended(rig, name, "stopped")
        finally:
            go.set()
        if how == "interrupt":
            await waiting(rig, name, "human")
            await update(rig, name, "resume")
            await ended(rig, name)


async def test_a_person_decides_what_the_developer_model_did_not_and_is_told_why(
    rig: Rig, repo: Path
) -> None:
    model = Model(lambda _: turn("Done."), *[{"approve": "perhaps"}] * 20)
    with agents({NAME: model}) as env:
        rig.worker(**env)
        begin(rig, "perhaps", repo, step("only", approval="before", **READ_ONLY), approval="developer")
        status = await waiting(rig, "perhaps", "approval")
        assert status["waiting"]["reason"] == (
            "may only start? The developer model did not decide: it gave no answer"
        )
        await update(rig, "perhaps", "approve", {"by": "ann"})
        await rig.result("perhaps")


async def test_the_developer_model_decides_at_a_gate_and_a_rejection_goes_to_the_agent(
    rig: Rig, repo: Path
) -> None:
    prompts: list[str] = []

    def work(seen: Seen) -> Reply:
        if not prompts or prompts[-1] != seen.asked:
            prompts.append(seen.asked)
        return turn("Done.")

    yes = {"approve": True, "reason": ""}
    model = Model(work, {"approve": False, "reason": "Name the colour."}, yes, yes)
    judged: list[str] = []

    def decides(seen: Seen) -> Reply:
        if "# The decision" in seen.asked:
            judged.append(seen.asked)
        return model(seen)

    with agents({NAME: decides}) as env:
        rig.worker(**env)
        plan = step("plan", linear("end"), approval="after", **READ_ONLY)
        begin(rig, "gated", repo, plan, step("end", approval="before", **READ_ONLY), approval="developer")
        result = await rig.result("gated")
    assert result.outcome in {"nothing_to_do", "unverified"}
    assert [one.step_id for one in rig.receipts(result.run_id)] == ["plan", "plan", "end"]
    assert "Name the colour." in prompts[1]
    assert [(one["name"], one["by"], one["model"]) for one in said(rig, result.run_id, "human_message")] == [
        ("reject", "developer", "haiku"),
        ("approve", "developer", "haiku"),
        ("approve", "developer", "haiku"),
    ]
    assert ["Handoff of step plan" in prompt for prompt in judged] == [True] * 3
