"""What must hold after every run, whatever was said to it and whatever was killed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from soak_driver import RPC, Player
from soak_history import PHASES, Call, Heard, hear
from soak_plans import NOTE_CANARY
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from activities.folder import RunFolder
from cli.replay import replay_history
from cli.replay.offline import Report
from schemas.calls import ACQUIRE, MEASURE, RECORD, WORK, AttemptKey
from schemas.common import FINAL_STEP
from schemas.events import RunEvent
from schemas.handoff import HandoffEnvelope
from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from schemas.run_record import RunRecord
from schemas.run_state import MAX_CONTEXT, MAX_DECISIONS, MAX_RECEIPTS
from store.errors import NotStored
from store.journal import Journal
from store.receipts import Receipts
from system.leftovers import leftovers
from workflows.conversation import MAX_STEERS
from workflows.facts import MAX_FACTS_BYTES
from workflows.journal import MAX_PENDING
from workflows.routing.state import MAX_ITERATIONS_KEPT
from workflows.start import run_id as run_id_of

ENV_CANARY: Final = "c4n4ry-of-the-workers-environment-0x51"
FILE_CANARY: Final = "ghp_" + "F1le" * 9
SECRET_FILE: Final = f"the service knows {ENV_CANARY}\nand the forge {FILE_CANARY}\n"
"""What the repository's file ``secret.txt`` says: agents and gates print it."""
GONE_S: Final = 10.0
COMPLETED: Final = {"verified", "nothing_to_do", "stopped"}
STATUS: Final = {"cancelled": WorkflowExecutionStatus.CANCELED}
DIRTY: Final = "gate-was-here"
"""In the argv of a gate that changes the tree it measures."""
BOUNDS: Final = {
    "decisions": MAX_DECISIONS,
    "context": MAX_CONTEXT,
    "receipts": MAX_RECEIPTS,
    "pending": MAX_PENDING + 1,
    "steers": MAX_STEERS,
    "allowed": 100,
}
"""How long the lists may be that a run carries over continue-as-new."""
BY_FLOW: Final = {"chain", "visits", "steps", "skipped", "chosen", "gates_seen", "owed"}
"""Those that have at most one entry for each flow, step or gate of the chain."""


@dataclass
class Checked:
    """One run after its end: what it left, and what is wrong with that."""

    player: Player
    run_id: str
    outcome: str
    result: FlowResult | None
    heard: Heard
    journal: list[RunEvent]
    receipts: list[StepReceipt]
    record: RunRecord | None
    replays: list[Report] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def expect(self, holds: object, otherwise: str) -> None:
        """Note a finding unless something holds."""
        if not holds:
            self.findings.append(otherwise)

    def said(self, kind: str) -> list[dict[str, Any]]:
        """Return the payloads of the journal's events of a kind."""
        return [event.model_extra or {} for event in self.journal if event.kind == kind]


async def check(player: Player) -> Checked:
    """Look at a run that has ended from all sides."""
    checked = await _read(player)
    try:
        ended(checked)
        await _status(checked)
        _journal(checked)
        _messages(checked)
        _receipts(checked)
        _attempts(checked)
        claims(checked)
        sizes(checked)
        await asyncio.to_thread(artifacts, checked)
        await _replays(checked)
        await asyncio.to_thread(_result, checked)
        await _queries(checked)
        await asyncio.to_thread(_left, checked)
        _secrets(checked)
    except Exception:  # noqa: BLE001 - a run that cannot be looked at is a finding as well
        checked.findings.append(f"cannot be checked: {traceback.format_exc()}")
    return checked


async def _read(player: Player) -> Checked:
    rig = player.rig
    heard = await hear(rig.client, player.workflow_id, player.first_run_id)
    run_id = run_id_of(player.workflow_id, player.first_run_id)
    outcome, result = "", None
    try:
        result = FlowResult.model_validate(await rig.client.get_workflow_handle(player.workflow_id).result())
        outcome = result.outcome
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, CancelledError):
            outcome = "cancelled"
        elif isinstance(cause, ApplicationError):
            outcome = cause.type or ""
            result = FlowResult.model_validate(cause.details[0]) if cause.details else None
    stored = rig.evidence.get_model(f"runs/{run_id}/run.json", RunRecord)
    journal = Journal(rig.evidence).load(run_id)
    checked = Checked(player, run_id, outcome, result, heard, journal.events, rig.receipts(run_id), stored)
    checked.expect(not journal.problems, f"journal: {journal.problems}")
    return checked


