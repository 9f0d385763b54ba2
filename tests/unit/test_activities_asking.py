"""The desk of an attempt: what its agent asks, who is told, and how each wait ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from activities import asking as module
from activities.answers import MAX_ITEMS, bounded, in_its_words, in_lines
from activities.asking import Desk, teller
from schemas.calls import AttemptKey, DeliverOut
from schemas.common import Durable
from schemas.questions import OWN_JUDGEMENT, Answer, CallDecision, CallRequest, Given, Question, QuestionItem
from schemas.run_state import Asked
from store.blobs import open_blobs
from store.evidence import Evidence
from store.redaction import Redactor
from transports.port import Park

KEY = AttemptKey(run_id="r", flow_key="f", step_id="s", visit=1, attempt=1)
HIDDEN = "hunter2-hunter2"


def ask(*items: QuestionItem, question_id: str = "q") -> Question:
    given = items or (QuestionItem(question="Which?", options=["red", "blue"]),)
    return Question(question_id=question_id, items=list(given))


def call(call_id: str = "c", signature: str = "s") -> CallRequest:
    return CallRequest(call_id=call_id, signature=signature, tool_name="stub.run", input="[]")


class Told:
    """A desk, and the signals its run got."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.signals: list[tuple[str, Durable]] = []
        self.said: list[str] = []
        self.fails = False
        self._news = asyncio.Event()
        store = f"file://{folder}"
        blobs = open_blobs(store, fsync=False, shared=True, temporal_is_loopback=True)
        evidence = Evidence(blobs, Redactor((HIDDEN,)))
        tell = more.pop("tell", self.tell)
        self.desk = Desk(KEY, tell, evidence, **{"hold_s": 3_600.0, "say": self.said.append, **more})

    async def tell(self, name: str, payload: Durable) -> None:
        if self.fails:
            raise RuntimeError("the server is away")
        self.signals.append((name, payload))
        self._news.set()

    async def heard(self, count: int) -> list[str]:
        """Return the names of the signals once there are so many."""
        while len(self.signals) < count:
            self._news.clear()
            await self._news.wait()
        return [name for name, _ in self.signals]

    def asked(self) -> Asked:
        (asked,) = [payload for _, payload in self.signals if isinstance(payload, Asked)]
        return asked


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


async def test_a_question_is_told_and_its_answer_goes_to_who_asked(told: Told) -> None:
    asking = asyncio.ensure_future(told.desk.on_question(ask()))
    await told.heard(1)
    asked = told.asked()
    assert asked.key == KEY
    assert asked.question is not None
    assert asked.deadline == asked.question.deadline
    assert told.said[-1] == "waiting for a person"

    given = Given(question=asked.question, answers={"Which?": "blue"}, by="ann")
    assert told.desk.take("q", given) == DeliverOut(live=True)

    answer = await asking
    assert isinstance(answer, Answer)
    assert (answer.answers, answer.source) == ({"Which?": "blue"}, "human")
    await told.desk.told()
    assert await told.heard(2) == ["_asked", "_settled"]
    assert not told.desk.pauses.on
    assert told.desk.pauses.total_s > 0
    assert told.said[-1] == ""


async def test_the_same_answer_may_come_twice_and_another_one_may_not(told: Told) -> None:
    asking = asyncio.ensure_future(told.desk.on_question(ask()))
    await told.heard(1)
    given = Given(question=ask(), answers={"Which?": "blue"})
    told.desk.take("q", given)

    assert told.desk.take("q", given).live
    await asking
    assert told.desk.take("q", given).live
    assert told.desk.take("q", given.model_copy(update={"answers": {"Which?": "red"}})) == DeliverOut(
        live=False, detail="it has another answer already"
    )
    assert told.desk.take("other", given) == DeliverOut(live=False, detail="nothing waits under other")


