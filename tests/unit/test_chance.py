"""Property tests go one way: the same examples each time, unless chance was asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from chance import examples
from hypothesis import settings

TESTS = Path(__file__).resolve().parents[1]


def test_examples_are_the_same_each_time_unless_chance_was_asked_for() -> None:
    times = int(os.environ.get("STEPWISE_EXAMPLES") or 0)
    for each, count in ((settings(), 100), (examples(7), 7)):
        assert each.derandomize == (not times)
        assert each.max_examples == count * max(1, times)
        assert each.deadline is None


def test_no_test_chooses_its_examples_by_itself() -> None:
    own = re.compile(r"^from hypothesis import .*\bsettings\b|\bhypothesis\.settings\b", re.MULTILINE)
    known = {TESTS / "chance.py", Path(__file__).resolve()}
    assert not [path for path in TESTS.rglob("*.py") if path not in known and own.search(path.read_text())]
