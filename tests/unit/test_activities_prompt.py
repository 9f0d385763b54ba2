"""What a prompt holds, what is never cut from it, and what is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from activities.prompt import (
    MAX_GATE_CHARS,
    MAX_OLDER_CHARS,
    MAX_PREVIOUS_CHARS,
    GateOutput,
    PromptParts,
    compose,
)
from schemas.handoff import HandoffEnvelope, PartialHandoff, Savepoint
from schemas.questions import CallDecision, CallRequest, Given, Question, QuestionItem

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
PLACE = {"run_id": "r", "flow_key": "f", "step_id": "s", "visit": 1, "attempt": 1}


def envelope(visit: int, notes: str = "") -> HandoffEnvelope:
    return HandoffEnvelope.model_validate(
        {
            **PLACE,
            "visit": visit,
            "iteration": 1,
            "status": "UNVERIFIED",
            "summary": f"summary {visit}",
            "notes_for_next_step": notes,
            "timestamp": NOON,
            "source": "agent",
        }
    )


PARTIAL = PartialHandoff.model_validate(
    {
        **PLACE,
        "phase": "work",
        "reason": "question",
        "stopped_at": NOON,
        "done": ["created a.txt"],
        "remaining": ["write b.txt"],
        "open_question": Question(question_id="q", items=[QuestionItem(question="Which one?")]),
        "savepoint": Savepoint(ref="x", commit="y", not_kept=["big.bin: larger than 50 MB"]),
    }
)


def test_a_prompt_holds_every_part_in_a_fixed_order() -> None:
    parts = PromptParts(
        objective="the objective",
        task="the task",
        inputs={"plan": ["plan.md"]},
        outputs=["notes.md"],
        note="the note",
        partial=PARTIAL,
        gates=[GateOutput("tests", "exit code 1", "the output")],
        envelopes=[envelope(1)],
    )

    text = compose(parts).text

    order = [
        "the objective",
        "the task",
        "plan.md",
        "created a.txt",
        "write b.txt",
        "Which one?",
        "big.bin",
        "the output",
        "the note",
        "summary 1",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert compose(parts) == compose(parts)


def test_parts_that_are_not_there_leave_no_empty_section() -> None:
    text = compose(PromptParts(objective="o", task="t")).text

    assert f"\n{text}".count("\n# ") == 2


def test_the_previous_handoff_has_more_room_than_older_ones_and_the_cut_is_named() -> None:
    long = "x" * (MAX_PREVIOUS_CHARS + 5_000)
    parts = PromptParts(objective="o", task="t", envelopes=[envelope(1, long), envelope(2, long)])

    prompt = compose(parts)

    assert (
        MAX_OLDER_CHARS + MAX_PREVIOUS_CHARS - 500
        < prompt.text.count("x")
        <= MAX_OLDER_CHARS + MAX_PREVIOUS_CHARS
    )
    assert [cut.partition(":")[0] for cut in prompt.cut] == ["handoff of s #2.1", "handoff of s #1.1"]


def test_the_oldest_handoffs_go_first_and_nothing_older_than_one_left_out_is_kept() -> None:
    notes = "x" * 9_000
    small = envelope(1, "tiny")
    parts = PromptParts(
        objective="o", task="t", envelopes=[small, envelope(2, notes), envelope(3, notes)], max_chars=12_000
    )

    prompt = compose(parts)

    assert "summary 3" in prompt.text
    assert "summary 2" not in prompt.text
    assert "summary 1" not in prompt.text
    assert prompt.cut == ("handoff of s #2.1: left out", "handoff of s #1.1: left out")
    assert len(prompt.text) <= 12_000


def test_what_must_not_be_lost_is_kept_whatever_the_bound() -> None:
    output = "a" * 10 + "z" * MAX_GATE_CHARS
    parts = PromptParts(
        objective="o",
        task="t",
        note="n" * 5_000,
        partial=PARTIAL,
        gates=[GateOutput("tests", "exit code 1", output)],
        envelopes=[envelope(1)],
        max_chars=1_000,
    )

    prompt = compose(parts)

    assert "n" * 5_000 in prompt.text
    assert "created a.txt" in prompt.text
    assert "z" * MAX_GATE_CHARS in prompt.text
    assert "[10 characters before this]" in prompt.text
    assert prompt.cut == ("handoff of s #1.1: left out",)


def test_a_resumed_session_is_told_only_what_is_new() -> None:
    parts = PromptParts(
        objective="o", task="the task", note="the note", partial=PARTIAL, envelopes=[envelope(1)]
    )

    text = compose(parts, resumed=True).text

    assert "the note" in text
    assert "created a.txt" in text
    assert "the task" not in text
    assert "summary 1" not in text


WHICH = Question(
    question_id="q",
    items=[QuestionItem(question="Which one?", options=["a", "b"]), QuestionItem(question="Why?")],
)
CALL = CallRequest(call_id="c", signature="s", tool_name="stub.run", input='["rm", "x"]')


@pytest.mark.parametrize("resumed", [True, False])
def test_what_was_asked_and_answered_is_never_cut(*, resumed: bool) -> None:
    answer = "because " * 1_000
    parts = PromptParts(
        objective="o",
        task="t",
        partial=PARTIAL,
        given=[Given(question=WHICH, answers={"Which one?": ["a", "b"], "Why?": answer})],
        envelopes=[envelope(1)],
        max_chars=1_000,
    )

    text = compose(parts, resumed=resumed).text

    asked = text.index("# What you asked, and the answer")
    assert text.index("# Where you were stopped") < asked
    assert "Question: Which one?\nAnswer: a, b\nQuestion: Why?\n" in text
    assert answer.strip() in text[asked:]


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        (CallDecision(signature="s", allow=True), "Answer: yes, make the call\n"),
        (
            CallDecision(signature="s", allow=False, reason="keep it"),
            "Answer: no, do without it (keep it)\n",
        ),
    ],
)
def test_a_call_that_was_asked_about_is_named_with_what_was_decided(
    decision: CallDecision, answer: str
) -> None:
    partial = PARTIAL.model_copy(update={"reason": "approval", "open_call": CALL})

    undecided = compose(PromptParts(objective="o", task="t", partial=partial), resumed=True).text
    decided = compose(
        PromptParts(objective="o", task="t", partial=partial, decision=decision), resumed=True
    ).text

    assert 'You had wanted to call stub.run ["rm", "x"]' in undecided
    assert "and the answer" not in undecided
    assert f'May you call stub.run ["rm", "x"]?\n{answer}' in decided
