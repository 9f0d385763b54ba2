"""How runs stand: the store's records joined with what the server says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar, get_args

from cli.here import Here
from cli.history.server import Execution, Server, reach
from cli.session import complain
from schemas.common import Outcome
from schemas.errors import StepwiseError
from schemas.run import FlowInput
from schemas.run_record import RunRecord
from store.evidence import Evidence
from store.journal import Journal
from store.keys import input_key
from store.runs import Runs
from workflows.view import NEEDS_HUMAN

T = TypeVar("T")

OUTCOMES: Final = (
    *get_args(Outcome),
    "terminated",
    "timed_out",
    "refused",
    "running",
    "waiting",
    "forgotten",
)
"""Words a run's standing begins with: how it ended, or what it does."""
OVER: Final = frozenset({*get_args(Outcome), "terminated", "timed_out", "refused", "completed", "ended"})
"""Those of runs that have ended. ``refused``: it never had a workspace."""


@dataclass(frozen=True)
class RunRow:
    """A run in a list.

    ``state`` is one of OUTCOMES; ``waiting`` is followed by what for (``waiting:approval``). ``forgotten``: the store
    has it as not ended, and the server does not know it. ``goes_on``: the server has it as running, whatever the
    record says. ``flow`` and ``step`` are where a chained run is now.
    """

    run_id: str
    workflow_id: str
    state: str
    started_at: datetime
    ended_at: datetime | None = None
    flow: str = ""
    step: str = ""
    repo: str = ""
    host: str = ""
    needs_human: bool = False
    goes_on: bool = False
    pruned_at: datetime | None = None
    record: RunRecord | None = None

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in OVER


class History:
    """The runs of a store, and of a server if one can be reached."""

    def __init__(self, evidence: Evidence, server: Server | None) -> None:
        self._evidence = evidence
        self._server = server
        self._runs = Runs(evidence)
        self._journal = Journal(evidence)

    async def rows(self) -> list[RunRow]:
        """Return all runs, newest first. Raises StepwiseError where the server refuses to list them."""
        records = {record.run_id: record for record in self._runs.list()}
        executions = await self._executions(records) if self._server else {}
        rows = [self.row(record, executions.get(run_id)) for run_id, record in records.items()]
        rows += [
            unrecorded(one, self._evidence) for run_id, one in executions.items() if run_id not in records
        ]
        return sorted(rows, key=lambda row: (row.started_at, row.run_id), reverse=True)

    async def standing(self, record: RunRecord) -> RunRow:
        """Return one run as it stands now."""
        if self._server is None or record.released:
            return self.row(record, None)
        newest = await self._server.execution(record.workflow_id)
        if newest is None or newest.run_id == record.run_id:
            return self.row(record, newest)
        # A later run has the workflow id now; what became of this one, only the list says.
        return next(row for row in await self.rows() if row.run_id == record.run_id)

    def row(self, record: RunRecord, execution: Execution | None) -> RunRow:
        """Return a run's row from its record and from its newest execution, as far as the server knows it."""
        marker = self._evidence.pruned_run(record.run_id)
        state, ended_at = self._state(record, execution)
        waits_for = state.removeprefix("waiting:")
        return RunRow(
            run_id=record.run_id,
            workflow_id=record.workflow_id,
            state=state,
            started_at=record.created_at,
            ended_at=ended_at,
            flow=(execution.flow if execution else "") or record.flow_key,
            step=execution.step if execution and not execution.closed else "",
            repo=record.repo,
            host=record.host,
            needs_human=state.startswith("waiting:") and waits_for in NEEDS_HUMAN,
            goes_on=execution is not None and execution.closed is None,
            pruned_at=marker.pruned_at if marker else None,
            record=record,
        )

    def _state(self, record: RunRecord, execution: Execution | None) -> tuple[str, datetime | None]:
        if record.released:
            return record.outcome or "ended", record.ended_at
        if execution is None:
            return (self._by_journal(record), None) if self._server is None else ("forgotten", None)
        if execution.closed is None:
            return execution.state or self._by_journal(record), None
        return _ended(execution, execution.closed), execution.ended_at

    def _by_journal(self, record: RunRecord) -> str:
        """Return what a run does that has not ended: its journal is stored before every wait."""
        events = [one for one in self._journal.read(record.run_id) if one.kind in {"waiting", "resumed"}]
        if not events or events[-1].kind == "resumed":
            return "running"
        return f"waiting:{(events[-1].model_extra or {}).get('waiting_for', 'human')}"

    async def _executions(self, records: Mapping[str, RunRecord]) -> dict[str, Execution]:
        """Return each run's newest execution. A list does not name the first one of a chain: it is asked for."""
        assert self._server is not None  # noqa: S101 - asked only where there is one
        listed = await self._server.executions()
        known = {record.workflow_id for record in records.values()}
        odd = [one for one in listed if one.run_id not in records and one.workflow_id in known]
        asked = await asyncio.gather(
            *(self._server.execution(one.workflow_id, one.execution_id) for one in odd)
        )
        named = {
            one.execution_id: found.run_id for one, found in zip(odd, asked, strict=True) if found is not None
        }
        newest: dict[str, Execution] = {}
        for one in sorted(listed, key=lambda one: one.started_at):
            newest[named.get(one.execution_id, one.run_id)] = one
        return newest


async def ask_history(here: Here, otherwise: str, question: Callable[[History], Awaitable[T]]) -> T:
    """Return the answer to a question about runs, from the store alone where no server answers or it refuses.

    What follows from that (``otherwise``) is said then.
    """
    server = await reach(here.loaded, otherwise)
    try:
        return await question(History(here.evidence, server))
    except StepwiseError as error:
        if error.code != "E_SERVER":
            raise
        complain(f"stepwise: {error.message}: {otherwise}")
        return await question(History(here.evidence, None))


def unrecorded(one: Execution, evidence: Evidence) -> RunRow:
    """Return a run the store has no record of.

    It was refused, has just begun, was ended before it had a workspace (then its journal says so), or has its evidence
    elsewhere.
    """
    given = evidence.get_model(input_key(one.run_id), FlowInput)
    if one.closed is None:
        state = one.state or "running"
    else:
        ends = [event for event in Journal(evidence).read(one.run_id) if event.kind == "run_completed"]
        said = str((ends[-1].model_extra or {}).get("outcome", "")) if ends else ""
        state = _ended(one, said or ("refused" if one.closed == "failed" else one.closed))
    return RunRow(
        run_id=one.run_id,
        workflow_id=one.workflow_id,
        state=state,
        started_at=one.started_at,
        ended_at=one.ended_at,
        flow=one.flow or (given.flow if given and given.flow else ""),
        step="" if one.closed else one.step,
        repo=one.repo or (given.repo if given else ""),
        needs_human=one.needs_human and not one.closed,
        goes_on=one.closed is None,
    )


def _ended(execution: Execution, otherwise: str) -> str:
    """Return how a closed execution ended: as the run itself says, unless nobody let it say anything."""
    cut_off = execution.closed in {"terminated", "timed_out"}
    return execution.state if execution.state in get_args(Outcome) and not cut_off else otherwise


def last_heard(evidence: Evidence, record: RunRecord) -> datetime:
    """Return the time of the newest event of a run's journal; without one, of the run's beginning."""
    return max((event.ts for event in Journal(evidence).read(record.run_id)), default=record.created_at)
