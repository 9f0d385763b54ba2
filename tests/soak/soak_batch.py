"""A batch played and looked at: server, workers, runs side by side, blows, and the checks after each run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flow_kit import make_repository
from soak_broken import Played, are_its_own, broken_runs
from soak_checks import ENV_CANARY, FILE_CANARY, SECRET_FILE, Checked, check
from soak_driver import Player
from soak_flows import after_flow
from soak_machines import Machines, server_of, struck
from soak_plans import NOTE_CANARY, Batch

LOG_TAIL: Final = 3_000
PLAYS: Final = 6
"""How often a batch is played while the server that skips time breaks down under it."""
LONG: Final = "1000000"


@dataclass
class Report:
    """What batches came to: counts, and each run that is not as it must be."""

    runs: int = 0
    histories: int = 0
    events: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    did: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    repeat: list[str] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    """The failures without what explains them."""
    broken: bool = False
    """Whether all that failed are runs that the server that skips time broke: such a play says nothing of us."""
    discarded: list[str] = field(default_factory=list)
    """What failed in the plays of which that was so, and which were played again."""

    def add(self, checked: Checked) -> None:
        """Count a run."""
        self.runs += 1
        self.histories += len(checked.heard.histories)
        self.events += checked.heard.events
        self.outcomes[checked.outcome] += 1
        self.messages.update(f"{one.send.way} {one.ack}" for one in checked.player.sent)
        self.messages["in history"] += checked.heard.messages.total()
        self.attempts.update(one.execution_status for one in checked.receipts)

    def plus(self, other: Report) -> None:
        """Add what another one counted."""
        self.runs += other.runs
        self.histories += other.histories
        self.events += other.events
        self.seconds += other.seconds
        for mine, theirs in (
            (self.messages, other.messages),
            (self.outcomes, other.outcomes),
            (self.did, other.did),
            (self.attempts, other.attempts),
        ):
            mine.update(theirs)
        self.failures += other.failures
        self.repeat += other.repeat
        self.discarded += other.discarded

    def lines(self) -> list[str]:
        """Return the summary."""
        return [
            f"runs        {self.runs} ({self.histories} histories, {self.events} events), {self.seconds:.0f} s",
            f"outcomes    {_counts(self.outcomes)}",
            f"machines    {_counts(self.did)}",
            f"messages    {_counts(self.messages)}",
            f"attempts    {_counts(self.attempts)}",
            f"failures    {len(self.failures)}",
            *(f"repeat with {one}" for one in self.repeat),
            f"discarded   {len(self.discarded)}",
            *(f"discarded {one}" for one in self.discarded),
        ]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count) or "none"


async def play(batch: Batch, folder: Path) -> Report:
    """Play a batch in a folder of its own and check what every run left; once more if its server broke down."""
    discarded: list[str] = []
    for before in range(PLAYS):
        report = await _play(batch, folder / f"play-{before + 1}")
        report.did["played again"] = before
        report.discarded = discarded
        if not report.broken or before + 1 == PLAYS:
            break
        discarded += [f"of {batch.named}: {failure}" for failure in report.plain]
    return report


async def _play(batch: Batch, folder: Path) -> Report:
    flows, repo = _set_up(folder)
    report, begun = Report(), time.monotonic()
    async with server_of(batch, folder) as (rig, clock):
        environment = {
            "STEPWISE_FLOW_PATHS": str(flows),
            "STEPWISE_HOLD_S": str(batch.hold_s),
            "STEPWISE_MAX_AGENTS": str(batch.max_agents),
            "SOAK_API_TOKEN": ENV_CANARY,
        }
        if batch.kind == "patient":
            # Its time jumps: what takes a second may seem to take a day.
            environment |= {"STEPWISE_HEARTBEAT_S": LONG, "STEPWISE_SCHEDULE_TO_START_S": LONG}
        machines = Machines(rig, environment)
        for point in batch.crash_at:
            machines.add(crash_at=point)
        players = [Player(rig, plan, folder / plan.name, repo, clock) for plan in batch.plans]
        try:
            failures, logged = await _play_all(machines, batch, players)
            for player in players:
                if player.ended:
                    checked = await check(player)
                    report.add(checked)
                    if checked.findings:
                        await asyncio.to_thread(_keep, checked)
                    failures += [f"{player.workflow_id}: {finding}" for finding in checked.findings]
        finally:
            await asyncio.to_thread(rig.kill_all)
        failures += machines.findings
        if batch.kind != "patient" and not rig.server.running:
            failures.append(f"the server ended by itself: {rig.server.last_words()}")
        log = rig.log()
        failures += [
            f"the workers' log holds {canary[:8]}…"
            for canary in (ENV_CANARY, FILE_CANARY, NOTE_CANARY)
            if canary in log
        ]
        report.did = machines.did
        report.did["time skipped"] += sum(player.silences for player in players)
    report.seconds = time.monotonic() - begun
    if failures:
        played = [Played(name, said) for name, said in logged.items()]
        report.broken, report.plain = are_its_own(failures, broken_runs(played)), [*failures]
        _explain(report, batch, failures, log)
    return report


def _set_up(folder: Path) -> tuple[Path, Path]:
    """Return the folder of flows that the workers know, and the repository."""
    flows = folder / "flows"
    flows.mkdir(parents=True)
    after = after_flow()
    (flows / after["name"]).write_text(after["text"])
    return flows, make_repository(
        folder / "repo", {"README.md": "A repository.\n", "secret.txt": SECRET_FILE}
    )


async def _play_all(
    machines: Machines, batch: Batch, players: list[Player]
) -> tuple[list[str], dict[str, str]]:
    """Play all, and return what failed; with what was logged by workflow id, where each run was played alone."""
    logged: dict[str, str] = {}
    keeping = asyncio.create_task(machines.keep())
    blows = asyncio.create_task(struck(machines, batch.blows, players))
    if batch.kind == "patient":
        # One after another: its time jumps for all of them.
        ends: list[BaseException | None] = []
        for player in players:
            before = len(machines.rig.log())
            ends += await asyncio.gather(player.play(), return_exceptions=True)
            logged[player.workflow_id] = machines.rig.log()[before:]
    else:
        ends = await asyncio.gather(*(player.play() for player in players), return_exceptions=True)
    failures = [
        f"{player.workflow_id}: {type(end).__name__}: {end}"
        for player, end in zip(players, ends, strict=True)
        if isinstance(end, BaseException)
    ]
    blown = (await asyncio.gather(blows, return_exceptions=True))[0]
    if isinstance(blown, BaseException):
        failures.append(f"blow: {type(blown).__name__}: {blown}")
    await machines.settle()
    keeping.cancel()
    kept = (await asyncio.gather(keeping, return_exceptions=True))[0]
    if isinstance(kept, Exception):
        failures.append(f"keeping: {type(kept).__name__}: {kept}")
    return failures, logged


def _keep(checked: Checked) -> None:
    """Leave histories and journal beside the plan's files, for people."""
    for number, history in enumerate(checked.heard.histories):
        (checked.player.folder / f"history-{number}.json").write_text(history.to_json())
    lines = "".join(f"{event.model_dump_json()}\n" for event in checked.journal)
    (checked.player.folder / "journal.jsonl").write_text(lines)


def _explain(report: Report, batch: Batch, failures: list[str], log: str) -> None:
    report.failures = failures
    report.repeat = [batch.named]
    named = {failure.split(":")[0].rpartition("-run-")[2] for failure in failures}
    plans = [plan.shown() for plan in batch.plans if plan.name.removeprefix("run-") in named]
    blows = [str(blow) for blow in batch.blows]
    report.failures[0] = "\n".join(
        [
            report.failures[0],
            "",
            f"workers die at {batch.crash_at}, and:",
            *blows,
            "",
            "the plans:",
            *plans,
            "",
            "log:",
            log[-LOG_TAIL:],
            "",
        ]
    )
