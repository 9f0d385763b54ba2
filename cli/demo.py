"""``make demo``: a flow end to end on a real repository, watched, with everything it left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from cli.dev import await_polling, worker_process
from cli.here import Here, open_here
from cli.history.events import Entry, Sources
from cli.history.lines import Lines
from cli.history.sums import Sums
from cli.session import WORKFLOW_TYPE, complain, say
from cli.show import print_steps
from cli.starting import scenario_of
from policy.plain import typed
from schemas.calls import AttemptKey
from schemas.errors import BadInput, StepwiseError
from schemas.run import FlowResult
from schemas.run_state import PendingItem
from store.blobs import store_folder
from store.keys import RECEIPT
from system.connection import connect
from system.devserver import DevServer, temporal_binary
from system.repository import Repository
from system.settings import load
from transports.registry import TRANSPORTS
from workflows.start import run_id as run_id_of

ROOT: Final = Path(__file__).resolve().parent.parent
TASK: Final = "mean() is wrong: the tests fail. Mend the cause."
GATE: Final = "python3 -m unittest -q"
POLL_S: Final = 0.1
MAX_DIFF_BYTES: Final = 4_000


@dataclass(frozen=True)
class Wanted:
    """What the demo was asked to run."""

    repo: str
    task: str
    gate: str
    transport: str
    scenario: str
    own: bool
    allow_dirty: bool = False


def wanted(env: Mapping[str, str], folder: Path) -> Wanted:
    """Return what the variables REPO, TASK, GATE, TRANSPORT, SCENARIO and ALLOW_DIRTY ask for. Raises BadInput."""
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
    if env.get("TRANSPORT", "stub") in ("", "stub") and not env.get("SCENARIO"):
        real = ", ".join(name for name in TRANSPORTS if name != "stub")
        raise BadInput(
            "E_TRANSPORT",
            "REPO is given without an agent to work on it: transport stub only plays a scenario",
            mend=f"name an agent (TRANSPORT={real}), or what stub is to play (SCENARIO=FILE)",
        )
    return Wanted(
        repo=str(Path(repo).expanduser().resolve()) if "://" not in repo else repo,
        task=task,
        gate=env.get("GATE", ""),
        transport=env.get("TRANSPORT", ""),
        scenario=env.get("SCENARIO", ""),
        own=True,
        allow_dirty=env.get("ALLOW_DIRTY", "") not in ("", "0", "false"),
    )


def main() -> int:
    """Run the demo of this process's environment; 0 when the run completed, 1 when it failed, 2 on bad input."""
    try:
        return demo(os.environ)
    except StepwiseError as error:
        complain(f"demo: {error}")
        return 2
    except KeyboardInterrupt:
        complain("demo: ended before its run was; server and worker are stopped")
        return 130


def demo(env: Mapping[str, str]) -> int:
    """Run one demo in a new folder under ``.stepwise`` of the working one, and return its exit code."""
    folder = new_folder(Path.cwd() / ".stepwise" / "demo")
    asked = wanted(env, folder)
    if not asked.own:
        make_repository(Path(asked.repo))
    settings_env = worker_env(env, folder)
    with DevServer.start(db=folder / "temporal.sqlite", ui=True) as server:
        settings_env |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
        loaded = load(settings_env)
        say(f"temporal server  {server.address}")
        say(f"temporal ui      {server.ui_url}")
        say(f"repository       {asked.repo}")
        with worker_process(settings_env, drain_s=loaded.settings.drain_s) as worker:
            asyncio.run(await_polling(server, loaded.settings.task_queue, worker))
            return asyncio.run(_run(server, asked, open_here(loaded=loaded), folder))


def new_folder(parent: Path) -> Path:
    """Make a new folder with the next free number."""
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


