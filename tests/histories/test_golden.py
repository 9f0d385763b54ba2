"""Recorded runs of the shipped flows still replay, and the flows still decide and record as they did.

A difference means that runs under way would break or that people would get other evidence. Where that is meant,
``workflow.patched`` keeps the old runs whole, and ``make golden`` records anew.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cases import BY_NAME, CASES, perform
from conftest import ROOT, Rig, stepwise
from record import DATA, RENAMED, golden
from scrubbing import NEUTRAL, scrubbed_decisions, scrubbed_history, scrubbed_receipts

from cli.replay import load_history, replay_history

NAMES = [case.name for case in CASES]
EARLIER = sorted((DATA / "earlier").glob("*.json"))
"""Runs from before a patch, named by what was patched; never recorded anew."""


def stored(kind: str, name: str) -> Any:
    return json.loads(golden(kind, name).read_text(encoding="utf-8"))


def test_every_shipped_flow_has_a_golden_run_that_succeeds_loops_fails_and_is_paused() -> None:
    shipped = {path.stem for path in (ROOT / "flows").glob("*.yaml")}
    wanted = {f"{flow}-{variant}" for flow in shipped for variant in ("success", "loop", "failed", "paused")}
    wanted.add("direct-limited")
    for kind in ("histories", "decisions", "receipts"):
        assert {path.stem for path in (DATA / kind).iterdir()} == wanted == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_a_golden_history_replays_and_decides_as_recorded(name: str) -> None:
    report = await replay_history(load_history(golden("histories", name)))
    assert (report.failure, report.divergence) == (None, None)
    assert scrubbed_decisions(report.decisions) == stored("decisions", name)


@pytest.mark.parametrize("path", EARLIER, ids=[path.stem for path in EARLIER])
async def test_a_history_from_before_a_patch_still_replays(path: Path) -> None:
    report = await replay_history(load_history(path))
    assert (report.failure, report.divergence) == (None, None)
    assert report.decisions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.timeout(240)
async def test_a_flow_run_again_decides_and_records_as_the_golden_run(
    name: str, desk: Rig, tmp_path: Path
) -> None:
    result = await perform(desk, BY_NAME[name], tmp_path / "golden")
    desk.check_evidence(result)
    shown = desk.temporal("workflow", "show", "--workflow-id", name, "--output", "json")
    (tmp_path / "fresh.json").write_text(shown.stdout, encoding="utf-8")
    report = await replay_history(load_history(tmp_path / "fresh.json"))
    assert report.failure is None
    assert scrubbed_decisions(report.decisions) == stored("decisions", name)
    assert scrubbed_receipts(desk.receipts(result.run_id)) == stored("receipts", name)


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_history_says_nothing_of_the_machine_it_was_recorded_on(name: str) -> None:
    history = stored("histories", name)
    assert scrubbed_history(history, folder=NEUTRAL) == history
    text = json.dumps(readable(history))
    assert {path for path in re.findall(r"(?<![\w.}/])/\w[\w.-]*/[\w.-]+", text) if path != NEUTRAL} == set()
    assert set(re.findall(r'"(?:host|identity)": "([^"]*)"', text)) <= {"", "host", "worker@host"}
    assert "@" not in text.replace("worker@host", "")


def readable(value: Any) -> Any:
    """Return the history with its payloads decoded."""
    match value:
        case {"data": str(data), "metadata": {"encoding": _}}:
            return json.loads(base64.b64decode(data))
        case dict():
            return {name: readable(inner) for name, inner in value.items()}
        case list():
            return [readable(inner) for inner in value]
        case _:
            return value


# The command people use.


def replay(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return stepwise("replay", str(path), *options, env=os.environ)


def test_replay_prints_each_decision_with_its_inputs_and_reason() -> None:
    done = replay(golden("histories", "fix-loop"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 routing decisions" in done.stdout
    assert re.search(r"1\. implement #1 \(event \d+\): loop implement", done.stdout)
    assert "why     No exit of the loop holds after iteration 1 of 5." in done.stdout
    assert '"failure_signature"' in done.stdout
    assert done.stdout.endswith("replay: ok\n")


def test_replay_of_a_history_the_code_no_longer_follows_names_event_expected_and_got() -> None:
    broken = DATA / "broken.json"
    events = json.loads(broken.read_text(encoding="utf-8"))["events"]
    old_name, new_name = RENAMED
    first = next(
        event["eventId"]
        for event in events
        if event.get("activityTaskScheduledEventAttributes", {}).get("activityType", {}).get("name")
        == new_name
    )
    done = replay(broken)
    assert done.returncode == 1
    assert re.search(rf"^ +event +{first}$", done.stdout, re.MULTILINE)
    expected = rf"^ +expected +ACTIVITY_TASK_SCHEDULED {new_name} \(implement\.measure\.1\.1\)$"
    assert re.search(expected, done.stdout, re.MULTILINE)
    got = rf"^ +got +.*'{new_name}' does not match activity type of activity command '{old_name}'"
    assert re.search(got, done.stdout, re.MULTILINE)
    assert "replay: ok" not in done.stdout


def test_replay_as_json_carries_the_divergence() -> None:
    done = replay(DATA / "broken.json", "--json")
    data = json.loads(done.stdout)
    assert done.returncode == 1
    assert data["non_deterministic"] is True
    assert data["divergence"].keys() == {"event", "expected", "got"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("not json", "is no workflow history"),
        ('{"events": []}', "holds no events"),
        ('{"events": [{"eventId": "1"}]}', "does not begin with the start of a workflow"),
        ('{"outcome": "verified"}', "is no workflow history"),
    ],
)
def test_replay_of_what_is_no_history_says_so_and_how_to_make_one(
    text: str | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "history.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    done = replay(path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_replay_of_a_history_saved_as_human_readable_names_the_choice_that_replays(tmp_path: Path) -> None:
    path = tmp_path / "readable.json"
    path.write_text(json.dumps(readable(stored("histories", "fix-success"))), encoding="utf-8")
    done = replay(path)
    assert done.returncode == 2
    assert "Encoded" in done.stderr


def test_replay_tells_a_failure_of_the_code_from_a_divergence(tmp_path: Path) -> None:
    history = stored("histories", "fix-success")
    result = next(
        event["activityTaskCompletedEventAttributes"]["result"]["payloads"][0]
        for event in history["events"]
        if "activityTaskCompletedEventAttributes" in event
    )
    result["data"] = base64.b64encode(b'{"spec": 1}').decode()
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history), encoding="utf-8")
    done = replay(path)
    assert done.returncode == 3
    assert "The workflow's code failed" in done.stdout
