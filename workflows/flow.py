"""The workflow type ``Flow``: what Temporal sees of a run."""

from __future__ import annotations

import asyncio
import collections.abc
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from schemas.cutting import cut
from schemas.run import FlowResult
from schemas.run_state import PartialView, PendingItem, ReceiptsView, RoutingView, RunStatus
from workflows.engine import execute
from workflows.mailbox import Mailbox
from workflows.messages import INTERNAL, MAX_REFUSAL, MESSAGES, BadMessage, Message, parse, refusal
from workflows.run import Run, fresh_state
from workflows.start import parse_start, run_id

FIRST_TASK_EVENTS = 3
"""Length of a history at its first workflow task; longer there means a reset to the very beginning."""


def _refused(text: str) -> ApplicationError:
    return ApplicationError(cut(text, MAX_REFUSAL), type="Refused", non_retryable=True)


class Controls:
    """The messages of the table, each as a signal and as an update of the same name."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()
        self._run: Run | None = None

    def post(self, name: str, args: collections.abc.Sequence[Any]) -> None:
        """Enqueue a signal; its verdict shows in ``status`` and in the journal."""
        self._mailbox.post(name, args)

    async def ask(self, name: str, args: collections.abc.Sequence[Any]) -> dict[str, Any]:
        """Enqueue an update and return the main loop's verdict. Raises ApplicationError Refused."""
        ticket = self._mailbox.post(name, args)
        await workflow.wait_condition(lambda: ticket.verdict is not None)
        if ticket.verdict is None or ticket.verdict.verdict == "refused":
            raise _refused(ticket.verdict.message if ticket.verdict else "")
        return ticket.verdict.model_dump()

    def judge(self, name: str, args: collections.abc.Sequence[Any]) -> None:
        """Refuse an update before it is accepted. Raises ApplicationError Refused."""
        try:
            payload = parse(name, args)
        except BadMessage as error:
            raise _refused(str(error)) from None
        if self._run is None or self._run.is_answered or not self._mailbox.empty:
            # It is judged by where the run stands when its turn comes.
            return
        why_not = refusal(name, payload, self._run.situation())
        if why_not is not None:
            raise _refused(why_not)


def _controls() -> type[Controls]:
    """Return Controls with a signal and an update handler for each message of the table."""
    members: dict[str, Any] = {}
    for message in MESSAGES.values():
        members[f"signal_{message.name}"] = _signal(message)
        members[f"update_{message.name}"] = _update(message)
    for name in INTERNAL:
        members[f"signal{name}"] = _internal(name)
    return type("TableControls", (Controls,), members)


def _signal(message: Message) -> Any:
    @workflow.signal(name=message.name, description=message.help)
    def handler(self: Controls, *args: Any) -> None:
        self.post(message.name, args)

    return handler


def _internal(name: str) -> Any:
    @workflow.signal(name=name, description="Sent by the engine itself.")
    def handler(self: Controls, *args: Any) -> None:
        self.post(name, args)

    return handler


def _update(message: Message) -> Any:
    @workflow.update(name=message.name, description=message.help)
    async def handler(self: Controls, *args: Any) -> dict[str, Any]:
        return await self.ask(message.name, args)

    @handler.validator
    def validate(self: Controls, *args: Any) -> None:
        self.judge(message.name, args)

    return handler


_TableControls: Any = _controls()


@workflow.defn(name="Flow")
class Flow(_TableControls):  # type: ignore[misc] # built from the table of messages
    """One run of a flow. Start it with one JSON object: {"flow": "…", "repo": "…", "task": "…"}."""

    @workflow.run
    async def run(self, *args: Any) -> FlowResult:
        """Run the flow. Raises ApplicationError with the outcome as type for every outcome that is a failure."""
        info = workflow.info()
        flow_input, carried = parse_start(args, continued=info.continued_run_id is not None)
        state = carried or fresh_state(
            run_id(info.workflow_id, info.first_execution_run_id), flow_input, workflow.now()
        )
        run = Run(state, self._mailbox)
        self._run = run
        run.was_reset = (
            info.original_execution_run_id != info.run_id
            and info.get_current_history_length() > FIRST_TASK_EVENTS
        )
        main = asyncio.current_task()

        def on_reset(_seed: int) -> None:
            run.was_reset = True
            if main is not None:
                main.cancel()

        workflow.register_random_seed_callback(on_reset)
        self._pumps = [
            asyncio.create_task(self._mailbox.pump(run)),
            asyncio.create_task(run.live.pump()),
        ]
        return await execute(run)

    @workflow.signal(dynamic=True, description="Any other name: refused, and status says so.")
    def unknown_signal(self, name: str, args: collections.abc.Sequence[RawValue]) -> None:
        """Refuse a signal no table names; the refusal shows in ``status``."""
        self.post(name, [None for _ in args])

    @workflow.query(name="status", description="Where the run stands and what can be sent to it.")
    def status(self) -> RunStatus | None:
        """Return the run's status; None before its first task."""
        return self._run.status() if self._run else None

    @workflow.query(name="pending", description="What is waited for, and which messages answer it.")
    def pending(self) -> list[PendingItem]:
        """Return what a person is waited for; empty while nothing is."""
        return self._run.pending_view() if self._run else []

    @workflow.query(name="partial_handoff", description="What the newest stopped attempt left.")
    def partial_handoff(self) -> PartialView | None:
        """Return where the partial handoff is and what stands in it; None where no attempt was stopped."""
        return self._run.state.partial if self._run else None

    @workflow.query(name="routing", description="Routing decisions with their reasons.")
    def routing(self) -> RoutingView | None:
        """Return the newest decisions."""
        return self._run.routing_view() if self._run else None

    @workflow.query(name="receipts", description="Receipts and the head of their chain.")
    def receipts(self) -> ReceiptsView | None:
        """Return the newest receipts."""
        return self._run.receipts_view() if self._run else None
