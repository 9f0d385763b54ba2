"""Plays one plan on real machines: sends what it says at its moments, then brings the run to its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from conftest import Rig
from soak_flows import placed
from soak_plans import Event, Moment, Plan, Send, closing, make_send
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from schemas.calls import ACQUIRE

MOMENT_S: Final = 1.5
"""How long a moment is waited for; then it is done anyway."""
STILL_S: Final = 0.4
"""A run that has waited so long for a person goes on only if somebody speaks."""
LOOK_S: Final = 0.07
IDLE_LOOKS: Final = 30
RPC: Final = timedelta(seconds=6)
ANSWER_S: Final = 8.0
PLAN_S: Final = 180.0
"""How long a plan may take, whatever is killed meanwhile."""
ABORT_AFTER_S: Final = 25.0
ABORT_AGAIN_S: Final = 1.0
MAX_ANSWERS: Final = 8
SILENCE: Final = 0.6
CUTTING: Final = {"abort", "interrupt", "resume"}
"""Messages that may cancel an activity."""
TASK_S: Final = 3
"""A killed worker's workflow task is given to another one after this."""
Ack = Literal["accepted", "refused", "unknown", "gone"]


@dataclass(frozen=True)
class Sent:
    """A message and what became of it as its sender saw it; ``unknown``: no answer came."""

    send: Send
    ack: Ack
    id: str


@dataclass(frozen=True)
class Seen:
    """A run as the server shows it; ``busy``: an activity runs, which a jump of time would end."""

    closed: bool = False
    phase: str | None = None
    step: str | None = None
    waiting: str | None = None
    deadline: datetime | None = None
    events: int = 0
    busy: bool = False

    def at(self, moment: Moment) -> bool:
        """Tell whether this is the moment."""
        return (
            (moment.phase is None or moment.phase == self.phase)
            and (moment.step is None or moment.step == self.step)
            and (moment.waiting is None or moment.waiting == self.waiting)
            and (moment.events is None or moment.events <= self.events)
        )


