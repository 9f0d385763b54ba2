"""Calling the phases: one attempt each, cut where a person may cut, found again when they do not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

from schemas.calls import (
    ACQUIRE,
    CANCELLED,
    CONSULT,
    DELIVER,
    FLUSH,
    RECORD,
    RELEASE,
    RESOLVE_FLOW,
    AcquireIn,
    AcquireOut,
    ActivityRef,
    AttemptKey,
    ConsultIn,
    ConsultOut,
    DeliverIn,
    DeliverOut,
    FlushIn,
    Pace,
    PhaseIn,
    RecordIn,
    RecordOut,
    Recover,
    ReleaseIn,
    ReleaseOut,
    ResolveIn,
    ResolveOut,
    WorkIn,
    WorkOut,
)
from schemas.common import Durable, Phase
from schemas.run_state import RunState
from workflows.held import Refused, acquired, resolved
from workflows.journal import Journal
from workflows.log import logger

Call = TypeVar("Call", bound=Durable)
PhaseCall = TypeVar("PhaseCall", bound=PhaseIn)
Out = TypeVar("Out", bound=Durable)

SLOT_WAIT = timedelta(hours=24)
WRITING = timedelta(seconds=30)
DELIVERING = timedelta(seconds=10)
CONSULTING = timedelta(minutes=5)
"""What it may take beside its answer to ask the developer model: the worker bounds that, this only wakes the run."""
MAX_BACKOFF_S = 60
TURNS = 8
"""Turns of the event loop after which a result that is there has come to whoever waits for it."""
ONCE = RetryPolicy(maximum_attempts=1)
SOME = RetryPolicy(maximum_attempts=5, non_retryable_error_types=["PayloadsTooLarge"])
ALWAYS = RetryPolicy(
    initial_interval=timedelta(seconds=1),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=["PayloadsTooLarge"],
)
STORE = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10))


class PhaseLost(Exception):
    """Raised when a pinned phase did not come back with a result; ``failure`` says how that showed.

    ``is_unbegun`` says that no worker had taken it up.
    """

    def __init__(self, failure: str, *, is_unbegun: bool = False) -> None:
        super().__init__(failure)
        self.failure = failure
        self.is_unbegun = is_unbegun


def failure_of(error: ActivityError) -> str:
    """Return in one line how an activity failed."""
    cause = error.cause
    if isinstance(cause, ActivityTimeout):
        return f"time-out ({cause.type.name.lower() if cause.type else 'unknown'})"
    if isinstance(cause, CancelledError):
        return CANCELLED
    if isinstance(cause, ApplicationError):
        return f"{cause.type or 'error'}: {cause.message}"[:500]
    return str(cause or error)[:500]


def _is_unbegun(error: ActivityError) -> bool:
    """Whether no worker had taken an activity up when it failed."""
    cause = error.cause
    return isinstance(cause, ActivityTimeout) and cause.type is TimeoutType.SCHEDULE_TO_START


@dataclass(frozen=True)
class _Unwritten:
    """A record on its way: it goes with the next work phase, or before whatever else the run does."""

    call: RecordIn
    then: Callable[[RecordOut], None]


class Phases:
    """Every activity call of a run. Holds the one running handle, so that it can be cut.

    It also holds the record that is not written yet, if there is one: nothing but work and words to the agent is
    begun before it is.
    """

    def __init__(self, state: RunState, journal: Journal) -> None:
        self._state = state
        self._journal = journal
        self._running: workflow.ActivityHandle[Any] | None = None
        self._cuttable = False
        self._unwritten: _Unwritten | None = None
        self.on_cancel: Callable[[], None] = lambda: None
        self.phase: Phase | None = None

    def cut(self, *, only: Sequence[Phase] | None = None) -> bool:
        """Cancel the running phase if it may be cut (and is one of ``only``); else it must end by itself: False."""
        if self._running is None or not self._cuttable or (only is not None and self.phase not in only):
            return False
        return self._running.cancel()

    async def resolve(self, flow: str | None) -> ResolveOut:
        """Resolve the input's flow, or the chained flow of this name. Raises Refused."""
        call = ResolveIn(run_id=self._state.run_id, input=self._state.input, flow=flow)
        return await self._ordinary(
            RESOLVE_FLOW, call, timedelta(seconds=60), SOME, summary="resolve the flow", heartbeat=True
        )

    async def acquire(self, recover: Recover | None = None, *, queue: str | None = None) -> AcquireOut:
        """Take hold of the run's workspace. Raises Refused; with ``queue``, PhaseLost when nobody answers there."""
        state, flow = self._state, resolved(self._state)
        call = AcquireIn(
            run_id=state.run_id,
            workflow_id=state.workflow_id,
            execution_run_id=workflow.info().run_id,
            flow_key=state.flow_key,
            bundle=flow.bundle,
            repo=state.input.repo,
            base=state.input.base,
            allow_dirty=state.input.allow_dirty,
            fork=state.input.fork,
            recover=recover,
            journal=self._journal.batch(),
        )
        self.phase = "acquire"
        wait = timedelta(seconds=flow.pace.recover_old_worker_s) if queue else None
        out = await self._ordinary(
            ACQUIRE,
            call,
            timedelta(hours=2),
            ONCE if queue else ALWAYS,
            summary="recover the workspace" if recover else "acquire the workspace",
            queue=queue,
            wait=wait,
            heartbeat=True,
        )
        self._journal.stored(call.journal)
        return out

    async def recover(self, key: AttemptKey, phase: Phase, failure: str, losses: int) -> AcquireOut:
        """Find out what became of a lost phase: ask the old worker first, then any. Raises Refused."""
        await workflow.sleep(min(MAX_BACKOFF_S, 2 ** (losses - 1)), summary="back-off before recovery")
        lost = Recover(key=key, phase=phase, failure=failure)
        try:
            return await self.acquire(lost, queue=acquired(self._state).control_queue)
        except PhaseLost as gone:
            if gone.failure == CANCELLED:
                raise Refused("failed", "the recovery was cut") from gone
            logger.warning("the old worker did not answer: %s", gone.failure)
        return await self.acquire(lost)

    async def pinned(
        self,
        ref: ActivityRef[PhaseCall, Out],
        call: PhaseCall,
        phase: Phase,
        limit_s: float,
        *,
        summary: str,
    ) -> Out:
        """Run one phase where the workspace is. Raises PhaseLost when no result came back, Refused."""
        pace = resolved(self._state).pace
        if not isinstance(call, WorkIn):
            await self.catch_up()
        elif self._unwritten is not None:
            call = call.model_copy(update={"record": self._unwritten.call})
        self.phase = phase
        slot_wait = SLOT_WAIT if phase == "work" else timedelta()
        handle: workflow.ActivityHandle[Out] = workflow.start_activity(
            ref.name,
            call,
            result_type=ref.returns,
            task_queue=acquired(self._state).queue,
            activity_id=call.key.activity_id(phase),
            start_to_close_timeout=timedelta(seconds=limit_s) + slot_wait,
            schedule_to_start_timeout=timedelta(seconds=pace.schedule_to_start_s),
            heartbeat_timeout=timedelta(seconds=pace.heartbeat_s),
            retry_policy=ONCE,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        out = await self._await(handle, cuttable=phase in ("work", "measure"))
        self._journal.stored(call.journal)
        if isinstance(call, WorkIn) and call.record is not None and isinstance(out, WorkOut) and out.recorded:
            self.written(call.record.key, out.recorded)
        return out

    def record_with_work(self, call: RecordIn, then: Callable[[RecordOut], None]) -> None:
        """Have a record written with the work that follows, or before whatever else does; ``then`` hears of it."""
        self._unwritten = _Unwritten(call, then)

    def written(self, key: AttemptKey, out: RecordOut) -> None:
        """Take it that the record of an attempt is written; what is said of another one is no news."""
        unwritten = self._unwritten
        if unwritten is not None and unwritten.call.key == key:
            self._unwritten = None
            unwritten.then(out)

    async def catch_up(self) -> None:
        """Write the record that waits for the next work, if one does. Raises Refused."""
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            phase = self.phase
            unwritten.then(await self.record(unwritten.call))
            self.phase = phase

    async def record(self, call: RecordIn, *, local: bool = False) -> RecordOut:
        """Write receipt, envelope and journal of one attempt, at once. Raises Refused.

        ``local`` only in runs that began so (RECORD_AS_ACTIVITY), and without journal: a local activity whose end a
        crash keeps out of history is run again, in a workflow task that has another time and perhaps another message
        before it, and must then write the same once more.
        """
        self.phase = "record"
        summary = f"{call.key.step_id} (iteration {call.iteration})"
        if local:
            start = self._start_local(RECORD, call)
        else:
            start = self._start_writing(
                RECORD, call, activity_id=call.key.activity_id("record"), summary=summary
            )
        out = await self._written(start, summary)
        self._journal.stored(call.journal)
        return out

    async def flush(self) -> None:
        """Store what is not stored yet, before a wait. Raises Refused."""
        await self.catch_up()
        batch = self._journal.batch()
        if batch:
            call = FlushIn(run_id=self._state.run_id, journal=batch)
            summary = "flush the journal"
            await self._written(self._start_writing(FLUSH, call, summary=summary), summary)
            self._journal.stored(batch)

    async def release(self, call: ReleaseIn) -> ReleaseOut:
        """Give the workspace back, on the worker that has it if that one is there."""
        held = self._state.acquired
        if held is not None:
            try:
                return await self._ordinary(
                    RELEASE,
                    call,
                    timedelta(minutes=10),
                    SOME,
                    summary="release the workspace",
                    queue=held.control_queue,
                    wait=timedelta(seconds=self._pace.recover_old_worker_s),
                    heartbeat=True,
                )
            except PhaseLost as gone:
                logger.warning("release on the worker of the run failed: %s", gone.failure)
        return await self._ordinary(
            RELEASE, call, timedelta(minutes=10), SOME, summary="release the workspace", heartbeat=True
        )

    async def deliver(self, call: DeliverIn) -> DeliverOut:
        """Hand a human's word to the live session, on the worker that has it; never raises."""
        handle: workflow.ActivityHandle[DeliverOut] = workflow.start_activity(
            DELIVER.name,
            call,
            result_type=DELIVER.returns,
            task_queue=acquired(self._state).control_queue,
            start_to_close_timeout=DELIVERING,
            schedule_to_start_timeout=DELIVERING / 2,
            retry_policy=ONCE,
            summary="tell the agent",
        )
        try:
            return await handle
        except ActivityError as error:
            return DeliverOut(live=False, unsure=not _is_unbegun(error), detail=failure_of(error))

    async def consult(self, call: ConsultIn, limit_s: float) -> ConsultOut:
        """Ask the developer model, which may take ``limit_s`` seconds. Raises PhaseLost, Refused."""
        await self.catch_up()
        pace = resolved(self._state).pace
        handle: workflow.ActivityHandle[ConsultOut] = workflow.start_activity(
            CONSULT.name,
            call,
            result_type=CONSULT.returns,
            task_queue=acquired(self._state).queue,
            start_to_close_timeout=timedelta(seconds=limit_s) + CONSULTING,
            schedule_to_start_timeout=timedelta(seconds=pace.schedule_to_start_s),
            heartbeat_timeout=timedelta(seconds=pace.heartbeat_s),
            retry_policy=ONCE,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary="ask the developer model",
        )
        return await self._await(handle, cuttable=True)

    @property
    def _pace(self) -> Pace:
        """The worker's time-outs; the usual ones while the flow is not resolved."""
        return self._state.resolved.pace if self._state.resolved else Pace()

    async def _ordinary(
        self,
        ref: ActivityRef[Call, Out],
        call: Call,
        limit: timedelta,
        retry: RetryPolicy,
        *,
        summary: str,
        queue: str | None = None,
        wait: timedelta | None = None,
        heartbeat: bool = False,
    ) -> Out:
        await self.catch_up()
        handle: workflow.ActivityHandle[Out] = workflow.start_activity(
            ref.name,
            call,
            result_type=ref.returns,
            task_queue=queue,
            start_to_close_timeout=limit,
            schedule_to_start_timeout=wait,
            heartbeat_timeout=timedelta(seconds=self._pace.heartbeat_s) if heartbeat else None,
            retry_policy=retry,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        try:
            return await self._await(handle, cuttable=ref.name == ACQUIRE.name)
        except PhaseLost as lost:
            cause = lost.__cause__.cause if isinstance(lost.__cause__, ActivityError) else None
            if isinstance(cause, ApplicationError) and (cause.non_retryable or queue is None):
                raise Refused(cause.type or "failed", cause.message) from lost
            if queue is None:
                raise Refused("failed", f"{summary}: {lost.failure}") from lost
            raise

    def _start_local(self, ref: ActivityRef[Call, Out], call: Call) -> workflow.ActivityHandle[Out]:
        handle: workflow.ActivityHandle[Out] = workflow.start_local_activity(
            ref.name,
            call,
            result_type=ref.returns,
            start_to_close_timeout=WRITING,
            retry_policy=STORE,
        )
        return handle

    def _start_writing(
        self, ref: ActivityRef[Call, Out], call: Call, *, summary: str, activity_id: str | None = None
    ) -> workflow.ActivityHandle[Out]:
        handle: workflow.ActivityHandle[Out] = workflow.start_activity(
            ref.name,
            call,
            result_type=ref.returns,
            activity_id=activity_id,
            start_to_close_timeout=WRITING,
            heartbeat_timeout=timedelta(seconds=self._pace.heartbeat_s),
            retry_policy=STORE,
            summary=summary,
        )
        return handle

    async def _written(self, handle: workflow.ActivityHandle[Out], summary: str) -> Out:
        """Wait for a write to the store, to its end whatever is cancelled meanwhile. Raises Refused."""
        while True:
            try:
                return await asyncio.shield(handle)
            except asyncio.CancelledError:
                if handle.cancelled() or workflow.cancellation_reason() is None:
                    raise
            except ActivityError as error:
                kind = error.cause.type if isinstance(error.cause, ApplicationError) else None
                raise Refused(kind or "failed", f"{summary}: {failure_of(error)}") from error

    async def _await(self, handle: workflow.ActivityHandle[Out], *, cuttable: bool) -> Out:
        self._running, self._cuttable = handle, cuttable
        try:
            return await _result_of(handle, self.on_cancel)
        except ActivityError as error:
            raise PhaseLost(failure_of(error), is_unbegun=_is_unbegun(error)) from error
        finally:
            self._running = None


async def _result_of(
    handle: workflow.ActivityHandle[Out], on_cancel: Callable[[], None] = lambda: None
) -> Out:
    """Wait for an activity, which is asked to end when the workflow is cancelled; ``on_cancel`` hears of that.

    A handle that is cancelled at the moment its result comes loses it, and what the activity did would be unknown; so
    the result is let through first.
    """
    while True:
        try:
            return await asyncio.shield(handle)
        except asyncio.CancelledError:
            if handle.cancelled() or workflow.cancellation_reason() is None:
                handle.cancel()
                raise
            on_cancel()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            handle.cancel()
