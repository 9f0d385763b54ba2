"""The bare workflow Stepwise is compared with: no-op activities in a row, nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from temporalio import activity, workflow

Dispatch = Literal["eager", "pinned", "pinned+local"]
LIMIT = timedelta(seconds=60)


@activity.defn(name="noop")
async def noop(step: int) -> int:
    """Do nothing."""
    return step


@workflow.defn(name="Bare")
class Bare:
    """Runs ``steps`` times three activities: eager, on a pinned queue, or two pinned and one local."""

    @workflow.run
    async def run(self, steps: int, dispatch: Dispatch, pinned: str) -> None:
        """Run all steps one after another."""
        queue = None if dispatch == "eager" else pinned
        for step in range(steps):
            for _ in range(2):
                await workflow.execute_activity("noop", step, task_queue=queue, start_to_close_timeout=LIMIT)
            if dispatch == "pinned+local":
                await workflow.execute_local_activity("noop", step, start_to_close_timeout=LIMIT)
            else:
                await workflow.execute_activity("noop", step, task_queue=queue, start_to_close_timeout=LIMIT)
