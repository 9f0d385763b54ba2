"""``stepwise prune``: removes the evidence and the clones of runs that ended, oldest first, until rules hold."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from activities.folder import drop_run, run_folders
from cli.here import Here, open_here
from cli.history.server import reach
from cli.history.standing import History, RunRow, last_heard
from cli.options import AsJson, StoreUrl
from cli.session import complain, say, say_json
from cli.words import many, moment, read_size, read_span, size
from schemas.errors import BadInput
from store.retention import Retention, Rules, Use, due
from system.leftovers import leftovers

QUIET_S: Final = 60.0
"""A run whose agent's log on this machine grew within this time is left alone, seconds."""

_OTHERWISE: Final = "only runs whose record says that they ended are pruned"


def prune(
    *,
    older: Annotated[
        str, typer.Option(help="Prune runs that ended longer ago: 30d, 12h, 2w.", metavar="TIME")
    ] = "",
    keep: Annotated[
        int | None, typer.Option(help="Keep at most so many ended runs, the newest.", metavar="N")
    ] = None,
    max_bytes: Annotated[
        str,
        typer.Option(
            help="Prune until all runs together use at most so much, evidence and clones: 5GB.",
            metavar="SIZE",
        ),
    ] = "",
    forgotten: Annotated[
        bool,
        typer.Option(
            "--forgotten", help="Take runs for ended that never ended here and that the server does not know."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be pruned.")] = False,
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """Remove evidence and clones of ended runs, oldest first, until every rule that is given holds.

    A run that goes on or waits is never touched. What stays of a pruned run is run.json and a marker that says when
    it was pruned. May be stopped at any moment: the next prune completes it. Exit code 1 if --max-bytes cannot hold.
    """
    rules = _rules(older, keep, max_bytes)
    here = open_here(store)
    plan = _Plan(here, asyncio.run(_rows(here, forgotten=forgotten)))
    now = datetime.now(UTC)
    freed = due(plan.uses, rules, now)
    for use in freed:
        if not dry_run:
            plan.prune(use.run_id, now)
        if not as_json:
            say(_line(use, plan.rows.get(use.run_id), dry_run=dry_run))
            # Whoever stops it is to know how far it came.
            sys.stdout.flush()
    left = sum(use.total for use in plan.uses) - sum(use.total for use in freed)
    if as_json:
        say_json(_data(freed, left, dry_run=dry_run))
    else:
        say(_total(freed, left, dry_run=dry_run))
    for run_id in plan.busy:
        complain(f"stepwise: {run_id} is left alone: its worker here still has something of it under way")
    if rules.max_bytes is not None and left > rules.max_bytes:
        complain(f"stepwise: {size(left)} are used by runs that cannot be pruned, more than --max-bytes")
        raise typer.Exit(1)


def _rules(older: str, keep: int | None, max_bytes: str) -> Rules:
    if not older and keep is None and not max_bytes:
        raise BadInput(
            "E_PRUNE", "no rule says what to prune", mend="give --older 30d, --keep 100 or --max-bytes 5GB"
        )
    if keep is not None and keep < 0:
        raise BadInput("E_PRUNE", f"--keep {keep} is less than no run at all", mend="give 0 or more")
    return Rules(
        older=read_span("--older", older) if older else None,
        keep=keep,
        max_bytes=read_size("--max-bytes", max_bytes) if max_bytes else None,
    )


async def _rows(here: Here, *, forgotten: bool) -> list[RunRow]:
    """Return all runs; with ``forgotten``, those that never ended and that the server does not know have ended too.

    Raises StepwiseError where the server answers but refuses to list runs: then nothing is known well enough.
    """
    server = await reach(here.loaded, _OTHERWISE)
    rows = await History(here.evidence, server).rows()
    if server is None or not forgotten:
        return rows
    found = []
    for row in rows:
        record = row.record if row.state == "forgotten" else None
        # A list lags behind; what is asked for by its id does not.
        if record and await server.execution(record.workflow_id, record.execution_run_id) is None:
            found.append(replace(row, ended_at=last_heard(here.evidence, record)))
        else:
            found.append(row)
    return found


class _Plan:
    """All runs with what they use, and how one of them is pruned.

    ``busy`` names runs that ended, but of which this machine's worker still has something under way.
    """

    def __init__(self, here: Here, rows: Iterable[RunRow]) -> None:
        self._here = here
        self._retention = Retention(here.evidence)
        self._files = self._retention.used()
        self.rows = {row.run_id: row for row in rows}
        self._clones = {folder.run_id: folder for folder in run_folders(here.runs_dir)}
        self._needed = _needed(self.rows)
        self.busy: list[str] = []
        self.uses = [self._use(run_id) for run_id in sorted({*self._files, *self._clones})]

    def _use(self, run_id: str) -> Use:
        files, row, clone = self._files.get(run_id, {}), self.rows.get(run_id), self._clones.get(run_id)
        ended_at = (
            row.ended_at if row is not None and not row.goes_on and run_id not in self._needed else None
        )
        if ended_at is not None and self._is_busy(run_id):
            self.busy.append(run_id)
            ended_at = None
        marker = self._here.evidence.pruned_run(run_id)
        return Use(
            run_id=run_id,
            ended_at=ended_at,
            evidence=sum(files.values()),
            files=len(files),
            clone=_bytes_of(clone.path) if clone else 0,
            begun=marker is not None and ended_at is not None,
        )

    def _is_busy(self, run_id: str) -> bool:
        """Whether an agent of the run is being ended on this machine, or its log being stored."""
        newest = max(
            (path.stat().st_mtime for path in self._here.spool.glob(f"{escape(run_id)}.*/*")), default=0.0
        )
        return time.time() - newest < QUIET_S or bool(leftovers(run_id))

    def prune(self, run_id: str, now: datetime) -> None:
        """Remove the run's evidence, then its clone. May be repeated after it was cut off anywhere."""
        self._retention.prune(run_id, self._files.get(run_id, {}), now)
        clone = self._clones.get(run_id)
        if clone is not None:
            drop_run(clone, self._here.spool)


def _needed(rows: Mapping[str, RunRow]) -> set[str]:
    """Return the runs from which one that has not ended was forked: it reads their evidence."""
    needed: set[str] = set()
    for row in rows.values():
        record = row.record if row.goes_on or row.ended_at is None else None
        while record is not None and record.forked_from and record.forked_from.run_id not in needed:
            needed.add(record.forked_from.run_id)
            parent = rows.get(record.forked_from.run_id)
            record = parent.record if parent else None
    return needed


def _bytes_of(folder: Path) -> int:
    """Return what removing a folder frees; a file that has another name elsewhere frees nothing."""
    total, folders = 0, [os.fspath(folder)]
    while folders:
        # An agent can nest folders deeper than a path reaches; what lies there is not counted.
        with suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                stats = entry.stat(follow_symlinks=False)
                total += stats.st_size if stats.st_nlink == 1 else 0
    return total


def _line(use: Use, row: RunRow | None, *, dry_run: bool) -> str:
    parts = [f"{size(use.evidence)} of evidence in {many(use.files, 'file')}" if use.files else ""]
    parts.append(f"a clone of {size(use.clone)}" if use.clone else "")
    ended = f" ({row.state} {moment(row.ended_at)} UTC)" if row and row.ended_at else ""
    again = ", begun earlier" if use.begun else ""
    verb = "would prune" if dry_run else "pruned"
    return f"{verb} {use.run_id}{ended}: {' and '.join(part for part in parts if part)}{again}"


def _total(freed: list[Use], left: int, *, dry_run: bool) -> str:
    if not freed:
        return f"nothing to prune; {size(left)} in use"
    verb, of_them = ("would be freed", "would be") if dry_run else ("freed", "are")
    return f"{size(sum(use.total for use in freed))} {verb} of {many(len(freed), 'run')}; {size(left)} {of_them} left in use"


def _data(freed: list[Use], left: int, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "pruned": [
            {
                "run_id": use.run_id,
                "evidence_bytes": use.evidence,
                "files": use.files,
                "clone_bytes": use.clone,
            }
            for use in freed
        ],
        "freed_bytes": sum(use.total for use in freed),
        "left_bytes": left,
    }
