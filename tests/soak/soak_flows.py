"""Flows and the agents that play them, made by chance. Pure: the same seed makes the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from flow_kit import TERMINAL, flow, gate, linear, loop, script, step, write

HERE: Final = "__HERE__"
"""Stands for the plan's own folder, so that a plan reads the same wherever it is played."""
STEPS: Final = ("alpha", "beta", "gamma", "delta")
AFTER: Final = "soak-after"
"""A flow the workers know, which may follow another one."""
LAST: Final = "omega"
"""The one step of that flow."""
HOUR_S: Final = 3_600
Action = dict[str, Any]


@dataclass(frozen=True)
class Mix:
    """How often what happens: relative weights of actions, and probabilities of what a step asks for."""

    actions: Mapping[str, int]
    gates: float = 0.7
    approval: float = 0.2
    budget: float = 0.15
    chain: float = 0.08
    steps: Sequence[int] = (35, 40, 17, 8)
    limit_s: tuple[float, float] = (0.2, 1.0)
    deadlines: bool = False


_CALM: Final = {
    "say": 3,
    "append": 4,
    "tokens": 3,
    "calls": 1,
    "run": 2,
    "fail_run": 1,
    "secret": 1,
    "ask": 2,
    "ask_run": 2,
    "stall": 1,
    "wait": 2,
    "steer": 1,
    "limit": 1,
    "fail": 1,
    "give_up": 1,
    "crash_child": 1,
    "hang": 1,
    "lost_edit": 1,
    "delete": 1,
}
MIXES: Final[Mapping[str, Mix]] = {
    "calm": Mix(_CALM),
    "storm": Mix({**_CALM, "append": 8, "say": 6, "tokens": 6, "wait": 3, "hang": 1, "crash_worker": 1}),
    "patient": Mix(
        {
            **{
                name: weight
                for name, weight in _CALM.items()
                if name not in {"wait", "stall", "hang", "steer"}
            },
            "ask": 4,
            "ask_run": 3,
            "limit": 4,
        },
        approval=0.4,
        budget=0.25,
        # A signal that comes while a run continues in the next flow breaks that server; a real one has the task done again.
        chain=0.0,
        limit_s=(60, 20 * HOUR_S),
        deadlines=True,
    ),
}


@dataclass
class Made:
    """A flow file, the scenario of its agents, and what else its start is given."""

    spec: dict[str, Any]
    play: dict[str, Any]
    given: dict[str, Any] = field(default_factory=dict)


def make_flow(rng: Random, kind: str) -> Made:
    """Return a flow of one to four steps, and its agents."""
    mix = MIXES[kind]
    count = rng.choices((1, 2, 3, 4), mix.steps)[0]
    names = STEPS[:count]
    scripts: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        made = _Step(rng, mix, name, index, names)
        before = steps[-1] if steps else None
        steps.append(made.spec(before))
        scripts[name] = made.script()
    more: dict[str, Any] = {}
    for way in ("on_complete", "on_failure"):
        if rng.random() < mix.chain:
            more[way] = {"flow": AFTER}
            scripts[LAST] = {"turns": [{"work": [write("omega.txt", "after\n")]}]}
    return Made(flow(*steps, name="soak", **more), script(**scripts), _given(rng, mix))


def after_flow() -> dict[str, Any]:
    """Return the flow that may follow."""
    return flow(step(LAST, TERMINAL, gates=[gate("kept", "test", "-f", "README.md")]), name=AFTER)


def _given(rng: Random, mix: Mix) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if rng.random() < mix.budget / 3:
        given["budget"] = {"tokens": rng.choice((40, 100))}
    if rng.random() < mix.approval / 3:
        given["approval"] = "auto"
    return given


