"""Time-outs of a step, in seconds: what is nearer to it wins."""

from __future__ import annotations

from typing import Literal

from schemas.flow import DEFAULT_TIMEOUTS, FlowSpec, StepSpec, Timeouts

Kind = Literal["gate", "command", "push", "work", "finalize", "route", "no_output", "answer"]


def seconds(spec: FlowSpec, step: StepSpec | None, kind: Kind, *, own: int | None = None) -> float:
    """Return ``own``, else the step's time-out, else the flow's, else the default."""
    if own is not None:
        return own
    for timeouts in (step.timeouts if step else Timeouts(), spec.defaults.timeouts):
        given: int | None = timeouts.model_dump()[kind]
        if given is not None:
            return given
    return DEFAULT_TIMEOUTS[kind]
