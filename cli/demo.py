"""``make demo``: a flow end to end on a real repository, watched, with everything it left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from cli.dev import await_polling, worker_process
from cli.session import complain, say, typed
from schemas.converter import build_data_converter
from schemas.errors import BadInput, StepwiseError
from schemas.events import RunEvent
from schemas.receipt import StepReceipt
from schemas.run import FlowResult
from store.blobs import open_blobs
from store.evidence import Evidence
from store.journal import Journal
from store.redaction import Redactor
from system.devserver import DevServer, temporal_binary
from system.settings import load, resolved
from workflows.start import run_id as run_id_of

ROOT: Final = Path(__file__).resolve().parent.parent
TASK: Final = "mean() is wrong: the tests fail. Mend the cause."
GATE: Final = "python3 -m unittest -q"
POLL_S: Final = 0.1
MAX_DIFF_LINES: Final = 60
VERDICTS: Final[Mapping[bool | None, str]] = {True: "passed", False: "FAILED", None: "not measured"}
WORDS: Final[Mapping[bool | None, str]] = {True: "passed", False: "failed", None: "-"}


@dataclass(frozen=True)
class Wanted:
    """What the demo was asked to run."""

    repo: str
    task: str
    gate: str
    transport: str
    scenario: str
    own: bool


def wanted(env: Mapping[str, str], folder: Path) -> Wanted:
    """Return what the variables REPO, TASK, GATE, TRANSPORT and SCENARIO ask for. Raises BadInput."""
    repo, task = env.get("REPO", ""), env.get("TASK", "")
    if not repo:
        return Wanted(
            repo=str(folder / "repo"),
            task=task or TASK,
            gate=env.get("GATE") or GATE,
            transport=env.get("TRANSPORT") or "stub",
            scenario=env.get("SCENARIO") or "demo",
            own=False,
        )
    if not task:
        raise BadInput("E_TASK", "REPO is given without TASK", mend='say what is to be done: TASK="…"')
    return Wanted(
        repo=str(Path(repo).expanduser().resolve()) if "://" not in repo else repo,
        task=task,
        gate=env.get("GATE", ""),
        transport=env.get("TRANSPORT", ""),
        scenario=env.get("SCENARIO", ""),
        own=True,
    )


def main() -> int:
    """Run the demo of this process's environment; 0 when the run completed, 1 when it failed, 2 on bad input."""
    try:
        return demo(os.environ)
    except StepwiseError as error:
        complain(f"demo: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def demo(env: Mapping[str, str]) -> int:
    """Run one demo in a folder of its own and return its exit code."""
    folder = _new_folder(ROOT / ".stepwise" / "demo")
    asked = wanted(env, folder)
    if not asked.own:
        _make_repository(Path(asked.repo))
    settings_env = _worker_env(env, folder)
    with DevServer.start(db=folder / "temporal.sqlite", ui=True) as server:
        settings_env |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
        loaded = load(settings_env)
        effective = resolved(loaded.settings)
        say(f"temporal server  {server.address}")
        say(f"temporal ui      {server.ui_url}")
        say(f"repository       {asked.repo}")
        with worker_process(settings_env, drain_s=effective.drain_s) as worker:
            asyncio.run(await_polling(server, effective.task_queue, worker))
            return asyncio.run(_run(server, asked, effective.store, folder))


def _new_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=0)
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def _make_repository(path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(path)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _worker_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the demo's worker: our own, with nothing that belongs to another server."""
    kept = {name: value for name, value in env.items() if not name.startswith(("TEMPORAL_", "STEPWISE_"))}
    return kept | {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "STEPWISE_CONFIG": "",
        "STEPWISE_DATA_DIR": str(folder / "worker"),
        "STEPWISE_LOG_LEVEL": "WARNING",
        "STEPWISE_LOG_FORMAT": "text",
    }


async def _run(server: DevServer, asked: Wanted, store: str, folder: Path) -> int:
    client = await Client.connect(server.address, data_converter=build_data_converter())
    workflow_id = f"demo-{folder.name}"
    _start(server, asked, workflow_id)
    described = await client.get_workflow_handle(workflow_id).describe()
    run_id = run_id_of(workflow_id, described.run_id)
    evidence = Evidence(open_blobs(store, fsync=False, shared=False, temporal_is_loopback=True), Redactor(()))
    handle = client.get_workflow_handle(workflow_id)
    result, failed = await _watch(handle, Journal(evidence), run_id)
    history = await handle.fetch_history()
    (folder / "history.json").write_text(history.to_json(), encoding="utf-8")
    if result is None:
        complain(f"the run was refused: {failed}")
        return 1
    _show(result, evidence, store)
    _show_end(server, result, asked, store, folder, workflow_id)
    return 0 if failed is None else 1


def _start(server: DevServer, asked: Wanted, workflow_id: str) -> None:
    """Start the flow with the Temporal CLI, as a person would."""
    fields: dict[str, Any] = {"flow": "fix", "repo": asked.repo, "task": asked.task}
    if asked.gate:
        fields["params"] = {"test": asked.gate}
    fields |= {
        name: value for name, value in (("transport", asked.transport), ("scenario", asked.scenario)) if value
    }
    argv = ["temporal", "workflow", "start", "--address", server.address, "--type", "Flow"]
    argv += ["--task-queue", "stepwise", "--workflow-id", workflow_id, "--fail-existing"]
    argv += ["--static-summary", f"fix: {asked.task[:80]}", "--input", json.dumps(fields, ensure_ascii=False)]
    say(f"\n$ {typed(argv)}")
    done = subprocess.run([str(temporal_binary()), *argv[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StepwiseError("E_START", f"temporal workflow start failed: {done.stderr.strip()}")
    say("\n".join(f"  {line}" for line in done.stdout.strip().splitlines()))


async def _watch(
    handle: WorkflowHandle[Any, Any], journal: Journal, run_id: str
) -> tuple[FlowResult | None, str | None]:
    """Print the run's journal as it grows; return the result, and how the run failed if it did."""
    say("\nprogress")
    ending = asyncio.ensure_future(handle.result())
    seen, began = 0, time.monotonic()
    while True:
        await asyncio.wait([ending], timeout=POLL_S)
        done = ending.done()
        for event in journal.read(run_id)[seen:]:
            seen += 1
            line = describe(event)
            if line:
                say(f"  {time.monotonic() - began:5.1f} s  {line}")
        if done:
            break
    try:
        return FlowResult.model_validate(ending.result()), None
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.details:
            return FlowResult.model_validate(cause.details[0]), cause.message
        return None, str(cause.message if isinstance(cause, ApplicationError) else cause)


def describe(event: RunEvent) -> str:
    """Return an event of the journal as one line for people; empty for those that say nothing new."""
    data = event.model_dump()
    step = f"{data.get('step') or '':10}"
    match event.kind:
        case "step_started":
            return f"{step} iteration {data.get('iteration', 1)}"
        case "phase_started":
            return f"{step}   {data['phase']}"
        case "gate_measured":
            verdict = VERDICTS[data.get("passed")]
            code = f" (exit {data['exit_code']})" if data.get("exit_code") is not None else ""
            return f"{step}     gate {data['gate']} {verdict}{code}"
        case "routed":
            target = f" -> {data['next']}" if data.get("next") else ""
            return f"{step}   route    {data['decision']}{target}: {data.get('reason', '')}"
        case "waiting":
            return f"{step}   waits for {data['waiting_for']}: {data.get('reason', '')}"
        case "run_completed":
            return f"{'':10} {data['outcome']}: {data.get('summary', '')}"
        case _:
            return ""


def _show(result: FlowResult, evidence: Evidence, store: str) -> None:
    say(f"\noutcome          {result.outcome}: {result.summary}")
    say("\nrouting decisions")
    for one in result.decisions:
        target = f" -> {one.next_step_id}" if one.next_step_id else ""
        say(f"  {one.step_id} #{one.visit}  {one.decision}{target}: {one.explanation}")
    say("\ngates before and after")
    paths = [key for key in evidence.blobs.keys(f"runs/{result.run_id}/") if key.endswith("/receipt.json")]
    receipts = [(key, StepReceipt.model_validate_json(evidence.blobs.read(key))) for key in paths]
    receipts.sort(key=lambda found: found[1].completed_at)
    for _, receipt in receipts:
        for gate in receipt.gates:
            before = WORDS[gate.before.passed if gate.before else None]
            after = WORDS[gate.passed]
            say(
                f"  {receipt.step_id} #{receipt.visit}  {gate.name}: before the run {before}, after this visit {after}"
            )
    say("\nreceipts")
    for key, _ in receipts:
        say(f"  {_path(store, key)}")


def _path(store: str, key: str) -> str:
    return f"{store.removeprefix('file://')}/{key}"


def _show_end(
    server: DevServer, result: FlowResult, asked: Wanted, store: str, folder: Path, workflow_id: str
) -> None:
    git = result.git
    if git is not None and git.workspace:
        diff = subprocess.run(
            ["git", "-C", git.workspace, "diff", "--no-ext-diff", "--no-textconv", git.base, git.head],
            capture_output=True, text=True, check=False,
        ).stdout.splitlines()  # fmt: skip
        say("\ndiff")
        say("\n".join(f"  {line}" for line in diff[:MAX_DIFF_LINES]))
        if len(diff) > MAX_DIFF_LINES:
            say(f"  … {len(diff) - MAX_DIFF_LINES} more lines")
    where = os.path.relpath(folder)
    say(f"\ntemporal ui      {server.ui_url}/namespaces/default/workflows/{workflow_id}")
    say("                 (stopped with the demo; the first command below brings it back)")
    stepwise = os.path.relpath(ROOT / ".venv" / "bin" / "stepwise")
    say("\nnext")
    say(f"  {stepwise} dev --db {where}/temporal.sqlite")
    say(f"  {stepwise} replay {where}/history.json")
    say(f"  {stepwise} verify {result.run_id} --store {store}")
    if git is not None and asked.own and git.head != git.base:
        say(f"\nfetch the result into {asked.repo}")
        say(f"  git -C {asked.repo} {git.fetch.removeprefix('git ')}")


if __name__ == "__main__":
    sys.exit(main())
