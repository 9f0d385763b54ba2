"""What the Temporal server says of runs: which there are, where each stands, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.session import WORKFLOW_TYPE, complain
from schemas.errors import StepwiseError
from schemas.json_text import parse_json
from system.connection import connect
from system.settings import Loaded
from workflows.start import run_id

PAGE: Final = 1_000
"""Executions asked for at once."""

_QUERY: Final = f'WorkflowType = "{WORKFLOW_TYPE}" AND ExecutionStatus != "ContinuedAsNew"'
_RUNNING: Final = frozenset(
    {
        Status.WORKFLOW_EXECUTION_STATUS_RUNNING,
        Status.WORKFLOW_EXECUTION_STATUS_PAUSED,
        Status.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW,
    }
)
_WORDS: Final = {
    Status.WORKFLOW_EXECUTION_STATUS_COMPLETED: "completed",
    Status.WORKFLOW_EXECUTION_STATUS_FAILED: "failed",
    Status.WORKFLOW_EXECUTION_STATUS_CANCELED: "cancelled",
    Status.WORKFLOW_EXECUTION_STATUS_TERMINATED: "terminated",
    Status.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "timed_out",
}


@dataclass(frozen=True)
class Execution:
    """One execution of a run's workflow. ``closed`` is how it ended, None while it goes on.

    ``run_id`` is right for an execution that did not continue another one, and where the server named the first.
    The search attributes are empty where the namespace does not have them.
    """

    run_id: str
    workflow_id: str
    execution_id: str
    started_at: datetime
    ended_at: datetime | None = None
    closed: str | None = None
    flow: str = ""
    step: str = ""
    state: str = ""
    repo: str = ""
    needs_human: bool = False


class Server:
    """A server that answered once. What it refuses later raises StepwiseError E_SERVER."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def executions(self) -> list[Execution]:
        """Return the executions of all runs that the server remembers, without those that were continued."""
        found: list[Execution] = []
        token = b""
        while True:
            request = ListWorkflowExecutionsRequest(
                namespace=self._client.namespace, query=_QUERY, page_size=PAGE, next_page_token=token
            )
            try:
                page = await self._client.workflow_service.list_workflow_executions(request)
            except RPCError as error:
                raise _refused("list runs", error) from error
            found += map(_execution, page.executions)
            token = page.next_page_token
            if not token:
                return found

    async def execution(self, workflow_id: str, execution_id: str = "") -> Execution | None:
        """Return one execution, or the newest of a workflow id; None where the server knows none."""
        request = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id, run_id=execution_id),
        )
        try:
            described = await self._client.workflow_service.describe_workflow_execution(request)
        except RPCError as error:
            if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
                return None
            raise _refused(f"describe {workflow_id}", error) from error
        return _execution(described.workflow_execution_info)


async def reach(loaded: Loaded, otherwise: str = "") -> Server | None:
    """Return the configured server, or None where none answers; ``otherwise``, what follows from that, is said then."""
    try:
        return Server(await connect(loaded))
    except StepwiseError as error:
        if otherwise:
            complain(f"stepwise: {error.message}: {otherwise}")
        return None


def _refused(what: str, error: RPCError) -> StepwiseError:
    message = f"the server refused to {what}: {error.message}"
    return StepwiseError("E_SERVER", message, mend="`stepwise doctor` says what is missing")


def _execution(info: WorkflowExecutionInfo) -> Execution:
    named = {name: _value(payload.data) for name, payload in info.search_attributes.indexed_fields.items()}
    known = {name: value for name, value in named.items() if isinstance(value, str)}
    going_on = info.status in _RUNNING
    return Execution(
        run_id=run_id(info.execution.workflow_id, info.first_run_id or info.execution.run_id),
        workflow_id=info.execution.workflow_id,
        execution_id=info.execution.run_id,
        started_at=info.start_time.ToDatetime(UTC),
        ended_at=None if going_on else info.close_time.ToDatetime(UTC),
        closed=None if going_on else _WORDS.get(info.status, "ended"),
        flow=known.get("StepwiseFlow", ""),
        step=known.get("StepwiseStep", ""),
        state=known.get("StepwiseState", ""),
        repo=known.get("StepwiseRepo", ""),
        needs_human=named.get("StepwiseNeedsHuman") is True,
    )


def _value(data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError:
        return None
