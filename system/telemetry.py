"""Traces: run > step > phase > model call and tool call, by OpenTelemetry; off until somebody listens.

On when ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set. No span carries a prompt, an output or the text of an error: the
names of attributes are a closed list, and messages and stack traces are taken out before anything is exported.

Workflow code may not import this module. There ``opentelemetry.trace.get_tracer("stepwise")`` is used as it is:
ids are deterministic and a replay ends no span twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Span, Status, StatusCode
from temporalio.contrib.opentelemetry import (
    OpenTelemetryPlugin,
    ReplaySafeTracerProvider,
    create_tracer_provider,
)

ENDPOINT_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACER: Final = "stepwise"
MAX_VALUE: Final = 200
"""Longest text of an attribute, in characters."""

_SCOPES: Final = frozenset({TRACER, "temporalio"})
_EXCEPTION_TYPE: Final = "exception.type"


class Attribute(StrEnum):
    """Every attribute a span of ours may have; the ``gen_ai`` names are OpenTelemetry's conventions."""

    RUN_ID = "stepwise.run_id"
    FLOW = "stepwise.flow"
    STEP = "stepwise.step"
    VISIT = "stepwise.visit"
    ATTEMPT = "stepwise.attempt"
    PHASE = "stepwise.phase"
    TRANSPORT = "stepwise.transport"
    OUTCOME = "stepwise.outcome"
    SYSTEM = "gen_ai.provider.name"
    OPERATION = "gen_ai.operation.name"
    REQUEST_MODEL = "gen_ai.request.model"
    RESPONSE_MODEL = "gen_ai.response.model"
    CONVERSATION = "gen_ai.conversation.id"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    TOOL_NAME = "gen_ai.tool.name"
    TOOL_CALL_ID = "gen_ai.tool.call.id"
    ERROR_TYPE = "error.type"


Value = str | int | float | bool


def plugins(env: Mapping[str, str], exporter: SpanExporter | None = None) -> list[OpenTelemetryPlugin]:
    """Return the plugin for ``Client.connect`` (which hands it to workers), or nothing where tracing is off.

    Sets the process's tracer provider, once. ``exporter`` beats the endpoint; its spans come without delay.
    """
    if exporter is None and not env.get(ENDPOINT_VARIABLE):
        return []
    provider = trace.get_tracer_provider()
    if isinstance(provider, ReplaySafeTracerProvider):
        fresh = False
    else:
        fresh, provider = True, create_tracer_provider(resource=Resource.create({"service.name": TRACER}))
        trace.set_tracer_provider(provider)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(_Scrubbed(exporter)))
    elif fresh:
        # Here, since it takes a tenth of a second to import what nobody needs without an endpoint.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        provider.add_span_processor(BatchSpanProcessor(_Scrubbed(OTLPSpanExporter())))
    return [OpenTelemetryPlugin(add_temporal_spans=True)]


def flush(timeout_s: float = 5.0) -> bool:
    """Send what is waiting, before a process ends without its exit handlers; False if the time was too short."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, ReplaySafeTracerProvider):
        return provider.force_flush(int(timeout_s * 1000))
    return True


@contextlib.contextmanager
def span(name: str, attributes: Mapping[Attribute, Value | None]) -> Iterator[Span]:
    """Run the block in a span; an exception marks it as failed by the name of its type alone."""
    tracer = trace.get_tracer(TRACER)
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as opened:
        for attribute, value in _known(attributes).items():
            opened.set_attribute(attribute, value)
        try:
            yield opened
        except BaseException as error:
            opened.set_attribute(Attribute.ERROR_TYPE.value, type(error).__name__)
            opened.set_status(Status(StatusCode.ERROR))
            raise


def past_span(name: str, parent: Context, attributes: Mapping[Attribute, Value | None], *, ms: int) -> None:
    """Add a span below ``parent`` that ends now and began ``ms`` milliseconds ago; for what was only observed."""
    end = time.time_ns()
    begin = end - ms * 1_000_000
    tracer = trace.get_tracer(TRACER)
    tracer.start_span(name[:MAX_VALUE], context=parent, start_time=begin, attributes=_known(attributes)).end(
        end
    )


def _known(attributes: Mapping[Attribute, Value | None]) -> dict[str, Value]:
    """Return the attributes that have a value, with texts cut: a model chooses the name of what it calls."""
    return {
        key.value: value[:MAX_VALUE] if isinstance(value, str) else value
        for key, value in attributes.items()
        if value is not None
    }


class _Scrubbed(SpanExporter):
    """Exports our spans and Temporal's, without the texts of errors: an agent's output may stand in them.

    Other libraries that know OpenTelemetry begin traces of their own, with what they think fit to say.
    """

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Pass the spans on, scrubbed."""
        return self._inner.export([_scrubbed(one) for one in spans if _is_ours(one)])

    def shutdown(self) -> None:
        """End the exporter."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what is waiting."""
        return self._inner.force_flush(timeout_millis)


def _is_ours(one: ReadableSpan) -> bool:
    scope = one.instrumentation_scope
    return scope is not None and scope.name.partition(".")[0] in _SCOPES


def _scrubbed(one: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=one.name,
        context=one.context,
        parent=one.parent,
        resource=one.resource,
        attributes=one.attributes,
        events=[
            Event(
                event.name,
                {k: v for k, v in (event.attributes or {}).items() if k == _EXCEPTION_TYPE},
                event.timestamp,
            )
            for event in one.events
        ],
        links=one.links,
        kind=one.kind,
        status=Status(one.status.status_code),
        start_time=one.start_time,
        end_time=one.end_time,
        instrumentation_scope=one.instrumentation_scope,
    )
