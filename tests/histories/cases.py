"""The golden runs: each shipped flow as it succeeds, loops, fails, and is paused by a person; one that is limited."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from conftest import ROOT, UNITTEST, Rig

from schemas.run import FlowResult

Action = Mapping[str, Any]

_MEAN: Final = '''\
"""Averages."""


def mean(values):
    if not values:
        raise ValueError("mean of no values")
    return sum(values) / len(values)
'''
_MEDIAN: Final = f"""\
{_MEAN}

def median(values):
    if not values:
        raise ValueError("median of no values")
    return sorted(values)[len(values) // 2]
"""
_MEDIAN_TEST: Final = """\
import unittest

from calc import stats


class Median(unittest.TestCase):
    def test_an_odd_count_has_a_middle_value(self):
        self.assertEqual(stats.median([5, 1, 3]), 3)
"""
HOLD: Final = "{hold}"
"""Stands in a scenario for the file that lets a held turn go on."""

RIGHT: Final[Action] = {"do": "edit", "path": "calc/stats.py", "content": _MEAN}
WRONG: Final[Action] = {"do": "edit", "path": "calc/stats.py", "replace": "values[1:]", "with": "values"}
MEDIAN: Final[Action] = {"do": "edit", "path": "calc/stats.py", "content": _MEDIAN}
TESTS: Final[Action] = {"do": "edit", "path": "tests/test_median.py", "content": _MEDIAN_TEST}
HELD: Final[Action] = {"do": "wait_for_file", "path": HOLD}
TOKENS: Final[Action] = {"do": "tokens", "prompt": 120, "completion": 30}


def turn(*work: Action, status: str = "UNVERIFIED", summary: str = "Done as asked.") -> dict[str, Any]:
    """Return one visit: what the agent does, and what it claims of it."""
    return {"work": list(work), "finalize": {"value": {"status": status, "summary": summary}}}


def limited(*work: Action) -> dict[str, Any]:
    """Return a visit whose agent is refused for a moment when it is asked for its hand-off."""
    done = turn(*work, status="VERIFIED")
    return done | {"finalize": {**done["finalize"], "actions": [{"do": "rate_limit", "seconds": 0.3}]}}


def failing(*, retryable: bool, code: str = "agent_failed") -> dict[str, Any]:
    """Return a visit in which the agent fails."""
    said = {"do": "fail", "code": code, "message": "the model refused", "retryable": retryable}
    return {"work": [said]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One golden run: the flow, what the scripted agent does per step and visit, and what a person does."""

    flow: Literal["fix", "build", "direct", "plan-then-implement"]
    variant: Literal["success", "loop", "failed", "paused", "limited"]
    steps: Mapping[str, Sequence[Mapping[str, Any]]]
    resumed: Mapping[str, Mapping[str, Any]]
    approval: Literal["human", "auto"] = "auto"
    person: Callable[[Driven], Awaitable[None]] | None = None

    @property
    def name(self) -> str:
        """The name of the case's files."""
        return f"{self.flow}-{self.variant}"

    def scenario(self, hold: Path) -> str:
        """Return the text of the scenario file (JSON is YAML)."""
        steps = {
            step: {"turns": list(turns)} | ({"resumed": self.resumed[step]} if step in self.resumed else {})
            for step, turns in self.steps.items()
        }
        return json.dumps({"version": 1, "steps": steps}).replace(HOLD, str(hold))


@dataclass(frozen=True)
class Driven:
    """A run under way, as its person sees it."""

    rig: Rig
    workflow_id: str
    hold: Path

    async def until(self, **wanted: Any) -> None:
        """Return when the query ``status`` shows these values."""
        await self.rig.until(
            self.workflow_id, lambda status: all(status[name] == value for name, value in wanted.items())
        )

    def say(self, name: str, **payload: Any) -> None:
        """Send a message as an update; the run's verdict must be that it is accepted."""
        done = self.rig.temporal(
            "workflow", "update", "execute", "--workflow-id", self.workflow_id, "--name", name,
            "--input", json.dumps(payload),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    async def pause_in(self, step: str) -> None:
        """Pause while the held work of this step runs; the pause takes hold when it ends."""
        await self.until(step=step, phase="work")
        done = self.rig.temporal("workflow", "signal", "--workflow-id", self.workflow_id, "--name", "pause")
        assert done.returncode == 0, done.stderr
        await self.until(pause_requested=True)
        self.hold.touch()
        await self.until(state="waiting")


async def _pauses_implement(run: Driven) -> None:
    await run.pause_in("implement")
    run.say("resume", note="Mind the empty sequence.", by="ada")


async def _retries_implement(run: Driven) -> None:
    await run.pause_in("implement")
    run.say("resume", action="retry", note="Try it differently.", by="ada")


async def _pauses_author(run: Driven) -> None:
    await run.pause_in("author_tests")
    run.say("resume", by="ada")


async def _skips_implement(run: Driven) -> None:
    await run.until(state="waiting")
    run.say("resume", action="skip", note="Go on without it.", by="ada")


async def _refuses_then_approves(run: Driven) -> None:
    await run.until(state="waiting", attempt=1)
    run.say("reject", reason="Name the file.", by="ada")
    await run.until(state="waiting", attempt=2)
    run.say("approve", by="ada")
    await _pauses_implement(run)


def _case(flow: Any, variant: Any, resumed: Any = None, **more: Any) -> Case:
    return Case(flow=flow, variant=variant, resumed=resumed or {}, **more)


_BUILT: Final = {
    "load_context": [turn(TOKENS)],
    "author_tests": [turn(TESTS)],
    "critique_tests": [turn(status="VERIFIED")],
    "implement": [turn(MEDIAN, status="VERIFIED")],
    "critique_code": [turn(status="VERIFIED")],
}
CASES: Final[tuple[Case, ...]] = (
    _case("fix", "success", steps={"implement": [turn(TOKENS, RIGHT, status="VERIFIED")]}),
    _case("fix", "loop", steps={"implement": [turn(WRONG, status="VERIFIED"), turn(RIGHT)]}),
    _case("fix", "failed", steps={"implement": [turn(WRONG), turn()]}, person=_skips_implement),
    _case("fix", "paused", steps={"implement": [turn(HELD, RIGHT)]}, person=_pauses_implement),
    _case("build", "success", steps=_BUILT),
    _case(
        "build",
        "loop",
        steps={
            **_BUILT,
            "critique_tests": [turn(status="PARTIAL"), turn(status="VERIFIED")],
            "implement": [turn(RIGHT, status="VERIFIED"), turn(MEDIAN)],
        },
    ),
    _case(
        "build", "failed", steps={**_BUILT, "implement": [failing(retryable=False, code="auth")]}
    ),
    _case("build", "paused", steps={**_BUILT, "author_tests": [turn(HELD, TESTS)]}, person=_pauses_author),
    _case("direct", "success", steps={"implement": [turn(RIGHT, status="VERIFIED")]}),
    _case("direct", "loop", steps={"implement": [turn(HELD, RIGHT)]}, person=_retries_implement),
    _case("direct", "failed", steps={"implement": [turn(WRONG, status="VERIFIED")]}),
    _case("direct", "paused", steps={"implement": [turn(HELD, RIGHT)]}, person=_pauses_implement),
    _case("direct", "limited", steps={"implement": [limited(TOKENS, RIGHT)]}),
    _case("plan-then-implement", "success", steps={"implement": [turn(RIGHT)]}),
    _case("plan-then-implement", "loop", steps={"implement": [turn(WRONG), turn(RIGHT)]}),
    _case(
        "plan-then-implement",
        "failed",
        steps={"implement": [failing(retryable=True)]},
        resumed={"implement": failing(retryable=False)},
    ),
    _case(
        "plan-then-implement",
        "paused",
        steps={"implement": [turn(HELD, RIGHT)]},
        approval="human",
        person=_refuses_then_approves,
    ),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Case]] = {case.name: case for case in CASES}


def _repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "calc"
    argv = [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    return path


async def perform(rig: Rig, case: Case, folder: Path) -> FlowResult:
    """Run a case with real agents' stand-ins in ``folder`` (made here) on the rig's worker; return its result."""
    repo = _repository(folder)
    driven = Driven(rig, case.name, folder / "hold")
    rig.start(
        case.name,
        {
            "flow": case.flow,
            "repo": str(repo),
            "task": "mean() is wrong: the tests fail.",
            "params": {"test": UNITTEST},
            "transport": "stub",
            "approval": case.approval,
            "scenario": {"name": f"{case.name}.yaml", "text": case.scenario(driven.hold)},
        },
    )
    if case.person is not None:
        await case.person(driven)
    return await rig.result(case.name)
