"""``stepwise runs``: the runs there are and were, from the evidence store and the Temporal server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from cli.here import open_here
from cli.history.standing import OUTCOMES, RunRow, ask_history
from cli.options import AsJson, StoreUrl
from cli.session import complain, say, say_json
from cli.words import iso, moment, printable, span, table
from schemas.errors import BadInput
from schemas.run_state import WaitFor

DEFAULT_LIMIT: Final = 20
_MAX_CELL: Final = 200
_OTHERWISE: Final = (
    "only what the store has is listed, and a run that was terminated is not told from one that goes on"
)


def runs(
    *,
    outcome: Annotated[
        str,
        typer.Option(
            help="Only runs that ended so, or stand so: running, waiting, waiting:approval.", metavar="WORD"
        ),
    ] = "",
    flow: Annotated[str, typer.Option(help="Only runs of this flow.", metavar="NAME")] = "",
    repo: Annotated[
        str,
        typer.Option(help="Only runs on this repository: a path, a URL, or its last part.", metavar="REPO"),
    ] = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only runs that wait for a human.")] = False,
    limit: Annotated[int, typer.Option(help="At most so many, the newest; 0: all.", min=0)] = DEFAULT_LIMIT,
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first: how they ended, or what they do or wait for.

    The evidence store and the Temporal server are asked. Without a server the store alone is listed.
    """
    known = [*OUTCOMES, *(f"waiting:{kind}" for kind in get_args(WaitFor))]
    if outcome and outcome not in known:
        raise BadInput(
            "E_OUTCOME", f"no run has the outcome {outcome!r}", mend=f"say one of {', '.join(known)}"
        )
    here = open_here(store)
    found = [
        row
        for row in asyncio.run(ask_history(here, _OTHERWISE, lambda history: history.rows()))
        if _stands(row, outcome)
        and (not flow or flow in {row.flow, row.record.flow_key if row.record else ""})
        and (not repo or _is_of(row.repo, repo))
        and (not waiting or row.needs_human)
    ]
    shown = found[:limit] if limit else found
    if as_json:
        say_json([as_data(row) for row in shown])
        return
    _print(shown)
    if len(found) > len(shown):
        complain(f"{len(found) - len(shown)} more: --limit {len(found)} shows them")


def as_data(row: RunRow) -> dict[str, Any]:
    """Return a run as JSON has it."""
    record = row.record
    return {
        "run_id": row.run_id,
        "workflow_id": row.workflow_id,
        "state": row.state,
        "over": row.over,
        "needs_human": row.needs_human,
        "flow": row.flow,
        "step": row.step,
        "repo": row.repo,
        "branch": record.branch if record else "",
        "host": row.host,
        "started_at": iso(row.started_at),
        "ended_at": iso(row.ended_at) if row.ended_at else None,
        "pruned_at": iso(row.pruned_at) if row.pruned_at else None,
        "receipts_head": record.receipts_head if record else None,
        "forked_from": record.forked_from.model_dump() if record and record.forked_from else None,
        "forks": [fork.model_dump() for fork in record.forks] if record else [],
    }


def state_words(row: RunRow) -> str:
    """Return how a run stands, for people."""
    return f"{row.state} (pruned {row.pruned_at:%Y-%m-%d})" if row.pruned_at else row.state


def _print(rows: list[RunRow]) -> None:
    if not rows:
        complain("no run fits")
        return
    now = datetime.now(UTC)
    header = ("run", "outcome", "flow", "step", "started (UTC)", "took", "repo")
    cells = [
        (
            row.run_id,
            state_words(row),
            row.flow or "-",
            row.step or "-",
            moment(row.started_at),
            _took(row, now),
            row.repo or "-",
        )
        for row in rows
    ]
    for line in table([header, *([printable(cell, _MAX_CELL) for cell in one] for one in cells)]):
        say(line)


def _took(row: RunRow, now: datetime) -> str:
    until = row.ended_at or (None if row.over or row.state == "forgotten" else now)
    return span((until - row.started_at).total_seconds()) if until else "-"


def _stands(row: RunRow, outcome: str) -> bool:
    return not outcome or outcome in {row.state, row.state.partition(":")[0]}


def _is_of(repo: str, given: str) -> bool:
    plain = repo.rstrip("/").removesuffix(".git")
    wanted = given.rstrip("/").removesuffix(".git")
    return plain in {wanted, str(Path(wanted).absolute())} or plain.endswith(f"/{wanted.lstrip('/')}")