async def test_an_answer_counts_that_comes_before_the_server_has_confirmed_the_question(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()

    async def slow(_name: str, _payload: Durable) -> None:
        await never.wait()

    told = Told(tmp_path, tell=slow)
    asking = asyncio.ensure_future(told.desk.on_question(ask()))
    await asyncio.sleep(0)
    assert told.desk.take("q", Given(question=ask(), answers={"Which?": "red"})).live

    answer = await asking

    assert isinstance(answer, Answer)
    never.set()
    await told.desk.told()


async def test_a_question_nobody_answers_in_time_is_parked(tmp_path: Path) -> None:
    told = Told(tmp_path, hold_s=0.01)

    parked = await told.desk.on_question(ask())

    assert parked == Park("nobody answered in 0.01 seconds")
    await told.desk.told()
    assert await told.heard(2) == ["_asked", "_settled"]
    assert not told.desk.take("q", Given(question=ask(), answers={})).live


async def test_a_question_the_run_cannot_be_told_of_is_parked(told: Told) -> None:
    told.fails = True

    assert await told.desk.on_question(ask()) == Park("the run could not be told")
    assert await told.desk.on_call(call()) == Park("the run could not be told")
    await told.desk.told()


async def test_a_worker_without_a_client_can_tell_nobody(tmp_path: Path) -> None:
    told = Told(tmp_path, tell=teller(None, "wf"))

    assert isinstance(await told.desk.on_question(ask()), Park)
    await told.desk.told()


async def test_the_end_of_the_turn_ends_every_wait_and_none_begins_after_it(told: Told) -> None:
    asking = asyncio.ensure_future(told.desk.on_question(ask()))
    calling = asyncio.ensure_future(told.desk.on_call(call()))
    await told.heard(2)

    told.desk.close("the turn is to end")

    assert await asking == await calling == Park("the turn is to end")
    assert told.desk.is_over
    assert isinstance(await told.desk.on_question(ask(question_id="later")), Park)
    await told.desk.told()
    assert sorted(await told.heard(4)) == ["_asked", "_asked", "_settled", "_settled"]


async def test_a_wait_that_is_cancelled_is_settled_too(told: Told) -> None:
    asking = asyncio.ensure_future(told.desk.on_question(ask()))
    await told.heard(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await told.desk.told()

    assert await told.heard(2) == ["_asked", "_settled"]
    assert not told.desk.pauses.on


async def test_a_server_that_does_not_answer_holds_up_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_name: str, _payload: Durable) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "TELL_LIMIT_S", 0.01)
    told = Told(tmp_path, tell=never)

    assert await told.desk.on_question(ask()) == Park("the run could not be told")
    await told.desk.told()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            "default",
            Answer(
                answers={"Which?": "red", "Why?": OWN_JUDGEMENT, "What else?": ["this"]}, source="default"
            ),
        ),
        ("fail", Park("the flow answers no questions")),
    ],
)
async def test_where_the_step_says_so_nobody_is_asked(
    tmp_path: Path, policy: str, expected: Answer | Park
) -> None:
    told = Told(tmp_path, unanswered=policy)
    question = ask(
        QuestionItem(question="Which?", options=["red", "blue"]),
        QuestionItem(question="Why?"),
        QuestionItem(question="What else?", options=["this", "that"], multi_select=True),
    )

    assert await told.desk.on_question(question) == expected
    assert told.signals == []


async def test_people_see_no_secret_and_the_agent_gets_its_own_words_back(told: Told) -> None:
    question = ask(QuestionItem(question=f"Is {HIDDEN} right?", options=[f"yes, {HIDDEN}", "no"]))
    asking = asyncio.ensure_future(told.desk.on_question(question))
    await told.heard(1)
    shown = told.asked().question
    assert shown is not None
    assert HIDDEN not in shown.model_dump_json()

    told.desk.take("q", Given(question=shown, answers={shown.items[0].question: shown.items[0].options[0]}))

    answer = await asking
    assert isinstance(answer, Answer)
    assert answer.answers == {f"Is {HIDDEN} right?": f"yes, {HIDDEN}"}
    asked = told.desk.shown_call(call().model_copy(update={"input": HIDDEN}))
    assert HIDDEN not in asked.input
    await told.desk.told()


def test_a_question_of_any_size_is_shown_in_a_bounded_one() -> None:
    item = QuestionItem(question="x" * 100_000, header="h" * 100_000, options=["o" * 100_000] * 1_000)
    shown = bounded(ask(*[item] * 1_000))

    assert len(shown.model_dump_json()) < 150_000
    assert len(shown.items) == MAX_ITEMS


def test_items_that_were_not_shown_or_not_answered_get_their_defaults() -> None:
    items = [
        QuestionItem(question=f"{number}?", options=["a", "b"], multi_select=True) for number in range(30)
    ]
    question = ask(*items)
    answers = in_its_words(question, bounded(question), {"0?": ["b", "own words"], "1?": "b"})

    assert answers["0?"] == ["b", "own words"]
    assert answers["1?"] == "b"
    assert answers["2?"] == answers["29?"] == ["a"]


