"""Make spans of a prediction's steps if a collector is set, and pass on the headers of its trace in any case.

Spans need a collector in the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`) and the extra `otel`. Without both, nothing is
imported and a span is only its headers. Spans contain no input, output, error text or URL.
"""

from collections.abc import Mapping
from typing import Final, Literal

from director.core.schema import Record
from director.core.trace_context import TraceHeaders

SpanName = Literal["enqueue", "wait", "claim", "run", "webhook"]
SpanKind = Literal["internal", "server", "client"]
Facts = Mapping[str, str | int | float | bool]


class Span:
    """One step of a trace; this class records nothing. `headers`: send them with each request that the step makes."""

    __slots__ = ("headers",)

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers

    def end(self, facts: Facts | None = None, *, error: str = "", at_ms: int | None = None) -> None: ...


class Tracing:
    is_on = False

    def begin(
        self,
        name: SpanName,
        trace: TraceHeaders,
        *,
        kind: SpanKind = "internal",
        at_ms: int | None = None,
        facts: Facts | None = None,
    ) -> Span:
        return Span(trace)

    def account(self, name: str) -> Facts:
        return {}

    async def aclose(self) -> None: ...


OFF: Final = Tracing()


def facts_of(tracing: Tracing, record: Record) -> Facts:
    """Return the facts of a prediction that are the same in each of its spans. Never its input, output or logs."""
    return {
        "prediction": record.id,
        "kind": record.kind or "prediction",
        "queue": record.queue,
        "model": record.model,
        "version": record.version,
        "lane": record.lane,
        **tracing.account(record.account),
    }
