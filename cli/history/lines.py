"""How a run's events read: one line each, or none where another line says as much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from cli.history.events import Entry
from cli.words import SHORT_COMMIT, brief_span, many, printable, span

MAX_LINE: Final = 200
"""Characters of a line, without what stands before it."""

_MAX_WORDS: Final = 120
_MAX_VALUE: Final = 80
_VERDICTS: Final[Mapping[object, str]] = {True: "passed", False: "FAILED"}
_UNMEASURED: Final = "not measured"

Said = Mapping[str, Any]
"""The data of an event."""


class Lines:
    """Turns the events of one run into lines. ``live`` also shows what has only begun.

    The first event is the beginning of time. What a gate said before the first step comes from ``before``: its name
    with step, and whether it passed.
    """

    def __init__(self, *, live: bool = False, before: Mapping[tuple[str, str], bool] | None = None) -> None:
        self._live = live
        self._before = before or {}
        self._asked: dict[str, str] = {}
        self._began: datetime | None = None

    def of(self, entry: Entry) -> str | None:
        """Return an event's line; None where it has none."""
        at = entry.at or entry.ts
        self._began = self._began or at
        try:
            words = self._words(entry)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Somebody changed what is stored: it is shown as it is.
            words = f"  {entry.kind} {_pairs(entry.data)}"
        if words is None:
            return None
        after = span(max((at - self._began).total_seconds(), 0.0))
        return f"{after:>8}  {entry.step:12}  {printable_indented(words)}".rstrip()

    def _words(self, entry: Entry) -> str | None:
        if self._is_known(entry):
            return None
        if entry.source == "journal":
            return self._journaled(entry)
        if entry.source == "agent":
            return self._done(entry)
        return _OF_ATTEMPTS[entry.source](entry)

    def _is_known(self, entry: Entry) -> bool:
        """Tell whether a question was shown just now: the run's journal and the agent's log both have it."""
        if entry.kind not in ("question", "question_asked"):
            return False
        asked = str(entry.data.get("id") or (entry.data.get("question") or {}).get("question_id"))
        known = self._asked.pop(asked, entry.source) != entry.source
        if not known:
            self._asked[asked] = entry.source
        return known

    def _journaled(self, entry: Entry) -> str | None:
        if entry.kind == "gate_measured":
            return f"    {gate_words(entry.data)}{self._was(entry)}"
        words = _JOURNALED.get(entry.kind)
        return words(entry) if words else f"  {entry.kind} {_pairs(entry.data)}"

    def _was(self, entry: Entry) -> str:
        passed = self._before.get((entry.step, str(entry.data.get("gate"))))
        return "" if passed is None else f"; before the run it {'passed' if passed else 'FAILED'}"

    def _done(self, entry: Entry) -> str | None:
        if entry.kind == "tool_started" and not self._live:
            return None
        words = _DONE.get(entry.kind)
        said = words(entry.data) if words else f"{entry.kind} {_pairs(entry.data)}"
        return f"    {said}" if said else None


def printable_indented(words: str) -> str:
    """Return words as one harmless line that keeps its indentation."""
    rest = words.lstrip(" ")
    return " " * (len(words) - len(rest)) + printable(rest, MAX_LINE)


def gate_words(said: Said) -> str:
    """Return how a gate went: ``gate tests FAILED (exit 1)``."""
    verdict = _VERDICTS.get(said.get("passed"), _UNMEASURED)
    code, reason = said.get("exit_code"), said.get("reason")
    detail = f" (exit {code})" if code is not None else f" ({reason})" if reason else ""
    return f"gate {said.get('gate') or said.get('name')} {verdict}{detail}"


def money(usd: float | None) -> str:
    """Return a cost; nothing where none is known."""
    return "" if usd is None else f"${usd:.2f}"


# What the workflow decided or learned.


def _run_created(entry: Entry) -> str:
    fork = entry.data.get("forked_from") or {}
    origin = (
        f", forked from {fork.get('run_id')} before {fork.get('step')} #{fork.get('visit')}" if fork else ""
    )
    return f"flow {entry.flow} begins on {entry.data.get('repo')}{origin}"


