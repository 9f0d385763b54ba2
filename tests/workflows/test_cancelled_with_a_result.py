"""A workflow that is cancelled at the moment an activity ends knows what that activity did."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from schemas.calls import FlushOut
from schemas.converter import build_data_converter
from system.devserver import DevServer
from workflows.phases import ONCE, _result_of


@workflow.defn
class Waits:
    """Returns what its one activity returned, or how it failed."""

    @workflow.run
    async def run(self, queue: str) -> str:
        handle: workflow.ActivityHandle[FlushOut] = workflow.start_activity(
            "work",
            task_queue=queue,
            result_type=FlushOut,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=ONCE,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            return f"stored: {(await _result_of(handle)).last_seq}"
        except ActivityError as error:
            return f"lost: {error.cause}"


@pytest.mark.parametrize(("fails", "result"), [(False, "stored: 7"), (True, "lost: Broken: broken")])
async def test_what_came_with_the_cancellation_is_known(server: DevServer, fails: bool, result: str) -> None:
    client = await Client.connect(server.address, data_converter=build_data_converter())
    name = f"with-result-{os.urandom(4).hex()}"
    begun, go = asyncio.Event(), asyncio.Event()

    @activity.defn(name="work")
    async def work() -> FlushOut:
        begun.set()
        await go.wait()
        await client.get_workflow_handle(name).cancel()
        if fails:
            raise ApplicationError("broken", type="Broken")
        return FlushOut(last_seq=7)

    def workflows() -> Worker:
        runner = UnsandboxedWorkflowRunner()
        return Worker(client, task_queue=name, workflows=[Waits], workflow_runner=runner)

    async with Worker(client, task_queue=f"{name}-activities", activities=[work]):
        async with workflows():
            handle = await client.start_workflow(Waits.run, f"{name}-activities", id=name, task_queue=name)
            await begun.wait()
        # Nobody takes workflow tasks now: cancellation and result come with the same one.
        go.set()
        while (await handle.describe()).raw_description.pending_activities:  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.02)
        async with workflows():
            assert await handle.result() == result
    assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
