"""What a person can type to answer what a run waits for. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from policy.plain import code, inline, quoted
from schemas.cutting import cut
from schemas.messages import Resume
from schemas.questions import CallRequest, Question
from schemas.run_state import Asked, LegalAnswer, PendingItem, RunState, Waiting
from workflows.messages import Situation, withdraws

Choice = tuple[str, str, dict[str, Any] | None]
"""A message's name, what it does in words, and what is to be sent with it."""
LINES: Final = " \\\n  "
"""Between the parts of a command that is to be read in a narrow column, and can be copied from there."""
EXTENSIONS: Final[dict[str, tuple[str, int]]] = {
    "tokens": ("a number of tokens", 100_000),
    "usd": ("a number of dollars", 5),
    "seconds": ("some seconds of work", 1_800),
    "cycles": ("some cycles", 8),
}
"""What is offered of each bound that is used up: its words, and an amount to begin with."""
LEFT_BEHIND: Final = "; edits stay in a savepoint"
"""What becomes of a stopped attempt's changes when its step is left: only finished work is on the branch."""
MAX_BRIEF: Final = 60
"""Characters of a question or a call where another one stands whole."""


def command(workflow_id: str, name: str, payload: dict[str, Any] | None = None, *, between: str = " ") -> str:
    """Return the command that sends a message and says at once what became of it."""
    parts = ["temporal workflow update execute", f"--workflow-id {quoted(workflow_id)} --name {name}"]
    if payload:
        parts.append(f"--input {quoted(json.dumps(payload, ensure_ascii=False))}")
    return between.join(parts)


def next_command(state: RunState, waiting: Waiting | None, now: Situation, *, done: bool) -> str:
    """Return the one command a person would most likely type next."""
    target = quoted(state.workflow_id)
    if done:
        return f"temporal workflow result --workflow-id {target}"
    if waiting is None and now.state == "stopping":
        return f"temporal workflow query --workflow-id {target} --type status"
    if waiting is None:
        name = "pause" if state.pause_reason is None else "resume"
        return f"temporal workflow signal --workflow-id {target} --name {name}"
    return answers(state, waiting, now)[0].command


def answers(state: RunState, waiting: Waiting, now: Situation) -> list[LegalAnswer]:
    """Return the messages that answer a wait, the likeliest first, each with its command."""
    return _legal(state, choices(state, waiting, now))


def _legal(state: RunState, found: Sequence[Choice]) -> list[LegalAnswer]:
    return [
        LegalAnswer(message=name, help=words, command=command(state.workflow_id, name, payload))
        for name, words, payload in found
    ]


def choices(state: RunState, waiting: Waiting, now: Situation) -> list[Choice]:
    """Return what can be said in a wait, the likeliest first."""
    found: list[Choice] = []
    match waiting.kind:
        case "approval":
            found = _of_call(now.call, {})
        case "answer":
            found = _of_question(now.question, {})
        case "budget":
            found = [("extend_budget", "allow as much again", None)]
            for bound in filter(EXTENSIONS.__contains__, waiting.used_up):
                words, amount = EXTENSIONS[bound]
                found.append(("extend_budget", f"allow {words} more", {bound: amount}))
        case "pause" | "rate_limit":
            found = [("resume", "go on now", None)]
        case _:
            found = [("resume", "go on from what is there", None)]
    for one in now.questions[waiting.kind == "answer" :]:
        found += _of_question(one, {"question_id": one.question_id})
    for call in now.calls[waiting.kind == "approval" :]:
        found += _of_call(call, {"call_id": call.call_id})
    if now.pause_requested and withdraws(Resume(), now):
        found.append(("resume", "withdraw the pause that was asked for", None))
    if now.step is not None:
        retry = ("resume", "start the step again", {"action": "retry"})
        settled = waiting.kind == "human" and not waiting.can_continue
        drops = LEFT_BEHIND if now.live or _has_savepoint(state, now.step) else ""
        accepts = settled and not drops and _has_record(state, now.step)
        words = "accept it as it is, go to the next step" if accepts else f"leave the step out{drops}"
        on: Choice = ("resume", words, {"action": "skip"})
        if now.following is None and now.steps:
            words = f"go to the step that you name{drops}"
            on = ("resume", words, {"action": "goto", "step": now.steps[0]})
        found = [retry, on] if settled else [*found, retry, on]
    if now.live:
        found.append(("interrupt", "stop the agent", None))
    found.append(("abort", "end the run", None))
    return found


