"""Traces for a test: callers who begin them, and all spans that processes made of them, in memory.

Never judges a trace: `Traces.of` hands out what there is, by name.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from director.runtime.otel import OtelTracing

__all__ = ("CALLER", "Trace", "Traces", "facts", "new_traces", "parent_of", "traceparent_of")

Trace = dict[str, list[ReadableSpan]]

CALLER: Final = "00f067aa0ba902b7"
"""The caller's own span, in each of its traces."""


class Traces:
    """What the processes of one test made."""

    def __init__(self) -> None:
        self._exporter = _Kept()

    def tracing(self, process: str, *, accounts: bool = False) -> OtelTracing:
        """For one process. Its spans are here as soon as they end."""
        provider = TracerProvider(resource=Resource({"service.name": process}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        return OtelTracing(provider, accounts=accounts)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def by_trace(self) -> dict[str, Trace]:
        """The spans of each trace by their name, as they ended."""
        found: dict[str, Trace] = {}
        for span in self.all:
            trace = found.setdefault(format(_context(span).trace_id, "032x"), {})
            trace.setdefault(span.name, []).append(span)
        return found

    def of(self, trace_id: str) -> Trace:
        """Those of one trace."""
        return self.by_trace.get(trace_id, {})


class _Kept(InMemorySpanExporter):
    """Goes on when one of the processes ends: the others are still there."""

    def shutdown(self) -> None:
        """Not before the test ends."""


def new_traces() -> Iterator[str]:
    """Ids of traces, each another one."""
    return (format(number, "032x") for number in count(0xA0))


def traceparent_of(span: ReadableSpan) -> str:
    """What whoever is asked within it is given."""
    context = _context(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent_of(span: ReadableSpan) -> str:
    """The id of the span that it lies in, '' where it is the first of a trace."""
    return "" if span.parent is None else format(span.parent.span_id, "016x")


def facts(span: ReadableSpan) -> Mapping[str, Any]:
    """What it tells, by names without our prefix."""
    return {name.removeprefix("director."): fact for name, fact in (span.attributes or {}).items()}


def _context(span: ReadableSpan) -> Any:
    context = span.context
    assert context is not None
    return context