def _step_started(entry: Entry) -> str:
    gates = entry.data.get("gates")
    what = f", gates {', '.join(gates)}" if gates else f", iteration {entry.data.get('iteration', 1)}"
    return f"visit {entry.visit}{what}"


def _phase_ended(entry: Entry) -> str:
    said = entry.data
    if said.get("lost"):
        return f"  {said.get('phase')} was lost: {said['lost']}"
    ended, error = said.get("ended"), said.get("error")
    how = f": {ended}" if ended and ended != "finished" else ": no answer" if error else ""
    how += f" ({error})" if error and error != ended else ""
    return f"  {said.get('phase')} took {brief_span(said.get('ms') or 0)}{how}"


def _routed(entry: Entry) -> str:
    said = entry.data
    target = f" -> {said['next']}" if said.get("next") else ""
    why = ", ".join(str(said[name]) for name in ("source", "exit") if said.get(name))
    return f"  route {said.get('decision')}{target}: {said.get('reason', '')} [{why}]"


def _run_completed(entry: Entry) -> str:
    said = entry.data
    if said.get("next_flow"):
        return (
            f"flow {said.get('flow')} ended {said.get('outcome')}; it goes on with flow {said['next_flow']}"
        )
    return f"{said.get('outcome')}: {said.get('summary', '')}"


def _message(entry: Entry) -> str:
    said = dict(entry.data)
    name, by, verdict = said.pop("name", "?"), said.pop("by", ""), said.pop("verdict", "")
    more = f" ({_pairs(said)})" if said else ""
    return f"  message {name}{f' by {by}' if by else ''}{f': {verdict}' if verdict else ''}{more}"


def _waiting(entry: Entry) -> str:
    said = entry.data
    reason = said.get("reason")
    return f"  waits for {said.get('waiting_for')}{f': {reason}' if reason else ''}"


def _question_answered(entry: Entry) -> str:
    by = entry.data.get("by")
    return f"  is answered{f' by {by}' if by else ''}"


def _step_ended(entry: Entry) -> str:
    gates = entry.data.get("gates")
    return f"  step {entry.data.get('status')}{f': {gates}' if gates else ''}"


_JOURNALED: Final[Mapping[str, Callable[[Entry], str | None]]] = {
    "run_created": _run_created,
    "step_started": _step_started,
    "phase_started": lambda entry: f"  {entry.data.get('phase')}",
    "phase_ended": _phase_ended,
    "routed": _routed,
    "waiting": _waiting,
    "resumed": lambda entry: f"  goes on: {entry.data.get('action')}",
    "question_asked": lambda entry: f"  asks: {entry.data.get('text', '')}",
    "question_answered": _question_answered,
    "human_message": _message,
    "message_refused": lambda entry: f"  REFUSED {entry.data.get('name')}: {entry.data.get('reason', '')}",
    "interrupted": lambda entry: f"  attempt {entry.attempt} was stopped: {entry.data.get('ended')}",
    "step_ended": _step_ended,
    "run_completed": _run_completed,
}


# What an agent did.


def _tool_ended(said: Said) -> str:
    call = said.get("call") or {}
    verdict = "ok" if call.get("success") else "FAILED"
    if call.get("blocked"):
        verdict = f"BLOCKED: {call.get('blocked_reason') or 'by policy'}"
    what = printable(str(call.get("input") or ""), _MAX_VALUE)
    return f"{call.get('tool_name')} {what}: {verdict}, {brief_span(call.get('duration_ms') or 0)}"


def _text(said: Said) -> str:
    if said.get("role") == "assistant":
        return f"says: {printable(str(said.get('text', '')), _MAX_WORDS)}"
    return f"is told by the {said.get('role')}: {len(str(said.get('text', ''))):,} characters"


def _question(said: Said) -> str:
    items = (said.get("question") or {}).get("items") or []
    return f"asks: {'; '.join(str(item.get('question', '')) for item in items)}"


