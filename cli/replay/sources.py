"""Where histories to replay come from: files, folders of files, and runs on a server, each with its whole chain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from cli.replay.rows import LeftOut
from cli.session import WORKFLOW_TYPE, settings
from schemas.errors import BadInput, StepwiseError
from system.connection import connect

_MAKE: Final = (
    "make one with: temporal workflow show -w ID -o json > history.json (in the UI: Download, Encoded)"
)
TRY_QUERY: Final = "try it with: temporal workflow list --query '…'"
"""How to mend a query."""
_SUFFIX: Final = ".json"
_ENDS_OF_TASKS: Final = frozenset(
    {
        "workflow_task_completed_event_attributes",
        "workflow_task_failed_event_attributes",
        "workflow_task_timed_out_event_attributes",
        "workflow_execution_terminated_event_attributes",
    }
)
"""What can follow the start of a workflow task: while it is open, the server holds everything else back."""


@dataclass(frozen=True)
class Execution:
    """One history, and the id of the execution it is of."""

    run_id: str
    history: WorkflowHistory


@dataclass(frozen=True)
class Chain:
    """What is replayed as one: how people named it, and its executions in order, continued as new one after another."""

    label: str
    executions: tuple[Execution, ...]


@dataclass(frozen=True)
class Wanted:
    """What a person asked to replay: files, folders and workflow ids; or everything a query of the server matches."""

    names: Sequence[str]
    run_id: str = ""
    query: str | None = None

    def check(self) -> None:
        """Refuse options that contradict each other. Raises BadInput."""
        if self.query is not None and (self.names or self.run_id):
            raise BadInput("E_OPTIONS", "--from-server stands alone", mend="leave out the other names")
        if self.query is None and not self.names:
            raise BadInput(
                "E_OPTIONS", "nothing to replay is named", mend="name a file, a folder or a workflow id"
            )
        if self.run_id and (len(self.names) != 1 or is_path(self.names[0])):
            raise BadInput("E_OPTIONS", "--run-id goes with one workflow id", mend="name that one alone")

    @property
    def is_one(self) -> bool:
        """Whether one history or one workflow is meant: it is shown whole, the others with a line each."""
        return self.query is None and len(self.names) == 1 and not Path(self.names[0]).is_dir()


def is_path(name: str) -> bool:
    """Return whether a name means a file or a folder: it is there, or it looks like one."""
    return Path(name).exists() or "/" in name or name.endswith(_SUFFIX)


async def find(wanted: Wanted) -> AsyncIterator[Chain | LeftOut]:
    """Yield what is to be replayed, one by one. Raises BadInput for a wrong option, StepwiseError without a server."""
    wanted.check()
    if wanted.query is not None:
        async for found in _matching(wanted.query):
            yield found
        return
    client: Client | None = None
    for name in wanted.names:
        try:
            if is_path(name):
                for path in _files(Path(name)):
                    yield _from_file(path)
            else:
                client = client or await _client(name)
                yield await _chain(client, name, wanted.run_id)
        except BadInput as error:
            yield _bad(name, error)


def load_history(path: Path) -> WorkflowHistory:
    """Return the history in the file. Raises BadInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("E_HISTORY", f"{path}: {error}", mend="name a readable file") from None
    try:
        loaded = WorkflowHistory.from_json(_workflow_id(text) or path.stem, text)
    except Exception as error:  # noqa: BLE001 - the parser's errors have no common type
        raise BadInput("E_HISTORY", f"{path} is no workflow history: {error}", mend=_MAKE) from None
    if not loaded.events:
        raise BadInput("E_HISTORY", f"{path} holds no events", mend="was the output cut?")
    if not loaded.events[0].HasField("workflow_execution_started_event_attributes"):
        # a replay would wait for it for ever
        raise BadInput("E_HISTORY", f"{path} does not begin with the start of a workflow", mend=_MAKE)
    broken = _first_out_of_order(loaded)
    if broken is not None:
        # the same
        raise BadInput(
            "E_HISTORY", f"{path} cannot have happened: event {broken} is out of order", mend=_MAKE
        )
    return loaded


