"""What is left of a budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.budgets import Exceeded, extend, remaining, tightest
from schemas.common import MAX_CYCLES, Budget, Usage

USED = Usage(prompt=60, completion=20, cache_read=15, cache_write=5, cost_usd=1.5)
BUDGETS = st.builds(
    Budget,
    tokens=st.none() | st.integers(1, 10**12),
    usd=st.none() | st.floats(1e-6, 1e6),
    seconds=st.none() | st.integers(1, 10**9),
    cycles=st.none() | st.integers(1, 64),
)


def test_no_budget_leaves_no_bound() -> None:
    assert remaining(None, USED, 10**9, 10**9) == Budget()
    assert remaining(Budget(), USED, 10**9, 10**9) == Budget()


def test_what_is_left_is_the_bound_less_what_was_used() -> None:
    left = remaining(Budget(tokens=150, usd=2, seconds=10, cycles=24), USED, 3.4, 4)
    assert left == Budget(tokens=50, usd=0.5, seconds=7, cycles=20)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (Budget(tokens=100), Exceeded(which="tokens", limit=100, used=100)),
        (Budget(usd=1.5), Exceeded(which="usd", limit=1.5, used=1.5)),
        (Budget(seconds=7), Exceeded(which="seconds", limit=7, used=7.0)),
        (Budget(cycles=3), Exceeded(which="cycles", limit=3, used=3)),
        (Budget(tokens=99, usd=1, cycles=1), Exceeded(which="tokens", limit=99, used=100)),
        (Budget(tokens=101, usd=1, seconds=1), Exceeded(which="usd", limit=1, used=1.5)),
        (Budget(seconds=6, cycles=1), Exceeded(which="seconds", limit=6, used=7.0)),
    ],
)
def test_a_bound_that_is_reached_is_used_up_and_the_first_one_is_named(
    budget: Budget, expected: Exceeded
) -> None:
    assert remaining(budget, USED, 7.0, 3) == expected


def test_a_bound_not_quite_reached_leaves_something() -> None:
    assert remaining(Budget(tokens=101, usd=1.75, seconds=8, cycles=4), USED, 7.5, 3) == Budget(
        tokens=1, usd=0.25, seconds=1, cycles=1
    )


def test_a_cost_nobody_reported_counts_as_none() -> None:
    assert remaining(Budget(usd=1), Usage(prompt=10), 0, 0) == Budget(usd=1)


@pytest.mark.parametrize("elapsed", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_counts_as_used_up(elapsed: float) -> None:
    found = remaining(Budget(seconds=10), Usage(), elapsed, 0)
    assert isinstance(found, Exceeded)
    assert found.which == "seconds"


def test_a_clock_that_went_back_gives_nothing_extra() -> None:
    assert remaining(Budget(seconds=10, cycles=64), Usage(), -5, -5) == Budget(seconds=10, cycles=64)


def test_the_tightest_bound_of_each_kind_counts() -> None:
    assert tightest(Budget(tokens=5, usd=3), Budget(tokens=9, usd=2, seconds=4)) == Budget(
        tokens=5, usd=2, seconds=4
    )
    assert tightest(None, Budget(cycles=3)) == Budget(cycles=3)
    assert tightest(Budget(cycles=3), None) == Budget(cycles=3)
    assert tightest(None, None) == Budget()


def test_an_extension_raises_the_bounds_there_are() -> None:
    raised = extend(Budget(tokens=5, usd=1, cycles=24), Budget(tokens=5, usd=0.5, seconds=9, cycles=24))
    assert raised == Budget(tokens=10, usd=1.5, cycles=48)
    assert extend(Budget(tokens=5), Budget()) == Budget(tokens=5)


def test_cycles_are_never_extended_beyond_the_last_bound() -> None:
    assert extend(Budget(cycles=60), Budget(cycles=64)).cycles == MAX_CYCLES


@given(budget=BUDGETS, tokens=st.integers(0, 10**12), elapsed=st.floats(), cycles=st.integers(-5, 100))
def test_what_is_left_is_never_more_than_the_bound(
    budget: Budget, tokens: int, elapsed: float, cycles: int
) -> None:
    left = remaining(budget, Usage(prompt=tokens), elapsed, cycles)
    if isinstance(left, Budget):
        assert tightest(budget, left) == left


@given(one=BUDGETS, other=BUDGETS)
def test_the_tightest_is_the_same_either_way_and_an_extension_never_takes_away(
    one: Budget, other: Budget
) -> None:
    assert tightest(one, other) == tightest(other, one)
    assert tightest(one, extend(one, other)) == one