def make_repository(path: Path) -> None:
    """Make the demo repository."""
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_repo.py"), str(path)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def worker_env(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of the demo's worker: our own, with nothing that belongs to another server."""
    kept = {name: value for name, value in env.items() if not name.startswith(("TEMPORAL_", "STEPWISE_"))}
    return kept | {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "STEPWISE_CONFIG": "",
        "STEPWISE_DATA_DIR": str(folder / "worker"),
        "STEPWISE_LOG_LEVEL": "WARNING",
        "STEPWISE_LOG_FORMAT": "text",
    }


async def _run(server: DevServer, asked: Wanted, here: Here, folder: Path) -> int:
    client = await connect(here.loaded)
    workflow_id = workflow_id_of(folder)
    _start(server, asked, here.settings.task_queue, workflow_id)
    handle = client.get_workflow_handle(workflow_id)
    run_id = run_id_of(workflow_id, (await handle.describe()).run_id)
    entries: list[Entry] = []
    result, failed = await watch(handle, Sources(here.evidence, run_id), entries, server.address)
    await keep_history(handle, folder)
    if result is None:
        mend = " (make demo takes ALLOW_DIRTY=1)" if "allow_dirty" in str(failed) else ""
        complain(f"the run was refused: {failed}{mend}")
        return 1
    show(result, entries, store_folder(here.settings.store))
    await show_diff(result)
    show_next(server, workflow_id, result.run_id, here.settings.store, folder)
    git = result.git
    if git is not None and asked.own and git.head != git.base:
        say(f"\nfetch the result into {asked.repo}")
        say(f"  {typed(['git', '-C', asked.repo])} {git.fetch.removeprefix('git ')}")
    return 0 if failed is None else 1


def _start(server: DevServer, asked: Wanted, queue: str, workflow_id: str) -> None:
    """Start the flow with the Temporal CLI, as a person would."""
    fields: dict[str, Any] = {"flow": "fix", "repo": asked.repo, "task": asked.task}
    if asked.allow_dirty:
        fields["allow_dirty"] = True
    if asked.gate:
        fields["params"] = {"test": asked.gate}
    if asked.transport:
        fields["transport"] = asked.transport
    if asked.scenario:
        scenario = scenario_of(asked.scenario, None)
        fields["scenario"] = scenario if isinstance(scenario, str) else scenario.model_dump()
    typed_start(server, fields, queue, workflow_id)


def typed_start(server: DevServer, fields: Mapping[str, Any], queue: str, workflow_id: str) -> None:
    """Start a flow with the Temporal CLI, and show the command. Raises StepwiseError."""
    argv = ["workflow", "start", "--address", server.address, "--type", WORKFLOW_TYPE]
    argv += ["--task-queue", queue, "--workflow-id", workflow_id, "--fail-existing"]
    argv += ["--static-summary", f"{fields['flow']}: {str(fields['task'])[:80]}"]
    type_command([*argv, "--input", json.dumps(fields, ensure_ascii=False)])


