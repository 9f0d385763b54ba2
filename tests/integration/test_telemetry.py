"""Traces and log lines of a real run: one trace, each line once, no texts of errors."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from system import logs, telemetry
    from system.devserver import DevServer, temporal_binary
    from system.telemetry import Attribute

QUEUE = "telemetry"
EXPORTER = InMemorySpanExporter()
PAST = ("call " + "y" * 500)[: telemetry.MAX_VALUE]
"""The name of a span of what was only observed, cut."""


@activity.defn
async def model_call(fail: bool) -> str:
    attributes: dict[Attribute, telemetry.Value | None] = {
        Attribute.TOOL_NAME: "x" * 500,
        Attribute.INPUT_TOKENS: 12,
        Attribute.STEP: None,
    }
    # What a library says of itself is not exported.
    trace.get_tracer("some.library").start_span("s3cret").end()
    telemetry.past_span("call " + "y" * 500, get_current(), attributes, ms=1)
    with telemetry.span("model call", attributes):
        if fail:
            raise ApplicationError("the s3cret prompt", type="ModelFailed")
    return "done"


@workflow.defn
class Traced:
    @workflow.run
    async def run(self, fail: bool) -> str:
        log = logging.getLogger("stepwise.workflows")
        with trace.get_tracer("stepwise").start_as_current_span("step 1"):
            log.info("step 1 begins")
            await workflow.sleep(0.01)
            result = await workflow.execute_activity(
                model_call,
                fail,
                start_to_close_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        log.info("step 1 ends")
        return result


@pytest.fixture(scope="module")
def server() -> Iterator[DevServer]:
    with DevServer.start(ui=False) as started:
        yield started


@pytest.fixture(scope="module")
def plugins() -> list[OpenTelemetryPlugin]:
    return telemetry.plugins({}, exporter=EXPORTER)


@pytest.fixture
async def client(server: DevServer, plugins: list[OpenTelemetryPlugin]) -> AsyncIterator[Client]:
    client = await Client.connect(server.address, plugins=plugins)
    EXPORTER.clear()
    # Nothing is cached: each workflow task replays the run from its beginning.
    async with Worker(
        client, task_queue=QUEUE, workflows=[Traced], activities=[model_call], max_cached_workflows=0
    ):
        yield client


async def _started_by_the_cli(server: DevServer, workflow_id: str, *, fail: bool) -> None:
    """Start a run as people do, without any trace of the caller."""
    started = await asyncio.create_subprocess_exec(
        *(temporal_binary(), "workflow", "start", "--type", "Traced", "--task-queue", QUEUE),
        *("--workflow-id", workflow_id, "--input", json.dumps(fail), "--address", server.address),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await started.wait() == 0


@contextlib.contextmanager
def _logging_to(stream: io.StringIO) -> Iterator[None]:
    targets = [logging.getLogger(name) for name in ("stepwise", "temporalio")]
    before = [(list(one.handlers), one.level, one.propagate) for one in targets]
    logs.set_up(stream=stream)
    try:
        yield
    finally:
        for one, (handlers, level, propagate) in zip(targets, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)


def _spans() -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for one in EXPORTER.get_finished_spans():
        found.setdefault(one.name, []).append(one)
    return found


async def test_a_run_started_by_the_cli_is_one_trace_although_it_is_replayed(
    server: DevServer, client: Client
) -> None:
    await _started_by_the_cli(server, "one-trace", fail=False)
    assert await client.get_workflow_handle("one-trace").result() == "done"

    spans = _spans()
    assert {name: len(found) for name, found in spans.items()} == {
        "RunWorkflow:Traced": 1,
        "step 1": 1,
        "StartActivity:model_call": 1,
        "RunActivity:model_call": 1,
        PAST: 1,
        "model call": 1,
    }
    ids = {one.context.trace_id for found in spans.values() for one in found if one.context}
    assert len(ids) == 1
    names = {one.context.span_id: one.name for found in spans.values() for one in found if one.context}
    parents = {name: names.get(found[0].parent.span_id) for name, found in spans.items() if found[0].parent}
    assert parents == {
        "step 1": "RunWorkflow:Traced",
        "StartActivity:model_call": "step 1",
        "RunActivity:model_call": "StartActivity:model_call",
        "model call": "RunActivity:model_call",
        PAST: "RunActivity:model_call",
    }


async def test_attributes_are_cut_and_empty_ones_left_out(server: DevServer, client: Client) -> None:
    await _started_by_the_cli(server, "attributes", fail=False)
    await client.get_workflow_handle("attributes").result()

    for name in ("model call", PAST):
        (call,) = _spans()[name]
        assert dict(call.attributes or {}) == {
            "gen_ai.tool.name": "x" * telemetry.MAX_VALUE,
            "gen_ai.usage.input_tokens": 12,
        }


async def test_no_text_of_an_error_leaves_in_a_span(server: DevServer, client: Client) -> None:
    await _started_by_the_cli(server, "failing", fail=True)
    with pytest.raises(WorkflowFailureError):
        await client.get_workflow_handle("failing").result()

    spans = _spans()
    (call,) = spans["model call"]
    assert call.status.status_code is StatusCode.ERROR
    assert (call.attributes or {})["error.type"] == "ApplicationError"
    assert spans["RunActivity:model_call"][0].status.status_code is StatusCode.ERROR
    everything = [one.to_json() for found in spans.values() for one in found]
    assert not [text for text in everything if "s3cret" in text]
    assert any("exception.type" in text for text in everything)


async def test_each_line_of_a_workflow_is_logged_once_although_it_is_replayed(
    server: DevServer, client: Client
) -> None:
    stream = io.StringIO()
    with _logging_to(stream):
        await _started_by_the_cli(server, "logged", fail=False)
        await client.get_workflow_handle("logged").result()

    messages = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert messages == ["step 1 begins", "step 1 ends"]


class _Said(io.StringIO):
    """A stream that tells when a text was written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.said = text, threading.Event()

    def write(self, text: str) -> int:
        if self._text in text:
            self.said.set()
        return super().write(text)