def test_question_and_answer_stand_in_lines_of_their_own() -> None:
    question = ask(QuestionItem(question="Which?", options=["a", "b"]), QuestionItem(question="Why?"))
    given = Given(question=question, answers={"Which?": ["a", "b"]})

    assert in_lines(given) == [
        "Question: Which?",
        "Answer: a, b",
        "Question: Why?",
        f"Answer: {OWN_JUDGEMENT}",
    ]


async def test_a_call_is_told_and_decided_under_its_own_id(told: Told) -> None:
    calling = asyncio.ensure_future(told.desk.on_call(call()))
    await told.heard(1)
    assert told.asked().call == call().model_copy(update={"deadline": told.asked().deadline})
    decision = CallDecision(signature="s", allow=False, reason="no")

    assert told.desk.take("c", decision).live
    assert await calling == decision
    await told.desk.told()


@pytest.mark.parametrize(("remember", "asks_again"), [("once", True), ("run", False)])
async def test_a_decision_that_is_known_is_used_without_asking_once_or_for_the_whole_session(
    tmp_path: Path, remember: str, *, asks_again: bool
) -> None:
    known = CallDecision.model_validate({"signature": "s", "allow": True, "remember": remember})
    told = Told(tmp_path, decisions=[known], hold_s=0.01)

    assert await told.desk.on_call(call("1")) == known
    assert told.signals == []
    again = await told.desk.on_call(call("2"))
    assert isinstance(again, Park) == asks_again
    assert isinstance(await told.desk.on_call(call("3", "another")), Park)
    await told.desk.told()


async def test_the_desk_says_which_of_the_decisions_that_count_once_were_used(tmp_path: Path) -> None:
    once, never = CallDecision(signature="s", allow=True), CallDecision(signature="never", allow=False)
    always = CallDecision(signature="always", allow=True, remember="run")
    told = Told(tmp_path, decisions=[once, never, always], hold_s=0.01)
    assert told.desk.spent == []

    assert await told.desk.on_call(call("1", "always")) == always
    assert await told.desk.on_call(call("2")) == once
    assert isinstance(await told.desk.on_call(call("3")), Park)

    assert told.desk.spent == ["s"]
    assert Told(tmp_path, decisions=[always]).desk.spent is None
    await told.desk.told()


async def test_what_a_person_says_of_a_call_that_waits_is_not_among_what_was_used(told: Told) -> None:
    calling = asyncio.ensure_future(told.desk.on_call(call()))
    await told.heard(1)
    told.desk.take("c", CallDecision(signature="s", allow=True))
    await calling
    assert told.desk.spent is None
    await told.desk.told()


async def test_a_consent_is_not_used_up_by_a_turn_that_is_to_end(tmp_path: Path) -> None:
    told = Told(tmp_path, decisions=[CallDecision(signature="s", allow=True)])
    told.desk.close("the turn is to end")

    assert await told.desk.on_call(call()) == Park("the turn is to end")

    assert told.desk.spent == []


@pytest.mark.parametrize(
    ("decision", "asks_again"),
    [
        (CallDecision(signature="s", allow=True, remember="run"), False),
        (CallDecision(signature="s", allow=True), True),
        (CallDecision(signature="s", allow=False, remember="run"), True),
    ],
)
async def test_what_is_allowed_for_the_run_is_not_asked_again(
    told: Told, decision: CallDecision, *, asks_again: bool
) -> None:
    first = asyncio.ensure_future(told.desk.on_call(call("1")))
    await told.heard(1)
    told.desk.take("1", decision)
    assert await first == decision
    second = asyncio.ensure_future(told.desk.on_call(call("2")))
    if asks_again:
        await told.heard(3)
        told.desk.take("2", decision)
    assert await second == decision
    await told.desk.told()
    assert len(told.signals) == (4 if asks_again else 2)


async def test_a_decision_about_another_call_is_not_taken(told: Told) -> None:
    calling = asyncio.ensure_future(told.desk.on_call(call()))
    await told.heard(1)

    refused = told.desk.take("c", CallDecision(signature="other", allow=True))
    question = told.desk.take("c", Given(question=ask(), answers={}))

    assert not refused.live
    assert not question.live
    assert not calling.done()
    told.desk.close()
    assert isinstance(await calling, Park)
    await told.desk.told()


async def test_words_are_said_once_however_often_they_are_delivered(told: Told) -> None:
    said: list[str] = []

    async def into(text: str) -> bool:
        said.append(text)
        return True

    assert await told.desk.steer("left", "1", into)
    assert await told.desk.steer("left", "1", into)
    assert await told.desk.steer("left", "2", into)
    assert said == ["left", "left"]
