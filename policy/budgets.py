"""Budgets: what is left of one, and when it is used up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeVar

from schemas.common import MAX_CYCLES, Budget, Usage

N = TypeVar("N", int, float)
BudgetKind = Literal["tokens", "usd", "seconds", "cycles"]


@dataclass(frozen=True, kw_only=True)
class Exceeded:
    """A bound that is used up: which, its limit, and what was used (tokens, US dollars, seconds or cycles)."""

    which: BudgetKind
    limit: float
    used: float


def remaining(budget: Budget | None, used: Usage, elapsed_s: float, cycles: int) -> Budget | Exceeded:
    """Return what is left of each bound, or the first one (tokens, usd, seconds, cycles) that is used up.

    A bound reached exactly is used up. Seconds left are rounded up. A cost nobody reported counts as none: a
    flow that bounds it on a transport without costs is refused before it runs.
    """
    if budget is None:
        return Budget()
    spent: tuple[tuple[BudgetKind, float | None, float], ...] = (
        ("tokens", budget.tokens, used.total),
        ("usd", budget.usd, used.cost_usd or 0.0),
        ("seconds", budget.seconds, elapsed_s),
        ("cycles", budget.cycles, cycles),
    )
    for which, limit, amount in spent:
        # written so that a value that is no number counts as used up
        if limit is not None and not amount < limit:
            return Exceeded(which=which, limit=limit, used=amount)
    return Budget(
        tokens=None if budget.tokens is None else budget.tokens - max(0, used.total),
        usd=None if budget.usd is None else budget.usd - max(0.0, used.cost_usd or 0.0),
        seconds=None if budget.seconds is None else math.ceil(budget.seconds - max(0.0, elapsed_s)),
        cycles=None if budget.cycles is None else budget.cycles - max(0, cycles),
    )


def tightest(step_budget: Budget | None, flow_left: Budget | None) -> Budget:
    """Return the smaller bound of both in each kind; None, where neither has one, means no bound."""
    step, flow = step_budget or Budget(), flow_left or Budget()
    return Budget(
        tokens=_least(step.tokens, flow.tokens),
        usd=_least(step.usd, flow.usd),
        seconds=_least(step.seconds, flow.seconds),
        cycles=_least(step.cycles, flow.cycles),
    )


def extend(budget: Budget, more: Budget) -> Budget:
    """Return the budget raised by ``more``; cycles stay within 64, and what had no bound gets none."""
    cycles = _sum(budget.cycles, more.cycles)
    return Budget(
        tokens=_sum(budget.tokens, more.tokens),
        usd=_sum(budget.usd, more.usd),
        seconds=_sum(budget.seconds, more.seconds),
        cycles=None if cycles is None else min(cycles, MAX_CYCLES),
    )


def _least(one: N | None, other: N | None) -> N | None:
    known = [bound for bound in (one, other) if bound is not None]
    return min(known) if known else None


def _sum(bound: N | None, more: N | None) -> N | None:
    return None if bound is None else bound + (more or 0)
