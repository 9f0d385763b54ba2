"""Who sent a run its messages: read off the histories when it ends, since workflow code cannot see it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities.context import WorkerContext
from schemas.errors import EvidenceConflict
from schemas.senders import Sender, Senders
from system.logs import logger

MAX_MESSAGES: Final = 2_000
"""Messages that are kept; of more, the oldest."""
_LIMIT_S: Final = 20.0
_MAX_EXECUTIONS: Final = 100
_log = logger("activities")


def senders_key(run_id: str) -> str:
    """Return where a run's senders are stored."""
    return f"runs/{run_id}/senders.json"


async def store_senders(ctx: WorkerContext, run_id: str) -> None:
    """Store who sent the messages of this activity's workflow; what stands there already stays. Never fails the run."""
    if ctx.client is None or not activity.in_activity():
        return
    info = activity.info()
    if info.workflow_id is None or info.workflow_run_id is None:
        return
    if await asyncio.to_thread(ctx.evidence.blobs.exists, senders_key(run_id)):
        return
    found: list[Sender] = []
    complete = True
    try:
        async with asyncio.timeout(_LIMIT_S):
            complete = await _read(ctx.client, info.workflow_id, info.workflow_run_id, found)
    except (RPCError, TimeoutError) as error:
        _log.warning("the senders of messages could not be read: %s", error, extra={"run_id": run_id})
        complete = False
    found.sort(key=lambda one: (one.ts, one.event_id))
    senders = Senders(
        run_id=run_id, messages=found[:MAX_MESSAGES], complete=complete and len(found) <= MAX_MESSAGES
    )
    try:
        await asyncio.to_thread(ctx.evidence.put_model, senders_key(run_id), senders)
    except EvidenceConflict:
        # Another try of this very activity came first.
        _log.info("the senders of run %s are stored already", run_id)


async def _read(client: Client, workflow_id: str, newest: str, found: list[Sender]) -> bool:
    """Append the senders of every execution of the chain, the newest first; return whether all were read."""
    execution: str | None = newest
    for _ in range(_MAX_EXECUTIONS):
        if not execution:
            return True
        handle = client.get_workflow_handle(workflow_id, run_id=execution)
        before = ""
        async for event in handle.fetch_history_events():
            if event.HasField("workflow_execution_started_event_attributes"):
                before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            found.extend(_senders(event, execution))
        execution = before
    return False


def _senders(event: Any, execution: str) -> Iterator[Sender]:
    if event.HasField("workflow_execution_signaled_event_attributes"):
        said = event.workflow_execution_signaled_event_attributes
        if not said.signal_name.startswith("_"):
            yield _sender(event, execution, "signal", said.signal_name, said.identity)
    elif event.HasField("workflow_execution_update_accepted_event_attributes"):
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        yield _sender(event, execution, "update", request.input.name, request.meta.identity)


def _sender(event: Any, execution: str, kind: str, name: str, identity: str) -> Sender:
    return Sender.model_validate(
        {
            "ts": event.event_time.ToDatetime(UTC),
            "kind": kind,
            "name": name[:200],
            "identity": identity[:200],
            "event_id": event.event_id,
            "execution_run_id": execution,
        }
    )
