"""``stepwise doctor`` and ``stepwise start`` with a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from cli.checks_server import polling
    from cli.main import run
    from schemas.run import FlowInput
    from system.devserver import SEARCH_ATTRIBUTES, DevServer
    from workflows.start import run_id

FLOW = """\
id: mine
version: 1
title: Mine
steps:
  - id: work
    agent: doer
    objective: Do it.
    gates:
      - {name: tests, argv: [make, test]}
    routing: {kind: terminal}
"""


@workflow.defn(name="Flow")
class Echo:
    @workflow.run
    async def run(self, given: dict[str, Any]) -> dict[str, Any]:
        return given


@workflow.defn
class Broken:
    @workflow.run
    async def run(self) -> None:
        raise LookupError("a bug")


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with DevServer.start(
        ui=False,
        search_attributes={},
        dynamic_config={"system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": 1},
    ) as started:
        yield started


@pytest.fixture(autouse=True)
def _own_server(server: DevServer, own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_place
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)


@pytest.fixture
async def client(server: DevServer) -> AsyncIterator[Client]:
    """Serve the default task queue, and give a client."""
    client = await Client.connect(server.address)
    async with Worker(client, task_queue="stepwise", workflows=[Echo, Broken], identity="worker-1"):
        # The server knows of it once its first poll is there.
        while not await polling(client, "default", "stepwise"):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        yield client


async def _run(*arguments: str) -> int:
    """Run a command beside this test's own event loop."""
    return await asyncio.to_thread(run, arguments)


async def _checks(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, dict[str, str]]]:
    code = await _run("doctor", "--json", *arguments)
    return code, {one["name"]: one for one in json.loads(capsys.readouterr().out)}


async def test_without_a_worker_runs_cannot_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWISE_TASK_QUEUE", "nobody")

    code, checks = await _checks(capsys)

    assert code == 1
    assert {name for name, one in checks.items() if one["verdict"] == "fail"} == {"worker"}
    assert "nobody" in checks["worker"]["seen"]


async def test_missing_search_attributes_are_a_warning_and_are_registered_on_demand(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client
    code, before = await _checks(capsys)
    assert code == 0
    assert before["search attributes"]["verdict"] == "warn"
    assert "StepwiseNeedsHuman" in before["search attributes"]["seen"]
    assert "--name StepwiseFlow --type Keyword" in before["search attributes"]["mend"]

    _, fixed = await _checks(capsys, "--fix")
    assert fixed["search attributes"]["seen"].startswith("registered: ")

    _, after = await _checks(capsys)
    assert (after["search attributes"]["verdict"], after["search attributes"]["seen"]) == (
        "ok",
        ", ".join(SEARCH_ATTRIBUTES),
    )


async def test_a_tuned_server_with_a_worker_has_all_that_is_needed(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client
    monkeypatch.setenv("STEPWISE_TRANSPORTS", "stub")
    code, checks = await _checks(capsys, "--fix")

    assert code == 0
    assert {name for name, one in checks.items() if one["verdict"] != "ok"} == set()
    assert "worker-1" in checks["worker"]["seen"]
    assert "30 days" in checks["namespace"]["seen"]


async def test_a_namespace_that_is_not_there_comes_with_the_command_that_makes_it(
    server: DevServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")

    code, checks = await _checks(capsys)

    assert code == 1
    assert checks["namespace"]["mend"] == (
        f"temporal operator namespace create --retention 720h --address {server.address} --namespace nowhere"
    )
    assert "worker" not in checks


async def test_a_server_without_worker_commands_is_told_what_to_switch_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    untuned = await asyncio.to_thread(
        lambda: DevServer.start(ui=False, dynamic_config={"frontend.WorkerCommandsEnabled": False})
    )
    with untuned:
        monkeypatch.setenv("TEMPORAL_ADDRESS", untuned.address)
        _, checks = await _checks(capsys)

    assert checks["worker commands"]["verdict"] == "warn"
    assert "frontend.WorkerCommandsEnabled=true" in checks["worker commands"]["mend"]


async def test_a_run_whose_code_fails_is_named(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    await client.start_workflow("Broken", id="stuck-1", task_queue="stepwise")
    try:
        while True:
            _, checks = await _checks(capsys)
            if checks["stuck runs"]["verdict"] == "warn":
                break
    finally:
        await client.get_workflow_handle("stuck-1").terminate()

    assert "stuck-1" in checks["stuck runs"]["seen"]
    assert "temporal workflow show --workflow-id stuck-1" in checks["stuck runs"]["mend"]


def _own_flow(tmp_path: Path) -> str:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "doer.md").write_text("---\nname: doer\ndescription: Does it.\n---\nYou do it.\n")
    (tmp_path / "mine.yaml").write_text(FLOW)
    return "mine.yaml"


async def test_a_started_run_has_its_input_its_summary_and_the_ids_that_are_printed(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = _own_flow(tmp_path)

    code = await _run("start", flow, "--task", "Mend\nit", "--repo", "r", "--id", "Run 1", "--json")
    printed = json.loads(capsys.readouterr().out)
    handle = client.get_workflow_handle("Run 1")
    given = await handle.result()
    described = await handle.describe()

    assert code == 0
    assert set(given) == {"spec", "task", "repo"}
    sent = FlowInput.model_validate(given)
    assert sent.spec is not None
    assert (sent.spec.text, list(sent.spec.files)) == (FLOW, ["agents/doer.md"])
    assert await described.static_summary() == "mine: Mend it"
    assert "**Task**\n\nMend\nit" in (await described.static_details() or "")
    assert printed == {
        "workflow_id": "Run 1",
        "execution_id": described.run_id,
        "run_id": run_id("Run 1", described.run_id),
    }


async def test_the_next_commands_are_printed_as_they_are_typed(
    client: Client, server: DevServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert client
    await _run("start", _own_flow(tmp_path), "--task", "t", "--repo", "r", "--id", "next-1")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "workflow id  next-1"
    assert f"result       temporal workflow result --workflow-id next-1 --address {server.address}" in lines


async def test_a_run_that_goes_on_is_not_started_again(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await client.start_workflow("Waits", id="twice", task_queue="nobody")

    code = await _run("start", _own_flow(tmp_path), "--task", "t", "--repo", "r", "--id", "twice")
    await client.get_workflow_handle("twice").terminate()

    assert code == 2
    assert "a run with workflow id twice is going on" in capsys.readouterr().err


async def test_a_refusal_of_the_server_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")

    code = await _run("start", _own_flow(tmp_path), "--task", "t", "--repo", "r")

    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the server refused: " in line
