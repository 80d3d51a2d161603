"""Collect the traces of a test in memory: callers' traces and all spans that processes added."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from director.runtime.otel import OtelTracing

Trace = dict[str, list[ReadableSpan]]

CALLER: Final = "00f067aa0ba902b7"
"""The caller's own span, in each of its traces."""


class Traces:
    def __init__(self) -> None:
        self._exporter = _Kept()

    def tracing(self, process: str, *, accounts: bool = False) -> OtelTracing:
        provider = TracerProvider(resource=Resource({"service.name": process}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        return OtelTracing(provider, accounts=accounts)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def by_trace(self) -> dict[str, Trace]:
        found: dict[str, Trace] = {}
        for span in self.all:
            trace = found.setdefault(format(_context(span).trace_id, "032x"), {})
            trace.setdefault(span.name, []).append(span)
        return found

    def of(self, trace_id: str) -> Trace:
        return self.by_trace.get(trace_id, {})


class _Kept(InMemorySpanExporter):
    """An exporter that outlives each process: the other processes continue to use it."""

    def shutdown(self) -> None:
        """Do nothing before the test ends."""


def new_traces() -> Iterator[str]:
    return (format(number, "032x") for number in count(0xA0))


def traceparent_of(span: ReadableSpan) -> str:
    context = _context(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent_of(span: ReadableSpan) -> str:
    return "" if span.parent is None else format(span.parent.span_id, "016x")


def facts(span: ReadableSpan) -> Mapping[str, Any]:
    return {name.removeprefix("director."): fact for name, fact in (span.attributes or {}).items()}


def _context(span: ReadableSpan) -> Any:
    context = span.context
    assert context is not None
    return context
