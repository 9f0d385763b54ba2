"""A run from the command line of Temporal alone: every command as a person types it."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import UNITTEST, Rig, eventually, stepwise
from flow_kit import OK, flow, gate, hold, linear, script, step, transcript_of, turn
from run_kit import READ_ONLY, TWO_STEPS, ended, resume, said, start, update, waiting
from temporalio.client import WorkflowExecutionStatus

from workflows.messages import MESSAGES


def cli(rig: Rig, *argv: str) -> str:
    """Run the CLI; return what it prints."""
    done = rig.temporal(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(rig: Rig, name: str, query: str) -> Any:
    """Return a query's answer as the CLI prints it."""
    shown = cli(rig, "workflow", "query", "--workflow-id", name, "--type", query, "-o", "json")
    return json.loads(shown)["queryResult"][0]


def metadata(rig: Rig, name: str) -> dict[str, Any]:
    """Return what a run says of itself: its messages, and the details as they are now."""
    shown = json.loads(cli(rig, "workflow", "metadata", "--workflow-id", name, "-o", "json"))
    found: dict[str, Any] = shown["queryResult"][0]
    return found


def until(rig: Rig, name: str, kind: str) -> dict[str, Any]:
    """Ask with the CLI until a run waits for ``kind``."""
    status: dict[str, Any] = eventually(
        lambda: (
            (found := answer(rig, name, "status"))
            and (found.get("waiting") or {}).get("kind") == kind
            and found
        )
    )
    return status


