"""Which examples property tests take: the same each time, or by chance, so many times as many as STEPWISE_EXAMPLES says."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from hypothesis import HealthCheck, settings

_TIMES: Final = int(os.environ.get("STEPWISE_EXAMPLES") or 0)
_COUNT: Final = 100


def take_examples() -> None:
    """Set how all property tests are played, before any of them is read."""
    # How long an example takes is the machine's affair.
    common = settings(deadline=None, max_examples=_COUNT * max(1, _TIMES), print_blob=True)
    settings.register_profile("same", common, derandomize=True)
    settings.register_profile("chance", common)
    settings.load_profile("chance" if _TIMES else "same")


def examples(count: int, *, suppress: Collection[HealthCheck] = ()) -> settings:
    """Return the decorator of a property test that takes another number of examples than 100."""
    return settings(max_examples=count * max(1, _TIMES), suppress_health_check=list(suppress))
