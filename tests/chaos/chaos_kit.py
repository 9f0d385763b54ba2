"""What tests of recovery share: a flow that counts what takes effect, and what must hold however it was disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self

from conftest import Rig
from looking import ends, pauses

from cli.checks_server import polling
from schemas.calls import AttemptKey
from schemas.events import RunEvent
from schemas.handoff import PartialHandoff
from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from system.leftovers import leftovers

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
    approval: __APPROVAL__
    routing:
      kind: branch
      decided_by: agent
      when: [{field: status, operator: equals, value: BLOCKED, next: give_up}]
      default: finish
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
          - {do: say, text: half-way}
          - __MIDDLE__
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
# The gate that is number __HOLD__ says, counted from 0, does not end while that file is there.
GATE: Final = """\
import os, sys, time
with open("half-written", "w") as file:
    file.write(sys.argv[1])
with open(__NOTES__, "a+") as notes:
    notes.seek(0)
    number = sum(line.startswith("gate") for line in notes)
def held():
    try:
        return open(__HOLD__).read() == str(number)
    except FileNotFoundError:
        return False
while held():
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
    """One run of the counting flow: ``go`` lets its first work go on, ``hold`` keeps one of its gates from ending."""

    rig: Rig
    repo: Path
    approval: str = "none"

    def __post_init__(self) -> None:
        self.workflow_id = f"counted-{self.rig.task_queue}"
        self.folder = self.rig.folder / "counted"
        self.folder.mkdir()
        self.go = self.folder / "go"
        self.hold = self.folder / "hold"
        self._held = self.folder / "held"
        self._notes = self.folder / "notes"
        self._half_way = ""
        places = {"__NOTES__": self._notes, "__HOLD__": self.hold, "__HELD__": self._held}
        for name, text in (("note", NOTE), ("gate", GATE)):
            program = self.folder / name
            program.write_text(_PROGRAM + _filled(text, {mark: repr(str(at)) for mark, at in places.items()}))
            program.chmod(0o755)

    def start(self, *, middle: Literal["goes on", "waits", "hangs"] = "goes on") -> None:
        """Start the run; ``middle`` says what its first work does half-way."""
        if middle == "goes on":
            self.go.touch()
        self._half_way = "stub.hang" if middle == "hangs" else "half-way"
        action = "{do: hang}" if middle == "hangs" else f"{{do: wait_for_file, path: {self.go}}}"
        spec = _filled(FLOW, {"__APPROVAL__": self.approval, "__GATE__": str(self.folder / "gate")})
        scenario = _filled(SCENARIO, {"__NOTE__": str(self.folder / "note"), "__MIDDLE__": action})
        self.rig.start(
            self.workflow_id,
            {
                "spec": {"name": "counted.yaml", "text": spec, "files": {"agents/worker.md": PERSONA}},
                "scenario": {"name": "counted.yaml", "text": scenario},
                "repo": str(self.repo),
                "task": "make it right",
                "transport": "stub",
            },
        )

    def hold_gate(self, number: int) -> None:
        """Keep the gate with this number, counted from 0, from ending."""
        self.hold.write_text(str(number))

    def counts(self) -> Counter[str]:
        """Return how often each effect was seen."""
        return Counter(self._notes.read_text().splitlines() if self._notes.exists() else [])

    async def begun(self, disk: str = "disk") -> None:
        """Return once the first work is half-way on a disk: what it had to do before that is done."""
        spool = self.rig.folder / disk / "spool"

        def is_half_way() -> bool:
            return any(self._half_way in path.read_text() for path in spool.rglob("events.jsonl"))

        await happens(is_half_way, self.rig)

    async def holding(self) -> None:
        """Return once the gate is held."""
        await happens(self._held.exists, self.rig)

    async def waiting(self) -> None:
        """Return once the run waits for a person."""
        await self.rig.until(self.workflow_id, lambda status: status.get("waiting") is not None)

    async def attempt_begun(self, attempt: int) -> None:
        """Return once an attempt of the first visit has begun; its worker may be the only one that ever was."""
        run_id = await self.rig.run_id(self.workflow_id)

        def has_begun() -> bool:
            events = [event.model_dump() for event in self.rig.journal(run_id)]
            return any(event["kind"] == "phase_started" and event["attempt"] == attempt for event in events)

        await happens(has_begun, self.rig)

    async def in_hand(self) -> str:
        """Return the type of the activity that was called last: while no worker lives, what the last one died in."""
        history = await self.rig.client.get_workflow_handle(self.workflow_id).fetch_history()
        called = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        return called[-1]

    def tell(self, name: str) -> None:
        """Send the run a message that waits for a worker, if there is none."""
        sent = self.rig.temporal("workflow", "signal", "--workflow-id", self.workflow_id, "--name", name)
        assert sent.returncode == 0, sent.stderr

    async def as_if_undisturbed(
        self, *, again: Mapping[str, int] = MappingProxyType({}), tokens: int = 0
    ) -> FlowResult:
        """Wait for the end and assert that nothing shows of what happened, but for the attempts it took.

        ``again`` says which effects of an unfinished phase came again, and how often; ``tokens`` what that took.
        """
        result = await self.rig.result(self.workflow_id)
        receipts = self.rig.receipts(result.run_id)
        assert result.outcome == "verified", (result, self.rig.log()[-4000:])
        assert [
            (one.step_id, one.visit, one.decision, one.next_step_id) for one in result.decisions
        ] == ROUTES
        assert self.counts() == Counter(UNDISTURBED) + Counter(again)
        assert result.usage.total == TOKENS + tokens
        assert sum(one.token_counts.total for one in receipts) == result.usage.total
        self.rig.check_evidence(result)
        self._check_attempts(self.rig.journal(result.run_id), receipts)
        self._check_result(result)
        assert leftovers(result.run_id) == []
        return result

    def attempts(self, result: FlowResult, step: str = "implement", visit: int = 1) -> list[StepReceipt]:
        """Return the receipts of one visit."""
        found = [one for one in self.rig.receipts(result.run_id) if (one.step_id, one.visit) == (step, visit)]
        return sorted(found, key=lambda one: one.attempt)

    def partial(self, receipt: StepReceipt) -> PartialHandoff:
        """Return what a stopped attempt left."""
        assert receipt.handoff_partial is not None
        return PartialHandoff.model_validate_json(self.rig.evidence.read(receipt.handoff_partial))

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
            assert (receipt.execution_status == "succeeded") == (attempt == last), receipt
            path = AttemptKey.model_validate(receipt.model_dump()).path
            assert self.rig.evidence.blobs.exists(f"{path}/envelope.json")

    def _check_result(self, result: FlowResult) -> None:
        """The branch that people are told to fetch has every file as an undisturbed run leaves it."""
        assert result.git is not None
        clone = self.folder / "fetched"
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


