"""What one history says of the facts its routing decisions were made from. Read from history alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from temporalio.api.common.v1 import Payloads
from temporalio.client import WorkflowHistory
from temporalio.exceptions import ApplicationError

from schemas.calls import (
    ACQUIRE,
    FINALIZE,
    FLUSH,
    MEASURE,
    PROPOSE_ROUTE,
    RECORD,
    RELEASE,
    RESOLVE_FLOW,
    WORK,
    AcquireIn,
    AcquireOut,
    ActivityRef,
    FinalizeOut,
    FlushIn,
    MeasureOut,
    PhaseIn,
    ProposeOut,
    RecordIn,
    Recover,
    ReleaseIn,
    ResolveOut,
    WorkOut,
)
from schemas.common import Durable
from schemas.converter import build_data_converter
from schemas.flow import FlowSpec
from schemas.run import FlowInput
from schemas.run_state import RunState
from workflows.facts import Carry
from workflows.start import parse_start

AnyRef = ActivityRef[Any, Any]
PhaseOut = WorkOut | MeasureOut | FinalizeOut | ProposeOut
Place = tuple[str, int]
"""A step's id and the number of the visit."""

_READ: Final[Mapping[str, AnyRef]] = {
    ref.name: ref
    for ref in cast(
        "Sequence[AnyRef]",
        (RESOLVE_FLOW, ACQUIRE, WORK, MEASURE, FINALIZE, PROPOSE_ROUTE, RECORD, FLUSH, RELEASE),
    )
}
_CONVERTER: Final = build_data_converter().payload_converter


@dataclass(frozen=True)
class Finished:
    """A phase that finished: in which visit, what it returned, and the event that says so."""

    place: Place
    event: int
    out: PhaseOut


@dataclass
class Recorded:
    """What one execution's history says: its input, its flow, when steps were entered, what phases returned.

    ``spec`` is None if no flow was resolved, and ``begins_flow`` says whether this execution resolved it. ``carried``
    is the state of a run that was continued as new.
    """

    flow_input: FlowInput | None = None
    carried: RunState | None = None
    spec: FlowSpec | None = None
    begins_flow: bool = False
    entered: dict[Place, datetime] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)

    @property
    def forked_at(self) -> str | None:
        """The step a fork began with; None for a run that began with its flow's first step."""
        fork = self.flow_input.fork if self.flow_input else None
        chained = self.carried is not None and self.carried.acquired is not None
        return fork.step if fork is not None and not chained else None

    def carry(self, place: Place, event: int) -> Carry:
        """Return the phases a decision up to an event was made from: the newest that finished in this visit.

        A person's order to begin anew drops earlier ones; all of them are then run again before the next decision.
        """
        carry = Carry()
        for done in self.finished:
            if done.place == place and done.event <= event:
                match done.out:
                    case WorkOut():
                        carry.work = done.out
                    case MeasureOut():
                        carry.measure = done.out
                    case FinalizeOut():
                        carry.finalize = done.out
                    case ProposeOut():
                        carry.route = done.out
        return carry


def read_facts(history: WorkflowHistory) -> Recorded:
    """Return what a history says. Raises ValueError or RuntimeError where a payload is none of this engine's."""
    recorded = _begin(history)
    calls: dict[int, tuple[AnyRef, Durable]] = {}
    for event in history.events:
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            ref = _READ.get(scheduled.activity_type.name)
            if ref is not None:
                call = _decoded(scheduled.input, ref.takes)
                calls[event.event_id] = (ref, call)
                recorded.entered.update(_entries(call))
        elif event.HasField("activity_task_completed_event_attributes"):
            completed = event.activity_task_completed_event_attributes
            if completed.scheduled_event_id in calls:
                ref, call = calls[completed.scheduled_event_id]
                _take(recorded, event.event_id, call, _decoded(completed.result, ref.returns))
    return recorded


def _begin(history: WorkflowHistory) -> Recorded:
    started = history.events[0].workflow_execution_started_event_attributes
    args = _CONVERTER.from_payloads(list(started.input.payloads))
    try:
        flow_input, carried = parse_start(args, continued=bool(started.continued_execution_run_id))
    except ApplicationError:  # a start that was refused for what was typed: it has no flow
        return Recorded()
    resolved = carried.resolved if carried else None
    return Recorded(flow_input, carried, resolved.spec if resolved else None)


def _decoded(payloads: Payloads, kind: type[Durable]) -> Durable:
    (value,) = _CONVERTER.from_payloads(list(payloads.payloads), [kind])
    if not isinstance(value, kind):
        message = f"a payload is a {type(value).__name__}, not a {kind.__name__}"
        raise ValueError(message)  # noqa: TRY004 - it is a value of a file
    return value


def _entries(call: Durable) -> Iterator[tuple[Place, datetime]]:
    """Yield when steps were entered: the journal's events on their way to the store say so."""
    if isinstance(call, PhaseIn | AcquireIn | FlushIn | RecordIn | ReleaseIn):
        for event in call.journal:
            if event.kind == "step_started":
                said = event.model_extra or {}
                yield (str(said.get("step")), int(said.get("visit", 0))), event.ts


def _take(recorded: Recorded, event: int, call: Durable, out: Durable) -> None:
    match call, out:
        case _, ResolveOut():
            recorded.spec, recorded.begins_flow = out.spec, True
        case PhaseIn(), WorkOut() | MeasureOut() | FinalizeOut() | ProposeOut():
            _add(recorded, (call.key.step_id, call.key.visit), event, out)
        case AcquireIn(recover=Recover(key=key)), AcquireOut():
            for found in (
                out.finished_work,
                out.finished_measure,
                out.finished_finalize,
                out.finished_route,
            ):
                if found is not None:
                    _add(recorded, (key.step_id, key.visit), event, found)
        case _:
            pass


def _add(recorded: Recorded, place: Place, event: int, out: PhaseOut) -> None:
    stopped = (isinstance(out, WorkOut) and out.ended != "finished") or (
        isinstance(out, MeasureOut) and out.stopped is not None
    )
    if not stopped:
        recorded.finished.append(Finished(place, event, out))