def type_command(argv: Sequence[str]) -> None:
    """Run the Temporal CLI, and show command and answer. Raises StepwiseError where it fails."""
    say(f"\n$ {typed(['temporal', *argv])}")
    done = subprocess.run([str(temporal_binary()), *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StepwiseError(
            "E_START",
            f"temporal {argv[0]} {argv[1]} failed: {done.stderr.strip()}",
            mend="stepwise doctor looks why",
        )
    say("\n".join(f"  {line}" for line in done.stdout.strip().splitlines()))


async def watch(
    handle: WorkflowHandle[Any, Any], sources: Sources, entries: list[Entry], address: str | None = None
) -> tuple[FlowResult | None, str | None]:
    """Print the run's journal as it grows; return the result, and how the run failed if it did.

    With an ``address``, what to type is printed too where it waits for a person. All that was stored of the run is
    added to ``entries``.
    """
    say("\nprogress")
    ending = asyncio.ensure_future(handle.result())
    lines, done = Lines(), False
    while not done:
        await asyncio.wait([ending], timeout=POLL_S)
        done, waits = ending.done(), False
        for entry in sources.new():
            entries.append(entry)
            if entry.source == "journal" and (line := lines.of(entry)):
                say(line)
            waits = (waits or entry.kind == "waiting") and entry.kind != "resumed"
        if waits and not done and address is not None:
            await _say_what_to_type(handle, address)
        # Who reads it through a pipe follows it, too.
        sys.stdout.flush()
    try:
        return FlowResult.model_validate(ending.result()), None
    except WorkflowFailureError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.details:
            return FlowResult.model_validate(cause.details[0]), cause.message
        return None, str(cause.message if isinstance(cause, ApplicationError) else cause)


async def _say_what_to_type(handle: WorkflowHandle[Any, Any], address: str) -> None:
    try:
        items = [PendingItem.model_validate(one) for one in await handle.query("pending")]
    except (RPCError, WorkflowQueryFailedError):
        # It has just ended.
        return
    for answer in (answer for item in items for answer in item.legal):
        say(f"    # {answer.help}")
        say(f"    {answer.command} --address {address}")
    if items:
        say("    # or end it: Ctrl-C")


def show(result: FlowResult, entries: list[Entry], store: Path) -> None:
    """Print outcome, decisions, steps and receipts."""
    say(f"\noutcome          {result.outcome}: {result.summary}")
    say("\nrouting decisions")
    for one in result.decisions:
        target = f" -> {one.next_step_id}" if one.next_step_id else ""
        say(f"  {one.step_id} #{one.visit}  {one.decision}{target}: {one.explanation}")
    print_steps(Sums.of(entries))
    say("\nreceipts")
    for entry in entries:
        if entry.source == "receipt":
            say(f"  {store / AttemptKey.model_validate(entry.data).path / RECEIPT}")


async def show_diff(result: FlowResult) -> None:
    """Print what the run changed."""
    git = result.git
    if git is None or not git.workspace:
        return
    repository = Repository(Path(git.workspace), run_id=result.run_id, base=git.base)
    patch = await repository.diff(git.base, git.head, max_bytes=MAX_DIFF_BYTES)
    say("\ndiff")
    for line in patch.decode(errors="replace").split("\n"):
        # A repository's content moves no cursor here and changes no colour.
        harmless = "".join(one if one.isprintable() or one == "\t" else "?" for one in line)
        say(f"  {harmless}".rstrip())
    if len(patch) == MAX_DIFF_BYTES:
        say("  … and more")


async def keep_history(handle: WorkflowHandle[Any, Any], folder: Path) -> None:
    """Store the run's history where `show_next` says that it is."""
    history = await handle.fetch_history()
    (folder / "history.json").write_text(history.to_json(), encoding="utf-8")


def show_next(server: DevServer, workflow_id: str, run_id: str, store: str, folder: Path) -> None:
    """Print where the run was to be seen, and what can be typed once server and worker of this folder are stopped."""
    where = Path(os.path.relpath(folder))
    stepwise = os.path.relpath(ROOT / ".venv" / "bin" / "stepwise")
    say(f"\ntemporal ui      {server.ui_url}/namespaces/{server.namespace}/workflows/{workflow_id}")
    say("                 (stopped with the demo; the first command below brings it back)")
    say("\nnext")
    data = typed([f"STEPWISE_DATA_DIR={where / 'worker'}"])
    port = str(urlsplit(server.ui_url or "").port or 0)
    dev = [stepwise, "dev", "--db", str(where / "temporal.sqlite"), "--ui-port", port]
    say(f"  {data} {typed(dev)}")
    say(f"  {typed([stepwise, 'replay', str(where / 'history.json')])}")
    say(f"  {typed([stepwise, 'verify', run_id, '--store', store])}")


def workflow_id_of(folder: Path) -> str:
    """Return the workflow id of the demo in a folder."""
    return f"demo-{folder.name}"


if __name__ == "__main__":
    sys.exit(main())
