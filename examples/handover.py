"""``make demo-handover``: an agent is stopped in the middle of its work, and another one goes on from there.

The agents are the real programs: Claude Agent SDK and Codex. No key is needed, since small scripted models of the tests
stand behind them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowHandle

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from agents_kit import agents  # noqa: E402 - found by the line above
from model_servers.minds import BUGGY, RIGHT, WRONG, Player  # noqa: E402
from model_servers.script import Reply, Seen, Write, turn  # noqa: E402

from cli.demo import (  # noqa: E402
    GATE,
    TASK,
    keep_history,
    make_repository,
    new_folder,
    show,
    show_diff,
    show_next,
    type_command,
    typed_start,
    watch,
    worker_env,
)
from cli.dev import await_polling, worker_process  # noqa: E402
from cli.here import Here, open_here  # noqa: E402
from cli.history.events import Entry, Sources  # noqa: E402
from cli.session import complain, say  # noqa: E402
from schemas.errors import StepwiseError  # noqa: E402
from store.blobs import store_folder  # noqa: E402
from system.connection import connect  # noqa: E402
from system.devserver import DevServer  # noqa: E402
from system.settings import load  # noqa: E402
from workflows.start import run_id as run_id_of  # noqa: E402

FIRST: Final = "claude-sdk"
SECOND: Final = "codex"
NOTE: Final = '{"transport": "codex", "note": "No values have no mean: raise ValueError.", "by": "ann"}'


def _begins(seen: Seen) -> Sequence[Reply]:
    if "Find the cause" not in seen.asked:
        return []
    return [turn("Every value counts.", Write(BUGGY, WRONG)), turn("And now…", "", hang_after=3)]


def _goes_on(seen: Seen) -> Sequence[Reply]:
    return [turn("I go on.", Write(BUGGY, RIGHT))] if "Where you were stopped" in seen.asked else []


def main() -> int:
    """Run the demo; 0 when the run ends verified, 1 when it does not, 2 when something is missing, 130 on Ctrl-C."""
    folder = new_folder(Path.cwd() / ".stepwise" / "handover")
    make_repository(folder / "repo")
    try:
        with agents({FIRST: Player(_begins), SECOND: Player(_goes_on)}) as agents_env:
            env = worker_env(os.environ, folder) | agents_env
            with DevServer.start(db=folder / "temporal.sqlite", ui=True) as server:
                env |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": server.namespace}
                loaded = load(env)
                say(f"temporal ui      {server.ui_url}")
                with worker_process(env, drain_s=loaded.settings.drain_s) as worker:
                    asyncio.run(await_polling(server, loaded.settings.task_queue, worker))
                    return asyncio.run(_run(server, open_here(loaded=loaded), folder))
    except StepwiseError as error:
        complain(f"demo-handover: {error}")
        return 2
    except KeyboardInterrupt:
        complain("demo-handover: ended before its run was; server and worker are stopped")
        return 130


async def _run(server: DevServer, here: Here, folder: Path) -> int:
    workflow_id = f"handover-{folder.name}"
    fields: dict[str, Any] = {
        "flow": "fix",
        "repo": str(folder / "repo"),
        "task": TASK,
        "params": {"test": GATE},
        "transport": [FIRST, SECOND],
    }
    typed_start(server, fields, here.settings.task_queue, workflow_id)
    client = await connect(here.loaded)
    handle = client.get_workflow_handle(workflow_id)
    run_id = run_id_of(workflow_id, (await handle.describe()).run_id)
    entries: list[Entry] = []
    watching = asyncio.create_task(watch(handle, Sources(here.evidence, run_id), entries))
    workspace = here.settings.data_dir / "runs" / run_id / "ws"
    await _until(watching, lambda: (workspace / BUGGY).is_file() and (workspace / BUGGY).read_text() == WRONG)
    to = ["--address", server.address, "--workflow-id", workflow_id]
    await asyncio.to_thread(
        type_command, ["workflow", "signal", *to, "--name", "interrupt", "--input", '{"by": "ann"}']
    )
    while not await _waits(handle) and not watching.done():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.1)
    await asyncio.to_thread(type_command, ["workflow", "query", *to, "--type", "partial_handoff"])
    await asyncio.to_thread(
        type_command, ["workflow", "update", "execute", *to, "--name", "resume", "--input", NOTE]
    )
    result, failed = await watching
    await keep_history(handle, folder)
    if result is None:
        complain(f"the run was refused: {failed}")
        return 2
    show(result, entries, store_folder(here.settings.store))
    await show_diff(result)
    show_next(server, workflow_id, run_id, here.settings.store, folder)
    return 0 if result.outcome == "verified" else 1


async def _until(watching: asyncio.Task[Any], holds: Any) -> None:
    while not await asyncio.to_thread(holds) and not watching.done():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def _waits(handle: WorkflowHandle[Any, Any]) -> bool:
    return ((await handle.query("status")).get("waiting") or {}).get("kind") == "human"


if __name__ == "__main__":
    sys.exit(main())
