"""Spans of a prediction's way, where somebody collects them, and the headers of its trace, which go on in any case.

Off unless the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`) and the extra `otel` is installed; then
nothing is imported, and a span is only the headers that it was given. Spans have no input, output, error text or URL.
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
    """One step of a trace. This one is seen by nobody. `headers`: what whoever is asked within it is given."""

    __slots__ = ("headers",)

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers

    def end(self, facts: Facts | None = None, *, error: str = "", at_ms: int | None = None) -> None:
        """It is over: now, or at this unix time. `error`: its class, in a word of ours."""


class Tracing:
    """Makes spans. This one makes none."""

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
        """Begin a step within what `trace` names, now or at this unix time."""
        return Span(trace)

    def account(self, name: str) -> Facts:
        """Whose it is, where spans may tell."""
        return {}

    async def aclose(self) -> None:
        """Hand over what was not yet."""


OFF: Final = Tracing()


def tracing_of(process: str, *, accounts: bool, environ: Mapping[str, str] | None = None) -> Tracing:
    """What the environment asks for, by the standard variables. What cannot be had is in the log, and stops nothing."""
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
    except ValueError:  # told without its text: that has values
        variables = sorted(name for name in environ if name.startswith("OTEL_"))
        log.error(
            "tracing is off: its variables do not go together, or one makes no sense", extra={"variables": variables}
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
    except ModuleNotFoundError:  # not even what it lies in
        return False


# What spans tell of a prediction: what it is and where it waits. Never what was sent, made or logged. Pure.


def facts_of(tracing: Tracing, record: Record) -> Facts:
    """The same in every span of it."""
    return {
        "prediction": record.id,
        "kind": record.kind or "prediction",
        "queue": record.queue,
        "model": record.model,
        "version": record.version,
        "lane": record.lane,
        **tracing.account(record.account),
    }
