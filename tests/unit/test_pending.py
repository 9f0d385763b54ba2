"""What a person can type: each wait's answers, and commands that a shell takes as they are meant."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schemas.calls import AttemptKey
from schemas.common import ArtifactRef
from schemas.flow import Human
from schemas.handoff import Savepoint
from schemas.messages import Approve, ExtendBudget, Reject, Resume
from schemas.questions import CallRequest, Given, Question, QuestionItem
from schemas.run import FlowInput, StepSummary
from schemas.run_state import Asked, LegalAnswer, PartialView, ReceiptPlace, RunState, Waiting
from workflows.messages import Situation, legal_now, parse, refusal
from workflows.pending import answers, command, next_command, pending_items
from workflows.words import MAX_SAID_CHARS, action, call_reason, said, silence, together

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
QUESTION = Question(question_id="q-1", items=[QuestionItem(question="Red?", options=["yes", "no"])])
CALL = CallRequest(call_id="c-1", signature="s", tool_name="run")
STATE = RunState(
    run_id="r-1", workflow_id="r", input=FlowInput(flow="fix", task="t", repo="/r"), started_at=NOW
)
NASTY = [
    "plain",
    "two words",
    "it's",
    '"quoted"',
    "$HOME",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "a\nb",
    "back\\slash",
    "!history",
    "* ? [x]",
    "~",
    "--name abort",
    "ä 漢 😀",
    "\x1b]0;title\x07\x15it's!\n```\ttouch \\ x",
    "\u202eturned \x9b31m\u200b\U000e0041",
    "",
]


def situation(kind: Any, **more: Any) -> Situation:
    return Situation(
        **{
            "state": "waiting",
            "waiting_for": kind,
            "step": "mend",
            "steps": ["mend", "end"],
            "following": "end",
            **more,
        }
    )


def words(typed: str) -> list[str]:
    """Return a command's words as a real shell hands them to a program."""
    script = f"temporal() {{ printf '%s\\0' \"$@\"; }}\n{typed}\n"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
        assert list(Path(folder).iterdir()) == []
    assert done.stderr == ""
    return done.stdout.removesuffix("\0").split("\0")


@pytest.mark.parametrize("nasty", NASTY)
def test_whatever_an_id_or_an_option_is_the_shell_hands_it_on_as_it_is(nasty: str) -> None:
    payload = {"answers": {"1": nasty, nasty: [nasty]}}
    typed = command(nasty, "answer", payload)
    found = words(typed)
    assert found[:7] == ["workflow", "update", "execute", "--workflow-id", nasty, "--name", "answer"]
    assert found[7] == "--input"
    assert json.loads(found[8]) == payload


@pytest.mark.parametrize("nasty", NASTY)
def test_a_question_with_any_options_is_answered_by_the_command_as_it_stands(nasty: str) -> None:
    asked = Question(
        question_id="q",
        items=[
            QuestionItem(question="Which?", options=[nasty or "empty", "other"]),
            QuestionItem(question=nasty or "Why?"),
        ],
    )
    now = situation("answer", questions=[asked])
    state = STATE.model_copy(update={"workflow_id": nasty or "r"})
    found = words(next_command(state, Waiting(kind="answer", since=NOW), now, done=False))
    payload = parse("answer", [json.loads(found[-1])])
    if (nasty or "empty").strip():
        assert refusal("answer", payload, now) is None


def test_a_message_without_payload_is_typed_without_input() -> None:
    assert command("r", "approve") == "temporal workflow update execute --workflow-id r --name approve"
    assert command("r", "approve", {}) == command("r", "approve")