def ended(checked: Checked) -> None:
    """Every history of a run that has ended ends."""
    torn = checked.heard.torn
    checked.expect(not torn, f"the run has ended, its history ends with {torn}")


async def _status(checked: Checked) -> None:
    """Outcome and Temporal status agree, and the store says the same."""
    described = await checked.player.rig.client.get_workflow_handle(checked.player.workflow_id).describe()
    failed = WorkflowExecutionStatus.FAILED
    wanted = WorkflowExecutionStatus.COMPLETED if checked.outcome in COMPLETED else failed
    wanted = STATUS.get(checked.outcome, wanted)
    checked.expect(described.status == wanted, f"{checked.outcome} ends as {described.status}")
    result, record = checked.result, checked.record
    checked.expect(
        (result is None) == (checked.outcome == "cancelled"), f"{checked.outcome} has the result {result}"
    )
    if result is not None:
        checked.expect(result.outcome == checked.outcome, f"result {result.outcome}, type {checked.outcome}")
        checked.expect(result.run_id == checked.run_id, f"the result names run {result.run_id}")
    if record is not None:
        said = f"run.json says {record.outcome}, not {checked.outcome}"
        checked.expect(record.outcome == checked.outcome, said)
        checked.expect(record.released, "run.json does not say that the run was released")
    checked.expect(
        checked.outcome != "cancelled" or checked.heard.cancels, "nobody cancelled it, and it ends cancelled"
    )
    checked.expect(not checked.heard.failed_tasks, f"workflow tasks failed: {checked.heard.failed_tasks}")


def _journal(checked: Checked) -> None:
    """No gap, and all that was sent to the store."""
    numbers = [event.seq for event in checked.journal]
    checked.expect(numbers == list(range(1, len(numbers) + 1)), f"the journal's numbers are {numbers}")
    sent = checked.heard.journaled()
    stored = {event.seq: event.kind for event in checked.journal}
    checked.expect(sent == stored, f"sent to the journal {sent}, in it {stored}")
    if checked.journal:
        last = checked.said("run_completed")
        outcome = last[-1].get("outcome") if last else None
        checked.expect(outcome == checked.outcome, f"the journal ends with {outcome}")


def _messages(checked: Checked) -> None:
    """Each message that reached the server was judged once; none that was acknowledged is missing."""
    player, heard = checked.player, checked.heard
    judged: Counter[str] = Counter(one["name"] for one in checked.said("message_refused"))
    taken = [one for one in checked.said("human_message") if one.get("verdict")]
    judged.update(one["name"] for one in taken)
    if checked.journal:
        checked.expect(
            judged == heard.messages, f"reached the run: {heard.messages}; judged in the journal: {judged}"
        )
    acknowledged = Counter(
        one.send.name for one in player.sent if one.send.way == "signal" and one.ack == "accepted"
    )
    checked.expect(acknowledged <= heard.signals, f"acknowledged {acknowledged}, in history {heard.signals}")
    for one in player.sent:
        if one.send.way == "update" and one.ack == "accepted":
            checked.expect(one.id in heard.update_ids, f"update {one.id} was answered and is not in history")
    tags = Counter(one["by"] for one in taken if one.get("by"))
    twice = [tag for tag, count in tags.items() if count > 1]
    checked.expect(not twice, f"judged more than once: {twice}")
    aborted = [one for one in taken if one["verdict"] == "accepted" and _aborts(one)]
    # A flow that follows a failure keeps that outcome.
    ends = {
        "stopped",
        *(["cancelled"] if checked.heard.cancels else []),
        *(one["outcome"] for one in checked.said("run_completed")[:-1]),
    }
    checked.expect(not aborted or checked.outcome in ends, f"{aborted}, and the run ends {checked.outcome}")


def _aborts(said: dict[str, Any]) -> bool:
    return said["name"] == "abort" or said.get("action") == "abort"


