"""A step's status comes from what was measured; alike failures have one signature."""

from __future__ import annotations

import hashlib
from typing import Literal

import pytest

from schemas.facts import GateFact
from workflows.routing import failure_signature, verification

PASSED = GateFact(name="unit", passed=True)
FAILED = GateFact(name="unit", passed=False)
UNMEASURED = GateFact(name="unit", passed=True, measured=False)


def test_measured_and_passed_required_gates_on_an_unchanged_tree_verify() -> None:
    assert verification([PASSED], ["unit"], "BLOCKED", None, False) == "VERIFIED"
    assert verification([PASSED, GateFact(name="extra")], ["unit"], None, "PARTIAL", False) == "VERIFIED"


@pytest.mark.parametrize(
    ("gates", "required", "changed"),
    [
        ([], [], False),
        ([PASSED], [], False),
        ([], ["unit"], False),
        ([FAILED], ["unit"], False),
        ([UNMEASURED], ["unit"], False),
        ([PASSED, FAILED], ["unit"], False),
        ([PASSED], ["unit", "lint"], False),
        ([PASSED], ["unit"], True),
    ],
)
def test_nothing_else_verifies_whatever_is_claimed(
    gates: list[GateFact], required: list[str], changed: bool
) -> None:
    for claim in ("VERIFIED", "verified", "DONE", "", None):
        assert verification(gates, required, claim, None, changed) == "UNVERIFIED"


@pytest.mark.parametrize(
    ("claim", "caused", "expected"),
    [
        ("BLOCKED", None, "BLOCKED"),
        (" partial ", None, "PARTIAL"),
        ("VERIFIED", "PARTIAL", "PARTIAL"),
        ("PARTIAL", "BLOCKED", "BLOCKED"),
        ("BLOCKED", "PARTIAL", "PARTIAL"),
        ("UNVERIFIED", None, "UNVERIFIED"),
    ],
)
def test_a_worse_status_is_taken_as_caused_or_claimed(
    claim: str, caused: Literal["PARTIAL", "BLOCKED"] | None, expected: str
) -> None:
    assert verification([FAILED], ["unit"], claim, caused, False) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-01-10T12:00:01.123Z boom", "2025-12-31 23:59:59,5+01:00 boom"),
        ("at 12:30:45 boom", "at 9:05 boom"),
        ("==== 1 failed in 0.12s ====", "=== 1 failed in 110.5 s ==="),
        ("took 5 ms", "took 3.25 seconds"),
        ('File "/tmp/a/x.py", line 12, in f', 'File "/home/b/c/y.py", line 340, in f'),
        ("src/app.py:12:5: E1", "lib/deep/mod.py:7: E1"),
        ("app.py:12 boom", "app.py:3999 boom"),
        ("C:\\work\\x.py boom", "D:\\a\\b.py boom"),
        ("./x/y boom", "../../z boom"),
        ("object at 0x7f00aa", "object at 0xDEADBEEF1"),
        ("commit 3372d6f0b0cb5597 bad", "commit 499194bb81612456aa bad"),
        ("run 123e4567-e89b-12d3-a456-426614174000", "run 00000000-0000-4000-8000-0000000000FF"),
        ("pid 12 died", "PID 99812 died"),
        ("pid=12 died", "pid=7 died"),
        ("worker[4121]: died", "worker[88]: died"),
        ("\x1b[31mFAILED\x1b[0m x", "failed   x"),
        (" boom\n", "Boom"),
    ],
)
def test_failures_that_differ_in_times_places_and_ids_are_alike(one: str, other: str) -> None:
    assert failure_signature(one) == failure_signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assert 3 == 4", "assert 3 == 5"),
        ("assert [1] == [2]", "assert [1] == [3]"),
        ("x/t.py::test_a failed", "x/t.py::test_b failed"),
        ("2 failed", "3 failed"),
        ("KeyError: 'a'", "KeyError: 'b'"),
        ("", "x"),
        ("line 3", "pid 3"),
    ],
)
def test_failures_that_differ_in_substance_are_not_alike(one: str, other: str) -> None:
    assert failure_signature(one) != failure_signature(other)


def test_a_signature_is_the_head_of_a_sha256() -> None:
    assert failure_signature("Boom") == hashlib.sha256(b"boom").hexdigest()[:16]
    assert len(failure_signature("lone surrogate \udc80")) == 16


@pytest.mark.parametrize(
    "unit",
    ["a", "/", "a/", "0", "f", "1:", "[1", "\x1b[", "1.", "-", "= ", "12:30", "pid ", " ", "0123abcd-", "c:"],
)
def test_a_long_hostile_text_takes_linear_time(unit: str) -> None:
    # a quadratic pattern would need hours here and meet the time-out of the test run
    assert len(failure_signature(unit * 1_000_000 + "!")) == 16