class _Step:
    """One step being made: its file is what its gates look for."""

    def __init__(self, rng: Random, mix: Mix, name: str, index: int, names: Sequence[str]) -> None:
        self._rng = rng
        self._mix = mix
        self._name = name
        self._index = index
        self._names = names
        self._file = f"{name}.txt"
        self._hangs = False
        self._gates = self._some_gates() if rng.random() < mix.gates else []

    def spec(self, before: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the step; ``before`` is the one before it."""
        rng, more = self._rng, self._asks()
        if self._gates:
            more["gates"] = self._gates
        self._turns = [self._turn(number) for number in range(rng.choice((1, 1, 2, 3)))]
        if self._hangs:
            more["timeouts"] = {"no_output": 1}
        more["interrupt"] = {"grace_s": rng.choice((0.2, 0.5))}
        more["retries"] = {"agent": rng.choice((0, 1, 1, 2)), "infrastructure": rng.choice((2, 5, 20))}
        if rng.random() < 0.15:
            more["outputs"] = [self._file]
        if before is not None and rng.random() < 0.4:
            more["inputs"] = [before["id"]]
        if rng.random() < 0.08:
            more["policy"] = "read-only"
        return step(self._name, self._routing(before), **more)

    def script(self) -> dict[str, Any]:
        """Return what its agent does."""
        resumed = {"resumed": {"work": self._main()}} if self._rng.random() < 0.15 else {}
        return {"turns": self._turns, **resumed}

    def _asks(self) -> dict[str, Any]:
        rng, mix, more = self._rng, self._mix, dict[str, Any]()
        if rng.random() < mix.approval:
            more["approval"] = rng.choice(("before", "after"))
        if rng.random() < mix.budget:
            more["budget"] = rng.choice(({"tokens": 30}, {"tokens": 60}, {"seconds": 1}, {"usd": 0.02}))
        more["questions"] = {"unanswered": rng.choice(("human", "human", "human", "default", "fail"))}
        if mix.deadlines:
            deadline = rng.choice((60, 2 * HOUR_S, 72 * HOUR_S))
            silence = rng.choice(("fail", "default", "default", "keep_waiting"))
            more["human"] = {"deadline": deadline, "on_silence": silence}
        return more

    # Where it leads.

    def _routing(self, before: Mapping[str, Any] | None) -> dict[str, Any]:
        rng, index, names = self._rng, self._index, self._names
        if index == len(names) - 1:
            return TERMINAL
        following = names[index + 1]
        ways: list[Callable[[], dict[str, Any]]] = [lambda: linear(following), self._by_rules, self._by_agent]
        if any(one.get("required", True) for one in self._gates):
            ways += [lambda: self._loop(self._name)] * 3
        if before is not None and before["routing"]["kind"] == "linear":
            ways.append(lambda: self._loop(before["id"]))
        return rng.choice(ways)()

    def _loop(self, target: str) -> dict[str, Any]:
        rng = self._rng
        more: dict[str, Any] = {"max_iterations": rng.choice((1, 2, 2, 3))}
        more["on_exhausted"] = rng.choice(("escalate", "advance", "advance", "terminate"))
        if rng.random() < 0.1:
            more["timeout"] = 1
        return loop(target, self._names[self._index + 1], **more)

    def _by_rules(self) -> dict[str, Any]:
        rng, following = self._rng, self._names[self._index + 1]
        rules: list[dict[str, Any]] = [
            {"field": "status", "operator": "equals", "value": "VERIFIED", "next": self._names[-1]},
            {"field": "file_changes.created", "operator": "not_equals", "value": 0, "next": self._names[-1]},
        ]
        return {"kind": "branch", "when": [rng.choice(rules)], "default": following}

    def _by_agent(self) -> dict[str, Any]:
        rule = {"field": "status", "operator": "equals", "value": "BLOCKED", "next": self._names[-1]}
        following = self._names[self._index + 1]
        return {"kind": "branch", "decided_by": "agent", "when": [rule], "default": following}

    # What measures it.

    def _some_gates(self) -> list[dict[str, Any]]:
        rng = self._rng
        there = f"test -f {self._file}"
        known: list[tuple[int, list[str]]] = [
            (4, ["test", "-f", self._file]),
            (4, ["grep", "-q", "done", self._file]),
            (1, ["true"]),
            (1, ["false"]),
            (1, ["sh", "-c", f"cat secret.txt; {there}"]),
            (1, ["sh", "-c", f"sleep 0.3; {there}"]),
            (1, ["sh", "-c", f"echo x >> gate-was-here; {there}"]),
        ]
        weights = [weight for weight, _ in known]
        chosen = [rng.choices(known, weights)[0][1] for _ in range(rng.choice((1, 1, 2)))]
        optional = [rng.random() < 0.1 for _ in chosen]
        return [
            gate(f"g{number}", *argv, **({"required": False} if may_fail else {}))
            for number, (argv, may_fail) in enumerate(zip(chosen, optional, strict=True))
        ]

    # What its agent does.

    def _turn(self, number: int) -> dict[str, Any]:
        rng = self._rng
        turn: dict[str, Any] = {"work": self._main(), "finalize": self._finalize()}
        if rng.random() < 0.85:
            text = rng.choice(("half\n", f"done {number}\n", f"done {number}\n"))
            turn["work"].insert(rng.randint(0, len(turn["work"])), write(self._file, text))
        if rng.random() < 0.8:
            value = {
                "decision": "advance",
                "next_step_id": self._names[min(self._index + 1, len(self._names) - 1)],
            }
            turn["route"] = {"value": {**value, "reason": "it is open", "confidence": 0.5}}
        elif rng.random() < 0.5:
            turn["route"] = {"raw": ["this is no JSON"]}
        return turn

    def _main(self) -> list[Action]:
        rng = self._rng
        names, weights = list(self._mix.actions), list(self._mix.actions.values())
        return [self._action(name) for name in rng.choices(names, weights, k=rng.choice((0, 1, 1, 2, 3)))]

    def _finalize(self) -> dict[str, Any]:
        rng = self._rng
        status = rng.choices(("VERIFIED", "UNVERIFIED", "PARTIAL", "BLOCKED"), (60, 25, 7, 8))[0]
        value: dict[str, Any] = {"status": status, "summary": f"{self._name} was played"}
        if rng.random() < 0.08:
            value["can_further_iteration_help"] = "no"
        answer: dict[str, Any] = {"value": value}
        if rng.random() < 0.1:
            answer["raw"] = rng.choice((["this is no JSON"], ["{}", "[1"], ["{}"] * 6))
        if rng.random() < 0.05:
            answer["actions"] = [{"do": "edit", "path": "late.txt", "append": "late\n"}]
        return answer

    def _action(self, name: str) -> Action:
        rng = self._rng
        low, high = self._mix.limit_s
        self._hangs = self._hangs or name == "hang"
        match name:
            case "append":
                return {"do": "edit", "path": "log.txt", "append": f"{self._name} {rng.randint(0, 99)}\n"}
            case "delete":
                return {"do": "edit", "path": "log.txt", "delete": True}
            case "lost_edit":
                return {"do": "edit", "path": "README.md", "replace": "no such text", "with": "x"}
            case "tokens":
                cost = {"cost_usd": 0.01} if rng.random() < 0.5 else {}
                return {"do": "tokens", "prompt": rng.choice((5, 20, 50)), "completion": 1, **cost}
            case "calls":
                return {"do": "calls", "count": rng.choice((1, 10, 40)), "bytes": 100}
            case "run":
                return {
                    "do": "run",
                    "argv": ["sh", "-c", "sleep 0.1; date >> ran.txt"],
                    "finish": rng.random() < 0.3,
                }
            case "fail_run":
                return {"do": "run", "argv": ["false"]}
            case "secret":
                return {"do": "run", "argv": ["cat", "secret.txt"]}
            case "ask_run":
                argv = ["touch", rng.choice(("asked.txt", "asked-too.txt"))]
                return {"do": "run", "argv": argv, "ask": True, "reason": "it touches a file"}
            case "ask":
                options = rng.choice(([], ["left", "right"], ["one", "two", "three"]))
                saved = {"save_to": "answer.txt"} if rng.random() < 0.5 else {}
                return {"do": "ask", "question": f"Which way, {self._name}?", "options": options, **saved}
            case "stall":
                return {"do": "stall", "seconds": rng.choice((0.1, 0.4, 0.8))}
            case "wait":
                return hold_here(self._name)
            case "steer":
                return {"do": "wait_for_steer", "save_to": "steered.txt"}
            case "limit":
                return {"do": "rate_limit", "seconds": round(rng.uniform(low, high), 1)}
            case "fail":
                return {"do": "fail", "message": "by chance"}
            case "give_up":
                return {
                    "do": "fail",
                    "code": "hopeless",
                    "message": "by chance",
                    "retryable": rng.random() < 0.7,
                }
            case "say":
                return {"do": "say", "text": f"{self._name} thinks"}
            case _:
                return {"do": name}


def hold_here(name: str) -> Action:
    """Return the action that waits until the plan lets go of its files."""
    return {"do": "wait_for_file", "path": f"{HERE}/go-{name}"}


def placed(tree: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a flow or scenario with the plan's folder filled in."""
    found: dict[str, Any] = json.loads(json.dumps(tree).replace(HERE, folder))
    return found
