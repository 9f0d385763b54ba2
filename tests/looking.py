"""How often tests look for what happens elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, repeat, takewhile

SLOWEST_S = 0.1


def pauses() -> Iterator[float]:
    """Yield the seconds between two looks, for ever: short at first, longer the longer it takes.

    A look may be a query, which costs server and worker more than what they are to do meanwhile.
    """
    growing = accumulate(repeat(1.4), lambda pause, by: pause * by, initial=0.01)
    return chain(takewhile(lambda pause: pause < SLOWEST_S, growing), repeat(SLOWEST_S))
