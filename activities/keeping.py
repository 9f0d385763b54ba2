"""What an attempt leaves on the run's branch and in the store: its savepoint or commit, its logs, its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from activities.context import OpenRun, WorkerContext, now
from activities.endings import counts
from activities.workspace import remember, store_bundle
from schemas.calls import AttemptKey, WorkOut, WorkResult
from schemas.common import AgentPhase, ArtifactRef, Durable, FileChanges, UtcTime
from schemas.errors import BadInput, EvidenceConflict
from schemas.flow import StepSpec
from schemas.handoff import PartialHandoff, Savepoint
from schemas.run_record import RunRecord
from store.attempts import LOGS, AttemptLog, LogName, log_folder
from store.evidence import JSON, JSON_LINES, Evidence
from system.files import Root
from system.git import RefMoved
from system.logs import logger
from system.paths import PathDenied
from system.savepoints import take_savepoint

_log = logger("activities")
_MAX_SAVEPOINTS: Final = 100_000
_MAX_OUTPUT_BYTES: Final = 5_000_000


class WorkIntent(Durable):
    """``work.intent.json``: a finished work phase that is about to be committed; enough to complete it later.

    ``out`` lacks what the commit adds. With the message and the time fixed, a repeat makes the very same commit.
    """

    out: WorkOut
    message: str
    when: UtcTime
    before: str


@dataclass(frozen=True)
class Kept:
    """The working tree as an attempt left it: its id, what changed since the last commit, the savepoint of it."""

    tree: str
    changes: FileChanges
    savepoint: Savepoint | None = None


def intent_key(key: AttemptKey) -> str:
    """Return where an attempt's intent is stored."""
    return f"{key.path}/work.intent.json"


def visit_name(key: AttemptKey) -> str:
    """Return the visit as commits name it."""
    return f"{key.flow_key}/{key.step_id}#{key.visit}"


async def keep_tree(ctx: WorkerContext, opened: OpenRun, key: AttemptKey) -> Kept:
    """Keep an unfinished attempt's working tree as a savepoint, here and in the store; none if nothing changed."""
    repository = opened.repository
    measured = await repository.tree_id()
    before = await repository.tree_of(opened.head)
    record = await ctx.check_lease(key.run_id, opened.held.lease)
    if measured.tree == before and measured.head == opened.head:
        await stand_at_commit(ctx, opened, record)
        return Kept(before, FileChanges())
    number, savepoint = await _take(opened, record.savepoints + 1)
    ctx.crash_at("work.savepoint")
    base = repository.base
    place = f"{key.path}/savepoint-{number}.bundle"
    ref = await store_bundle(ctx, place, repository, base=base, refs=(savepoint.ref,))
    savepoint = savepoint.model_copy(update={"bundle": ref})

    def newest(record: RunRecord) -> RunRecord:
        return record.model_copy(update={"savepoints": number, "newest": savepoint})

    await remember(ctx, key.run_id, opened.held.lease, newest)
    return Kept(savepoint.tree, await repository.changes(before, savepoint.tree), savepoint)


async def stand_at_commit(ctx: WorkerContext, opened: OpenRun, record: RunRecord) -> None:
    """Let a clone that is made again be the last commit's: what an earlier attempt left has been undone, or given up."""
    newest, branch_ref = record.newest, opened.repository.branch_ref
    if newest is None or newest.ref == branch_ref:
        return
    tree = await opened.repository.tree_of(opened.head)
    # A savepoint's bundle has the branch too.
    at_commit = Savepoint(ref=branch_ref, commit=opened.head, tree=tree, bundle=newest.bundle)
    lease = opened.held.lease
    await remember(ctx, record.run_id, lease, lambda known: known.model_copy(update={"newest": at_commit}))


async def complete(
    ctx: WorkerContext,
    opened: OpenRun,
    key: AttemptKey,
    intent: WorkIntent,
    step: StepSpec | None,
    log: AttemptLog | None,
) -> WorkOut:
    """Do what an intent says, as far as it is not done: commit, bundle, logs, outputs, and last the result."""
    repository = opened.repository
    found = await repository.find_commit(visit_name(key), key.attempt) if log is None else None
    if found is None:
        committed = await repository.commit_tree(
            intent.message, visit=visit_name(key), attempt=key.attempt, when=intent.when
        )
        head, tree = committed.head, committed.tree
    else:
        head, tree = found, await repository.tree_of(found)
    ctx.crash_at("work.committed")
    changes = await repository.changes(intent.before, head)
    if head != intent.before:
        ref = await store_bundle(ctx, f"{key.path}/work.bundle", repository, base=repository.base)
        commit = Savepoint(ref=repository.branch_ref, commit=head, tree=tree, bundle=ref)

        def newest(record: RunRecord) -> RunRecord:
            return record.model_copy(update={"newest": commit, "head": head})

        await remember(ctx, key.run_id, opened.held.lease, newest)
    ctx.crash_at("work.bundled")
    opened.head = head
    out = intent.out.model_copy(update={"tree": tree, "commit_after": head, "changes": counts(changes)})
    return await save_work(ctx, key, out, changes, step, log)


