"""What tests of recovery share: a flow that counts what takes effect, and what must hold however it was disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conftest import Rig

from schemas.calls import AttemptKey
from schemas.events import RunEvent
from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from system.processes import leftovers

PERSONA: Final = """\
---
name: worker
description: Does what it is told.
---
You do what you are told.
"""
FLOW: Final = """\
id: counted
version: 1
title: Every effect is counted
steps:
  - id: implement
    agent: worker
    objective: Make it, and then make it right.
    outputs: [notes.md]
    gates:
      - {name: made, argv: [__GATE__, made, made.txt]}
      - {name: right, argv: [__GATE__, right, right.txt]}
    routing: {kind: microloop, loop_target: implement, next: choose}
  - id: choose
    agent: worker
    objective: Write the account, and say where to go.
    routing:
      kind: branch
      decided_by: agent
      when: [{field: status, operator: equals, value: BLOCKED, next: give_up}]
      default: finish
__APPROVAL__
  - id: finish
    agent: worker
    policy: read-only
    objective: Close.
    routing: {kind: terminal}
  - id: give_up
    agent: worker
    policy: read-only
    objective: Say why it cannot be done.
    routing: {kind: terminal}
"""
SCENARIO: Final = """\
version: 1
steps:
  implement:
    turns:
      - work:
          - {do: tokens, prompt: 100, completion: 10}
          - {do: edit, path: made.txt, content: "made\\n"}
          - {do: run, argv: [__NOTE__, implement.1 begun]}
          - {do: wait_for_file, path: __GO__}
          - {do: run, argv: [__NOTE__, implement.1 ended]}
          - {do: edit, path: notes.md, append: "first\\n"}
          - {do: tokens, prompt: 20, completion: 2}
        finalize:
          value: {status: VERIFIED, summary: It is made.}
      - work:
          - {do: run, argv: [__NOTE__, implement.2]}
          - {do: edit, path: right.txt, content: "right\\n"}
          - {do: edit, path: notes.md, append: "second\\n"}
          - {do: tokens, prompt: 3, completion: 1}
        finalize:
          value: {status: VERIFIED, summary: It is right.}
  choose:
    turns:
      - work:
          - {do: run, argv: [__NOTE__, choose]}
          - {do: edit, path: account.md, content: "It was made, and then made right.\\n"}
        finalize:
          value: {status: UNVERIFIED, summary: The account is written.}
        route:
          value: {decision: advance, next_step_id: finish, reason: Nothing is open., confidence: 1}
"""
_PROGRAM: Final = f"#!{sys.executable} -ISB\n"
NOTE: Final = """\
import sys
with open(__NOTES__, "a") as notes:
    notes.write(sys.argv[1] + "\\n")
"""
GATE: Final = """\
import os, sys, time
with open("half-written", "w") as file:
    file.write(sys.argv[1])
while os.path.exists(__HOLD__):
    open(__HELD__, "w").close()
    time.sleep(0.01)
os.unlink("half-written")
with open(__NOTES__, "a") as notes:
    notes.write("gate " + sys.argv[1] + "\\n")
