"""When a loop ends: each exit, its numbers, and which one wins where several hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from schemas.facts import GateFact
from schemas.flow import Microloop
from schemas.routing import IterationFacts, LoopState, MicroloopExit
from workflows.routing import microloop_exit

ENTERED = datetime(2026, 1, 1, tzinfo=UTC)
PASSED = {"name": "unit", "passed": True}
FAILED = {"name": "unit", "passed": False}
UNMEASURED = {"name": "unit", "passed": True, "measured": False}
QUALITY = {"threshold": 70, "min_improvement": 2}


def ended(
    *iterations: dict[str, Any], required: tuple[str, ...] = (), after_s: float = 0, **policy: Any
) -> MicroloopExit | None:
    loop = Microloop.model_validate(
        {"kind": "microloop", "loop_target": "a", "next": "b", "max_iterations": 20, **policy}
    )
    state = LoopState(
        entered_at=ENTERED, iterations=[IterationFacts.model_validate(facts) for facts in iterations]
    )
    return microloop_exit(loop, state, ENTERED + timedelta(seconds=after_s), required=required)


def reason(*iterations: dict[str, Any], **more: Any) -> str | None:
    found = ended(*iterations, **more)
    if found is None:
        return None
    assert found.explanation.endswith(".")
    return found.reason


def scored(*scores: float | None, **more: Any) -> str | None:
    return reason(*({"score": score} for score in scores), quality={**QUALITY, **more})


def test_a_loop_without_an_iteration_goes_on() -> None:
    assert ended(after_s=1_000, timeout=1) is None


@pytest.mark.parametrize("culprit", ["scorer", "improver"])
def test_a_failed_scorer_or_improver_ends_the_loop_as_used_up(culprit: str) -> None:
    found = ended({"score_error": culprit, "score": 99}, quality=QUALITY)
    assert found is not None
    assert (found.reason, found.exhausted) == (f"{culprit}_error", True)


def test_passed_required_gates_end_a_loop_without_a_score() -> None:
    found = ended({"gates": [PASSED]}, required=("unit",))
    assert found is not None
    assert (found.reason, found.exhausted, found.claimed) == ("status_verified", False, False)


@pytest.mark.parametrize(
    "facts",
    [
        {"gates": [FAILED]},
        {"gates": [UNMEASURED]},
        {"gates": []},
        {"gates": [{"name": "other", "passed": True}]},
        {"gates": [PASSED, FAILED]},
        {"gates": [PASSED], "changed_after_measure": True},
    ],
)
def test_a_claim_never_replaces_a_required_gate(facts: dict[str, Any]) -> None:
    assert reason({**facts, "claimed_status": "VERIFIED"}, required=("unit",)) is None
    assert reason({**facts, "score": 100}, required=("unit",), quality=QUALITY) is None


def test_every_required_gate_must_pass() -> None:
    both = {"gates": [PASSED, {"name": "lint", "passed": True}]}
    assert reason({"gates": [PASSED]}, required=("unit", "lint")) is None
    assert reason(both, required=("unit", "lint")) == "status_verified"


@pytest.mark.parametrize(("after_s", "expected"), [(9.9, None), (10, "timeout"), (10.1, "timeout")])
def test_the_wall_clock_ends_a_loop(after_s: float, expected: str | None) -> None:
    assert reason({}, after_s=after_s, timeout=10) == expected


def test_passed_gates_beat_the_clock_but_not_where_a_score_is_asked() -> None:
    late: dict[str, Any] = {"required": ("unit",), "after_s": 99, "timeout": 10}
    assert reason({"gates": [PASSED]}, **late) == "status_verified"
    assert reason({"gates": [PASSED], "score": 100}, quality=QUALITY, **late) == "timeout"


@pytest.mark.parametrize(("score", "expected"), [(69.9, None), (70, "threshold_met"), (100, "threshold_met")])
def test_a_score_at_the_threshold_ends_a_loop(score: float, expected: str | None) -> None:
    assert scored(score) == expected
    assert reason({"gates": [PASSED], "score": score}, required=("unit",), quality=QUALITY) == expected


def test_a_score_of_a_tree_that_changed_after_is_no_score() -> None:
    assert reason({"score": 100, "changed_after_measure": True}, quality=QUALITY) is None


@pytest.mark.parametrize("score", [None, float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_never_ends_a_loop_well(score: float | None) -> None:
    assert scored(score, threshold=0) is None
    assert scored(50, score) == "stagnation"  # it counts as 0


@pytest.mark.parametrize("claim", ["VERIFIED", "verified", "Verified"])
def test_without_gate_and_score_a_claim_ends_a_loop_and_is_marked(claim: str) -> None:
    found = ended({"claimed_status": claim})
    assert found is not None
    assert (found.reason, found.claimed, found.exhausted) == ("status_verified", True, False)


@pytest.mark.parametrize("claim", [None, "", "DONE", "PARTIAL", "VERIFIED "])
def test_an_unknown_claim_ends_nothing(claim: str | None) -> None:
    assert reason({"claimed_status": claim}) is None


def test_the_claims_that_end_a_loop_are_the_ones_written() -> None:
    assert reason({"claimed_status": "partial"}, exit_on={"status": ["PARTIAL"]}) == "status_verified"
    assert reason({"claimed_status": "VERIFIED"}, exit_on={"status": []}) is None
    assert reason({"claimed_status": "VERIFIED", "score": 1}, quality=QUALITY) is None


@pytest.mark.parametrize(
    ("policy", "bound"),
    [({"max_iterations": 2}, 2), ({"max_iterations": None}, 3), ({"max_iterations": 20}, 20)],
)
def test_the_bound_ends_a_loop(policy: dict[str, Any], bound: int) -> None:
    changing = {"files_changed": 1}
    assert reason(*[changing] * (bound - 1), **policy) is None
    assert reason(*[changing] * bound, **policy) == "max_iterations"


def test_with_a_score_the_bound_is_five() -> None:
    rising = [{"score": 10.0 * number} for number in range(1, 6)]
    assert reason(*rising[:4], quality=QUALITY, max_iterations=None) is None
    assert reason(*rising, quality=QUALITY, max_iterations=None) == "max_iterations"


@pytest.mark.parametrize(("word", "expected"), [("no", "no_further_help"), ("yes", None), ("unsure", None)])
def test_an_agent_that_sees_no_help_ends_a_loop(word: str, expected: str | None) -> None:
    assert reason({"can_further_iteration_help": word}) == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((50, 60, 50), "oscillation"),
        ((60, 50, 60), "oscillation"),
        ((10, 50, 52.1, 50), "oscillation"),
        ((50, 52, 50), "stagnation"),  # each change must exceed 2.0
        ((50, 60, 58), "stagnation"),
        ((50, 52, 40), "stagnation"),
        ((0, 50, 40, 42), None),
        ((50, 60, 70), None),
        ((50, 60), None),
        ((60, 50), "stagnation"),
    ],
)
def test_scores_that_go_up_and_down_are_oscillation(scores: tuple[float, ...], expected: str | None) -> None:
    assert scored(*scores, threshold=90) == expected


@pytest.mark.parametrize(
    ("scores", "least", "expected"),
    [
        ((50, 50.5, 51.9), 0.1, "stagnation"),  # a spread of 1.9
        ((50, 51, 52), 0.1, None),  # a spread of 2.0
        ((10, 50, 51, 51.9), 0.1, "stagnation"),
        ((50, 51.9), 2, "stagnation"),
        ((50, 52), 2, None),
        ((50, 49.9), 0, "stagnation"),
        ((50, 50), 0, None),
        ((50,), 2, None),
    ],
)
def test_scores_that_stand_still_are_stagnation(
    scores: tuple[float, ...], least: float, expected: str | None
) -> None:
    assert scored(*scores, min_improvement=least) == expected


STUCK = {"failure_signature": "s"}


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [
        ([STUCK] * 3, "stalled"),
        ([STUCK] * 2, None),
        ([{"failure_signature": "t"}, *[STUCK] * 3], "stalled"),
        ([STUCK, {"failure_signature": "t"}, STUCK], None),
        ([STUCK, {**STUCK, "files_changed": 1}, STUCK], None),
        ([{}] * 3, None),
        ([STUCK, {**STUCK, "tools": ["Edit", "poll"]}, STUCK], None),
        ([STUCK, {**STUCK, "tools": ["Edit"]}, STUCK], "stalled"),
    ],
)
def test_the_same_failure_without_a_change_is_a_stall(
    iterations: list[dict[str, Any]], expected: str | None
) -> None:
    assert reason(*iterations, stall={"window": 3, "exempt_tools": ["poll"]}) == expected


def test_a_failure_is_the_same_only_within_the_window() -> None:
    assert reason(STUCK, STUCK, stall={"window": 2}) == "stalled"
    assert reason(*[STUCK] * 4, stall={"window": 5}) is None


# What makes each exit hold in a loop of three iterations: facts of all three, facts of the last one, whether a
# score is asked, the three scores, the required gates, and the policy.
HOLDS: dict[str, dict[str, Any]] = {
    "scorer_error": {"last": {"score_error": "scorer"}},
    "gates": {"last": {"gates": [PASSED]}, "required": ("unit",), "asked": False},
    "timeout": {"policy": {"timeout": 1}},
    "threshold_met": {"policy": {"threshold": 5}, "asked": True},
    "claim": {"last": {"claimed_status": "VERIFIED"}, "required": (), "asked": False},
    "max_iterations": {"policy": {"max_iterations": 3}},
    "no_further_help": {"last": {"can_further_iteration_help": "no"}},
    "oscillation": {"asked": True, "scores": (40, 60, 40)},
    "spread": {"asked": True, "scores": (40, 40, 40), "policy": {"min_improvement": 0}},
    "improvement": {"asked": True, "scores": (10, 50, 51)},
    "stalled": {"all": {"failure_signature": "s"}},
}
NAMES = {
    "gates": "status_verified",
    "claim": "status_verified",
    "spread": "stagnation",
    "improvement": "stagnation",
}
PLACES = {"spread": "points (below", "improvement": "an improvement below"}


def combined(*exits: str) -> MicroloopExit | str | None:
    """Return the exit of a loop in which all named ones hold, or why they cannot hold at once."""
    settings: dict[str, Any] = {"all": {}, "last": {}, "policy": {}}
    for name in exits:
        for key, value in HOLDS[name].items():
            if isinstance(value, dict):
                settings[key].update(value)
            elif settings.setdefault(key, value) != value:
                return f"{key} would have to be two things"
    policy = settings["policy"]
    iterations = [{**settings["all"], "score": score} for score in settings.get("scores", (10, 50, 90))]
    iterations[-1].update(settings["last"])
    quality = {key: policy.pop(key) for key in ("threshold", "min_improvement") if key in policy}
    if settings.get("asked"):
        policy["quality"] = {"threshold": 95, **quality}
    return ended(*iterations, required=settings.get("required", ()), after_s=5, **policy)


@pytest.mark.parametrize("name", HOLDS)
def test_each_exit_holds_on_its_own(name: str) -> None:
    found = combined(name)
    assert isinstance(found, MicroloopExit)
    assert found.reason == NAMES.get(name, name)
    assert PLACES.get(name, "") in found.explanation
    assert found.exhausted == (name not in {"gates", "threshold_met", "claim"})


PAIRS = [pair for pair in combinations(HOLDS, 2) if not isinstance(combined(*pair), str)]


@pytest.mark.parametrize(("earlier", "later"), PAIRS)
def test_of_two_exits_that_hold_the_earlier_wins(earlier: str, later: str) -> None:
    both, alone = combined(earlier, later), combined(earlier)
    assert isinstance(both, MicroloopExit)
    assert isinstance(alone, MicroloopExit)
    assert (both.reason, both.claimed, both.exhausted) == (alone.reason, alone.claimed, alone.exhausted)
    assert PLACES.get(earlier, "") in both.explanation


def test_the_pairs_are_all_that_can_hold_at_once() -> None:
    # missing are: two with a score asked and none (2 x 4), two sets of scores (3), required gates and none (1)
    assert len(PAIRS) == 55 - 12
    assert ("oscillation", "stalled") in PAIRS
    assert ("gates", "timeout") in PAIRS


def test_oscillation_comes_before_stagnation_which_comes_before_a_small_improvement() -> None:
    assert scored(40, 60, 40) == "oscillation"  # also an improvement below 2
    found = ended({"score": 40}, {"score": 41}, {"score": 40.5}, quality={"min_improvement": 0.9})
    assert found is not None
    assert "lie within 1 points" in found.explanation


def test_a_gate_fact_says_by_itself_whether_it_was_measured() -> None:
    assert GateFact(name="unit").passed is False
