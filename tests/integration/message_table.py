"""Which message is taken in which state, as real runs answer: the table of docs/humans.md.

``python tests/integration/message_table.py --write`` puts it into the page; without ``--write`` it is printed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

from conftest import ROOT, Rig  # noqa: E402 - found by the line above
from flow_kit import (  # noqa: E402
    TERMINAL,
    flow,
    gate,
    linear,
    make_repository,
    script,
    step,
    turn,
)
from run_kit import READ_ONLY, signal, update  # noqa: E402
from temporalio.client import Client, WorkflowUpdateFailedError  # noqa: E402
from temporalio.exceptions import ApplicationError  # noqa: E402
from temporalio.service import RPCError  # noqa: E402
from temporalio.worker import Worker  # noqa: E402

from schemas.converter import build_data_converter  # noqa: E402
from system.devserver import DevServer  # noqa: E402
from workflows.flow import Flow  # noqa: E402
from workflows.runner import build_runner  # noqa: E402

PAGE: Final = ROOT / "docs" / "humans.md"
BEGIN: Final = "<!-- message-table: python tests/integration/message_table.py --write -->"
END: Final = "<!-- /message-table -->"
MESSAGES: Final[Sequence[tuple[str, str, Mapping[str, Any]]]] = (
    ("pause", "pause", {}),
    ("interrupt", "interrupt", {}),
    ("steer", "steer", {"text": "Mind the gap."}),
    ("answer", "answer", {}),
    ("approve", "approve", {}),
    ("reject", "reject", {}),
    ("extend_budget", "extend_budget", {}),
    ("resume continue", "resume", {}),
    ("resume retry", "resume", {"action": "retry"}),
    ("resume skip", "resume", {"action": "skip"}),
    ("resume goto", "resume", {"action": "goto", "step": "end"}),
    ("resume abort", "resume", {"action": "abort"}),
    ("abort", "abort", {}),
)
"""What is sent: the name of its column, the message, the payload."""

SETTINGS: Final = {"STEPWISE_MAX_RUNS": "1000", "STEPWISE_MAX_AGENTS": "1000"}
FOR_EVER: Final = 100_000
PAUSE_S: Final = 0.1
"""Between two looks at a run: many are looked at at once."""
ASK: Final = {"do": "ask", "question": "Red or blue?", "options": ["red", "blue"]}
CALL: Final = {"do": "run", "argv": ["true"], "ask": True, "reason": "it may not"}
Where = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """What a run is to be seen in: its state, its phase, what it waits for; ``let_go``: no session is held."""

    state: str
    phase: str | None = None
    kind: str | None = None
    pause_requested: bool = False
    let_go: bool = False

    def holds(self, status: Mapping[str, Any]) -> bool:
        """Tell whether a status shows this."""
        if not status:
            return False
        waiting = status.get("waiting") or {}
        return (
            status["state"] == self.state
            and waiting.get("kind") == self.kind
            and status["pause_requested"] == self.pause_requested
            and self.phase in (None, status.get("phase"))
            and not (self.let_go and "interrupt" in status["legal"])
        )


@dataclass(frozen=True)
class Case:
    """One state: the flow that comes to it, what its agent does, and what is said to the run on its way.

    ``held`` says that a file tells when the run is there: ``begun`` in the folder of the run. Of ``by``, ``hasty``
    workers hold no session for an answer, ``idle`` ones run workflows and no activities, ``mute`` ones all but
    ``record``. ``last`` is of a step that ends the run; ``gated`` lets a gate follow it, ``tail`` is what the step
    after it does. Of what is said, ``cancel`` is the workflow's cancellation.
    """

    name: str
    shown: Shown
    work: Sequence[Mapping[str, Any]] = ()
    finalize: Sequence[Mapping[str, Any]] = ()
    route: Sequence[Mapping[str, Any]] = ()
    step: Mapping[str, Any] = field(default_factory=dict)
    setup: Sequence[Sequence[str]] = ()
    held: bool = False
    first: str | None = None
    then: Sequence[str] = ()
    by: Literal["patient", "hasty", "idle", "mute"] = "patient"
    last: bool = False
    gated: bool = False
    tail: Sequence[Mapping[str, Any]] = ()


def _hold(place: str = "begun") -> list[str]:
    """Return a command that says that it runs, and never ends."""
    return ["sh", "-c", f"touch __FOLDER__/{place}; exec sleep {FOR_EVER}"]


_WORKS: Final = ({"do": "run", "argv": _hold(), "timeout": FOR_EVER},)
_HANGS: Final = ({"do": "run", "argv": ["touch", "__FOLDER__/begun"]}, {"do": "hang"})
_STUBBORN: Final = {"interrupt": {"grace_s": 600}}
_AGAIN: Final = [
    "sh",
    "-c",
    f"test -e __FOLDER__/once && {{ touch __FOLDER__/begun; exec sleep {FOR_EVER}; }}; touch __FOLDER__/once",
]
"""A gate that passes at once, and never ends when it is measured anew."""
_CHOICE: Final = {"kind": "branch", "when": [], "default": "end", "decided_by": "agent"}
CASES: Final = (
    Case("running: before there is a flow", Shown("running"), by="idle"),
    Case("running: acquire", Shown("running", "acquire"), setup=[_hold()], held=True),
    Case("running: work", Shown("running", "work"), work=_WORKS, held=True),
    Case(
        "running: measure",
        Shown("running", "measure"),
        step={"gates": [gate("slow", *_hold(), before=False, timeout=FOR_EVER)]},
        held=True,
    ),
    Case("running: finalize", Shown("running", "finalize"), finalize=_WORKS, held=True),
    Case("running: route", Shown("running", "route"), route=_WORKS, step={"routing": _CHOICE}, held=True),
    Case(
        "running: record",
        Shown("running", "record"),
        by="mute",
        gated=True,
    ),
    Case("running: work of the last step", Shown("running", "work"), work=_WORKS, last=True, held=True),
    Case(
        "running: last measurement",
        Shown("running", "measure"),
        step={"gates": [gate("again", *_AGAIN, before=False, timeout=FOR_EVER)]},
        tail=[{"do": "edit", "path": "late", "content": "x"}],
        held=True,
    ),
    Case(
        "pause requested (in work)",
        Shown("running", "work", pause_requested=True),
        work=_WORKS,
        held=True,
        then=["pause"],
    ),
    Case("waiting for pause", Shown("waiting", kind="pause"), first="pause"),
    Case(
        "waiting for human",
        Shown("waiting", kind="human"),
        work=[{"do": "fail"}],
        step={"retries": {"agent": 0}},
    ),
    Case(
        "waiting for human, last step",
        Shown("waiting", kind="human"),
        work=[{"do": "fail"}],
        step={"retries": {"agent": 0}},
        last=True,
    ),
    Case("waiting for answer, agent at work", Shown("waiting", "work", "answer"), work=[ASK]),
    Case("waiting for answer", Shown("waiting", None, "answer", let_go=True), work=[ASK], by="hasty"),
    Case("waiting for approval, gate", Shown("waiting", kind="approval"), step={"approval": "before"}),
    Case("waiting for approval of a call, agent at work", Shown("waiting", "work", "approval"), work=[CALL]),
    Case(
        "waiting for approval of a call",
        Shown("waiting", None, "approval", let_go=True),
        work=[CALL],
        by="hasty",
    ),
    Case(
        "waiting for budget",
        Shown("waiting", kind="budget"),
        work=[{"do": "tokens", "prompt": 9}, {"do": "say", "text": "more"}],
        step={"budget": {"tokens": 5}},
    ),
    Case(
        "waiting for rate_limit",
        Shown("waiting", kind="rate_limit"),
        work=[{"do": "rate_limit", "seconds": FOR_EVER}],
    ),
    Case(
        "stopping after interrupt",
        Shown("stopping", "work"),
        work=_HANGS,
        step=_STUBBORN,
        held=True,
        then=["interrupt"],
    ),
    Case(
        "stopping after abort",
        Shown("stopping", "work"),
        work=_HANGS,
        step=_STUBBORN,
        held=True,
        then=["abort"],
    ),
    Case(
        "stopping after cancel",
        Shown("stopping", "work"),
        work=_HANGS,
        step=_STUBBORN,
        held=True,
        then=["cancel"],
    ),
    Case("done", Shown("done")),
)


@dataclass
class Table:
    """The runs that make the table, by kind of worker."""

    rigs: Mapping[str, Rig]
    repo: Path
    runs: int = 0

    async def row(self, case: Case) -> list[str]:
        """Return what each message does in a state. A run that took one is left for another."""
        found: list[str] = []
        run: str | None = None
        for column, name, payload in MESSAGES:
            run = run or await self._reach(case)
            word = await self._say(case, run, name, payload)
            found.append(word)
            if word == "accepted":
                run = None
            else:
                status = await self._rig(case).status(run)
                assert case.shown.holds(status), (
                    f"{case.name}: {column} was {word}, and now the run is {status}"
                )
        return found

    def _rig(self, case: Case) -> Rig:
        return self.rigs[case.by]

    async def _reach(self, case: Case) -> str:
        """Start a run and return its id once it is in the state of the case."""
        self.runs += 1
        rig, name = self._rig(case), f"table-{self.runs}"
        folder = rig.folder / name
        folder.mkdir()
        made = turn(*case.work)
        made["finalize"]["actions"] = list(case.finalize)
        made["route"] = {"actions": list(case.route)}
        only = step("only", **{"routing": TERMINAL if case.last else linear("end"), **case.step})
        end = step("end", linear("only") if case.last else TERMINAL, **({} if case.tail else READ_ONLY))
        if case.gated:
            end["approval"] = "before"
        spec = flow(*((end, only) if case.last else (only, end)), setup=list(case.setup))
        play = script(only=made, end=turn(*case.tail))
        for given in (spec, play):
            for word, value in (("__FOLDER__", folder), ("__RUN__", name), ("__STORE__", rig.store)):
                given["text"] = given["text"].replace(word, str(value))
        handle = await rig.client.start_workflow(
            "Flow",
            {"spec": spec, "repo": str(self.repo), "task": "t", "scenario": play},
            id=name,
            task_queue=rig.task_queue,
            start_signal=case.first,
        )
        await _until(lambda: not case.held or (folder / "begun").exists())
        for message in case.then:
            await (handle.cancel() if message == "cancel" else signal(rig, name, message))
        if case.shown.state == "done":
            await handle.result()
        while not case.shown.holds(await rig.status(name)):  # noqa: ASYNC110 - a query asks
            await asyncio.sleep(PAUSE_S)
        return name

    async def _say(self, case: Case, run: str, name: str, payload: Mapping[str, Any]) -> str:
        try:
            verdict = await update(self._rig(case), run, name, dict(payload))
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            return f"refused: {cause.message if isinstance(cause, ApplicationError) else cause}"
        except RPCError as error:
            return f"refused: {error.message}"
        word: str = verdict["verdict"]
        return word


def _worker_without(activity: str, rig: Rig) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "worker_without.py"), activity],
        env=rig.env(**SETTINGS),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - another process makes it so
        await asyncio.sleep(PAUSE_S)


async def make(server: DevServer, folder: Path) -> list[tuple[str, list[str]]]:
    """Return the rows of the table: each state with what the messages, in their order, are answered there."""
    client = await Client.connect(server.address, data_converter=build_data_converter())
    patient = Rig(server=server, folder=folder / "patient", client=client, task_queue="table-patient")
    hasty = replace(patient, folder=folder / "hasty", task_queue="table-hasty", processes=[])
    for rig, hold in ((patient, "600"), (hasty, "0.01")):
        rig.folder.mkdir(parents=True)
        rig.worker(**SETTINGS, STEPWISE_HOLD_S=hold)
    idle = replace(patient, folder=folder / "idle", task_queue="table-idle", processes=[])
    mute = replace(patient, folder=folder / "mute", task_queue="table-mute", processes=[])
    for rig in (idle, mute):
        rig.folder.mkdir()
    mute.processes.append(_worker_without("record", mute))
    rigs = {"patient": patient, "hasty": hasty, "idle": idle, "mute": mute}
    table = Table(rigs, make_repository(folder / "repo"))
    try:
        async with Worker(
            client, task_queue=idle.task_queue, workflows=[Flow], workflow_runner=build_runner()
        ):
            rows = await asyncio.gather(*(table.row(case) for case in CASES))
    finally:
        for worker in (*patient.processes, *hasty.processes, *mute.processes):
            worker.kill()
            worker.wait()
    return [(case.name, row) for case, row in zip(CASES, rows, strict=True)]


def render(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return the table as Markdown, with the reasons of refusals below it; that of most is the state alone."""
    notes: list[str] = []

    def cell(column: str, word: str) -> str:
        reason = word.removeprefix("refused: ")
        if reason == word:
            return f"**{word}**" if word == "accepted" else word
        if reason.startswith(f"{column.split(maxsplit=1)[0]} is not legal while the run is"):
            return "refused"
        if reason not in notes:
            notes.append(reason)
        return f"refused ({notes.index(reason) + 1})"

    columns = [column for column, _, _ in MESSAGES]
    lines = [
        f"| the run is | {' | '.join(columns)} |",
        f"|:---|{':---|' * len(columns)}",
    ]
    for state, words in rows:
        cells = [cell(column, word) for column, word in zip(columns, words, strict=True)]
        lines.append(f"| {state} | {' | '.join(cells)} |")
    lines += [
        "",
        "*refused* without a number: `… is not legal while the run is …; legal now: …`. The others:",
        "",
    ]
    lines += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(lines)


def stands() -> str:
    """Return the table as it stands in the page."""
    text = PAGE.read_text(encoding="utf-8")
    return text.split(BEGIN)[1].split(END)[0].strip()


def main() -> int:
    """Make the table; write it into the page where that is asked for."""
    with tempfile.TemporaryDirectory(prefix="stepwise-table-") as name, DevServer.start(ui=False) as server:
        table = render(asyncio.run(make(server, Path(name))))
    if "--write" not in sys.argv[1:]:
        sys.stdout.write(f"{table}\n")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