WAITS: list[tuple[Any, dict[str, Any], dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    ("pause", {}, {"can_continue": True}, [("resume", {}), ("resume", {"action": "retry"})]),
    ("rate_limit", {}, {"can_continue": True}, [("resume", {}), ("resume", {"action": "retry"})]),
    ("human", {}, {"can_continue": True}, [("resume", {}), ("resume", {"action": "retry"})]),
    ("human", {}, {}, [("resume", {"action": "retry"}), ("resume", {"action": "skip"})]),
    ("human", {"step": None}, {"can_continue": True}, [("resume", {}), ("abort", {})]),
    ("approval", {}, {}, [("approve", {}), ("reject", {"reason": "…"})]),
    ("approval", {"calls": [CALL]}, {}, [("approve", {}), ("approve", {"remember": "run"})]),
    (
        "approval",
        {"calls": [CALL], "live": True},
        {},
        [("approve", {}), ("approve", {"remember": "run"}), ("reject", {"reason": "…"})],
    ),
    ("answer", {"questions": [QUESTION]}, {}, [("answer", {"answers": {"1": "yes"}})]),
    ("answer", {"questions": [QUESTION], "live": True}, {}, [("answer", {"answers": {"1": "yes"}})]),
    ("budget", {}, {}, [("extend_budget", {}), ("resume", {"action": "retry"})]),
    (
        "budget",
        {},
        {"used_up": ["seconds", "usd", "unheard of"]},
        [("extend_budget", {}), ("extend_budget", {"seconds": 1_800}), ("extend_budget", {"usd": 5})],
    ),
    (
        "budget",
        {},
        {"used_up": ["tokens"]},
        [("extend_budget", {}), ("extend_budget", {"tokens": 100_000}), ("resume", {"action": "retry"})],
    ),
]


def test_a_question_that_is_not_known_is_answered_by_nothing_in_particular() -> None:
    first = answers(STATE, Waiting(kind="answer", since=NOW), situation("answer"))[0]
    assert words(first.command)[-2:] == ["--input", '{"answers": {}}']


@pytest.mark.parametrize(("kind", "more", "wait", "first"), WAITS)
def test_each_answer_to_a_wait_is_legal_and_the_likeliest_comes_first(
    kind: Any, more: dict[str, Any], wait: dict[str, Any], first: list[tuple[str, dict[str, Any]]]
) -> None:
    now = situation(kind, **more)
    listed = answers(STATE, Waiting(kind=kind, since=NOW, **wait), now)
    found = []
    for one in listed:
        typed = words(one.command)
        given = json.loads(typed[-1]) if "--input" in typed else {}
        assert typed[typed.index("--name") + 1] == one.message
        assert one.message in legal_now(now)
        assert refusal(one.message, parse(one.message, [given]), now) is None, one
        assert one.help
        found.append((one.message, given))
    assert found[: len(first)] == first
    assert found[-1] == ("abort", {})
    assert (("interrupt", {}) in found) == bool(more.get("live"))
    assert next_command(STATE, Waiting(kind=kind, since=NOW, **wait), now, done=False) == listed[0].command


@pytest.mark.parametrize(
    ("visit", "expected"),
    [(None, "leave the step out"), (1, "leave the step out"), (2, "accept it as it is, go to the next step")],
)
def test_a_step_is_accepted_as_it_is_only_where_something_was_done_in_it(
    visit: int | None, expected: str
) -> None:
    done = [ReceiptPlace(step_id="mend", visit=visit, attempt=1, sha256="0", uri="")] if visit else []
    state = STATE.model_copy(update={"visits": {"mend": 2}, "receipts": done})
    listed = answers(state, Waiting(kind="human", since=NOW), situation("human"))
    assert [one.help for one in listed] == ["start the step again", expected, "end the run"]


@pytest.mark.parametrize(
    ("left", "more", "edits"),
    [
        ({}, {}, "; edits stay in a savepoint"),
        ({"savepoint": None}, {}, ""),
        ({"attempt": 1}, {}, ""),
        ({"visit": 1}, {}, ""),
        ({"step_id": "end"}, {}, ""),
        ({"savepoint": None}, {"live": True}, "; edits stay in a savepoint"),
    ],
)
@pytest.mark.parametrize("can_continue", [True, False])
def test_who_may_leave_a_step_reads_that_what_was_stopped_in_it_stays_in_its_savepoint(
    left: dict[str, Any], more: dict[str, Any], edits: str, can_continue: bool
) -> None:
    ref = ArtifactRef(uri="", sha256="0" * 64, bytes=0)
    savepoint = Savepoint(ref="refs/stepwise/r-1/1", commit="c")
    stopped = {"step_id": "mend", "visit": 2, "attempt": 3, "savepoint": savepoint, **left}
    state = STATE.model_copy(
        update={
            "visits": {"mend": 2},
            "steps": {"mend": StepSummary(step_id="mend", visits=2, attempts=3)},
            "partial": PartialView(ref=ref, ended="interrupted", **stopped),
        }
    )
    waiting = Waiting(kind="human", since=NOW, can_continue=can_continue)
    helps = [one.help for one in answers(state, waiting, situation("human", **more))]
    assert f"leave the step out{edits}" in helps
    last = [one.help for one in answers(state, waiting, situation("human", following=None, **more))]
    assert f"go to the step that you name{edits}" in last


def test_a_run_that_works_can_be_paused_and_one_to_be_paused_goes_on_and_one_that_ended_has_a_result() -> (
    None
):
    running = Situation(state="running")
    assert next_command(STATE, None, running, done=False).endswith("signal --workflow-id r --name pause")
    asked = STATE.model_copy(update={"pause_reason": ""})
    assert next_command(asked, None, running, done=False).endswith("signal --workflow-id r --name resume")
    assert next_command(STATE, None, running, done=True) == "temporal workflow result --workflow-id r"


def test_nothing_is_pending_while_nothing_is_waited_for() -> None:
    assert pending_items(STATE, None, [], Situation(state="running")) == []


def test_what_is_pending_names_what_is_asked_until_when_and_what_silence_means() -> None:
    waiting = Waiting(
        kind="answer", step_id="mend", reason="Red?", since=NOW, deadline=NOW, on_silence="it ends"
    )
    (item,) = pending_items(STATE, waiting, [], situation("answer", questions=[QUESTION]))
    assert (item.kind, item.id, item.step_id, item.question) == ("answer", "q-1", "mend", QUESTION)
    assert (item.deadline, item.on_silence, item.live) == (NOW, "it ends", False)
    assert [one.message for one in item.legal] == ["answer", "resume", "resume", "abort"]


def test_all_that_a_live_session_asks_is_pending_each_with_what_answers_it() -> None:
    key = AttemptKey(run_id="r-1", flow_key="fix", step_id="mend", visit=1, attempt=1)
    other = CALL.model_copy(update={"call_id": "c-2", "tool_name": "write"})
    asked = [
        (Asked(id="c-1", key=key, call=CALL), NOW),
        (Asked(id="q-1", key=key, question=QUESTION, deadline=NOW), NOW),
        (Asked(id="c-2", key=key, call=other), NOW),
    ]
    waiting = Waiting(kind="approval", step_id="mend", since=NOW)
    now = situation("approval", calls=[CALL, other], questions=[QUESTION], live=True)
    first, second, third = pending_items(STATE, waiting, asked, now)
    assert (first.kind, first.id, first.live, first.call) == ("approval", "c-1", True, CALL)
    assert (second.kind, second.id, second.live) == ("answer", "q-1", True)
    assert [sent(one) for one in first.legal if one.message != "resume"] == [
        ("approve", {}),
        ("approve", {"remember": "run"}),
        ("reject", {"reason": "…"}),
        ("interrupt", {}),
        ("abort", {}),
    ]
    assert [sent(one) for one in second.legal] == [
        ("answer", {"question_id": "q-1", "answers": {"1": "yes"}})
    ]
    assert [sent(one) for one in third.legal] == [
        ("approve", {"call_id": "c-2"}),
        ("approve", {"call_id": "c-2", "remember": "run"}),
        ("reject", {"call_id": "c-2", "reason": "…"}),
    ]
    for one in (*first.legal, *second.legal, *third.legal):
        assert refusal(one.message, parse(one.message, [sent(one)[1]]), now) is None, one
    assert len(pending_items(STATE, waiting, asked, replace(now, live=False))) == 1


def sent(one: LegalAnswer) -> tuple[str, Any]:
    typed = words(one.command)
    return one.message, json.loads(typed[-1]) if "--input" in typed else {}


@pytest.mark.parametrize("kind", ["approval", "answer", "budget"])
def test_a_pause_that_was_asked_for_before_a_wait_for_words_can_be_withdrawn_in_it(kind: Any) -> None:
    now = situation(kind, pause_requested=True, questions=[QUESTION] if kind == "answer" else [])
    listed = [sent(one) for one in answers(STATE, Waiting(kind=kind, since=NOW), now)]
    assert ("resume", {}) in listed
    assert refusal("resume", Resume(), now) is None
    assert refusal("resume", Resume(), replace(now, pause_requested=False)) is not None
    assert refusal("resume", Resume(transport="stub"), replace(now, transports=["stub"])) is not None


@pytest.mark.parametrize(
    ("kind", "by_itself", "policy", "says"),
    [
        ("rate_limit", True, "fail", "it goes on by itself"),
        ("human", False, "fail", "the run ends as needs_human"),
        ("human", False, "default", "the run ends as needs_human"),
        ("human", False, "keep_waiting", "it waits for ever"),
        ("human", True, "default", "it goes on by itself"),
        ("pause", True, "default", "it goes on by itself"),
        ("answer", True, "default", "the default answers are given"),
        ("approval", True, "fail", "the call is denied"),
        ("approval", True, "keep_waiting", "it waits for ever"),
        ("budget", False, "fail", "the run ends as needs_human"),
    ],
)
def test_silence_is_said_in_words(kind: Any, by_itself: bool, policy: Any, says: str) -> None:
    assert silence(kind, Human(on_silence=policy), by_itself) == says


def test_a_call_is_asked_about_in_one_line() -> None:
    call = CALL.model_copy(update={"input": "x" * 300, "reason": "it deletes"})
    assert call_reason(call) == f"may the agent call run {'x' * 200}? (it deletes)"
    assert call_reason(CALL) == "may the agent call run?"
    assert call_reason(None) == ""


def test_what_ended_a_wait_has_a_name() -> None:
    orders = [
        Resume(action="skip"),
        Approve(),
        Reject(),
        ExtendBudget(),
        Given(question=QUESTION, answers={}),
        None,
    ]
    assert [action(order) for order in orders] == [
        "skip",
        "approve",
        "reject",
        "extend_budget",
        "answer",
        "timer",
    ]


def test_the_journal_has_what_was_said_cut_to_size() -> None:
    assert said(Resume(note="x" * 900, by="ann")) == {"note": "x" * 500, "by": "ann"}


def test_words_to_an_agent_are_kept_together_and_only_too_many_lose_their_beginning() -> None:
    assert together(None, "", None) is None
    assert together(None, "a", "", "b") == "a\n\nb"
    kept = together("old", "x" * MAX_SAID_CHARS)
    assert kept == "x" * MAX_SAID_CHARS