def _receipts(checked: Checked) -> None:
    """One whole chain; every token counted once."""
    head = checked.result.receipts_head if checked.result else None
    if checked.receipts or head is not None:
        report = Receipts(checked.player.rig.evidence).verify_run(checked.run_id, head)
        checked.expect(report.ok or not checked.receipts, f"receipts: {report.problems}")
        checked.expect(len(report.receipts) == len(checked.receipts), "receipts outside of the chain")
    if checked.result is not None:
        total = sum(one.token_counts.total for one in checked.receipts)
        used = checked.result.usage.total
        checked.expect(total == used, f"the receipts count {total} tokens, the result {used}")


def _attempts(checked: Checked) -> None:
    """Every attempt has its receipt and its envelope; a stopped one ran no phase after that."""
    blobs = checked.player.rig.evidence.blobs
    known = {AttemptKey.model_validate(one.model_dump()).path: one for one in checked.receipts}
    for path, calls in checked.heard.phases().items():
        receipt = known.get(path)
        checked.expect(receipt is not None, f"no receipt of {path}")
        checked.expect(blobs.exists(f"{path}/envelope.json"), f"no envelope of {path}")
        if receipt is not None and receipt.execution_status != "succeeded":
            _stopped(checked, path, receipt, calls)


def _stopped(checked: Checked, path: str, receipt: StepReceipt, calls: list[Call]) -> None:
    envelope = checked.player.rig.evidence.get_model(f"{path}/envelope.json", HandoffEnvelope)
    status = (envelope.status if envelope else None, receipt.verification_status)
    checked.expect(status == ("PARTIAL", "PARTIAL"), f"{path} was stopped and is {status}")
    ran = [PHASES[call.type] for call in calls]
    work = [call for call in calls if call.type == WORK.name]
    if work and work[-1].result is not None and work[-1].result["ended"] != "finished":
        checked.expect(ran == ["work"], f"{path} was stopped in work and ran {ran}")
    if receipt.from_attempt is None and not any(call.type == MEASURE.name for call in calls):
        measured = [gate.name for gate in receipt.gates if gate.measured]
        checked.expect(not measured, f"{path} was stopped before its gates and measured {measured}")


# Claims, sizes, digests.


def claims(checked: Checked) -> None:
    """What was measured stands beside what was claimed; no status is VERIFIED but by gates that were measured."""
    measured = _measured(checked.heard)
    facts = {AttemptKey.model_validate(one["key"]).path: one["facts"] for one in _records(checked.heard)}
    for one in checked.receipts:
        key = AttemptKey.model_validate(one.model_dump())
        path, said = key.path, facts.get(key.path, {})
        status = (one.verification_status, one.measured.get("status"), said.get("status"))
        checked.expect(path in facts, f"nothing was recorded of {path}")
        checked.expect(len(set(status)) == 1, f"{path}: receipt, measured and recorded status are {status}")
        if one.claimed:
            claims_of = (one.claimed.get("status"), said.get("claimed_status"))
            checked.expect(
                len(set(claims_of)) == 1, f"{path} claimed {claims_of[0]}, recorded {claims_of[1]}"
            )
        visit = (key.flow_key, key.step_id, key.visit)
        for gate in one.gates:
            result = (gate.name, gate.passed, gate.exit_code)
            checked.expect(
                not gate.measured or result in measured.get(visit, set()),
                f"{path} has {result}, measured were {measured.get(visit)}",
            )
        if one.verification_status == "VERIFIED":
            passed = {gate.name for gate in one.gates if gate.measured and gate.passed}
            owed = _required(checked.heard, key) | {gate.name for gate in one.gates if gate.required}
            checked.expect(owed, f"{path} is VERIFIED without a required gate; claimed: {one.claimed}")
            checked.expect(owed <= passed, f"{path} is VERIFIED, passed {passed}, required {owed}")
            checked.expect(
                not one.measured.get("changed_after_measure"), f"{path} is VERIFIED on another tree"
            )


