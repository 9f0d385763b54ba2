"""What people see of a run: the details table of the Temporal UI, the queries, the search attributes."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from schemas.common import Outcome, Phase
from schemas.flow import FlowSpec
from schemas.run_state import RunState, State, Waiting

FLOW_KEY = SearchAttributeKey.for_keyword("StepwiseFlow")
STEP_KEY = SearchAttributeKey.for_keyword("StepwiseStep")
STATE_KEY = SearchAttributeKey.for_keyword("StepwiseState")
REPO_KEY = SearchAttributeKey.for_keyword("StepwiseRepo")
NEEDS_HUMAN_KEY = SearchAttributeKey.for_bool("StepwiseNeedsHuman")

MAX_KEYWORD_CHARS = 200
NEEDS_HUMAN = ("human", "answer", "approval", "budget", "pause")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def next_command(state: RunState, waiting: Waiting | None, *, done: bool) -> str:
    """Return the one command a person would most likely type next."""
    target = f"--workflow-id {state.workflow_id}"
    if done:
        return f"temporal workflow result {target}"
    if waiting is None:
        return f"temporal workflow signal {target} --name pause"
    if waiting.kind == "approval":
        return f"temporal workflow update execute {target} --name approve"
    if waiting.kind in ("pause", "rate_limit"):
        return f"temporal workflow signal {target} --name resume"
    return f"""temporal workflow update execute {target} --name resume --input '{{"action":"retry"}}'"""


def details(
    state: RunState,
    spec: FlowSpec | None,
    *,
    step_id: str | None,
    phase: Phase | None,
    iteration: int,
    run: State,
    waiting: Waiting | None,
    outcome: Outcome | None,
) -> str:
    """Return the run as Markdown: where it stands, one row per step, the next command."""
    where = f"**{outcome or run}**"
    if waiting is not None:
        where = f"**waiting for {waiting.kind}**{': ' + waiting.reason if waiting.reason else ''}"
        if waiting.deadline is not None:
            where += f" (until {waiting.deadline:%Y-%m-%d %H:%M} UTC)"
    lines = [f"{where} · flow `{state.flow_key}` · run `{state.run_id}`", ""]
    lines += ["| step | now | status | visits | gates |", "|---|---|---|---|---|"]
    for step in spec.steps if spec else []:
        seen = state.steps.get(step.id)
        now = f"{phase or ''} (iteration {iteration})" if step.id == step_id and outcome is None else ""
        status: str = (seen.status if seen else None) or ""
        if step.id in state.skipped:
            status = "skipped"
        visits = str(seen.visits) if seen else ""
        lines.append(f"| {step.id} | {now} | {status} | {visits} | {_cell(seen.gates) if seen else ''} |")
    if state.last_refused is not None:
        refused = state.last_refused
        legal = ", ".join(refused.legal) or "none"
        lines += ["", f"Last refused: `{refused.name}`: {refused.reason}. Legal now: {legal}."]
    lines += ["", "Next:", "```", next_command(state, waiting, done=outcome is not None), "```"]
    return "\n".join(lines)


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
