"""One trace per run, whoever started it and however many workers it took."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from conftest import UNITTEST, Rig, eventually
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collected:
    """What a collector received."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)

    def named(self, start: str) -> list[Span]:
        """Return the spans whose name begins so."""
        return [span for span in self.spans if span.name.startswith(start)]

    def above(self, span: Span) -> list[str]:
        """Return the names of a span and of those around it, innermost first."""
        by_id = {one.span_id: one for one in self.spans}
        names: list[str] = []
        at: Span | None = span
        while at is not None:
            names.append(at.name)
            at = by_id.get(at.parent_span_id)
        return names


@pytest.fixture
def collector() -> Iterator[Collected]:
    """A small OTLP collector on a free port."""
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    collected.spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        collected.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield collected
        server.shutdown()
        thread.join()


async def test_a_run_started_by_the_cli_is_one_nested_trace_across_a_killed_worker(
    rig: Rig, demo_repo: Path, collector: Collected, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    scenario = f"""
version: 1
steps:
  implement:
    turns:
      - work:
          - {{do: edit, path: a.txt, content: "secret words of the agent"}}
          - {{do: wait_for_file, path: {go}}}
          - {{do: run, argv: [echo, done]}}
          - {{do: tokens, prompt: 7, completion: 3}}
        finalize:
          actions:
            - {{do: run, argv: [echo, asked]}}
            - {{do: tokens, prompt: 5, completion: 1}}
"""
    tracing = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    first = rig.worker(**tracing)
    rig.start(
        "traced",
        {
            "flow": "direct",
            "repo": str(demo_repo),
            "task": "words nobody may export",
            "params": {"test": UNITTEST},
            "scenario": {"name": "s.yaml", "text": scenario},
        },
    )
    run_id = await rig.run_id("traced")
    eventually((rig.folder / "disk" / "runs" / run_id / "ws" / "a.txt").exists)
    first.kill()
    first.wait()
    go.touch()
    second = rig.worker(**tracing)
    result = await rig.result("traced")
    second.terminate()
    assert second.wait(30) == 0

    assert result.outcome == "unverified"
    assert len({span.trace_id for span in collector.spans}) == 1
    (run_span,) = collector.named("RunWorkflow")
    assert len(collector.named("step implement")) == 1
    turns = [collector.above(turn) for turn in collector.named("invoke_agent")]
    around = [names for names in turns if "step implement" in names]
    for phase in ("work", "finalize"):
        wanted = ["invoke_agent stub", f"RunActivity:{phase}", f"StartActivity:{phase}"]
        assert around.count([*wanted, "step implement", run_span.name]) == 1
        # Those of the attempt that was killed may have been sent before it died.
        for kind in ("execute_tool", "chat"):
            assert any(collector.above(one)[1:3] == wanted[:2] for one in collector.named(kind)), (
                kind,
                phase,
            )
    (asked,) = [one for one in collector.named("invoke_agent") if "RunActivity:finalize" in collector.above(one)
                and "step implement" in collector.above(one)]  # fmt: skip
    said = {each.key: each.value for each in asked.attributes}
    assert said["stepwise.phase"].string_value == "finalize"
    assert (said["gen_ai.usage.input_tokens"].int_value, said["gen_ai.usage.output_tokens"].int_value) == (
        5,
        1,
    )
    exported = "".join(str(span) for span in collector.spans)
    assert "words nobody may export" not in exported
    assert "secret words" not in exported