class Link:
    """A worker's way to the server, which can be cut while both live."""

    def __init__(self, server: str) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.address = ""

    async def mend(self) -> None:
        """Let connections be made, at the same address each time."""
        port = int(self.address.rpartition(":")[2] or 0)
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        if self._listener is not None:
            self._listener.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, int(self._port))
            try:
                await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
            finally:
                back.transport.abort()
        finally:
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def beside(rig: Rig, name: str) -> Rig:
    """Return a second rig on the same server: its own queue, store and disks; its workers end with the first's."""
    folder = rig.folder / name
    folder.mkdir()
    return replace(rig, folder=folder, task_queue=f"{rig.task_queue}-{name}")


async def happens(what: Callable[[], Any], rig: Rig | None = None, *, within_s: float = 60.0) -> None:
    """Return once ``what`` is true; fails with the workers' log when it does not become so."""
    deadline = time.monotonic() + within_s
    for pause in pauses():
        if what():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen: {what}\n{rig.log()[-6000:] if rig else ''}")
        await asyncio.sleep(pause)


async def serving(rig: Rig, disk: str) -> None:
    """Return once the worker on a disk asks for tasks."""
    path = rig.folder / disk / "worker_id"
    await happens(path.exists, rig)
    worker_id = path.read_text().strip()
    async with asyncio.timeout(60):
        for pause in pauses():
            identities = await polling(rig.client, rig.client.namespace, rig.task_queue)
            if any(identity.startswith(f"{worker_id}@") for identity in identities):
                return
            await asyncio.sleep(pause)


async def ended(process: subprocess.Popen[bytes], rig: Rig) -> int:
    """Return a worker's exit code once it has ended."""
    try:
        async with asyncio.timeout(60):
            return await ends(process)
    except TimeoutError:
        raise AssertionError(f"it does not end\n{rig.log()[-6000:]}") from None


async def killed(process: subprocess.Popen[bytes], rig: Rig) -> None:
    """Return once a worker has ended as ``kill -9`` ends it."""
    assert await ended(process, rig) == -signal.SIGKILL


def _filled(text: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
