"""A run that only listens: a real workflow that takes the signals of a work phase, so that tests can answer them."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activities_kit import RUN, Driver
from looking import pauses
from temporalio import workflow
from temporalio.activity import Info
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import ActivityEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from schemas.calls import AttemptKey, DeliverIn, DeliverOut, WorkResult
from schemas.converter import build_data_converter
from schemas.questions import CallDecision, Given
from schemas.run_state import Asked, Settled
from system.devserver import DevServer


@workflow.defn(name="Listener")
class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []
        self._settled: list[Settled] = []

    @workflow.run
    async def run(self) -> None:
        """Listen until it is ended."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal(name="_asked")
    def asked(self, said: Asked) -> None:
        """Keep what a session asks."""
        self._asked.append(said)

    @workflow.signal(name="_settled")
    def settled(self, said: Settled) -> None:
        """Keep what is over."""
        self._settled.append(said)

    @workflow.query(name="asked")
    def all_asked(self) -> list[Asked]:
        """Return all that was asked."""
        return self._asked

    @workflow.query(name="settled")
    def all_settled(self) -> list[Settled]:
        """Return all that is over."""
        return self._settled


class Run:
    """The listening run of a driver's work, and a person who answers."""

    def __init__(self, driver: Driver, handle: WorkflowHandle[Any, Any]) -> None:
        self.driver = driver
        self.handle = handle
        self._deliveries = 0

    async def work(
        self, key: AttemptKey | None = None, environment: ActivityEnvironment | None = None, **changes: Any
    ) -> Any:
        """Run a work phase that belongs to this run."""
        return await self.driver.work(
            key, environment or ActivityEnvironment(), workflow_id=self.handle.id, **changes
        )

    async def asked(self, count: int = 1) -> Asked:
        """Return the newest of so many questions and calls, once they are there."""
        for pause in pauses():
            asked: list[Asked] = await self.handle.query(Listener.all_asked)
            if len(asked) >= count:
                break
            await asyncio.sleep(pause)
        return asked[-1]

    async def settled(self) -> list[str]:
        """Return the ids of all that is over."""
        return [said.id for said in await self.handle.query(Listener.all_settled)]

    async def deliver(
        self, *, key: AttemptKey | None = None, delivery: str | None = None, **word: Any
    ) -> DeliverOut:
        """Hand a person's word over, as the run does."""
        driver = self.driver
        assert driver.acquired is not None
        self._deliveries += 1
        environment = ActivityEnvironment()
        environment.info = _named(environment.info, delivery or f"delivery-{self._deliveries}")
        call = DeliverIn(**{"key": key or driver.key(), "lease": driver.acquired.lease, **word})
        out: DeliverOut = await driver.call("deliver", call, environment)
        return out

    async def answer(self, asked: Asked, **answers: str | list[str]) -> DeliverOut:
        """Answer a question: by the texts of its items, or one answer for its first item."""
        assert asked.question is not None
        first = asked.question.items[0].question
        words = {first if name == "first" else name: value for name, value in answers.items()}
        return await self.deliver(given=Given(question=asked.question, answers=words, by="ann"))

    async def decide(self, asked: Asked, *, allow: bool, **more: Any) -> DeliverOut:
        """Allow or deny a call."""
        assert asked.call is not None
        decision = CallDecision(**{"signature": asked.call.signature, "allow": allow, **more})
        return await self.deliver(call_id=asked.call.call_id, decision=decision)


def file_of(driver: Driver, name: str) -> str:
    """Return what stands in a file of the workspace."""
    return (driver.ctx.folder(RUN).workspace / name).read_text()


def transcript_of(driver: Driver, attempt: int = 1) -> str:
    """Return the transcript of an attempt."""
    stored = driver.ctx.results.load(driver.key(attempt=attempt), WorkResult)
    assert stored is not None
    assert stored.transcript is not None
    return driver.ctx.evidence.read(stored.transcript).decode()


def _named(info: Info, activity_id: str) -> Info:
    return dataclasses.replace(info, activity_id=activity_id)


@asynccontextmanager
async def listening(driver: Driver, server: DevServer) -> AsyncIterator[Run]:
    """Give the driver's worker a client, and its work a run that listens."""
    client = await Client.connect(server.address, data_converter=build_data_converter())
    queue = f"listen-{uuid.uuid4().hex}"
    driver.ctx.client = client
    async with Worker(
        client, task_queue=queue, workflows=[Listener], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handle = await client.start_workflow(Listener.run, id=queue, task_queue=queue)
        yield Run(driver, handle)
        await handle.terminate()
