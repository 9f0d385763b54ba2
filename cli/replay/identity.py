"""The id of the execution a history is of, and how workflow code that is replayed gets to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowHistory
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import _Definition


def run_id_of(history: WorkflowHistory) -> str:
    """Return the execution's own id; after a reset that is not the original one, which the SDK takes for it."""
    for event in reversed(history.events):
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            return failed.new_run_id
    return history.run_id


class Identified(WorkflowRunner):
    """A runner that tells workflows which execution they are, as a server does."""

    def __init__(self, inner: WorkflowRunner, run_id: str) -> None:
        self._inner = inner
        self._run_id = run_id

    def prepare_workflow(self, defn: _Definition) -> None:
        """Prepare a type of workflow."""
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a new instance of a workflow."""
        return self._inner.create_instance(replace(det, info=replace(det.info, run_id=self._run_id)))

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass on which exceptions fail a workflow."""
        self._inner.set_worker_level_failure_exception_types(types)
