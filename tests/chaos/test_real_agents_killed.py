"""kill -9 of worker, program, guard and launcher at random moments while a real agent works: as if nobody had been killed.

The agent leaves signs by what it asks its model: a kill comes within a moment of one, while a tool runs, or while the
answer streams. ``STEPWISE_SOAK_SEED`` makes other kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import contains
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pytest
from agents_kit import AGENTS, KEY, agents
from chaos_kit import happens
from conftest import UNITTEST, Rig
from flow_kit import file_at, flow, gate, git, step
from model_servers.minds import BUGGY, DRAFT, is_structured
from model_servers.script import Edit, HandIn, Part, Read, Reply, Run, Say, Seen, Tokens, Write, turn
from run_kit import said
from step_kit import SIGNAL

from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from system._launcher import GUARD_SCRIPT
from system.leftovers import leftovers

pytestmark = pytest.mark.chaos

SEED: Final = int(os.environ.get("STEPWISE_SOAK_SEED") or 7)
CANARY: Final = "sk-of-the-worker-0x7f31c2"
SIGNS: Final = ("tool", "talk", "draft", "route", "close")
"""What the model is asked in turn: a tool runs, and an answer streams in work, in hand-off, in route, in the last step."""
VICTIMS: Final = ("worker", "worker and its disk", "program", "guards", "worker and guards")
LOSES_MORE: Final = ("worker and its disk", "worker and guards")
PAUSE: Final = "sleep 1.537"
MENDED: Final = "no values have no mean"
MEND: Final = Edit(
    BUGGY,
    "    total = 0.0\n    for value in values[1:]:\n",
    f'    if not values:\n        raise ValueError("{MENDED}")\n    total = 0.0\n    for value in values:\n',
)
PAGE: Final = Write("docs/mean.md", "# Mean\n")
WORK: Final[Sequence[tuple[str, Part, str]]] = (
    ("tool", Run(PAUSE), PAUSE),
    ("read", Read(BUGGY), BUGGY),
    ("edit", MEND, MENDED),
    ("write", PAGE, "# Mean"),
    ("tests", Run(" ".join(UNITTEST)), "unittest"),
)
"""The calls of the work in their order, each with what its arguments alone have."""
TRIES: Final = 3
EASILY_LOST: Final[dict[str, Any]] = {
    "retries": {"agent": 5, "infrastructure": 50},
    "interrupt": {"grace_s": 1},
}
SPEC: Final = flow(
    step(
        "implement",
        {
            "kind": "branch",
            "decided_by": "agent",
            "when": [{"field": "status", "operator": "equals", "value": "BLOCKED", "next": "stuck"}],
            "default": "finish",
        },
        gates=[gate("tests", *UNITTEST)],
        **EASILY_LOST,
    ),
    step("finish", policy="read-only", agent="reviewer", **EASILY_LOST),
    step("stuck", policy="read-only", agent="reviewer"),
)


class Model:
    """Answers by the request alone, so that it goes on in a resumed session and begins anew in a cold one.

    ``given`` names its answers in their order, ``tokens`` says of each what it is said to have used: always more than
    the one before, so that a sum of several in a row is that of no others.
    """

    def __init__(self) -> None:
        self.given: list[str] = []
        self.tokens: list[int] = []

    def __call__(self, seen: Seen) -> Reply:
        """Answer a request."""
        name, part = self._answer(seen)
        tokens = Tokens(input=1_000 + len(self.given), output=10 + len(self.given))
        self.given.append(name)
        self.tokens.append(tokens.input + tokens.output)
        return turn(part, tokens=tokens, pace_s=0.2 if name in SIGNS[1:] else 0)

    def _answer(self, seen: Seen) -> tuple[str, Part]:
        if is_structured(seen):
            wanted = json.dumps(seen.schema) if seen.schema is not None else seen.asked
            is_route = '"factors_considered"' in wanted
            return (
                ("route", HandIn({**SIGNAL, "next_step_id": "finish"}))
                if is_route
                else ("draft", HandIn(DRAFT))
            )
        if not any("Do implement" in text for role, text in seen.texts if role == "user"):
            return "close", Say("It is closed, and this is what is to be said of it.", pieces=6)
        for name, part, mark in WORK:
            tried = [one for one in seen.calls if _is_of(name, mark, json.dumps(one.arguments))]
            done = any(one.result is not None and not one.failed for one in tried)
            if not done and len(tried) < TRIES:
                return name, part
        return "talk", Say("It is mended, and this is what is to be said of it.", pieces=6)


def _is_of(name: str, mark: str, arguments: str) -> bool:
    return mark in arguments and (name != "read" or MENDED not in arguments)


@dataclass
class Kill:
    """Who is killed, within a moment of which sign; ``answers`` is how many the model had given by then."""

    sign: str
    delay_s: float
    victim: str
    answers: int = 0


def kills_of(name: str) -> list[Kill]:
    """Return three kills in the order of their signs; with the default seed the four transports see each sign and victim."""
    rng = Random(f"{SEED} {name}")  # noqa: S311 - moments, not secrets
    signs = sorted(rng.sample(range(len(SIGNS)), 3))
    victims = rng.sample(VICTIMS, 3)
    return [
        Kill(SIGNS[sign], rng.uniform(0, 0.5), victim) for sign, victim in zip(signs, victims, strict=True)
    ]


@dataclass
class Machine:
    """The worker of a run, which comes back after each kill."""

    rig: Rig
    environment: dict[str, str]
    number: int = 0

    def __post_init__(self) -> None:
        self.worker = self._worker()

    def _worker(self) -> subprocess.Popen[bytes]:
        return self.rig.worker(f"disk-{self.number}", **self.environment)

    async def kill(self, victim: str) -> None:
        """Kill all at once, so that none sees the end of another; a worker comes back, perhaps on an empty disk."""
        guards, programs = _below(self.worker.pid)
        worker = [psutil.Process(self.worker.pid)]
        chosen = {"program": programs, "guards": guards, "worker and guards": worker + guards}.get(
            victim, worker
        )
        assert chosen, f"there is nobody to be killed: {victim}"
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in chosen:
                if process.is_running():
                    process.send_signal(number)
        if victim.startswith("worker"):
            await asyncio.to_thread(self.worker.wait)
            self.number += victim == "worker and its disk"
            self.worker = self._worker()


def _below(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return launcher and guards of a worker, and the programs that these guard."""
    guards, programs = [], []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            parent = process.parent()
            if str(GUARD_SCRIPT) in process.cmdline():
                guards.append(process)
            elif parent is not None and str(GUARD_SCRIPT) in parent.cmdline():
                programs.append(process)
        except psutil.NoSuchProcess:
            continue
    return guards, programs