sys.exit(not os.path.exists(sys.argv[2]))
"""
UNDISTURBED: Final = {
    "gate made": 4,
    "gate right": 4,
    "implement.1 begun": 1,
    "implement.1 ended": 1,
    "implement.2": 1,
    "choose": 1,
}
"""Each gate runs before the run, in two visits, and on the final tree, which the step after them changed."""
FILES: Final = {
    "made.txt": "made\n",
    "right.txt": "right\n",
    "notes.md": "first\nsecond\n",
    "account.md": "It was made, and then made right.\n",
}
ROUTES: Final = [
    ("implement", 1, "loop", "implement"),
    ("implement", 2, "advance", "choose"),
    ("choose", 1, "branch", "finish"),
    ("finish", 1, "terminate", None),
]
TOKENS: Final = 136
PHASES: Final = {"work", "measure", "finalize", "route"}


@dataclass
class Counted:
    """One run of the counting flow: ``go`` lets its first work go on, ``hold`` keeps its gates from ending."""

    rig: Rig
    repo: Path
    workflow_id: str = "counted"
    approval: str = "none"
    notes: Path = field(init=False)

    def __post_init__(self) -> None:
        folder = self.rig.folder / f"counted-{self.workflow_id}"
        folder.mkdir()
        self.notes = folder / "notes"
        self.go = folder / "go"
        self.hold = folder / "hold"
        self.held = folder / "held"
        for name, text in (("note", NOTE), ("gate", GATE)):
            path = folder / name
            for mark, place in (
                ("__NOTES__", self.notes),
                ("__HOLD__", self.hold),
                ("__HELD__", self.held),
            ):
                text = text.replace(mark, repr(str(place)))
            path.write_text(_PROGRAM + text)
            path.chmod(0o755)
        self._folder = folder

    def start(self, *, wait: bool = False, **changes: Any) -> None:
        """Start the run; with ``wait``, its first work stops in the middle until ``go`` exists."""
        if not wait:
            self.go.touch()
        approval = f"    approval: {self.approval}" if self.approval != "none" else ""
        spec = FLOW.replace("__APPROVAL__", approval).replace("__GATE__", str(self._folder / "gate"))
        scenario = SCENARIO.replace("__NOTE__", str(self._folder / "note")).replace("__GO__", str(self.go))
        given = {
            "spec": {"name": "counted.yaml", "text": spec, "files": {"agents/worker.md": PERSONA}},
            "scenario": {"name": "counted.yaml", "text": scenario},
            "repo": str(self.repo),
            "task": "make it right",
            "transport": "stub",
        }
        self.rig.start(self.workflow_id, {**given, **changes})

    def counts(self) -> Counter[str]:
        """Return how often each effect was seen."""
        return Counter(self.notes.read_text().splitlines() if self.notes.exists() else [])

    async def seen(self, note: str, *, within_s: float = 60.0) -> None:
        """Return once an effect was seen."""
        async with asyncio.timeout(within_s):
            while self.counts()[note] == 0:
                await asyncio.sleep(0.01)

    async def holding(self, *, within_s: float = 60.0) -> None:
        """Return once a gate is held."""
        async with asyncio.timeout(within_s):
            while not self.held.exists():
                await asyncio.sleep(0.01)

    async def as_if_undisturbed(self, *, again: dict[str, int] | None = None) -> FlowResult:
        """Wait for the end and assert that nothing shows of what happened, but for the attempts it took.

        ``again`` says which effects of an unfinished phase came again, and how often.
        """
        result = await self.rig.result(self.workflow_id)
        journal = self.rig.journal(result.run_id)
        assert result.outcome == "verified", (result, self.rig.log()[-4000:])
        routes = [(one.step_id, one.visit, one.decision, one.next_step_id) for one in result.decisions]
        assert routes == ROUTES
        assert self.counts() == Counter(UNDISTURBED) + Counter(again or {})
        assert result.usage.total == TOKENS
        self.rig.check_evidence(result)
        self._check_attempts(journal, self.rig.receipts(result.run_id))
        self._check_result(result)
        assert leftovers(result.run_id) == []
        return result

    def _check_attempts(self, journal: list[RunEvent], receipts: list[StepReceipt]) -> None:
        """Each attempt has its receipt and its envelope; each phase of a visit has finished exactly once."""
        begun: set[tuple[str, int, int]] = set()
        ended: Counter[tuple[str, int, str]] = Counter()
        for event in journal:
            data = event.model_dump()
            if event.kind == "phase_started":
                begun.add((data["step"], data["visit"], data["attempt"]))
            if (
                event.kind == "phase_ended"
                and data.get("lost") is None
                and data.get("ended") in {None, "finished"}
            ):
                ended[data["step"], data["visit"], data["phase"]] += 1
        assert set(ended.values()) == {1}, ended
        assert {phase for _, _, phase in ended} == PHASES
        kept = {(one.step_id, one.visit, one.attempt): one for one in receipts}
        assert begun <= kept.keys()
        assert {step for step, _, _ in kept} == {"implement", "choose", "finish", "_final"}
        for (step, visit, attempt), receipt in kept.items():
            last = max(number for one, two, number in kept if (one, two) == (step, visit))
            assert attempt in range(1, last + 1)
            assert (receipt.execution_status == "succeeded") == (attempt == last), receipt
            path = AttemptKey.model_validate(receipt.model_dump()).path
            assert self.rig.evidence.blobs.exists(f"{path}/envelope.json")

    def _check_result(self, result: FlowResult) -> None:
        """The branch that people are told to fetch has every file as an undisturbed run leaves it."""
        assert result.git is not None
        clone = self._folder / "fetched"
        git = ["git", "-C", str(clone)]
        subprocess.run(["git", "clone", "-q", str(self.repo), str(clone)], check=True, capture_output=True)
        fetch = result.git.fetch.split()
        subprocess.run([*git, *fetch[1:]], check=True, capture_output=True)
        subprocess.run([*git, "checkout", "-q", result.git.branch], check=True, capture_output=True)
        names = subprocess.run(
            [*git, "diff", "--name-only", result.git.base, "HEAD"], check=True, capture_output=True, text=True
        ).stdout.split()
        assert {name: (clone / name).read_text() for name in names} == FILES
        log = subprocess.run(
            [*git, "log", "--reverse", "--format=%s", f"{result.git.base}..HEAD"],
            check=True, capture_output=True, text=True,
        ).stdout.splitlines()  # fmt: skip
        assert log == ["counted/implement #1", "counted/implement #2", "counted/choose #1"]


async def ended(process: subprocess.Popen[bytes], *, within_s: float = 60.0) -> int:
    """Return a worker's exit code once it has ended."""
    return await asyncio.to_thread(process.wait, within_s)
