"""How workflow code is run: in Temporal's sandbox, with the few modules that pass through it and why."""

from __future__ import annotations

from typing import Any

from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info

PASSED_THROUGH = (
    "schemas",  # contracts: data only, and one class each on both sides of the sandbox
    "workflows.routing",  # pure functions of contracts
    "policy.budgets",  # pure functions of contracts
    "policy.plain",  # pure functions of text
    "pydantic",  # compiled; importing it anew for each run costs more than the run
    "pydantic_core",  # the compiled half of it
    "opentelemetry",  # its context must be one for workflow and worker, or spans would not nest
)
REPLAYED = (*PASSED_THROUGH, "workflows")
"""For offline replay alone: one instance of the workflow's logger, so that decisions can be listened to."""


class _ContextFree(WorkflowInstance):
    """An instance that says that no payload of it is converted in a way that depends on whose payload it is.

    The SDK asks for that several times for each payload, and the sandbox answers by compiling and running a piece of
    code each time: a seventh of a busy worker's time, for a converter that has neither codec nor storage of its own.
    """

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner

    def activate(self, act: Any) -> Any:
        """Handle an activation in the sandbox."""
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: Any) -> None:
        """Return no context."""

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:  # noqa: ARG002
        """Return a context without a target."""
        return StorageDriverStoreContext(target=None)

    def get_info(self) -> Info:
        """Return what the workflow is."""
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        """Return the thread that runs the workflow now, if one does."""
        return self._inner.get_thread_id()


class Runner(SandboxedWorkflowRunner):
    """Temporal's sandbox, around workflows whose payloads need no context."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Return a new instance of a workflow."""
        return _ContextFree(super().create_instance(det))


def build_runner(*, replay: bool = False) -> Runner:
    """Return the runner of a worker, or of an offline replay."""
    modules = REPLAYED if replay else PASSED_THROUGH
    return Runner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*modules))
