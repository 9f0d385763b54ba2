"""Plans: a flow, its agents, and what happens to the run at which moment. Pure: the same seed makes the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final, Literal

from soak_flows import STEPS, make_flow

from workflows.messages import MESSAGES

Kind = Literal["calm", "storm", "patient"]
KINDS: Final[tuple[Kind, ...]] = ("calm", "storm", "patient")
PHASES: Final = ("acquire", "work", "work", "measure", "finalize", "route", "record")
WAITS: Final = ("pause", "human", "answer", "approval", "budget", "rate_limit")
NOTE_CANARY: Final = "ghp_" + "N0te" * 9
"""A token as people paste it into notes: it may stand in history, where nothing redacts, and nowhere else."""


@dataclass(frozen=True)
class Moment:
    """When something is done: in a phase, at a wait, once the history is so long, or at once."""

    phase: str | None = None
    step: str | None = None
    waiting: str | None = None
    events: int | None = None


@dataclass(frozen=True)
class Send:
    """A message, right or wrong; ``tag`` is what it says of its sender, if it can."""

    name: str
    args: list[Any]
    way: Literal["signal", "update"]
    tag: str = ""


@dataclass(frozen=True)
class Event:
    """One thing that happens to a run: a message, the workflow's cancellation, or its agents' files are there."""

    at: Moment
    send: Send | None = None
    cancel: bool = False


@dataclass(frozen=True)
class Plan:
    """One run: ``seed`` also decides how it is brought to its end."""

    name: str
    seed: str
    kind: Kind
    spec: dict[str, Any]
    play: dict[str, Any]
    given: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    def shown(self) -> str:
        """Return the plan as JSON, with flow and scenario readable."""
        tree = asdict(self)
        tree["spec"], tree["play"] = json.loads(self.spec["text"]), json.loads(self.play["text"])
        return json.dumps(tree, indent=1)


POINTS: Final = (
    "acquire.leased",
    "acquire.done",
    "work.started",
    "work.intent",
    "work.committed",
    "work.bundled",
    "work.result",
    "work.savepoint",
    "work.partial",
    "measure.gates",
    "measure.done",
    "finalize.draft",
    "finalize.done",
    "route.done",
    "record.receipt",
    "release.record",
)
"""Where a worker can be told to kill itself, once."""
Strike = Literal["kill", "drain", "server"]


@dataclass(frozen=True)
class Blow:
    """What happens to the machines: to a worker, or to the server, when a run of the batch is at a moment.

    ``back``: on the same disk, on an empty one, or there first and on the old one later. ``pause_s`` passes before.
    """

    strike: Strike
    plan: int
    at: Moment
    worker: int = 0
    back: Literal["same", "empty", "both"] = "same"
    pause_s: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Runs that share server and workers, and what happens to these; ``crash_at``: where each worker dies at first."""

    seed: int
    number: int
    kind: Kind
    plans: list[Plan]
    crash_at: list[str]
    blows: list[Blow]
    hold_s: float
    max_agents: int
    continue_after: int | None

    @property
    def named(self) -> str:
        """What repeats exactly this batch."""
        return f"--seed {self.seed} --batch {self.number} --kind {self.kind} --size {len(self.plans)}"


def make_batch(seed: int, number: int, kind: Kind, size: int) -> Batch:
    """Return a batch; the same arguments make the same."""
    rng = _random(f"{seed}/{number}/{kind}/{size}")
    plans = [_plan(f"{seed}/{number}/{kind}/{size}/{index}", kind, index) for index in range(size)]
    storm = kind == "storm"
    return Batch(
        seed=seed,
        number=number,
        kind=kind,
        plans=plans,
        crash_at=[
            rng.choice(("", *POINTS)) if storm else "" for _ in range(rng.choice((1, 2)) if storm else 1)
        ],
        blows=[_blow(rng, size) for _ in range(rng.choice((2, 3)))] if storm else [],
        hold_s=0.2 if kind == "patient" else rng.choice((0.2, 2.0)),
        max_agents=rng.choice((2, 4, 20)),
        continue_after=rng.choice((None, 60)) if kind != "patient" else None,
    )


