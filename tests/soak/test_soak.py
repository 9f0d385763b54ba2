"""Flows, messages and crashes by chance, in short: after each run all that must hold does. The long form: ``make soak``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Final

import pytest
from soak_batch import play
from soak_plans import Kind, make_batch

SEED: Final = int(os.environ.get("STEPWISE_SOAK_SEED") or 20)
SHORT: Final[tuple[tuple[Kind, int], ...]] = (
    ("storm", 8),
    ("patient", 7),
    ("calm", 10),
    ("storm", 8),
    ("patient", 7),
    ("calm", 10),
)
"""Fifty runs, those that take longest first."""


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default:discarded")
@pytest.mark.parametrize("number", range(len(SHORT)))
async def test_whatever_happens_to_runs_all_that_must_hold_does(number: int, tmp_path: Path) -> None:
    kind, size = SHORT[number]
    report = await play(make_batch(SEED, number, kind, size), tmp_path / "batch")
    for failure in report.discarded:
        warnings.warn(f"discarded, and played again: {failure}", stacklevel=1)
    assert report.runs == size, report.failures
    assert not report.failures, "\n".join([*report.failures, *report.repeat])