@pytest.fixture(scope="module")
def paused(desk: Rig, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that was paused in the work of its first step, by an empty signal."""
    go = tmp_path_factory.mktemp("paused") / "go"
    given = {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": script(only=turn(hold(go), OK))}
    cli(
        desk,
        *("workflow", "start", "--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", "paused"),
        *("--input", json.dumps(given), "--static-summary", "Make it so", "--static-details", "By **ann**"),
        *("--memo", 'ticket="T-1"', "--fail-existing"),
    )
    eventually(lambda: (answer(desk, "paused", "status") or {}).get("phase") == "work")
    cli(desk, "workflow", "signal", "--workflow-id", "paused", "--name", "pause")
    eventually(lambda: answer(desk, "paused", "status")["pause_requested"])
    go.touch()
    until(desk, "paused", "pause")
    return "paused"


def test_describe_shows_summary_details_and_search_attributes(desk: Rig, paused: str) -> None:
    text = cli(desk, "workflow", "describe", "--workflow-id", paused)
    assert "Make it so" in text
    assert "By **ann**" in text
    shown = json.loads(cli(desk, "workflow", "describe", "--workflow-id", paused, "-o", "json"))
    found = shown["workflowExecutionInfo"]["searchAttributes"]["indexedFields"]
    values = {name: json.loads(base64.b64decode(one["data"])) for name, one in found.items()}
    assert values["StepwiseFlow"] == "small"
    assert values["StepwiseStep"] == "only"
    assert values["StepwiseState"] == "waiting:pause"
    assert values["StepwiseNeedsHuman"] is True
    assert values["StepwiseRepo"].endswith("/repo")


def test_status_says_where_the_run_stands(desk: Rig, paused: str) -> None:
    status = answer(desk, paused, "status")
    assert status["flow"] == "small"
    assert (status["state"], status["step"], status["visit"], status["attempt"]) == ("waiting", "only", 1, 1)
    assert status["waiting"]["kind"] == "pause"
    assert status["legal"] == ["resume", "abort"]
    assert status["branch"] == f"stepwise/{status['run_id']}"
    assert Path(status["workspace"]).is_dir()
    assert status["next_command"] == "temporal workflow update execute --workflow-id paused --name resume"


def test_routing_and_receipts_answer_before_there_is_one(desk: Rig, paused: str) -> None:
    routing, receipts = answer(desk, paused, "routing"), answer(desk, paused, "receipts")
    assert (routing["total"], routing["truncated"]) == (0, False)
    assert (receipts["total"], receipts["head"]) == (0, "0" * 64)


def test_an_unknown_query_is_answered_with_the_known_ones(desk: Rig, paused: str) -> None:
    done = desk.temporal("workflow", "query", "--workflow-id", paused, "--type", "state")
    assert done.returncode == 1
    for known in ("status", "pending", "partial_handoff", "routing", "receipts"):
        assert known in done.stderr


def test_metadata_lists_every_message_with_its_help_and_shows_the_table(desk: Rig, paused: str) -> None:
    shown = metadata(desk, paused)
    definition = shown["definition"]
    for kind in ("signalDefinitions", "updateDefinitions"):
        listed = {one["name"]: one.get("description") for one in definition[kind] if one.get("name")}
        assert {name: listed.get(name) for name in MESSAGES} == {
            name: message.help for name, message in MESSAGES.items()
        }
    queries = {one["name"]: one.get("description") for one in definition["queryDefinitions"]}
    for name in ("status", "pending", "partial_handoff", "routing", "receipts"):
        assert queries[name]
    details = shown["currentDetails"]
    assert re.match(r"\*\*.*paused?", details), details
    assert re.search(r"^\| step\s+\| now\s", details, re.MULTILINE)
    assert re.search(r"^\| only\s.*\| 1\s+\|", details, re.MULTILINE)
    assert "temporal workflow update execute \\\n  --workflow-id paused --name resume\n" in details


@pytest.mark.parametrize(
    "query",
    [
        'StepwiseState="waiting:pause" AND StepwiseNeedsHuman=true',
        'StepwiseFlow="small" AND StepwiseStep="only" AND ExecutionStatus="Running"',
    ],
)
def test_runs_are_found_by_their_search_attributes(desk: Rig, paused: str, query: str) -> None:
    def found() -> bool:
        listed = json.loads(cli(desk, "workflow", "list", "--query", query, "-o", "json"))
        return paused in [one["execution"]["workflowId"] for one in listed or []]

    eventually(found)
    nobody = cli(desk, "workflow", "list", "--query", f"{query} AND StepwiseRepo='/nowhere'", "-o", "json")
    assert not json.loads(nobody or "[]")


def test_show_lists_activities_by_name_and_summary(desk: Rig, paused: str) -> None:
    text = cli(desk, "workflow", "show", "--workflow-id", paused)
    assert "ActivityTaskScheduled" in text
    history = json.loads(cli(desk, "workflow", "show", "--workflow-id", paused, "-o", "json"))
    scheduled = [event for event in history["events"] if "activityTaskScheduledEventAttributes" in event]
    named = {
        event["activityTaskScheduledEventAttributes"]["activityType"]["name"]: json.loads(
            base64.b64decode(event["userMetadata"]["summary"]["data"])
        )
        for event in scheduled
    }
    assert named["work"].startswith("only")
    assert set(named) >= {"resolve_flow", "acquire_workspace", "work"}
    assert all(named.values())


def test_a_run_is_paused_and_resumed_by_updates_that_answer(desk: Rig, repo: Path, tmp_path: Path) -> None:
    play = script(only=turn(hold(tmp_path / "go"), OK))
    desk.start("answers", {"spec": TWO_STEPS, "repo": str(repo), "task": "t", "scenario": play})
    eventually(lambda: (answer(desk, "answers", "status") or {}).get("phase") == "work")
    words = ("workflow", "update", "execute", "--workflow-id", "answers", "--name")
    said = cli(desk, *words, "pause", "--input", '{"reason":"lunch","by":"ann"}', "-o", "json")
    assert json.loads(said)["result"]["verdict"] == "accepted"
    assert json.loads(cli(desk, *words, "pause", "-o", "json"))["result"]["verdict"] == "already"
    refused = desk.temporal(*words, "approve")
    assert refused.returncode == 1
    assert (
        "approve is not legal while the run is running; legal now: interrupt, resume, steer, abort"
        in refused.stderr
    )
    refused = desk.temporal(*words, "pause", "--input", '"lunch"')
    assert refused.returncode == 1
    assert "pause takes a JSON object such as {}, got str" in refused.stderr
    (tmp_path / "go").touch()
    until(desk, "answers", "pause")
    assert json.loads(cli(desk, *words, "resume", "-o", "json"))["result"]["verdict"] == "accepted"
    shown = json.loads(cli(desk, "workflow", "result", "--workflow-id", "answers", "-o", "json"))
    assert shown["result"]["outcome"] == "verified"


@pytest.mark.parametrize(
    ("kind", "spec", "play"),
    [
        (
            "approval",
            flow(
                step("only", linear("end"), approval="after", gates=[gate("there")]), step("end", **READ_ONLY)
            ),
            script(only=turn(OK)),
        ),
        ("rate_limit", TWO_STEPS, script(only=turn({"do": "rate_limit", "seconds": 3_600}, OK))),
        (
            "human",
            flow(
                step("only", linear("end"), gates=[gate("there")], retries={"agent": 0}),
                step("end", **READ_ONLY),
            ),
            script(only={"turns": [turn(OK, {"do": "fail"})]}),
        ),
    ],
)
def test_the_next_command_a_run_names_does_what_it_should_as_typed(
    desk: Rig, repo: Path, kind: str, spec: dict[str, Any], play: dict[str, Any]
) -> None:
    name = f"next-{kind.replace('_', '-')}"
    desk.start(name, {"spec": spec, "repo": str(repo), "task": "t", "scenario": play})
    status = until(desk, name, kind)
    program, *argv = shlex.split(status["next_command"])
    assert program == "temporal"
    cli(desk, *argv)
    eventually(lambda: answer(desk, name, "status")["waiting"] != status["waiting"])
    if kind != "human":
        assert eventually(lambda: answer(desk, name, "status")["outcome"]) == "verified"
        program, *argv = shlex.split(answer(desk, name, "status")["next_command"])
        assert "verified" in cli(desk, *argv)


async def test_an_update_whose_sender_waits_no_longer_is_carried_out_when_a_worker_comes(
    rig: Rig, repo: Path
) -> None:
    start(rig, "left", repo, TWO_STEPS)
    given_up = rig.temporal(
        *("workflow", "update", "execute", "--workflow-id", "left", "--name", "pause"),
        *("--input", '{"by": "mia"}', "--command-timeout", "3s"),
    )
    assert given_up.returncode != 0
    rig.worker()
    status = await waiting(rig, "left", "pause")
    assert said(rig, status["run_id"], "human_message") == [
        {"name": "pause", "by": "mia", "verdict": "accepted"}
    ]
    await resume(rig, "left", action="abort")
    await ended(rig, "left", "stopped")


async def test_words_that_no_agent_follows_end_with_the_run_and_are_listed_as_queued(
    desk: Rig, repo: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slow = ["sh", "-c", f"test -e ok || exit 1; until [ -e {go} ]; do sleep 0.02; done"]
    start(desk, "late", repo, flow(step("only", gates=[gate("slow", *slow)])), script(only=turn(OK)))
    await desk.until("late", lambda now: now["phase"] == "measure")
    verdict = await update(desk, "late", "steer", {"text": "too late", "by": "mia"})
    assert verdict["verdict"] == "queued"
    go.touch()
    result = await ended(desk, "late", "verified")
    (receipt,) = result.receipts
    assert "too late" not in transcript_of(desk, receipt)
    shown = stepwise("show", "late", env=desk.env("disk")).stdout
    assert "message steer by mia: queued (text too late)" in shown


def test_the_finished_run_shows_decisions_and_receipts(desk: Rig, demo_repo: Path) -> None:
    given = {"flow": "fix", "repo": str(demo_repo), "task": "Mend the mean.", "scenario": "demo"}
    desk.start("fixed", {**given, "params": {"test": UNITTEST}})
    shown = json.loads(cli(desk, "workflow", "result", "--workflow-id", "fixed", "-o", "json"))
    assert shown["status"] == "COMPLETED"
    assert shown["result"]["outcome"] == "verified"
    routing = answer(desk, "fixed", "routing")
    assert [(one["step_id"], one["decision"], one.get("exit")) for one in routing["decisions"]] == [
        ("implement", "loop", None),
        ("implement", "advance", "status_verified"),
        ("review", "advance", None),
        ("finish", "terminate", None),
    ]
    receipts = answer(desk, "fixed", "receipts")
    assert receipts["total"] == 4
    assert receipts["head"] == shown["result"]["receipts_head"] == receipts["receipts"][-1]["sha256"]
    assert "**verified**" in metadata(desk, "fixed")["currentDetails"]
    fetched = subprocess.run(
        shlex.split(shown["result"]["git"]["fetch"]), cwd=demo_repo, capture_output=True, check=False
    )
    assert fetched.returncode == 0, fetched.stderr


def test_a_failed_run_shows_outcome_and_reason(desk: Rig, repo: Path) -> None:
    spec = flow(step("only", gates=[gate("there")]))
    desk.start("failed", {"spec": spec, "repo": str(repo), "task": "t", "scenario": "noop"})
    done = desk.temporal("workflow", "result", "--workflow-id", "failed")
    assert done.returncode == 1
    assert "unverified: failed on the final tree: only/there" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_starting_an_id_that_runs_is_refused_where_that_is_asked_for(
    desk: Rig, paused: str, repo: Path
) -> None:
    done = desk.temporal(
        *("workflow", "start", "--type", "Flow", "--task-queue", desk.task_queue, "--workflow-id", paused),
        *("--fail-existing", "--input", json.dumps({"flow": "fix", "repo": str(repo), "task": "t"})),
    )
    assert done.returncode == 1
    assert "already" in done.stderr


async def test_a_paused_run_goes_on_by_an_empty_signal(desk: Rig, paused: str) -> None:
    cli(desk, "workflow", "signal", "--workflow-id", paused, "--name", "resume")
    assert (await desk.result(paused)).outcome == "verified"
    described = await desk.client.get_workflow_handle(paused).describe()
    assert described.status == WorkflowExecutionStatus.COMPLETED