def _plan(seed: str, kind: Kind, index: int) -> Plan:
    rng = _random(seed)
    made = make_flow(rng, kind)
    steps = [step["id"] for step in json.loads(made.spec["text"])["steps"]]
    count = rng.choice((0, 1, 2, 3, 5))
    events = [_event(rng, steps, f"{index}.{number}") for number in range(count)]
    return Plan(f"run-{index}", seed, kind, made.spec, made.play, made.given, events)


def closing(plan: Plan) -> Random:
    """Return what decides how a plan is brought to its end."""
    return _random(f"{plan.seed}/end")


def _random(seed: str) -> Random:
    return Random(seed)  # noqa: S311 - plans, not secrets


def _blow(rng: Random, size: int) -> Blow:
    return Blow(
        strike=rng.choices(("kill", "drain", "server"), (5, 2, 2))[0],
        plan=rng.randrange(size),
        at=_moment(rng, STEPS[:2]),
        worker=rng.randrange(2),
        back=rng.choice(("same", "same", "empty", "both")),
        pause_s=rng.choice((0.0, 0.3, 1.5)),
    )


def _moment(rng: Random, steps: Sequence[str]) -> Moment:
    kind = rng.choices(("phase", "wait", "events", "now"), (5, 3, 2, 1))[0]
    match kind:
        case "phase":
            return Moment(phase=rng.choice(PHASES), step=rng.choice((None, *steps)))
        case "wait":
            return Moment(waiting=rng.choice(WAITS))
        case "events":
            return Moment(events=rng.randint(5, 70))
        case _:
            return Moment()


# What people say.


def _event(rng: Random, steps: Sequence[str], tag: str) -> Event:
    at = _moment(rng, steps)
    if rng.random() < 0.05:
        return Event(at, cancel=True)
    return Event(at, send=make_send(rng, steps, tag))


def make_send(rng: Random, steps: Sequence[str], tag: str) -> Send:
    """Return a message by chance: mostly right, sometimes unknown or with a payload that cannot be used."""
    way: Literal["signal", "update"] = rng.choice(("signal", "update"))
    if rng.random() < 0.06:
        return Send(
            rng.choice(("pasue", "nonsense", "__stop")), rng.choice(([], [{"x": 1}], ["a", "b"])), "signal"
        )
    weights = [2 if name == "abort" else 6 for name in MESSAGES]
    name = rng.choices(list(MESSAGES), weights)[0]
    if rng.random() < 0.15:
        return Send(name, rng.choice(([], [None], [{}], [""])), way)
    if rng.random() < 0.15:
        return Send(name, [_wrong(rng, name)], way)
    return Send(name, [{**_payload(rng, name, steps), "by": tag}], way, tag)


def _payload(rng: Random, name: str, steps: Sequence[str]) -> dict[str, Any]:
    words = rng.choice(("", "look at it", f"use {NOTE_CANARY} for it"))
    match name:
        case "resume":
            action = rng.choice(("continue", "continue", "retry", "skip", "goto", "abort"))
            target = {"step": rng.choice(steps)} if action == "goto" else {}
            return {"action": action, "note": words, **target}
        case "answer":
            value = rng.choice(("left", "1", "2", "my own way", NOTE_CANARY))
            return {"answers": {"1": value}} if rng.random() < 0.7 else {}
        case "approve":
            return {"remember": rng.choice(("once", "run"))}
        case "steer":
            return {"text": words or "go on"}
        case "extend_budget":
            return rng.choice(({}, {"tokens": 500}, {"seconds": 100, "tokens": 10}, {"usd": 1}))
        case _:
            return {"reason": words}


def _wrong(rng: Random, name: str) -> Any:
    special: dict[str, list[Any]] = {
        "resume": [
            {"action": "jump"},
            {"action": "goto"},
            {"action": "goto", "step": "nowhere"},
            {"transport": "x"},
        ],
        "answer": [{"answers": {"9": "x"}}, {"question_id": "none"}, {"answers": {"1": ""}}, {"answers": []}],
        "approve": [{"call_id": "none"}, {"remember": "ever"}],
        "reject": [{"call_id": "none"}],
        "steer": [{"text": ""}],
        "extend_budget": [{"tokens": -5}, {"usd": "much"}, {"cycles": 1_000}],
    }
    common: list[Any] = ["now", 7, ["now"], {"why": "x"}, {"by": 5}, {"by": "x" * 300}]
    return rng.choice([*common, *special.get(name, [])])