async def save_work(
    ctx: WorkerContext,
    key: AttemptKey,
    out: WorkOut,
    changes: FileChanges,
    step: StepSpec | None,
    log: AttemptLog | None,
) -> WorkOut:
    """Store an attempt's logs, outputs and the result of its work, in this order; return the result."""
    logs = await ctx.blocking(close_logs, ctx, key, log)
    outputs = await ctx.blocking(_outputs, ctx, key, step) if step and step.outputs else _Outputs()
    ctx.crash_at("work.logged")
    result = WorkResult(
        out=out,
        changes=changes,
        outputs=outputs.kept,
        outputs_not_kept=outputs.not_kept,
        transcript=logs.get("transcript"),
        tool_calls=logs.get("tool_calls"),
    )
    await ctx.blocking(ctx.results.save, key, result)
    ctx.crash_at("work.result")
    return out


def close_logs(ctx: WorkerContext, key: AttemptKey, log: AttemptLog | None) -> dict[LogName, ArtifactRef]:
    """Upload the logs of work: those of ``log``, else what a dead worker left, else find those uploaded already."""
    if log is not None:
        return log.close()
    recovered = AttemptLog.recover(ctx.evidence, ctx.spool, key, now)
    return recovered.refs if recovered is not None else stored_logs(ctx.evidence, key, "work")


def stored_logs(evidence: Evidence, key: AttemptKey, phase: AgentPhase) -> dict[LogName, ArtifactRef]:
    """Return the logs of an attempt's phase that are in the store."""
    places = {name: f"{log_folder(key, phase)}/{name}.jsonl" for name in LOGS}
    return {
        name: stored_ref(evidence, place, JSON_LINES)
        for name, place in places.items()
        if evidence.blobs.exists(place)
    }


def stored_ref(evidence: Evidence, key: str, media_type: str) -> ArtifactRef:
    """Return the reference to what is stored under ``key``; raises NotStored."""
    return evidence.put_bytes(key, evidence.read_key(key), media_type)


def write_partial(ctx: WorkerContext, handoff: PartialHandoff) -> ArtifactRef:
    """Store a partial handoff, unless the attempt has one: the first one stands. Blocks."""
    try:
        return ctx.receipts.write_partial(handoff)
    except EvidenceConflict:
        path = AttemptKey.model_validate(handoff.model_dump()).path
        return stored_ref(ctx.evidence, f"{path}/handoff_partial.json", JSON)


def fixed_time() -> datetime:
    """Return the time for a commit: whole seconds, as git keeps them."""
    return now().replace(microsecond=0)


async def _take(opened: OpenRun, first: int) -> tuple[int, Savepoint]:
    when = fixed_time()
    for number in range(first, first + _MAX_SAVEPOINTS):
        try:
            return number, await take_savepoint(opened.repository, number, when=when)
        except RefMoved:
            # A worker that died took this number and could not say so.
            continue
    raise RefMoved("E_GIT_REF_MOVED", f"run {opened.held.run_id} has too many savepoints")


@dataclass(frozen=True)
class _Outputs:
    """A step's outputs: where they are stored, and why the others are not."""

    kept: dict[str, ArtifactRef] = field(default_factory=dict)
    not_kept: dict[str, str] = field(default_factory=dict)


def _outputs(ctx: WorkerContext, key: AttemptKey, step: StepSpec) -> _Outputs:
    """Store those of the step's outputs that are text files; the commit holds all that are there."""
    outputs = _Outputs()
    with Root(ctx.folder(key.run_id).workspace) as root:
        for path in step.outputs:
            kept = _keep_output(ctx, root, key, path)
            if isinstance(kept, ArtifactRef):
                outputs.kept[path] = kept
            else:
                outputs.not_kept[path] = kept
                extra = {"run_id": key.run_id}
                _log.warning("output %s of %s is not kept: %s", path, visit_name(key), kept, extra=extra)
    return outputs


def _keep_output(ctx: WorkerContext, root: Root, key: AttemptKey, path: str) -> ArtifactRef | str:
    """Store an output; the reason where that cannot be done."""
    try:
        content = root.read(path, max_bytes=_MAX_OUTPUT_BYTES)
        if content.truncated:
            return f"it is larger than {_MAX_OUTPUT_BYTES} bytes"
        return ctx.evidence.put_text(f"{key.path}/outputs/{path}", content.data.decode())
    except FileNotFoundError:
        return "it is not there"
    except IsADirectoryError:
        return "it is a folder"
    except UnicodeDecodeError:
        return "it is no UTF-8 text"
    except (PathDenied, BadInput) as error:
        return error.message
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