async def test_a_server_that_is_away_is_a_line_of_the_log(tmp_path: Path) -> None:
    db = tmp_path / "runs.sqlite"
    stream = _Said("_task_queue retried")
    with _logging_to(stream):
        server = await asyncio.to_thread(lambda: DevServer.start(db, ui=False))
        with server:
            client = await Client.connect(server.address, runtime=logs.core_runtime())
            async with Worker(client, task_queue=QUEUE, workflows=[Traced], activities=[model_call]):
                await client.execute_workflow(Traced.run, args=[False], id="before", task_queue=QUEUE)
                await asyncio.to_thread(server.kill)
                assert await asyncio.to_thread(stream.said.wait, 60)
                await asyncio.to_thread(server.restart)

    (line, *_) = [json.loads(line) for line in stream.getvalue().splitlines() if "retried" in line]
    assert line["level"] == "WARNING"
    assert line["logger"].startswith("temporalio.core")
    assert "temporal_log" not in line


def test_without_an_endpoint_there_is_no_plugin() -> None:
    assert telemetry.plugins({}) == []
    assert telemetry.plugins({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}) == []


def test_a_flush_without_anything_waiting_is_done_at_once(
    plugins: list[OpenTelemetryPlugin],
) -> None:
    assert plugins
    assert telemetry.flush(1.0)


def test_spans_reach_the_endpoint_before_a_process_ends_without_its_exit_handlers() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    code = (
        "import os\n"
        "from system import telemetry\n"
        "assert len(telemetry.plugins(os.environ)) == len(telemetry.plugins(os.environ)) == 1\n"
        "with telemetry.span('phase work', {telemetry.Attribute.RUN_ID: 'fix-1'}): pass\n"
        "assert telemetry.flush()\n"
        "os._exit(0)\n"
    )
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            cwd=Path(__file__).resolve().parents[2],
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"},
        )
        collector.shutdown()
        thread.join()

    (sent,) = received
    assert sent[0] == "/v1/traces"
    for expected in (b"phase work", b"stepwise.run_id", b"fix-1", b"service.name"):
        assert expected in sent[1]
