"""``stepwise tail``: what happens in a run, as it happens."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from typing import Annotated, Final

import typer

from cli.here import Here, open_here
from cli.history.events import Entry, Sources
from cli.history.find import find
from cli.history.lines import Lines
from cli.history.server import Server, reach
from cli.history.standing import History, unrecorded
from cli.options import AsJson, RunName, StoreUrl
from cli.session import complain, say, say_json, temporal_command
from schemas.errors import BadInput, StepwiseError
from schemas.run_record import RunRecord
from store.runs import Runs

POLL_S: Final = 0.2
"""How often files are looked at, seconds."""
ASK_S: Final = 1.0
"""How often the server is asked whether the run goes on, seconds."""
LATE_S: Final = 20.0
"""How long a worker has, after the run is over, to store what its agent did last, seconds."""

_OTHERWISE: Final = "the end of a run that is terminated cannot be seen"


def tail(
    run: RunName,
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Go on until the run is over, or print what there is."),
    ] = True,
    store: StoreUrl = "",
    as_json: AsJson = False,
) -> None:
    """Print a run's events as they come: the journal, and what its agent does. Ends with the run.

    An agent's events can be followed on the machine of the worker that holds the run; elsewhere they come once the
    attempt is over. With --json each event is a line.
    """
    here = open_here(store)
    asyncio.run(_tail(here, run, follow=follow, as_json=as_json))


async def _tail(here: Here, run: str, *, follow: bool, as_json: bool) -> None:
    watch = await _identified(here, await reach(here.loaded, _OTHERWISE), run)
    pruned = here.evidence.pruned_run(watch.run_id)
    if pruned is not None:
        on = f" on {pruned.pruned_at:%Y-%m-%d}" if pruned.pruned_at else ""
        complain(f"stepwise: evidence of this run was pruned{on}")
    sources = Sources(here.evidence, watch.run_id, here.spool)
    lines = Lines(live=True)
    while True:
        over = await watch.over()
        if over is None:
            watch.say_where()
        for entry in sources.new():
            watch.hear(entry)
            if as_json:
                say_json(entry.as_data(), indent=None)
            elif line := lines.of(entry):
                say(line)
        if not follow:
            return
        if over is not None and not (sources.spooled() and watch.may_be_late()):
            break
        sys.stdout.flush()
        await asyncio.sleep(POLL_S)
    if as_json:
        say_json({"kind": "over", "outcome": over}, indent=None)
    else:
        say(f"the run is over: {over}")


async def _identified(here: Here, server: Server | None, word: str) -> _Watch:
    """Return the run that is meant; it may have begun so lately that nothing is stored of it.

    Raises BadInput E_RUN, StepwiseError E_SERVER.
    """
    runs = Runs(here.evidence)
    newest = await server.execution(word) if server else None
    if newest is not None and (newest.closed is None or runs.get(newest.run_id)):
        return _Watch(here, server, newest.run_id, newest.workflow_id)
    try:
        record = find(word, here.evidence)
    except BadInput:
        if newest is None:
            raise
        return _Watch(here, server, newest.run_id, newest.workflow_id)
    return _Watch(here, server, record.run_id, record.workflow_id)


class _Watch:
    """Watches one run for its end: in its record, in its journal, at the server."""

    def __init__(self, here: Here, server: Server | None, run_id: str, workflow_id: str) -> None:
        self.run_id = run_id
        self._workflow_id = workflow_id
        self._here = here
        self._server = server
        self._history = History(here.evidence, server)
        self._runs = Runs(here.evidence)
        self._record: RunRecord | None = None
        self._over: str | None = None
        self._over_at = 0.0
        self._asked_at = -ASK_S
        self._told_where = False

    async def over(self) -> str | None:
        """Return how the run ended, or None while it goes on."""
        self._record = self._runs.get(self.run_id)
        if self._over is None and self._record is not None and self._record.released:
            self._ends(self._record.outcome or "ended")
        now = time.monotonic()
        if self._over is None and self._server is not None and now >= self._asked_at + ASK_S:
            self._asked_at = now
            # A server that is away for a while does not end the run, nor what is seen of it.
            with suppress(StepwiseError):
                await self._ask(self._server)
        return self._over

    async def _ask(self, server: Server) -> None:
        if self._record is not None:
            row = await self._history.standing(self._record)
            if row.over or row.state == "forgotten":
                self._ends(row.state)
            return
        execution = await server.execution(self._workflow_id)
        if execution is not None and execution.closed is not None:
            self._ends(unrecorded(execution, self._here.evidence).state)
            result = ("workflow", "result", "--workflow-id", self._workflow_id)
            complain(f"stepwise: `{temporal_command(self._here.loaded, *result)}` says more")

    def hear(self, entry: Entry) -> None:
        """Take note of an event: the last one of the journal says how the run ended."""
        if entry.kind == "run_completed" and not entry.data.get("next_flow"):
            self._ends(str(entry.data.get("outcome")))

    def _ends(self, over: str) -> None:
        if self._over is None:
            self._over, self._over_at = over, time.monotonic()

    def may_be_late(self) -> bool:
        """Whether a worker may still store what its agent did last."""
        return time.monotonic() < self._over_at + LATE_S

    def say_where(self) -> None:
        """Say, once, if the agent's events are on another machine."""
        record = self._record
        if record is None or self._told_where:
            return
        self._told_where = True
        if record.lease.worker_id != self._here.worker_id:
            complain(
                f"stepwise: worker {record.lease.worker_id} on {record.host or 'another machine'} holds the run, not "
                f"the worker of {self._here.settings.data_dir}: what its agent does is seen here once it is stored"
            )
