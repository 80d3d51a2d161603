"""Read a request's trace from its headers `traceparent` and `tracestate`, by W3C's rules and within bounds. Malformed
headers never fail a request; they are ignored. No trace ids are made here.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

TraceHeaders = Mapping[str, str]
"""What is handed on with a prediction: `traceparent`, and `tracestate` where there is one; empty where none came."""

NO_TRACE: Final[TraceHeaders] = {}
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