def _answered(said: Said) -> str:
    answer = said.get("answer") or {}
    words = [
        value if isinstance(value, str) else ", ".join(value)
        for value in (answer.get("answers") or {}).values()
    ]
    by = " ".join(filter(None, [str(answer.get("source", "")), str(answer.get("model") or "")]))
    return f"is answered by {by}: {printable('; '.join(words), _MAX_WORDS)}"


_DONE: Final[Mapping[str, Callable[[Said], str]]] = {
    "session_opened": lambda said: f"session {said.get('session_id')} {said.get('model') or ''}",
    "text": _text,
    "tool_started": lambda said: (
        f"{said.get('tool_name')} {printable(str(said.get('input', '')), _MAX_VALUE)} …"
    ),
    "tool_ended": _tool_ended,
    "question": _question,
    "question_answered": _answered,
    "rate_limited": lambda said: (
        f"is rate limited until {said.get('reset_at') or '?'}: {said.get('message', '')}"
    ),
    # The receipt has the sum.
    "usage": lambda _: "",
    "error": lambda said: (
        f"error {(said.get('error') or {}).get('code')}: {(said.get('error') or {}).get('message', '')}"
    ),
    "turn_ended": lambda said: f"ends its turn: {said.get('stop_reason') or 'no reason given'}",
}


# What was recorded of an attempt.


def _receipt(entry: Entry) -> str:
    said = entry.data
    calls, stop = said.get("tool_calls") or {}, said.get("stop")
    parts = [
        brief_span(said.get("duration_ms") or 0),
        many((said.get("token_counts") or {}).get("total", 0), "token"),
        money(said.get("cost_usd")),
        many(calls.get("count", 0), "tool call"),
        f"{calls['blocked']} blocked" if calls.get("blocked") else "",
        _sessions(said.get("phases") or []),
    ]
    line = f"  receipt of attempt {entry.attempt}: {said.get('execution_status')}, "
    line += f"{said.get('verification_status')}; {', '.join(part for part in parts if part)}"
    for path, why in (said.get("outputs_not_kept") or {}).items():
        line += f"; output {path} is not kept: {why}"
    return f"{line}; {stop_words(stop)}" if stop else line


def _sessions(phases: list[Said]) -> str:
    """Return how each phase found its session: ``session cold in work, hot in finalize``."""
    modes = [f"{one['session']} in {one['phase']}" for one in phases if one.get("session")]
    return f"session {', '.join(modes)}" if modes else ""


def stop_words(stop: Said) -> str:
    """Return how an attempt was stopped: why, by whom, which rung of the ladder worked."""
    by = f" by {stop['requested_by']}" if stop.get("requested_by") else ""
    method = f" ({stop['method']})" if stop.get("method") else ""
    return f"stopped by {stop.get('reason')}{by}{method}"


def _handoff(entry: Entry) -> str:
    said = entry.data
    savepoint, question = said.get("savepoint"), said.get("open_question")
    changes = said.get("file_changes") or {}
    count = sum(len(changes.get(name) or []) for name in ("created", "modified", "deleted"))
    method = f" ({said['stop_method']})" if said.get("stop_method") else ""
    parts = [
        f"{said.get('reason')} in {said.get('phase')}{method}",
        f"{many(count, 'file')} changed",
        f"savepoint {savepoint['commit'][:SHORT_COMMIT]} ({savepoint['ref']})"
        if savepoint
        else "no savepoint",
        f"not kept: {', '.join(savepoint['not_kept'])}" if savepoint and savepoint.get("not_kept") else "",
        _question({"question": question}) if question else "",
        f"left to do: {'; '.join(said['remaining'])}" if said.get("remaining") else "",
    ]
    return f"  partial hand-off: {'; '.join(part for part in parts if part)}"


_OF_ATTEMPTS: Final[Mapping[str, Callable[[Entry], str]]] = {"receipt": _receipt, "handoff": _handoff}


def _pairs(said: Said) -> str:
    kept = {name: value for name, value in said.items() if value not in (None, "")}
    return ", ".join(f"{name} {printable(str(value), _MAX_VALUE)}" for name, value in kept.items())