def sizes(checked: Checked) -> None:
    """Facts are small on the wire, and what a run carries into its next history is bounded."""
    for record in _records(checked.heard):
        wire = len(json.dumps(record["facts"], ensure_ascii=False, separators=(",", ":")).encode())
        path = AttemptKey.model_validate(record["key"]).path
        checked.expect(wire <= MAX_FACTS_BYTES, f"the facts of {path} have {wire} bytes")
    steps = [step for spec in checked.heard.specs().values() for step in spec["steps"]]
    by_flow = len(checked.heard.specs()) + len(steps) + sum(len(step.get("gates", [])) for step in steps)
    for history in checked.heard.histories:
        continued = history.events[-1].workflow_execution_continued_as_new_event_attributes
        for payload in continued.input.payloads[1:]:
            state = json.loads(payload.data)
            bounds = {**BOUNDS, **dict.fromkeys(BY_FLOW, by_flow)}
            for name, value in state.items():
                # Of models, only the loops have a list that grows.
                if isinstance(value, list) or name in bounds:
                    checked.expect(name in bounds, f"no bound is known for the list {name} of a run's state")
                    bound = bounds.get(name, 0)
                    checked.expect(len(value) <= bound, f"{len(value)} {name} are carried over, not {bound}")
            for step, loop in ((state.get("routing") or {}).get("loops") or {}).items():
                kept = len(loop.get("iterations") or [])
                said = f"{kept} iterations of {step} are carried over"
                checked.expect(kept <= MAX_ITERATIONS_KEPT, said)


def artifacts(checked: Checked) -> None:
    """What is stored under a key was stored once: all that name it have one digest, and it is the file's."""
    calls = checked.heard.calls
    places: dict[str, set[str]] = {}
    trees = [*(call.argument for call in calls), *(call.result for call in calls)]
    for ref in _refs([*trees, *(one.model_dump(mode="json") for one in checked.receipts)]):
        places.setdefault(ref["uri"], set()).add(ref["sha256"])
    blobs = checked.player.rig.evidence.blobs
    for uri, digests in places.items():
        checked.expect(len(digests) == 1, f"{uri} is named with {sorted(digests)}")
        try:
            stored = hashlib.sha256(blobs.read(uri)).hexdigest()
        except NotStored:
            checked.expect(False, f"{uri} is named and is not stored")
        else:
            checked.expect(stored in digests, f"{uri} is stored as {stored}, named with {sorted(digests)}")


def _records(heard: Heard) -> list[dict[str, Any]]:
    """Return all records that were asked for: alone, or with work."""
    alone = [call.argument for call in heard.calls if call.type == RECORD.name]
    return alone + [call.argument["record"] for call in heard.calls if call.argument.get("record")]


def _measured(heard: Heard) -> dict[tuple[str, str, int], set[tuple[str, bool, int | None]]]:
    """Return what the gates of each visit said by the results of its measurements, also of those found again."""
    found: dict[tuple[str, str, int], set[tuple[str, bool, int | None]]] = {}
    for call in heard.calls:
        key, result = call.key, call.result
        if call.type == ACQUIRE.name and call.argument.get("recover"):
            key = AttemptKey.model_validate(call.argument["recover"]["key"])
            result = (result or {}).get("finished_measure")
        if key is not None and result is not None and call.type in {MEASURE.name, ACQUIRE.name}:
            facts = [run["fact"] for run in result.get("gates", [])]
            found.setdefault((key.flow_key, key.step_id, key.visit), set()).update(
                (fact["name"], fact.get("passed", False), fact.get("exit_code")) for fact in facts
            )
    return found


def _required(heard: Heard, key: AttemptKey) -> set[str]:
    """Return the names of the gates that a step must pass; the last measurement's are in its receipt alone."""
    if key.step_id == FINAL_STEP:
        return set()
    steps = heard.specs()[key.flow_key]["steps"]
    gates = next(step for step in steps if step["id"] == key.step_id).get("gates", [])
    return {gate["name"] for gate in gates if gate.get("required", True)}


