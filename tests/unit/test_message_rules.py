"""The table of messages: what a payload may be, what is legal when, and how a refusal reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.messages import AnswerQuestion, Approve, Pause, Reject, Resume
from schemas.questions import CallRequest, Question, QuestionItem
from workflows.messages import (
    MESSAGES,
    BadMessage,
    Situation,
    find_call,
    find_question,
    legal_now,
    parse,
    refusal,
)

STEPS = ("mend", "review", "end")
RUNNING = Situation(state="running", steps=STEPS, transports=("stub", "other"), step="mend")
QUESTION = Question(question_id="q-1", items=[QuestionItem(question="Red?", options=["yes", "no"])])
CALL = CallRequest(call_id="c-1", signature="s", tool_name="run")


def waits(kind: Any, **more: Any) -> Situation:
    return replace(RUNNING, state="waiting", waiting_for=kind, **more)


LEGAL: list[tuple[Situation, list[str]]] = [
    (RUNNING, ["pause", "interrupt", "steer", "abort"]),
    (replace(RUNNING, pause_requested=True), ["interrupt", "resume", "steer", "abort"]),
    (waits("pause"), ["resume", "abort"]),
    (waits("human"), ["resume", "abort"]),
    (waits("rate_limit"), ["interrupt", "resume", "abort"]),
    (waits("approval"), ["resume", "approve", "reject", "abort"]),
    (waits("approval", calls=[CALL]), ["resume", "approve", "reject", "abort"]),
    (
        waits("approval", calls=[CALL], live=True),
        ["interrupt", "resume", "approve", "reject", "steer", "abort"],
    ),
    (waits("answer", questions=[QUESTION]), ["resume", "answer", "abort"]),
    (waits("answer", questions=[QUESTION], live=True), ["interrupt", "resume", "answer", "steer", "abort"]),
    (waits("budget"), ["resume", "extend_budget", "abort"]),
    (replace(RUNNING, state="stopping"), ["interrupt", "abort"]),
    (replace(RUNNING, state="done"), []),
]


@pytest.mark.parametrize(("now", "legal"), LEGAL)
def test_what_is_legal_is_listed_and_the_rest_is_refused_with_that_list(
    now: Situation, legal: list[str]
) -> None:
    assert legal_now(now) == legal
    where = f"waiting for {now.waiting_for}" if now.waiting_for else now.state
    for name in MESSAGES:
        payload = Resume(action="abort") if name == "resume" else parse(name, [])
        why = refusal(name, payload, now)
        held = now.waiting_for in {"pause", "human"} and name in {"pause", "interrupt"}
        if name in legal or held or (name == "pause" and now.pause_requested):
            assert why is None, name
        else:
            held = now.waiting_for in {"pause", "human", "rate_limit"}
            words = (
                "resume, with 'note', tells it to the agent"
                if held
                else "send it again when an agent works; nothing of it is kept"
            )
            more = f", and no agent works: {words}" if name == "steer" and now.waiting_for else ""
            assert why == (
                f"{name} is not legal while the run is {where}{more}; legal now: {', '.join(legal) or 'nothing'}"
            )


@pytest.mark.parametrize("state", ["stopping", "done"])
def test_a_pause_that_was_asked_for_is_no_excuse_once_the_run_ends(state: Any) -> None:
    assert refusal("pause", Pause(), replace(RUNNING, state=state, pause_requested=True)) is not None


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("args", [[], [None], [""], [b""], [{}], [[]]])
def test_no_payload_in_any_form_is_the_default_payload(name: str, args: list[Any]) -> None:
    assert parse(name, args) == MESSAGES[name].model()


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("pause", ["x"], "pause takes a JSON object such as {}, got str"),
        ("pause", [1], "got int"),
        ("pause", [True], "got bool"),
        ("pause", [["x"]], "got list"),
        ("pause", [{}, {}], "pause takes one JSON object, got 2 arguments"),
        ("steer", [{"text": ""}], "steer: text: String should have at least 1 character"),
        ("steer", [{"text": "x" * 20_001}], "steer: text: String should have at most 20000 characters"),
        ("answer", [{"answers": ["x"]}], "answer: answers: Input should be a valid dictionary"),
        ("answer", [{"answers": {"1": 5}}], "answer: answers.1"),
        ("answer", [{"1": "x"}], "answer: 1: no such field; known: question_id, answers, by"),
        ("approve", [{"remember": "always"}], "approve: remember: Input should be 'once' or 'run'"),
        ("extend_budget", [{"tokens": 0}], "extend_budget: tokens: Input should be greater than 0"),
        ("extend_budget", [{"seconds": -1}], "extend_budget: seconds"),
        ("extend_budget", [{"usd": "nan"}], "extend_budget: usd"),
        ("extend_budget", [{"usd": float("inf")}], "extend_budget: usd"),
        ("extend_budget", [{"cycles": 65}], "extend_budget: cycles"),
        ("extend_budget", [{"steps": 1}], "known: tokens, usd, seconds, cycles, by"),
        ("resume", [{"action": "go", "note": 1}], "resume: action: Input should be"),
        ("interrupt", [{"reason": "x" * 2_001}], "interrupt: reason: String should have at most 2000"),
    ],
)
def test_a_payload_that_cannot_be_used_names_the_field_and_what_would_be_right(
    name: str, args: list[Any], says: str
) -> None:
    with pytest.raises(BadMessage) as raised:
        parse(name, args)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (Resume(action="goto"), "resume with action goto needs 'step': one of mend, review, end"),
        (Resume(action="goto", step="ende"), "no step 'ende'; steps: mend, review, end"),
        (Resume(action="retry", step="end"), "'step' belongs to action goto; leave it out"),
        (Resume(transport="clod"), "transport 'clod' is not offered; offered: stub, other"),
        (Resume(action="skip", transport="stub"), "'transport' belongs to the actions continue and retry"),
        (Resume(action="abort", transport="stub"), "'transport' belongs to the actions continue and retry"),
        (Resume(transport="other"), None),
        (Resume(action="retry", transport="other", note="again"), None),
        (Resume(action="goto", step="mend"), None),
    ],
)
def test_an_order_must_make_sense_for_the_flow(payload: Resume, says: str | None) -> None:
    why = refusal("resume", payload, waits("human"))
    assert why is None if says is None else says in (why or "")


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("approval", "approve, reject, or resume with retry, skip, goto or abort"),
        ("answer", "answer, or resume with retry, skip, goto or abort"),
        ("budget", "extend_budget, or resume with retry, skip, goto or abort"),
    ],
)
def test_what_must_be_answered_cannot_simply_continue(kind: Any, instead: str) -> None:
    why = refusal("resume", Resume(), waits(kind))
    assert why == f"a run waiting for {kind} cannot simply continue; use {instead}"
    assert refusal("resume", Resume(action="retry"), waits(kind)) is None


@pytest.mark.parametrize("kind", ["pause", "human", "rate_limit"])
def test_every_other_wait_can(kind: Any) -> None:
    assert refusal("resume", Resume(), waits(kind)) is None


@pytest.mark.parametrize("action", ["retry", "skip", "goto"])
def test_outside_of_steps_there_is_none_to_begin_again_or_to_leave(action: Any) -> None:
    step = "mend" if action == "goto" else None
    why = refusal("resume", Resume(action=action, step=step), waits("human", step=None))
    assert why == f"no step runs that {action} could mean; use continue or abort"
    assert refusal("resume", Resume(), waits("human", step=None)) is None


@pytest.mark.parametrize(
    "payload", [Resume(action="retry"), Resume(action="skip"), Resume(transport="other")]
)
def test_a_pause_that_has_not_taken_hold_can_only_be_withdrawn(payload: Resume) -> None:
    asked = replace(RUNNING, pause_requested=True)
    assert "withdraw the pause" in (refusal("resume", payload, asked) or "")
    assert refusal("resume", Resume(note="x"), asked) is None
    assert refusal("resume", Resume(action="abort"), asked) is None


@pytest.mark.parametrize("model", [Approve, Reject])
def test_a_call_is_named_by_its_id_and_a_gate_by_none(model: Any) -> None:
    name = model.__name__.lower()
    gate, call = waits("approval"), waits("approval", calls=[CALL])
    assert refusal(name, model(), gate) is None
    assert refusal(name, model(), call) is None
    assert refusal(name, model(call_id="c-1"), call) is None
    assert refusal(name, model(call_id="c-2"), call) == (
        "no call 'c-2' waits for an approval; waiting: 'c-1'"
    )
    assert refusal(name, model(call_id="c-1"), gate) == (
        "no call 'c-1' waits for an approval; the approval gate does: leave call_id out"
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (AnswerQuestion(), None),
        (AnswerQuestion(question_id="q-1", answers={"1": "yes"}), None),
        (AnswerQuestion(question_id="q-2"), "no question 'q-2' waits for an answer; waiting: 'q-1'"),
        (AnswerQuestion(answers={"1": "maybe"}), "'maybe' is no option of 'Red?'; options: yes, no"),
        (AnswerQuestion(answers={"2": "yes"}), "no question '2'; asked: 1 (Red?)"),
    ],
)
def test_an_answer_must_fit_the_question_that_waits(payload: AnswerQuestion, says: str | None) -> None:
    assert refusal("answer", payload, waits("answer", questions=[QUESTION])) == says


def test_where_no_question_is_known_nothing_can_be_answered() -> None:
    assert refusal("answer", AnswerQuestion(), waits("answer")) == "no question waits for an answer"
    assert refusal("answer", AnswerQuestion(question_id="q-1"), waits("answer")) == (
        "no question 'q-1' waits for an answer; waiting: none"
    )


def test_of_several_things_that_are_asked_each_can_be_answered_by_its_id() -> None:
    other = Question(question_id="q-2", items=[QuestionItem(question="Why?")])
    call = CALL.model_copy(update={"call_id": "c-2"})
    now = waits("answer", questions=[QUESTION, other], calls=[CALL, call], live=True)
    assert legal_now(now) == ["interrupt", "resume", "answer", "approve", "reject", "steer", "abort"]
    assert find_question(now, None) is QUESTION
    assert find_question(now, "q-2") is other
    assert find_call(now, None) is CALL
    assert find_call(now, "c-2") is call
    assert refusal("answer", AnswerQuestion(question_id="q-2", answers={"1": "so"}), now) is None
    assert refusal("answer", AnswerQuestion(question_id="q-3"), now) == (
        "no question 'q-3' waits for an answer; waiting: 'q-1', 'q-2'"
    )
    assert refusal("approve", Approve(call_id="c-2"), now) is None
    assert refusal("reject", Reject(call_id="c-3"), now) == (
        "no call 'c-3' waits for an approval; waiting: 'c-1', 'c-2'"
    )


def test_a_word_about_every_message_stands_in_the_table() -> None:
    assert all(one.help and one.name == name for name, one in MESSAGES.items())
