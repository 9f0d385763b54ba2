"""What the histories of a run say: every execution of its chain, the messages that reached it, its activities."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory

from schemas.calls import FINALIZE, MEASURE, PROPOSE_ROUTE, RECORD, RESOLVE_FLOW, WORK, AttemptKey
from workflows.messages import INTERNAL

PHASES: Final = {
    WORK.name: "work",
    MEASURE.name: "measure",
    FINALIZE.name: "finalize",
    PROPOSE_ROUTE.name: "route",
}
HARMLESS: Final = {
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_UPDATE,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
}
"""The server asks for the task again because something came meanwhile."""
ENDS: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}


@dataclass
class Call:
    """One scheduled activity: its type, its argument, its result if it completed."""

    type: str
    argument: dict[str, Any]
    result: dict[str, Any] | None = None

    @property
    def key(self) -> AttemptKey | None:
        """The attempt it is a phase or the record of."""
        key = self.argument.get("key")
        return AttemptKey.model_validate(key) if key else None


@dataclass
class Heard:
    """What all executions of a run say together, in their order."""

    histories: list[WorkflowHistory]
    signals: Counter[str] = field(default_factory=Counter)
    updates: Counter[str] = field(default_factory=Counter)
    update_ids: set[str] = field(default_factory=set)
    failed_tasks: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    events: int = 0
    cancels: int = 0
    torn: str = ""
    """The last event of a chain that has ended, if that is none that ends anything."""

    @property
    def messages(self) -> Counter[str]:
        """How often each message reached the run, by name."""
        return self.signals + self.updates

    def phases(self) -> dict[str, list[Call]]:
        """Return the calls of pinned phases by the path of their attempt."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            if call.type in PHASES and call.key is not None:
                found.setdefault(call.key.path, []).append(call)
        return found

    def specs(self) -> dict[str, dict[str, Any]]:
        """Return the resolved flows by id."""
        results = [call.result for call in self.calls if call.type == RESOLVE_FLOW.name and call.result]
        return {result["spec"]["id"]: result["spec"] for result in results}

    def journaled(self) -> dict[int, str]:
        """Return the kind of each journal event that was sent to the store, by number."""
        found: dict[int, str] = {}
        for call in self.calls:
            for event in call.argument.get("journal") or []:
                found[event["seq"]] = event["kind"]
        return found

    def recorded(self) -> list[tuple[str, int, str]]:
        """Return step, visit and chosen candidate of each decision that was recorded with its attempt."""
        records = [call.argument for call in self.calls if call.type == RECORD.name]
        records += [call.argument["record"] for call in self.calls if call.argument.get("record")]
        # One that came with work whose worker was lost is sent again by itself.
        # Two that say other things of one attempt are two.
        found = {
            (AttemptKey.model_validate(record["key"]).path, record["routing"]["chosen_candidate_id"]): record
            for record in records
            if record.get("routing")
        }
        return [
            (record["key"]["step_id"], record["key"]["visit"], chosen)
            for (_, chosen), record in found.items()
        ]


async def hear(client: Client, workflow_id: str, first_run_id: str) -> Heard:
    """Fetch every execution of the chain and read it."""
    heard = Heard([])
    run_id = first_run_id
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        heard.histories.append(history)
        calls: dict[int, Call] = {}
        for event in history.events:
            _read(heard, event, calls)
        heard.events += len(history.events)
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        if last.event_type not in ENDS:
            heard.torn = EventType.Name(last.event_type)
    return heard


def _read(heard: Heard, event: HistoryEvent, calls: dict[int, Call]) -> None:
    match event.WhichOneof("attributes"):
        case "workflow_execution_signaled_event_attributes":
            name = event.workflow_execution_signaled_event_attributes.signal_name
            if name not in INTERNAL:
                heard.signals[name] += 1
        case "workflow_execution_cancel_requested_event_attributes":
            heard.cancels += 1
        case "workflow_execution_update_accepted_event_attributes":
            request = event.workflow_execution_update_accepted_event_attributes.accepted_request
            heard.updates[request.input.name] += 1
            heard.update_ids.add(request.meta.update_id)
        case "workflow_task_failed_event_attributes":
            failed = event.workflow_task_failed_event_attributes
            if failed.cause not in HARMLESS:
                cause = WorkflowTaskFailedCause.Name(failed.cause)
                heard.failed_tasks.append(f"event {event.event_id}: {cause}: {failed.failure.message}")
        case "activity_task_scheduled_event_attributes":
            scheduled = event.activity_task_scheduled_event_attributes
            call = Call(scheduled.activity_type.name, json.loads(scheduled.input.payloads[0].data))
            calls[event.event_id] = call
            heard.calls.append(call)
        case "activity_task_completed_event_attributes":
            completed = event.activity_task_completed_event_attributes
            calls[completed.scheduled_event_id].result = json.loads(completed.result.payloads[0].data)
        case _:
            pass