def _first_out_of_order(history: WorkflowHistory) -> int | None:
    """Return the place, from 1, of the first event that no server would have put there; None if there is none."""
    begun = False
    for place, event in enumerate(history.events, 1):
        kind = event.WhichOneof("attributes")
        if event.event_id != place or (begun and kind not in _ENDS_OF_TASKS):
            return place
        begun = kind == "workflow_task_started_event_attributes"
    return None


def _workflow_id(text: str) -> str | None:
    try:
        first = json.loads(text)["events"][0]
        return str(first["workflowExecutionStartedEventAttributes"]["workflowId"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.suffix == _SUFFIX and one.is_file())
    if not found:
        raise BadInput("E_HISTORY", f"{path} holds no {_SUFFIX} file", mend=_MAKE)
    return found


def _from_file(path: Path) -> Chain | LeftOut:
    try:
        history = load_history(path)
    except BadInput as error:
        return _bad(str(path), error)
    return Chain(str(path), (Execution(history.run_id, history),))


def _bad(label: str, error: BadInput) -> LeftOut:
    return LeftOut(label, "bad", error.message, error.mend)


# The server.


async def _client(name: str) -> Client:
    try:
        return await connect(settings())
    except StepwiseError as error:
        said = f"there is no file {name}, and as for a workflow of this id, {error.message}"
        raise StepwiseError(error.code, said, mend=error.mend) from error


async def _matching(query: str) -> AsyncIterator[Chain | LeftOut]:
    """Yield the chain of each workflow a visibility query matches, once, however many of its executions match."""
    client = await connect(settings())
    replayed: set[str] = set()
    try:
        async for row in client.list_workflows(query):
            if row.workflow_type != WORKFLOW_TYPE:
                why = f"{row.id} is a workflow of type {row.workflow_type}, not {WORKFLOW_TYPE}"
                yield LeftOut(row.id, "skipped", why)
            elif row.run_id not in replayed:
                try:
                    chain = await _chain(client, row.id, row.run_id)
                except BadInput as error:
                    yield _bad(row.id, error)
                    continue
                replayed.update(one.run_id for one in chain.executions)
                yield chain
    except RPCError as error:
        raise BadInput(
            "E_QUERY",
            f"the server refuses the query: {error.message}",
            mend=TRY_QUERY,
        ) from error


async def _chain(client: Client, workflow_id: str, run_id: str) -> Chain:
    """Return a workflow's chain with the execution (empty: the newest) in it. Raises BadInput if there is none."""
    middle = await _execution(client, workflow_id, run_id)
    if middle is None:
        which = (
            f"execution {run_id} of workflow {workflow_id}" if run_id else f"file or workflow {workflow_id}"
        )
        raise BadInput(
            "E_HISTORY",
            f"there is no {which}",
            mend="`temporal workflow list` shows what the server has; a file needs its whole name",
        )
    executions = [middle]
    while (before := _continued_from(executions[0].history)) is not None:
        found = await _execution(client, workflow_id, before)
        if found is None:  # retention has deleted it
            break
        executions.insert(0, found)
    while (after := _continued_to(executions[-1].history)) is not None:
        found = await _execution(client, workflow_id, after)
        if found is None:
            break
        executions.append(found)
    return Chain(workflow_id, tuple(executions))


async def _execution(client: Client, workflow_id: str, run_id: str) -> Execution | None:
    try:
        if not run_id:
            run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise StepwiseError(
            "E_SERVER",
            f"the history of {workflow_id} cannot be read: {error.message}",
            mend="`stepwise doctor` looks at the server",
        ) from error
    return Execution(run_id, history)


def _continued_from(history: WorkflowHistory) -> str | None:
    return history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id or None


def _continued_to(history: WorkflowHistory) -> str | None:
    last = history.events[-1]
    return last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id or None
