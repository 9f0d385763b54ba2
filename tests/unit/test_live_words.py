"""What a live session has of what people said, where its worker could not say so at once."""

from __future__ import annotations

from typing import cast

from schemas.calls import DeliverOut
from schemas.questions import CallDecision, Given, Question, QuestionItem
from workflows.live import Live
from workflows.phases import Phases

TAKEN = DeliverOut(live=True)
UNSURE = DeliverOut(live=False, unsure=True, detail="time-out")
GIVEN = Given(
    question=Question(question_id="q", items=[QuestionItem(question="Which?")]), answers={"Which?": "a"}
)


def live() -> Live:
    return Live(cast("Phases", None))


def test_the_end_of_the_work_says_which_unsure_words_the_session_had() -> None:
    words = live()
    first, second = words.word_id(), words.word_id()
    assert words.took(first, "left", UNSURE) is None
    assert words.took(second, "right", UNSURE) is None
    assert words.end([first]) == ["right"]
    assert words.end([first]) == [], "they are given back once"


def test_a_verdict_that_comes_after_the_end_of_the_work_is_what_the_end_said() -> None:
    words = live()
    had, not_had = words.word_id(), words.word_id()
    assert words.end([had]) == []
    later = words.word_id()
    assert words.took(had, "left", UNSURE) is True
    assert words.took(not_had, "right", UNSURE) is False
    assert words.took(later, "on", UNSURE) is None, "the next session works by now"


def test_what_a_session_took_and_has_not_in_the_end_is_told_again() -> None:
    words = live()
    kept, lost, refused = words.word_id(), words.word_id(), words.word_id()
    assert words.took(kept, "left", TAKEN) is True
    assert words.took(lost, "right", TAKEN) is True
    assert words.took(refused, "on", DeliverOut(live=False, detail="no agent works")) is False
    assert words.end([kept]) == ["right"]
    assert words.end([]) == [], "they are given back once"


def test_what_was_taken_by_work_that_is_lost_by_then_is_told_again() -> None:
    words = live()
    lost, had = words.word_id(), words.word_id()
    assert words.end([had]) == []
    assert words.took(lost, "left", TAKEN) is False
    assert words.took(had, "right", TAKEN) is True
    assert words.end([]) == []


def test_an_answer_that_the_session_had_after_all_is_not_given_to_the_next_one() -> None:
    for had in (True, False):
        words = live()
        word_id = words.word_id()
        words.answered("q", GIVEN)
        assert words.took(word_id, GIVEN, UNSURE) is None
        assert words.end([word_id] if had else []) == []
        assert words.too_late() == ([] if had else [GIVEN], [])


def test_a_consent_that_lost_work_may_have_had_is_forgotten_and_an_answer_or_a_denial_is_not() -> None:
    words = live()
    yes, no = CallDecision(signature="yes", allow=True), CallDecision(signature="no", allow=False)
    unread = CallDecision(signature="unread", allow=True)
    for word in (yes, no, GIVEN):
        word_id = words.word_id()
        words.answered("c", word)
        assert words.took(word_id, word, UNSURE) is None
    words.answered("c", unread)
    assert words.took(words.word_id(), unread, DeliverOut(live=False, detail="no worker")) is False
    words.doubt()
    assert words.end([]) == []
    assert words.too_late() == ([GIVEN], [no, unread])
