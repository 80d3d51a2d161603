"""Make spans of a prediction's steps if a collector is set, and pass on the headers of its trace in any case.

Spans need a collector in the environment (`OTEL_EXPORTER_OTLP_ENDPOINT`) and the extra `otel`. Without both, nothing is
imported and a span is only its headers. Spans contain no input, output, error text or URL.
"""

import importlib.util
import logging
import os
from collections.abc import Mapping
from typing import Final, Literal

from director.core.schema import Record
from director.core.trace_context import TraceHeaders

log = logging.getLogger(__name__)

SpanName = Literal["enqueue", "wait", "claim", "run", "webhook"]
SpanKind = Literal["internal", "server", "client"]
Facts = Mapping[str, str | int | float | bool]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP: Final = "http/protobuf"
NEEDED: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class Span:
    """One step of a trace; this class records nothing. `headers`: send them with each request that the step makes."""

    __slots__ = ("headers",)

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers

    def end(self, facts: Facts | None = None, *, error: str = "", at_ms: int | None = None) -> None:
        """End the step now, or at this unix time in ms. `error`: its class, in a word of ours."""


class Tracing:
    """Makes spans; this class makes spans that record nothing."""

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
        """Begin a step within `trace`, now or at this unix time in ms."""
        return Span(trace)

    def account(self, name: str) -> Facts:
        """Return the fact that names the account, if spans may name accounts."""
        return {}

    async def aclose(self) -> None:
        """Send the spans that were not sent yet."""


OFF: Final = Tracing()


def tracing_of(process: str, *, accounts: bool, environ: Mapping[str, str] | None = None) -> Tracing:
    """Return the tracing that the standard variables ask for. A setup that cannot work is logged, and stops nothing."""
    environ = os.environ if environ is None else environ
    if not _is_wanted(environ):
        return OFF
    if next((environ[name] for name in PROTOCOLS if environ.get(name)), HTTP) != HTTP:
        log.error("tracing is off: its protocol is not supported", extra={"supported": HTTP})
        return OFF
    if not all(map(_is_installed, NEEDED)):
        log.error("tracing is off: it is not installed", extra={"install": "director[otel]"})
        return OFF
    from director.runtime.otel import OtelTracing

    try:
        return OtelTracing.exporting(process, accounts=accounts)
    except ValueError:  # log only the names: the error's text contains values
        variables = sorted(name for name in environ if name.startswith("OTEL_"))
        log.error(
            "tracing is off: its variables contradict each other, or one is invalid", extra={"variables": variables}
        )
        return OFF


def _is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    return exporter == "otlp" or (not exporter and any(environ.get(name) for name in ENDPOINTS))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would contain it is missing too
        return False


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
