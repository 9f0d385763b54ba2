"""``stepwise show``: what happened in one run, as a timeline with sums."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Final

import typer

from cli.here import Here, open_here
from cli.history.events import Entry, Sources
from cli.history.find import find
from cli.history.lines import Lines, money
from cli.history.server import reach
from cli.history.standing import History, RunRow, ask_history, unrecorded
from cli.history.sums import Sums
from cli.options import AsJson, RunName, StoreUrl
from cli.runs import as_data
from cli.session import say, say_json, temporal_command
from cli.words import SHORT_COMMIT, brief_span, moment, printable, span, table
from schemas.errors import BadInput
from schemas.fork import ForkRef
from schemas.run_record import RunRecord
from store.journal import Journal

_MAX_CELL: Final = 120
_OTHERWISE: Final = "a run that was terminated is not told from one that goes on"


def show(
    run: RunName,
    *,
    brief: Annotated[bool, typer.Option("--brief", help="Leave out what agents did.")] = False,
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """Show a run from its evidence: the timeline, the gates, what each step took.

    The timeline merges the run's journal, the logs of its agents and the receipts of its attempts. Times are counted
    from the run's first event.
    """
    here = open_here(store)
    row, record = asyncio.run(_found(here, run))
    entries = Sources(here.evidence, record.run_id, here.spool).new()
    if brief:
        entries = [entry for entry in entries if entry.source != "agent"]
    sums = Sums.of(entries)
    if as_json:
        say_json({"run": as_data(row), "events": [one.as_data() for one in entries], **sums.as_data()})
        return
    _print_head(row, record, _answers(here, row, entries))
    _print_timeline(entries, sums)
    print_steps(sums)


async def _found(here: Here, word: str) -> tuple[RunRow, RunRecord]:
    """Return the run that is meant, and how it stands; what cannot be known without a server is said."""
    try:
        record = find(word, here.evidence)
    except BadInput:
        await _only_at_the_server(here, word)
        raise
    if record.released:
        return History(here.evidence, None).row(record, None), record
    return await ask_history(here, _OTHERWISE, lambda history: history.standing(record)), record


async def _only_at_the_server(here: Here, word: str) -> None:
    """Raise BadInput E_RUN, which says where more is to be had, if the server knows what the store does not."""
    server = await reach(here.loaded)
    execution = await server.execution(word) if server else None
    if execution is None:
        return
    state = unrecorded(execution, here.evidence).state
    if execution.closed is not None and Journal(here.evidence).read(execution.run_id):
        raise BadInput(
            "E_RUN",
            f"run {execution.run_id} ({state}) ended before it had a workspace; all there is of it is its journal",
            mend=f"stepwise tail {execution.run_id}",
        )
    raise BadInput(
        "E_RUN",
        f"run {execution.run_id} ({state}) has left nothing in this store",
        mend=temporal_command(here.loaded, "workflow", "describe", "--workflow-id", word),
    )


def _answers(here: Here, row: RunRow, entries: list[Entry]) -> list[tuple[str, str]]:
    """Return what a run waits for, until when, and the command that lists what can be answered; nothing of another run."""
    if not row.state.startswith("waiting"):
        return []
    waits = [one for one in entries if one.source == "journal" and one.kind in {"waiting", "resumed"}]
    last = waits[-1].data if waits and waits[-1].kind == "waiting" else {}
    found = [("waits for", f"{last['waiting_for']}{_because(last.get('reason'))}")] if last else []
    if last.get("deadline"):
        until = moment(datetime.fromisoformat(last["deadline"]))
        found.append(("until", f"{until} UTC{f'; then {then}' if (then := last.get('on_silence')) else ''}"))
    query = ("workflow", "query", "--workflow-id", row.workflow_id, "--type", "pending")
    return [*found, ("answer", temporal_command(here.loaded, *query))]


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _print_head(row: RunRow, record: RunRecord, answers: list[tuple[str, str]]) -> None:
    until = f", took {span((row.ended_at - row.started_at).total_seconds())}" if row.ended_at else ""
    rows = [
        ("run", row.run_id),
        ("workflow", f"{row.workflow_id}, execution {record.execution_run_id}"),
        ("flow", row.flow),
        ("repository", f"{row.repo} at {record.base_commit[:SHORT_COMMIT]}"),
        ("outcome" if row.over else "state", f"{row.state}{f', at step {row.step}' if row.step else ''}"),
        *answers,
        ("began", f"{moment(row.started_at)} UTC{until}"),
        ("result", f"branch {record.branch} at {(record.head or record.base_commit)[:SHORT_COMMIT]}"),
        ("worker", f"{record.lease.worker_id} on {record.host}"),
    ]
    if record.forked_from:
        rows.append(("forked from", fork_words(record.forked_from)))
    rows += [("fork", fork_words(fork)) for fork in record.forks]
    if row.pruned_at:
        rows.append(("evidence", f"pruned on {row.pruned_at:%Y-%m-%d}: what follows is all that is left"))
    for name, value in rows:
        say(f"{name:11} {printable(value, 2 * _MAX_CELL)}")


def fork_words(fork: ForkRef) -> str:
    """Return where two runs part: ``other-0123, before step review, visit 1``."""
    return f"{fork.run_id}, before step {fork.step_id}, visit {fork.visit}"


def _print_timeline(entries: list[Entry], sums: Sums) -> None:
    lines = Lines(before=sums.before())
    shown = [line for entry in entries if (line := lines.of(entry))]
    if shown:
        say("\ntimeline")
    for line in shown:
        say(line)


def print_steps(sums: Sums) -> None:
    """Print a table of what each step took, and how its gates went before the run and last."""
    if not sums.steps:
        return
    flows = {flow for flow, _ in sums.steps}
    rows = [("step", "visits", "attempts", "status", "gates before -> after", "elapsed", "tokens", "cost")]
    for (flow, step), one in sums.steps.items():
        gates = "; ".join(f"{name} {before} -> {after}" for name, (before, after) in one.gates.items())
        rows.append(
            (
                step if len(flows) == 1 else f"{flow}/{step}",
                str(len(one.visits)),
                str(one.attempts),
                "skipped" if one.skipped else one.status or "-",
                printable(gates, _MAX_CELL) or "-",
                brief_span(one.duration_ms),
                f"{one.tokens:,}",
                money(one.cost_usd) or "-",
            )
        )
    total = sums.total
    cost = money(total.cost_usd) or "-"
    rows.append(
        ("total", "", str(total.attempts), "", "", brief_span(total.duration_ms), f"{total.tokens:,}", cost)
    )
    say("\nsteps")
    for line in table(rows):
        say(line)
