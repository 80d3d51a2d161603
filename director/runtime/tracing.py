"""Read a request's trace, pass it on, and make spans of a prediction's steps if a collector is set.

The trace comes from the headers `traceparent` and `tracestate`, by W3C's rules and within bounds. Malformed headers
never fail a request; they are ignored. No trace ids are made here. Spans need a collector in the environment
(`OTEL_EXPORTER_OTLP_ENDPOINT`) and the extra `otel`. Without both, nothing is imported and a span is only its headers.
Spans contain no input, output, error text or URL.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from director.core.schema import NO_TRACE, Record, TraceHeaders

SpanName = Literal["enqueue", "wait", "claim", "run", "webhook"]
SpanKind = Literal["internal", "server", "client"]
Facts = Mapping[str, str | int | float | bool]

SAMPLED: Final = 0x01
KNOWN_FLAGS: Final = 0x03  # sampled, and random trace id; other flags are not passed on

# https://www.w3.org/TR/trace-context-2: later versions may add to the end, after another dash
TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
KEY: Final = r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
VALUE: Final = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
MEMBER: Final = re.compile(f"({KEY})={VALUE}")
BLANKS: Final = " \t"

MOST_MEMBERS: Final = 32
MOST_CHARS: Final = 512  # what W3C requires every party to pass on; a record keeps no more
LONG: Final = 128  # longer members are dropped first


def trace_headers(traceparents: Sequence[str], tracestates: Sequence[str]) -> TraceHeaders:
    if len(traceparents) != 1 or (parent := _parent(traceparents[0].strip(BLANKS))) is None:
        return NO_TRACE
    state = _state(",".join(tracestates)) if tracestates else ""
    return {"traceparent": parent, "tracestate": state} if state else {"traceparent": parent}


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


def _parent(text: str) -> str | None:
    found = TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "00" and more is not None:
        return None
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & KNOWN_FLAGS:02x}"


def _state(text: str) -> str:
    members = [member for part in text.split(",", MOST_CHARS) if (member := part.strip(BLANKS))]
    keys = [found[1] for member in members if (found := MEMBER.fullmatch(member))]
    if not len(members) == len(keys) == len(set(keys)) <= MOST_MEMBERS:
        return ""
    if len(",".join(members)) > MOST_CHARS:
        members = [member for member in members if len(member) <= LONG]
    while len(",".join(members)) > MOST_CHARS:
        members.pop()
    return ",".join(members)
