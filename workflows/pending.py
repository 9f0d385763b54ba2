"""What a person can type to answer what a run waits for. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from policy.plain import code, inline, quoted
from schemas.questions import CallRequest, Question
from schemas.run_state import Asked, LegalAnswer, PendingItem, RunState, Waiting
from workflows.messages import Situation

Choice = tuple[str, str, dict[str, Any] | None]
"""A message's name, what it does in words, and what is to be sent with it."""
LINES: Final = " \\\n  "
"""Between the parts of a command that is to be read in a narrow column, and can be copied from there."""


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
    return [
        LegalAnswer(message=name, help=words, command=command(state.workflow_id, name, payload))
        for name, words, payload in choices(waiting, now)
    ]


def choices(waiting: Waiting, now: Situation) -> list[Choice]:
    """Return what can be said in a wait, the likeliest first."""
    found: list[Choice] = []
    match waiting.kind:
        case "approval":
            found = [
                ("approve", "let it pass", None),
                ("reject", "refuse it", {"reason": "…"}),
            ]
            if now.call is not None:
                found.insert(
                    1, ("approve", "let this call pass for the rest of the run", {"remember": "run"})
                )
        case "answer":
            found = [("answer", "answer the agent", {"answers": _numbered(now.question)})]
        case "budget":
            found = [
                ("extend_budget", "allow as much again", None),
                ("extend_budget", "allow a number of tokens more", {"tokens": 100_000}),
            ]
        case "pause" | "rate_limit":
            found = [("resume", "go on now", None)]
        case _:
            found = [("resume", "go on from what is there", None)]
    if now.step is not None:
        retry = ("resume", "start the step again", {"action": "retry"})
        settled = waiting.kind == "human" and not waiting.can_continue
        words = "accept it as it is, go to the next step" if settled else "leave the step out"
        on: Choice = ("resume", words, {"action": "skip"})
        if now.following is None and now.steps:
            on = ("resume", "go to the step that you name", {"action": "goto", "step": now.steps[0]})
        found = [retry, on] if settled else [*found, retry, on]
    if now.live:
        found.append(("interrupt", "stop the agent", None))
    found.append(("abort", "end the run", None))
    return found


def pending_items(
    state: RunState,
    waiting: Waiting | None,
    asked: Sequence[tuple[Asked, datetime]],
    pending: tuple[Question | None, CallRequest | None],
    now: Situation,
) -> list[PendingItem]:
    """Return everything a person is waited for, each with its legal answers: what a live session asks is several."""
    if waiting is None:
        return []
    legal = answers(state, waiting, now)
    question, call = pending
    first = PendingItem(
        kind=waiting.kind,
        id=question.question_id if question else call.call_id if call else None,
        step_id=waiting.step_id,
        reason=waiting.reason,
        since=waiting.since,
        deadline=waiting.deadline,
        on_silence=waiting.on_silence,
        live=now.live,
        question=question,
        call=call,
        legal=legal,
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
        )
        for one, since in (asked[1:] if now.live else ())
    ]
    return [first, *more]


def asked_lines(question: Question | None, call: CallRequest | None) -> list[str]:
    """Return a question or a call as Markdown for people."""
    if question is not None:
        return [
            f"{number}. {inline(item.question)}"
            + (f" ({' · '.join(map(inline, item.options))})" if item.options else "")
            + (" (several may be chosen)" if item.multi_select else "")
            for number, item in enumerate(question.items, 1)
        ]
    if call is not None:
        why = f": {inline(call.reason)}" if call.reason else ""
        return [f"{code(call.tool_name)} {code(call.input)}{why}"]
    return []


def _numbered(question: Question | None) -> dict[str, Any]:
    if question is None:
        return {}
    return {
        str(number): item.default if item.options else "…" for number, item in enumerate(question.items, 1)
    }
