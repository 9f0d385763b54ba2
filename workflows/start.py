"""What a person typed to start a run: parsed by the workflow itself, so that a mistake is one clear failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.exceptions import ApplicationError

from schemas.run import FlowInput
from schemas.run_state import RunState
from workflows.messages import describe

EXAMPLE = '{"flow": "fix", "repo": "/path/to/repository", "task": "what is to be done"}'
_UNCLEAN = re.compile(r"[^a-z0-9-]+")
MAX_ID_CHARS = 60


def run_id(workflow_id: str, first_execution_run_id: str) -> str:
    """Return the run's id: the cleaned workflow id and the random end of the first execution's id."""
    clean = _UNCLEAN.sub("-", workflow_id.lower()).strip("-")[:MAX_ID_CHARS].strip("-") or "run"
    return f"{clean}-{first_execution_run_id.replace('-', '')[-12:]}"


def refuse_input(message: str) -> ApplicationError:
    """Return the error that ends a run whose input cannot be used."""
    return ApplicationError(f"bad flow input: {message}", type="BadFlowInput", non_retryable=True)


def parse_start(args: Sequence[Any], *, continued: bool) -> tuple[FlowInput, RunState | None]:
    """Return the input, and the carried state of a continued run. Raises ApplicationError BadFlowInput."""
    if continued and len(args) == 2:  # noqa: PLR2004 - the input and the carried state
        return FlowInput.model_validate(args[0]), RunState.model_validate(args[1])
    if not args:
        raise refuse_input(f"there is none; start with --input '{EXAMPLE}'")
    if len(args) > 1:
        raise refuse_input(f"{len(args)} inputs were given; give one JSON object such as {EXAMPLE}")
    if not isinstance(args[0], dict):
        kind = type(args[0]).__name__
        raise refuse_input(f"it is {kind}, not a JSON object; give one such as {EXAMPLE}")
    try:
        return FlowInput.model_validate(args[0]), None
    except ValidationError as error:
        raise refuse_input(describe(error, FlowInput)) from None