def _refs(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all in a tree that names a stored file."""
    if isinstance(tree, dict):
        if {"uri", "sha256"} <= tree.keys():
            yield tree
        for value in tree.values():
            yield from _refs(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _refs(value)


async def _replays(checked: Checked) -> None:
    """Each execution replays, and its decisions are those of the journal."""
    for history in checked.heard.histories:
        report = await replay_history(history)
        checked.replays.append(report)
        checked.expect(report.exit_code == 0, f"replay: {report.failure} {report.divergence}")
    replayed = [
        (
            one["step"],
            one["visit"],
            one["outcome"]["decision"],
            one["outcome"].get("next_step_id"),
            one["outcome"]["chosen_candidate_id"],
        )
        for report in checked.replays
        for one in report.decisions
    ]
    journaled = [
        (one["step"], one["visit"], one["decision"], one.get("next"), one["candidate"])
        for one in checked.said("routed")
    ]
    checked.expect(replayed == journaled, f"replayed decisions {replayed}, journal {journaled}")
    recorded = Counter(checked.heard.recorded())
    known = Counter((step, visit, candidate) for step, visit, _, _, candidate in journaled)
    checked.expect(recorded <= known, f"recorded with attempts {recorded}, journal {known}")


# What the run made.


def _result(checked: Checked) -> None:
    """The branch is what the result says, each commit is there once, and gates say of it what the outcome does."""
    record = checked.record
    if record is None:
        return
    clone = checked.player.folder / "fetched"
    _git(checked.player.repo, "clone", "--quiet", str(checked.player.repo), str(clone))
    git = checked.result.git if checked.result else None
    place = (
        git.fetch
        if git
        else shlex.join(["git", "fetch", record.workspace, f"{record.branch}:{record.branch}"])
    )
    fetched = _run(["git", "-C", str(clone), *shlex.split(place)[1:]])
    if fetched.returncode != 0:
        checked.expect(git is None or git.head == git.base, f"{place}: {fetched.stderr}")
        return
    head, tree = _git(clone, "rev-parse", record.branch, f"{record.branch}^{{tree}}").split()
    if git is not None:
        checked.expect(git.head == head, f"the result's head is {git.head}, the branch's {head}")
        checked.expect(git.tree == tree, f"the result's tree is {git.tree}, the branch's {tree}")
    _commits(checked, clone, record)
    _git(clone, "checkout", "--quiet", record.branch)
    base = _git(clone, "rev-parse", f"{record.base_commit}^{{tree}}")
    _outcome(checked, clone, unchanged=tree == base)
    shutil.rmtree(clone, ignore_errors=True)


def _commits(checked: Checked, clone: Path, record: RunRecord) -> None:
    keys = ("Stepwise-Run", "Stepwise-Visit", "Stepwise-Attempt")
    trailers = "%x1f".join(f"%(trailers:key={key},valueonly,separator=%x2C)" for key in keys)
    log = _git(
        clone, "log", f"--format=%H%x1f{trailers}", f"{record.base_commit}..{record.branch}"
    ).splitlines()
    commits = [tuple(line.split("\x1f")) for line in log if line]
    made = Counter((visit, attempt) for _, _, visit, attempt in commits)
    checked.expect(all(count == 1 for count in made.values()), f"commits made twice: {made}")
    checked.expect({run for _, run, _, _ in commits} <= {checked.run_id}, f"commits of others: {commits}")
    receipted = {one.git.commit_after for one in checked.receipts if one.git}
    lost = [commit for commit, *_ in commits if commit not in receipted]
    checked.expect(not lost, f"commits that no receipt names: {lost}")


def _outcome(checked: Checked, clone: Path, *, unchanged: bool) -> None:
    """Verified means that every gate passes here too; unverified that one does not, or there is none."""
    outcome = checked.outcome
    if outcome not in {"verified", "unverified", "nothing_to_do"}:
        return
    owed = _owed(checked)
    failing = [
        f"{place}: {shlex.join(argv)}"
        for place, argv in owed
        if subprocess.run(argv, cwd=clone, capture_output=True, check=False).returncode != 0
    ]
    dirty = any(DIRTY in word for _, argv in owed for word in argv)
    match outcome:
        case "verified":
            checked.expect(owed, "verified without a required gate")
            checked.expect(not failing, f"verified, and on its tree fail {failing}")
            checked.expect(not unchanged, "verified, and its tree is the base's")
        case "nothing_to_do":
            checked.expect(
                unchanged and not failing, f"nothing to do; same tree: {unchanged}, fail {failing}"
            )
        case _:
            lost = checked.result is not None and "lost again" in checked.result.summary
            kept = len(checked.said("run_created")) > 1
            checked.expect(
                failing or not owed or dirty or lost or kept,
                f"unverified, and on its tree pass all of {owed}",
            )


def _owed(checked: Checked) -> list[tuple[str, list[str]]]:
    """Return the required gates of every step that was visited and not skipped, in every flow of the chain."""
    specs = checked.heard.specs()
    flow, left = "", dict[tuple[str, str], bool]()
    for event in checked.journal:
        said = event.model_extra or {}
        match event.kind:
            case "run_created":
                flow = said["flow"]
            case "step_started" if said["step"] != "_final":
                left[flow, said["step"]] = True
            case "routed":
                left[flow, said["step"]] = said["decision"] != "skip"
            case _:
                pass
    return [
        (f"{flow}/{step['id']}/{gate['name']}", gate["argv"])
        for (flow, name), counts in left.items()
        for step in specs[flow]["steps"]
        if counts and step["id"] == name
        for gate in step.get("gates", [])
        if gate.get("required", True)
    ]


# What still answers, and what is left.


async def _queries(checked: Checked) -> None:
    """Every query answers after the end, without secrets."""
    handle = checked.player.rig.client.get_workflow_handle(checked.player.workflow_id)
    answers: dict[str, Any] = {}
    for name in ("status", "pending", "routing", "receipts", "partial_handoff"):
        for last in (False, False, True):
            try:
                answers[name] = await handle.query(name, rpc_timeout=RPC)
                break
            except (RPCError, WorkflowQueryFailedError) as error:
                # A worker that was just started has the run's cache to fill.
                checked.expect(not last, f"query {name}: {error}")
    if len(answers) == 5:
        status = answers["status"]
        checked.expect(status["state"] == "done", f"status says {status['state']}")
        checked.expect(status["outcome"] == checked.outcome, f"status says {status['outcome']}")
        checked.expect(answers["pending"] == [], f"pending after the end: {answers['pending']}")
        total, routed = answers["routing"]["total"], len(checked.said("routed"))
        checked.expect(total == routed, f"the query counts {total} decisions, the journal {routed}")
        kept = (answers["receipts"]["head"], answers["receipts"]["total"])
        if checked.result is not None:
            wanted = (checked.result.receipts_head, len(checked.receipts))
            checked.expect(kept == wanted, f"the query's receipts are {kept}, there are {wanted}")
    text = json.dumps(answers)
    for canary in (ENV_CANARY, FILE_CANARY):
        checked.expect(canary not in text, "a query shows a secret")


def _left(checked: Checked) -> None:
    """No process of the run is left, and no session's folder where it was released."""
    deadline = time.monotonic() + GONE_S
    while (left := leftovers(checked.run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    checked.expect(not left, f"processes are left: {left}")
    for disk in checked.player.rig.folder.glob("disk-*"):
        folder = RunFolder(disk / "runs" / checked.run_id)
        held = folder.held()
        if held is not None and held.released_at is not None:
            checked.expect(not folder.private.exists(), f"{folder.private} is left")


def _secrets(checked: Checked) -> None:
    """Neither store nor history has what must not be seen."""
    store = checked.player.rig.store / "runs" / checked.run_id
    for path in store.rglob("*"):
        # Bundles hold the repository's own content.
        if path.is_file() and path.suffix != ".bundle":
            data = path.read_bytes()
            for canary in (ENV_CANARY, FILE_CANARY, NOTE_CANARY):
                checked.expect(canary.encode() not in data, f"{path} holds {canary[:8]}…")
    for history in checked.heard.histories:
        for event in history.events:
            data = event.SerializeToString()
            for canary in (ENV_CANARY, FILE_CANARY):
                checked.expect(canary.encode() not in data, f"event {event.event_id} holds {canary[:8]}…")


def _git(where: Path, *argv: str) -> str:
    done = _run(["git", "-C", str(where), *argv])
    done.check_returncode()
    return done.stdout.strip()


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run git as it is where nobody has configured it."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
