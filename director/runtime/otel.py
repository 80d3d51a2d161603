"""Make OpenTelemetry spans and send them to a collector over HTTP, from a thread of their own.

Imported only if a collector is set. A prediction that its caller did not want sampled has no spans. A step without a
trace has none either, except a server's step, which begins a trace.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from director import __version__
from director.core.schema import NO_TRACE, TraceHeaders
from director.runtime.tracing import SAMPLED, Facts, Span, SpanKind, SpanName, Tracing, trace_headers

log = logging.getLogger(__name__)

KINDS: Final = {"internal": otel.SpanKind.INTERNAL, "server": otel.SpanKind.SERVER, "client": otel.SpanKind.CLIENT}
LAST_EXPORT_S: Final = 5.0
LOG_EVERY_S: Final = 60.0
# their reports contain the collector's URL, which may have a key in it; ours do not
SILENT: Final = ("opentelemetry", "requests", "urllib3")
UNNAMED: Final = "unknown_service"


class OtelTracing(Tracing):
    is_on = True

    def __init__(self, provider: TracerProvider, *, accounts: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("director", __version__)
        self._accounts = accounts

    @classmethod
    def exporting(cls, process: str, *, accounts: bool) -> "OtelTracing":
        """Export as the OTEL_… variables say. If they name no service, it is named after the process."""
        for name in SILENT:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED):
            name = process if process == "director" else f"director-{process}"
            resource = resource.merge(Resource({SERVICE_NAME: name}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_LoggedExporter(OTLPSpanExporter())))
        return cls(provider, accounts=accounts)

    def begin(
        self,
        name: SpanName,
        trace: TraceHeaders,
        *,
        kind: SpanKind = "internal",
        at_ms: int | None = None,
        facts: Facts | None = None,
    ) -> Span:
        parent = _parent(trace)
        if parent is None and kind != "server":
            return Span(trace)
        if parent is not None and not parent.trace_flags & SAMPLED:
            return Span(trace)
        context = Context()  # never the current task's context, which may belong to another trace
        if parent is not None:
            context = otel.set_span_in_context(otel.NonRecordingSpan(parent), context)
        span = self._tracer.start_span(
            name, context, KINDS[kind], attributes=_name(facts or NO_TRACE), start_time=_ns(at_ms)
        )
        return _OtelSpan(span)

    def account(self, name: str) -> Facts:
        return {"account": name} if self._accounts else {}

    async def aclose(self) -> None:
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, LAST_EXPORT_S)


class _OtelSpan(Span):
    __slots__ = ("_span",)

    def __init__(self, span: otel.Span) -> None:
        super().__init__(_headers(span.get_span_context()))
        self._span = span

    def end(self, facts: Facts | None = None, *, error: str = "", at_ms: int | None = None) -> None:
        if facts:
            self._span.set_attributes(_name(facts))
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(otel.StatusCode.ERROR, error)
        self._span.end(_ns(at_ms))


class _LoggedExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0
        self._logged_at = -LOG_EVERY_S

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() - self._logged_at >= LOG_EVERY_S:
                log.warning("the collector does not accept spans", extra={"lost": self._lost})
                self._logged_at, self._lost = time.monotonic(), 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _parent(trace: TraceHeaders) -> otel.SpanContext | None:
    # checked again: another release may have written it
    known = trace_headers([trace["traceparent"]], []) if trace else NO_TRACE
    if not known:
        return None
    _, trace_id, span_id, flags = known["traceparent"].split("-")
    state = trace.get("tracestate")
    return otel.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=otel.TraceFlags(int(flags, 16)),
        trace_state=otel.TraceState.from_header([state]) if state else None,
    )


def _headers(context: otel.SpanContext) -> TraceHeaders:
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    state = context.trace_state.to_header()
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


def _name(facts: Facts) -> dict[str, str | int | float | bool]:
    return {name if "." in name else f"director.{name}": fact for name, fact in facts.items()}


def _ns(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * 1_000_000
