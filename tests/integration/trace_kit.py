"""A small collector of traces, for tests that look at what a worker exports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collected:
    """What a collector received."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a worker that exports to it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

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


def attributes_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    found = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = getattr(one.value, kind) if kind else None
    return found


@contextmanager
def collecting() -> Iterator[Collected]:
    """Hold an OTLP collector on a free port."""
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