def of_folder(folder: Path) -> list[str]:
    """Return the command lines of all processes but this one that have to do with a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            told = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.pid != os.getpid() and any(str(folder) in one for one in told):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", AGENTS)
async def test_kills_around_a_real_agent_lose_nothing_and_do_nothing_twice(
    rig: Rig, demo_repo: Path, name: str
) -> None:
    model, kills = Model(), kills_of(name)
    own = {"HOME": rig.folder / "home", "TMPDIR": rig.folder / "tmp"}
    for folder in own.values():
        folder.mkdir()
    with agents({name: model}) as env:
        given = {variable: CANARY if value == KEY else value for variable, value in env.items()}
        machine = Machine(rig, {**given, **{variable: str(folder) for variable, folder in own.items()}})
        rig.start(
            f"killed-{name}",
            {"spec": SPEC, "repo": str(demo_repo), "task": "The mean is wrong.", "transport": name},
        )
        for kill in kills:
            await happens(partial(contains, model.given, kill.sign), rig, within_s=120)
            await asyncio.sleep(kill.delay_s)
            await machine.kill(kill.victim)
            kill.answers = len(model.given)
        result = await rig.result(f"killed-{name}", within_s=200)
        assert leftovers(result.run_id) == []
        machine.worker.terminate()
        assert await asyncio.to_thread(machine.worker.wait, 60) == 0
        await happens(lambda: not of_folder(rig.folder), rig)
    assert result.outcome == "verified", (kills, result.summary, rig.log()[-6_000:])
    check_work(result)
    rig.check_evidence(result)
    check_receipts(rig, result, model, kills)
    assert [path for folder in own.values() for path in folder.rglob("*")] == []
    await check_secret(rig, f"killed-{name}")


def check_work(result: FlowResult) -> None:
    """Assert that what was to be done is there once."""
    assert result.git is not None
    log = git(result.git.workspace, "log", "--format=%s", f"{result.git.base}..{result.git.branch}")
    assert log == "small/implement #1"
    names = git(result.git.workspace, "diff", "--name-only", result.git.base, result.git.branch).splitlines()
    assert names == [BUGGY, PAGE.path]
    mended = git(result.git.workspace, "show", f"{result.git.base}:{BUGGY}").replace(MEND.old, MEND.new)
    assert file_at(result.git, BUGGY) == mended
    assert file_at(result.git, PAGE.path) == PAGE.content.strip()


def check_receipts(rig: Rig, result: FlowResult, model: Model, kills: Sequence[Kill]) -> None:
    """Assert that each attempt has its receipt, some were cut off, and every answer that was heard counts once."""
    receipts = rig.receipts(result.run_id)
    attempts = Counter((one.step_id, one.visit, one.attempt) for one in receipts)
    begun = {(one["step"], one["visit"], one["attempt"]) for one in said(rig, result.run_id, "phase_started")}
    assert begun <= attempts.keys()
    assert set(attempts.values()) == {1}
    ended = Counter(one.execution_status for one in receipts if one.step_id != "_final")
    assert (ended["succeeded"], ended["failed"] > 0) == (2, True), (kills, receipts)
    assert sum(one.token_counts.total for one in receipts) == result.usage.total
    for first, after in unheard(model.tokens, receipts):
        killed = [one for one in kills if first <= one.answers <= after]
        assert killed, f"answers {first} to {after} count nowhere, and nobody was killed: {kills}"
        # What a lost disk had of its attempt is lost with it, and what a program asked that nobody guarded any more,
        # until recovery ended it; else only the answer that was just being given.
        assert after - first == 1 or killed[0].victim in LOSES_MORE, (model.given, kills)


def unheard(tokens: Sequence[int], receipts: Sequence[StepReceipt]) -> list[tuple[int, int]]:
    """Return which answers no receipt counts, as ranges; fails where a receipt counts what is no row of answers."""
    sums = [0, *accumulate(tokens)]
    ranges, at = [], 0
    for total in [one.token_counts.total for one in receipts if one.token_counts.total]:
        rows = [
            (first, after)
            for first in range(at, len(sums))
            for after in range(first + 1, len(sums))
            if sums[after] - sums[first] == total
        ]
        assert len(rows) == 1, (total, rows, tokens, [one.token_counts.total for one in receipts])
        ranges.append((at, rows[0][0]))
        at = rows[0][1]
    return [(first, after) for first, after in [*ranges, (at, len(tokens))] if first < after]


async def check_secret(rig: Rig, workflow_id: str) -> None:
    """Assert that the key is in no file and no event."""
    history = await rig.client.get_workflow_handle(workflow_id).fetch_history()
    assert not [one.event_id for one in history.events if CANARY.encode() in one.SerializeToString()]
    files = [path for path in rig.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