@dataclass
class Player:
    """One plan being played. ``clock`` is the server where it can let time pass at once."""

    rig: Rig
    plan: Plan
    folder: Path
    repo: Path
    clock: WorkflowEnvironment | None = None
    sent: list[Sent] = field(default_factory=list)
    first_run_id: str = ""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    silences: int = 0

    def __post_init__(self) -> None:
        self.workflow_id = f"{self.rig.task_queue}-{self.plan.name}"
        self._rng: Random = closing(self.plan)
        self._seen = Seen()
        self._steps = [
            name for name in ("alpha", "beta", "gamma", "delta") if f'"{name}"' in self.plan.spec["text"]
        ]

    async def play(self) -> None:
        """Start the run and see it to its end. Raises AssertionError when it does not come to one."""
        try:
            async with asyncio.timeout(PLAN_S):
                await self._play()
        except TimeoutError:
            raise AssertionError(f"{self.workflow_id} does not end: {self._seen}") from None

    async def _play(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        given = {
            "spec": self.plan.spec,
            "scenario": placed(self.plan.play, str(self.folder)),
            "repo": str(self.repo),
            "task": "by chance",
            **self.plan.given,
        }
        handle: WorkflowHandle[Any, Any] = await self.rig.client.start_workflow(
            "Flow",
            given,
            id=self.workflow_id,
            task_queue=self.rig.task_queue,
            task_timeout=timedelta(seconds=TASK_S),
        )
        self.first_run_id = handle.first_execution_run_id or ""
        self.started.set()
        for event in self.plan.events:
            await self.moment(event.at)
            if self._seen.closed:
                break
            await self._do(event)
        await self._bring_to_end()
        self.ended = True

    async def moment(self, at: Moment) -> None:
        """Wait for a moment, but not for ever."""
        begun = still_since = time.monotonic()
        before: Seen | None = None
        while time.monotonic() - begun < MOMENT_S:
            seen = await self.look()
            if seen.closed or seen.at(at):
                return
            if before is None or seen != before or seen.waiting is None:
                before, still_since = seen, time.monotonic()
            elif time.monotonic() - still_since > STILL_S:
                return
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Seen:
        """Return how the run stands; as it stood before while the server is away."""
        with contextlib.suppress(
            RPCError, TimeoutError, WorkflowQueryFailedError, WorkflowQueryRejectedError
        ):
            # A server that skips time shows no search attributes.
            self._seen = await (self._asked() if self.clock else self._described())
        return self._seen

    async def _described(self) -> Seen:
        handle = self.rig.client.get_workflow_handle(self.workflow_id)
        found = await handle.describe(rpc_timeout=RPC)
        attributes = found.search_attributes
        state = str((attributes.get("StepwiseState") or [""])[0])
        step = str((attributes.get("StepwiseStep") or [""])[0]) or None
        phase = None
        for pending in found.raw_description.pending_activities:
            parts = pending.activity_id.split(".")
            if pending.activity_type.name == ACQUIRE.name:
                phase = "acquire"
            elif len(parts) == 4:
                step, phase = parts[0], parts[1]
        return Seen(
            closed=found.status != WorkflowExecutionStatus.RUNNING,
            phase=phase,
            step=step,
            waiting=state.removeprefix("waiting:") if state.startswith("waiting:") else None,
            events=found.history_length,
        )

    async def _asked(self) -> Seen:
        handle = self.rig.client.get_workflow_handle(self.workflow_id)
        found = await handle.describe(rpc_timeout=RPC)
        if found.status != WorkflowExecutionStatus.RUNNING:
            return Seen(closed=True, events=found.history_length)
        status: dict[str, Any] = await handle.query("status", rpc_timeout=RPC) or {}
        waiting = status.get("waiting") or {}
        deadline = waiting.get("deadline")
        return Seen(
            phase=status.get("phase"),
            step=status.get("step"),
            waiting=waiting.get("kind"),
            deadline=datetime.fromisoformat(deadline) if deadline else None,
            events=found.history_length,
            busy=bool(found.raw_description.pending_activities),
        )

    # What is done to it.

    async def _do(self, event: Event) -> None:
        if event.send is not None:
            await self.say(event.send)
        if event.cancel:
            await self._idle()
            handle = self.rig.client.get_workflow_handle(self.workflow_id)
            await self._rpc(lambda: handle.cancel(rpc_timeout=RPC))

    async def say(self, send: Send) -> Ack:
        """Send a message and note what became of it."""
        if send.name in CUTTING:
            await self._idle()
        handle = self.rig.client.get_workflow_handle(self.workflow_id)
        tag = f"{self.workflow_id}-{len(self.sent)}"
        if send.way == "signal":
            ack = await self._rpc(lambda: handle.signal(send.name, args=send.args, rpc_timeout=RPC))
        else:
            ack = await self._rpc(
                lambda: handle.execute_update(send.name, args=send.args, id=tag, rpc_timeout=RPC)
            )
        self.sent.append(Sent(send, ack, tag))
        return ack

    async def _idle(self) -> None:
        """Wait until no activity runs, on the server that skips time.

        It refuses, again and again, to cancel an activity that has just ended; a real one takes that as it is.
        """
        for _ in range(IDLE_LOOKS):
            if self.clock is None or not (await self.look()).busy:
                return
            await asyncio.sleep(LOOK_S)

    async def _rpc(self, call: Callable[[], Any]) -> Ack:
        try:
            async with asyncio.timeout(ANSWER_S):
                await call()
        except WorkflowUpdateFailedError:
            return "refused"
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            return "unknown"
        except RPCError as error:
            return "gone" if error.status == RPCStatusCode.NOT_FOUND else "unknown"
        return "accepted"

    # The end.

    async def _bring_to_end(self) -> None:
        for name in self._steps:
            (self.folder / f"go-{name}").touch()
        begun = since = time.monotonic()
        aborted = 0.0
        answers, nudges = 0, 0
        while not (seen := await self.look()).closed:
            now = time.monotonic()
            if now - begun > ABORT_AFTER_S or answers > MAX_ANSWERS:
                if now - aborted > ABORT_AGAIN_S:
                    await self.say(Send("abort", [], "signal"))
                    aborted = now
            elif seen.waiting is not None:
                if self.clock is not None and not seen.busy and self._rng.random() < SILENCE:
                    self.silences += 1
                    await self._let_pass(self.clock, seen, hours=self._rng.choice((1, 5, 80, 300)))
                else:
                    await self.say(self._answer(seen.waiting, answers))
                answers += 1
            if seen.phase != "work":
                since, nudges = now, 0
            elif now - since > 1.5 * (nudges + 1):
                # An agent that waits for words, or hangs.
                await self.say(Send(("steer", "interrupt")[nudges % 2], [], "signal"))
                nudges += 1
            await asyncio.sleep(LOOK_S)

    @staticmethod
    async def _let_pass(clock: WorkflowEnvironment, seen: Seen, *, hours: int) -> None:
        """Be silent for so long, or until the wait is over: a longer jump would end the work that begins then."""
        pause = timedelta(hours=hours)
        if seen.deadline is not None:
            pause = min(pause, seen.deadline - await clock.get_current_time() + timedelta(seconds=1))
        await clock.sleep(max(pause, timedelta(seconds=1)))

    def _answer(self, waiting: str, number: int) -> Send:
        rng, tag = self._rng, f"{self.plan.name}-end-{number}"
        natural: dict[str, tuple[str, dict[str, Any]]] = {
            "approval": ("approve", {}),
            "answer": ("answer", {}),
            "budget": ("extend_budget", {"tokens": 1_000, "seconds": 100, "usd": 10}),
            "pause": ("resume", {}),
            "rate_limit": ("resume", {}),
        }
        if rng.random() < 0.15:
            return make_send(rng, self._steps, tag)
        if waiting in natural and rng.random() < 0.8:
            name, payload = natural[waiting]
        else:
            action = rng.choice(("continue", "retry", "skip", "skip", "goto"))
            target = {"step": self._steps[-1]} if action == "goto" else {}
            name, payload = "resume", {"action": action, **target}
        return Send(name, [{**payload, "by": tag}], rng.choice(("signal", "update")), tag)
