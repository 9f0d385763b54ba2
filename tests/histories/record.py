"""``make golden``: records the golden histories, decisions and receipts anew, on a real server with a real worker.

With names of cases only these are recorded: what a patch has added, beside what was recorded before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

from cases import BY_NAME, CASES, Case, perform  # noqa: E402 - found by the line above
from conftest import Rig  # noqa: E402
from samples import write_missing  # noqa: E402
from scrubbing import scrubbed_decisions, scrubbed_history, scrubbed_receipts  # noqa: E402
from temporalio.client import Client  # noqa: E402

from cli.replay import load_history, replay_history  # noqa: E402
from schemas.converter import build_data_converter  # noqa: E402
from system.devserver import DevServer  # noqa: E402

DATA: Final = HERE / "data"
BROKEN_FROM: Final = "fix-loop"
RENAMED: Final = ("measure", "run_gates")
"""The broken history says that an activity had another name once: what a careless rename would do to old runs."""


def golden(kind: str, name: str) -> Path:
    """Return where a golden file of this kind (``histories``, ``decisions``, ``receipts``) stands."""
    return DATA / kind / f"{name}.json"


def write(path: Path, data: Any) -> None:
    """Write JSON as people and diffs read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_history(path: Path, history: dict[str, Any]) -> None:
    """Write a history with one event a line: as small as diffs allow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in history["events"])
    path.write_text(f'{{"events": [\n{lines}\n]}}\n', encoding="utf-8")


async def _record(rig: Rig, case: Case, folder: Path) -> None:
    result = await perform(rig, case, folder / case.name)
    rig.check_evidence(result)
    shown = rig.temporal("workflow", "show", "--workflow-id", case.name, "--output", "json")
    path = golden("histories", case.name)
    write_history(path, scrubbed_history(json.loads(shown.stdout), folder=str(folder)))
    report = await replay_history(load_history(path))
    assert report.failure is None, f"{case.name} does not replay: {report.failure}"
    write(golden("decisions", case.name), scrubbed_decisions(report.decisions))
    write(golden("receipts", case.name), scrubbed_receipts(rig.receipts(result.run_id)))
    sys.stdout.write(f"{case.name:28} {result.outcome:14} {report.events} events\n")


def _write_broken() -> None:
    history = json.loads(golden("histories", BROKEN_FROM).read_text(encoding="utf-8"))
    for event in history["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes", {})
        if scheduled.get("activityType", {}).get("name") == RENAMED[0]:
            scheduled["activityType"]["name"] = RENAMED[1]
    write_history(DATA / "broken.json", history)


async def _record_all(server: DevServer, folder: Path, cases: Sequence[Case]) -> None:
    rig_folder = folder / "rig"
    rig_folder.mkdir()
    client = await Client.connect(server.address, data_converter=build_data_converter())
    rig = Rig(server=server, folder=rig_folder, client=client, task_queue="stepwise")
    rig.worker()
    try:
        for case in cases:
            await _record(rig, case, folder)
    finally:
        rig.kill_all()


def main(names: Sequence[str]) -> int:
    """Record the named cases, without names everything; 0 when all is written."""
    cases = [BY_NAME[name] for name in names] or CASES
    with tempfile.TemporaryDirectory(prefix="stepwise-golden-") as name, DevServer.start(ui=False) as server:
        asyncio.run(_record_all(server, Path(name), cases))
    if cases == CASES:
        _write_broken()
    write_missing(DATA / "payloads")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
