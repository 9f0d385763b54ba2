"""How workflow code is run: in Temporal's sandbox, with the few modules that pass through it and why."""

from __future__ import annotations

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

PASSED_THROUGH = (
    "schemas",  # contracts: data only, and one class each on both sides of the sandbox
    "workflows.routing",  # pure functions of contracts
    "policy.budgets",  # pure functions of contracts
    "pydantic",  # compiled; importing it anew for each run costs more than the run
    "pydantic_core",  # the compiled half of it
    "opentelemetry",  # its context must be one for workflow and worker, or spans would not nest
)
REPLAYED = (*PASSED_THROUGH, "workflows")
"""For offline replay alone: one instance of the workflow's logger, so that decisions can be listened to."""


def build_runner(*, replay: bool = False) -> SandboxedWorkflowRunner:
    """Return the runner of a worker, or of an offline replay."""
    modules = REPLAYED if replay else PASSED_THROUGH
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(*modules)
    )
