"""What a step and its run may use, what they have used, and what people have allowed beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from temporalio import workflow

from policy.budgets import Exceeded, extend, remaining, tightest
from schemas.calls import WorkOut
from schemas.common import MAX_CYCLES, Budget, Usage
from schemas.flow import StepSpec
from schemas.messages import ExtendBudget, Resume
from workflows.run import Run

EXTENDS_ENOUGH = "extends-enough"
"""The patch with which a budget that is extended without a number is enough, however much was used beyond it."""


class Spending:
    """The bounds of one visit: the run's, and the step's own."""

    def __init__(self, run: Run, step: StepSpec) -> None:
        self._run = run
        self._own = step.budget or run.spec.defaults.budget
        self._used = Usage()
        self._seconds = 0.0
        self._extended = Budget()

    def begin_anew(self) -> None:
        """Give the step its own budget anew."""
        self._used, self._seconds = Usage(), 0.0

    def spent(self, out: WorkOut) -> None:
        """Count what a work phase used, for the run and for the step."""
        self.used(out.usage)
        self._run.state.work_seconds += out.elapsed_ms / 1_000
        self._seconds += out.elapsed_ms / 1_000

    def used(self, usage: Usage) -> None:
        """Count tokens and their cost, for the run and for the step."""
        state = self._run.state
        state.usage = state.usage.plus(usage)
        self._used = self._used.plus(usage)

    @property
    def is_used_up(self) -> bool:
        """Whether a bound is used up."""
        return any(isinstance(left, Exceeded) for left in self._left())

    @property
    def used_up(self) -> list[str]:
        """The bounds that are used up; all there are, where an agent was stopped before any was."""
        found = [one.which for one in self._left() if isinstance(one, Exceeded)]
        bounds = [bound for bound in self._bounds() if bound is not None]
        named = [name for bound in bounds for name, limit in bound.model_dump().items() if limit is not None]
        return list(dict.fromkeys(found or named))

    @property
    def reason(self) -> str:
        """Which bound is used up, in words."""
        return _used_up(self._left()) or "the budget of this step is used up"

    def lacks(self, order: ExtendBudget) -> str:
        """Return which bound is used up all the same if the bounds are raised so, in words; nothing where none is."""
        return _not_enough(self._left(self._more(order)))

    def lacks_for(self, order: Resume) -> str:
        """Return which bound is used up for the work that an order leads to, in words; nothing where none is.

        A retry has the step's own budget anew.
        """
        flow, own = self._left()
        return _not_enough([flow] if order.action == "retry" else [flow, own])

    def left(self) -> Budget | None:
        """Return what the next work may use while nothing is used up; None where there is no bound."""
        flow, own = (None if isinstance(left, Exceeded) else left for left in self._left())
        left = tightest(own, flow)
        return left if left != Budget() else None

    def extend(self, order: ExtendBudget) -> None:
        """Raise the bounds: by what was given, else by what is used up once more, else by all of them once more."""
        state, more = self._run.state, self._more(order)
        state.extended, self._extended = _plus(state.extended, more[0]), _plus(self._extended, more[1])

    def _more(self, order: ExtendBudget) -> tuple[Budget, Budget]:
        """Return by what an order raises the bounds of the run and of the step."""
        given = Budget(tokens=order.tokens, usd=order.usd, seconds=order.seconds, cycles=order.cycles)
        if given != Budget():
            return given, given
        bounds, left = self._bounds(), self._left()
        more = _once_more(bounds[0], left[0]), _once_more(bounds[1], left[1])
        if more == (Budget(), Budget()):
            return self._run.state.input.budget or Budget(), self._own or Budget()
        return more

    def _bounds(
        self, more: tuple[Budget, Budget] = (Budget(), Budget())
    ) -> tuple[Budget | None, Budget | None]:
        """Return the bounds of the run and of the step, as far as people have raised them, and ``more``."""
        state = self._run.state
        flow, own = state.input.budget, self._own
        return (
            extend(flow, _plus(state.extended, more[0])) if flow else None,
            extend(own, _plus(self._extended, more[1])) if own else None,
        )

    def _left(
        self, more: tuple[Budget, Budget] = (Budget(), Budget())
    ) -> tuple[Budget | Exceeded, Budget | Exceeded]:
        """Return what is left of the bounds of the run and of the step; with ``more``, what would be."""
        state = self._run.state
        flow, own = self._bounds(more)
        return (
            remaining(flow, state.usage, state.work_seconds, 0),
            remaining(own, self._used, self._seconds, 0),
        )


def _used_up(left: Sequence[Budget | Exceeded]) -> str:
    return "; ".join(
        f"the budget of {one.limit:g} {one.which} is used up ({one.used:g} used)"
        for one in left
        if isinstance(one, Exceeded)
    )


def _not_enough(left: Sequence[Budget | Exceeded]) -> str:
    found = _used_up(left)
    return f"that is not enough: {found}" if found else ""


def _once_more(bound: Budget | None, left: Budget | Exceeded) -> Budget:
    """Return the bound that is used up, alone, and what was used beyond it; nothing where none is.

    Runs from before the patch got the bound alone, and waited again where more than that was used beyond it.
    """
    if bound is None or not isinstance(left, Exceeded):
        return Budget()
    more = bound.model_dump()[left.which]
    beyond = left.used - left.limit
    if beyond >= more and left.which != "cycles" and workflow.patched(EXTENDS_ENOUGH):
        more += beyond if left.which == "usd" else math.ceil(beyond)
    return Budget.model_validate({left.which: more})


def _plus(one: Budget, more: Budget) -> Budget:
    """Return both extensions together."""
    sums = {
        name: (value or 0) + (more.model_dump()[name] or 0) or None
        for name, value in one.model_dump().items()
    }
    cycles = sums["cycles"]
    return Budget.model_validate({**sums, "cycles": min(cycles, MAX_CYCLES) if cycles else None})