def _has_savepoint(state: RunState, step_id: str) -> bool:
    """Tell whether the newest attempt of the step that goes on was stopped, and its changes are in a savepoint."""
    left, summary = state.partial, state.steps.get(step_id)
    if left is None or left.savepoint is None or summary is None:
        return False
    newest = (step_id, state.visits.get(step_id), summary.attempts)
    return (left.step_id, left.visit, left.attempt) == newest


def _has_record(state: RunState, step_id: str) -> bool:
    """Tell whether anything was done in the visit of the step that goes on: before its approval, nothing was."""
    visit = state.visits.get(step_id)
    return any((place.step_id, place.visit) == (step_id, visit) for place in state.receipts)


def _of_question(question: Question | None, which: dict[str, Any]) -> list[Choice]:
    """Return how a question is answered; ``which`` names it where another one is meant without."""
    words = f"answer {_brief(question.items[0].question)}" if question and which else "answer the agent"
    return [("answer", words, {**which, "answers": _numbered(question)})]


def _of_call(call: CallRequest | None, which: dict[str, Any]) -> list[Choice]:
    """Return what can be said of a call, or at an approval gate; ``which`` names the call where another one is meant."""
    what = f": {_brief(f'{call.tool_name} {call.input}')}" if call and which else ""
    for_all: list[Choice] = [
        ("approve", f"let this call pass for the rest of the run{what}", {**which, "remember": "run"})
    ]
    return [
        ("approve", f"let it pass{what}", which or None),
        *(for_all if call else []),
        ("reject", f"refuse it{what}", {**which, "reason": "…"}),
    ]


def _brief(text: str) -> str:
    """Return the beginning of what an agent wrote, as one line that ends nothing."""
    return cut(" ".join(text.split()), MAX_BRIEF)


def pending_items(
    state: RunState, waiting: Waiting | None, asked: Sequence[tuple[Asked, datetime]], now: Situation
) -> list[PendingItem]:
    """Return everything a person is waited for, each with its legal answers: what a live session asks is several."""
    if waiting is None:
        return []
    question = now.question if waiting.kind == "answer" else None
    call = now.call if waiting.kind == "approval" else None
    alone = replace(now, questions=[question] if question else [], calls=[call] if call else [])
    first = PendingItem(
        kind=waiting.kind,
        id=question.question_id if question else call.call_id if call else None,
        step_id=waiting.step_id,
        reason=waiting.reason,
        about=waiting.about,
        look=waiting.look,
        since=waiting.since,
        deadline=waiting.deadline,
        on_silence=waiting.on_silence,
        live=now.live,
        question=question,
        call=call,
        legal=answers(state, waiting, alone),
    )
    more = [
        PendingItem(
            kind="answer" if one.question else "approval",
            id=one.id,
            step_id=waiting.step_id,
            since=since,
            deadline=one.deadline,
            live=True,
            question=one.question,
            call=one.call,
            legal=_legal(
                state,
                _of_question(one.question, {"question_id": one.id})
                if one.question
                else _of_call(one.call, {"call_id": one.id}),
            ),
        )
        for one, since in (asked[1:] if now.live else ())
    ]
    return [first, *more]


def asked_lines(asked: Question | CallRequest) -> list[str]:
    """Return a question or a call as Markdown for people."""
    if isinstance(asked, Question):
        return [
            f"{number}. {inline(item.question)}"
            + (f" ({' · '.join(map(inline, item.options))})" if item.options else "")
            + (" (several may be chosen)" if item.multi_select else "")
            for number, item in enumerate(asked.items, 1)
        ]
    why = f": {inline(asked.reason)}" if asked.reason else ""
    return [f"{code(asked.tool_name)} {code(asked.input)}{why}"]


def _numbered(question: Question | None) -> dict[str, Any]:
    if question is None:
        return {}
    return {
        str(number): item.default if item.options else "…" for number, item in enumerate(question.items, 1)
    }
