"""When a loop ends. No other place ends one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from schemas.flow import Microloop
from schemas.routing import IterationFacts, LoopState, MicroloopExit, TerminationReason
from workflows.routing.status import gates_passed

OSCILLATION = 2.0
"""Points by which two changes in opposite directions must each be exceeded to count as oscillation."""

STAGNATION_SPREAD = 2.0
"""Points below which the last scores lie too close together to go on."""

TREND = 3
"""How many scores oscillation and stagnation look at."""


def microloop_exit(
    policy: Microloop, state: LoopState, now: datetime, *, required: Sequence[str]
) -> MicroloopExit | None:
    """Return why the loop ends after its last iteration, or None if it goes on; the first reason that holds wins.

    ``required`` names the gates that must pass; ``now`` is an aware time. A loop without an iteration goes on.
    """
    if not state.iterations:
        return None
    last, count = state.iterations[-1], len(state.iterations)
    quality = policy.quality
    passed = gates_passed(last.gates, required, changed_after_measure=last.changed_after_measure)

    if last.score_error != "none":
        return _used_up(
            "scorer_error" if last.score_error == "scorer" else "improver_error",
            f"The {last.score_error} failed in iteration {count}.",
        )
    if passed and quality is None:
        return MicroloopExit(
            reason="status_verified",
            exhausted=False,
            explanation=f"All {len(required)} required gates passed in iteration {count}.",
        )
    elapsed = (now - state.entered_at).total_seconds()
    if policy.timeout is not None and elapsed >= policy.timeout:
        return _used_up("timeout", f"The loop has run for {elapsed:.1f} s of {policy.timeout} s.")
    sound = passed or (not required and not last.changed_after_measure)
    if quality is not None and sound and _valid(last.score) and _points(last) >= quality.threshold:
        return MicroloopExit(
            reason="threshold_met",
            exhausted=False,
            explanation=f"Score {_points(last):g} reached the threshold of {quality.threshold:g}.",
        )
    if not required and quality is None and _claims(last, policy.exit_on.status):
        return MicroloopExit(
            reason="status_verified",
            exhausted=False,
            claimed=True,
            explanation=f"The agent claims {last.claimed_status} in iteration {count} and no gate measures it.",
        )
    if count >= policy.bound:
        return _used_up("max_iterations", f"Iteration {count} of {policy.bound} did not end the loop.")
    if last.can_further_iteration_help == "no":
        return _used_up("no_further_help", f"The agent says after iteration {count} that no more would help.")
    if quality is not None:
        scores = [_points(iteration) for iteration in state.iterations]
        flat = _oscillation(scores) or _stagnation(scores, quality.min_improvement)
        if flat is not None:
            return flat
    return _stall(policy, state.iterations)


def _used_up(reason: TerminationReason, explanation: str) -> MicroloopExit:
    return MicroloopExit(reason=reason, exhausted=True, explanation=explanation)


def _valid(score: float | None) -> bool:
    return score is not None and math.isfinite(score)


def _points(iteration: IterationFacts) -> float:
    score = iteration.score
    return score if score is not None and math.isfinite(score) else 0.0


def _claims(iteration: IterationFacts, accepted: Sequence[str]) -> bool:
    claim = iteration.claimed_status
    return claim is not None and claim.casefold() in [status.casefold() for status in accepted]


def _oscillation(scores: Sequence[float]) -> MicroloopExit | None:
    if len(scores) < TREND:
        return None
    first, second, third = scores[-TREND:]
    up, down = max(second - first, third - second), min(second - first, third - second)
    if up > OSCILLATION and down < -OSCILLATION:
        return _used_up("oscillation", f"The scores {first:g}, {second:g}, {third:g} go up and down.")
    return None


def _stagnation(scores: Sequence[float], least: float) -> MicroloopExit | None:
    recent = scores[-TREND:]
    spread = max(recent) - min(recent)
    if len(recent) == TREND and spread < STAGNATION_SPREAD:
        return _used_up(
            "stagnation",
            f"The last {TREND} scores lie within {spread:g} points (below {STAGNATION_SPREAD:g}).",
        )
    if len(recent) > 1 and recent[-1] - recent[-2] < least:
        return _used_up(
            "stagnation",
            f"The score went from {recent[-2]:g} to {recent[-1]:g}, an improvement below {least:g}.",
        )
    return None


def _stall(policy: Microloop, iterations: Sequence[IterationFacts]) -> MicroloopExit | None:
    window = policy.stall.window
    recent = iterations[-window:]
    signature = recent[-1].failure_signature
    if len(recent) < window or signature is None:
        return None
    for iteration in recent:
        if iteration.failure_signature != signature or iteration.files_changed:
            return None
        # waiting for something outside is no stall: a polling tool repeats itself by its nature
        if any(tool in policy.stall.exempt_tools for tool in iteration.tools):
            return None
    return _used_up(
        "stalled", f"{window} iterations in a row changed no file and failed alike ({signature})."
    )
