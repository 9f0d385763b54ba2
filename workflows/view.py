"""What people see of a run: the details table of the Temporal UI, the queries, the search attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from policy.plain import code, inline
from schemas.common import Outcome, Phase
from schemas.flow import FlowSpec
from schemas.questions import CallRequest, Question
from schemas.run import StepSummary
from schemas.run_state import RunState, State, WaitFor, Waiting
from workflows.messages import LEGAL_NOW, Situation
from workflows.pending import LINES, asked_lines, choices, command, next_command

FLOW_KEY = SearchAttributeKey.for_keyword("StepwiseFlow")
STEP_KEY = SearchAttributeKey.for_keyword("StepwiseStep")
STATE_KEY = SearchAttributeKey.for_keyword("StepwiseState")
REPO_KEY = SearchAttributeKey.for_keyword("StepwiseRepo")
NEEDS_HUMAN_KEY = SearchAttributeKey.for_bool("StepwiseNeedsHuman")

MAX_KEYWORD_CHARS = 200
NEEDS_HUMAN = ("human", "answer", "approval", "budget", "pause")
WAITS: dict[WaitFor, str] = {
    "pause": "paused",
    "human": "waiting for a person",
    "answer": "waiting for an answer",
    "approval": "waiting for approval",
    "budget": "waiting for more budget",
    "rate_limit": "waiting for the rate limit to end",
}
"""What a person reads of each wait."""
MAX_ASKED = 5
"""Questions, and calls, that the page shows of those a session asks at once."""
COLUMNS = ("step", "now", "status", "visits", "gates")
# The Temporal UI draws tables without space between columns, and trims plain spaces.
_GAP = "\u00a0" * 3


def _row(cells: Sequence[str]) -> str:
    kept = (cell.replace("|", "\\|").replace("\n", " ") + _GAP for cell in cells)
    return f"| {' | '.join(kept)} |"


def details(
    state: RunState,
    spec: FlowSpec | None,
    *,
    step_id: str | None,
    phase: Phase | None,
    iteration: int,
    situation: Situation,
    waiting: Waiting | None,
    outcome: Outcome | None,
) -> str:
    """Return the run as Markdown: where it stands, one row per step, the next command."""
    where = f"**{outcome or situation.state}**"
    if waiting is not None:
        where = f"**{WAITS[waiting.kind]}**{': ' + inline(waiting.reason) if waiting.reason else ''}"
        if waiting.deadline is not None:
            where += f" (until {waiting.deadline:%Y-%m-%d %H:%M} UTC{'; then ' + waiting.on_silence if waiting.on_silence else ''})"
    if state.pause_reason is not None and outcome is None:
        where += ", will pause at the next phase boundary"
    lines = [f"{where} · flow `{state.flow_key}` · run `{state.run_id}`", ""]
    lines += [_row(COLUMNS), "|" + ":---|" * len(COLUMNS)]
    for step in spec.steps if spec else []:
        here = step.id == step_id and outcome is None
        seen = state.steps.get(step.id, StepSummary(step_id=step.id))
        lines.append(
            _row(
                [
                    step.id,
                    _now(phase, iteration, waits=waiting is not None, live=situation.live) if here else "",
                    "skipped" if step.id in state.skipped else seen.status or "",
                    str(seen.visits or ""),
                    seen.gates or ("" if step.gates else "none"),
                ]
            )
        )
    if state.decisions:
        last = state.decisions[-1]
        target = f" → {last.next_step_id}" if last.next_step_id else ""
        lines += [
            "",
            f"Last decision: {last.step_id} #{last.visit} {last.decision}{target}. {inline(last.explanation)}",
        ]
    if state.last_refused is not None:
        refused = state.last_refused
        legal = ", ".join(refused.legal) or "none"
        when = f" at {refused.at:%Y-%m-%d %H:%M:%S} UTC" if refused.at else ""
        why = inline(refused.reason.partition(LEGAL_NOW)[0])
        lines += ["", f"Last refused{when}: {code(refused.name)}: {why}. Legal then: {legal}."]
    if waiting is None or outcome is not None:
        lines += [
            "",
            "Next:",
            "```",
            next_command(state, waiting, situation, done=outcome is not None),
            "```",
        ]
        return "\n".join(lines)
    if waiting.about:
        lines += ["", *(f"- {inline(line)}" for line in waiting.about)]
    if waiting.look:
        lines += ["", "Look at it:", "```", *waiting.look, "```"]
    shown = replace(situation, questions=situation.questions[:MAX_ASKED], calls=situation.calls[:MAX_ASKED])
    lines.append("")
    asked: list[Question | CallRequest] = [*shown.questions, *shown.calls]
    for number, one in enumerate(asked):
        lines += ["", "Also asked:", ""] if number else []
        lines += asked_lines(one)
    if shown != situation:
        lines.append("More is asked; the query `pending` has all of it.")
    lines += ["", "What you can type:", "```"]
    for name, words, payload in choices(state, waiting, shown):
        lines += [f"# {words}", command(state.workflow_id, name, payload, between=LINES)]
    return "\n".join([*lines, "```"])


def _now(phase: Phase | None, iteration: int, *, waits: bool, live: bool) -> str:
    where = f"waits {'in' if live else 'after'} {phase}" if phase else "waits"
    words = where if waits else str(phase or "")
    return f"{words} (iteration {iteration})".strip()


class SearchAttributes:
    """Keeps the five search attributes in step, one call where any changed, none where the server lacks them."""

    def __init__(self) -> None:
        self._last: tuple[str, str, str, str, bool] | None = None

    def update(
        self,
        state: RunState,
        *,
        step_id: str | None,
        run: State,
        waiting: Waiting | None,
        outcome: Outcome | None,
    ) -> None:
        """Upsert what changed."""
        if state.acquired is None or not state.acquired.search_attributes:
            return
        word = outcome or (f"waiting:{waiting.kind}" if waiting else run)
        needs_human = waiting is not None and waiting.kind in NEEDS_HUMAN
        repo = state.input.repo[-MAX_KEYWORD_CHARS:]
        current = (state.flow_key, step_id or "", word, repo, needs_human)
        if current == self._last:
            return
        self._last = current
        workflow.upsert_search_attributes(
            [
                FLOW_KEY.value_set(current[0]),
                STEP_KEY.value_set(current[1]),
                STATE_KEY.value_set(current[2]),
                REPO_KEY.value_set(current[3]),
                NEEDS_HUMAN_KEY.value_set(current[4]),
            ]
        )
