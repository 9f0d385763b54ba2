"""The workflow that answers every unknown workflow type with the names of the known ones."""

from __future__ import annotations

import collections.abc

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

KNOWN_TYPES = ("Flow",)


@workflow.defn(dynamic=True)
class UnknownType:
    """Fails at once, so that a mistyped type does not wait for ever."""

    @workflow.run
    async def run(self, args: collections.abc.Sequence[RawValue]) -> None:
        """Refuse the start. Raises ApplicationError UnknownWorkflowType."""
        del args
        name = workflow.info().workflow_type
        known = ", ".join(KNOWN_TYPES)
        raise ApplicationError(
            f"no workflow type {name!r}; known: {known}. Start a flow with --type Flow "
            'and --input \'{"flow": "…", "repo": "…", "task": "…"}\'',
            type="UnknownWorkflowType",
            non_retryable=True,
        )
