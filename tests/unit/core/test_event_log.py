import json
from typing import Any

import msgspec
import pytest

from director.core.schema import Event
from director.core.view import show_event

AT = 1_800_000_000_000
LATER = {"next_at": "2027-01-15T08:00:05.000Z"}
ATTEMPT = {"event": "completed", "attempt": 2, "host": "h.example", "rule": None}


@pytest.mark.parametrize(
    ("kind", "data", "shown"),
    [
        ("created", b"", None),
        ("started", b"", None),
        ("revived", b"", None),
        ("output", b'{"a":[],"n":12345678901234567890123}', {"a": [], "n": 12345678901234567890123}),
        ("output", b"null", None),
        ("logs", b'"a line\\n"', "a line\n"),
        ("metric", b'{"name":"n","value":1,"mode":"replace"}', {"name": "n", "value": 1, "mode": "replace"}),
        ("retried", b"director_lost d1 123", {"code": "director_lost", "director": "d1"}),
        ("released", b"server_full d1 123", {"code": "server_full", "director": "d1"}),
        ("released", b"draining", {"code": "draining", "director": ""}),
        ("completed", b"succeeded", {"status": "succeeded"}),
        (
            "webhook",
            b"completed failed 500 2 1800000005000 h.example",
            {**ATTEMPT, **LATER, "outcome": "failed", "status": 500},
        ),
        (
            "webhook",
            b"completed refused - 2 - h.example",
            {**ATTEMPT, "outcome": "refused", "status": None, "next_at": None},
        ),
        (
            "webhook",
            b"completed refused - 2 - h.example http_not_allowed",
            {**ATTEMPT, "outcome": "refused", "status": None, "next_at": None, "rule": "http_not_allowed"},
        ),
    ],
)
def test_an_event_is_shown_with_what_belongs_to_it(kind: str, data: bytes, shown: Any) -> None:
    wire = json.loads(msgspec.json.encode(show_event(Event(7, kind, AT, data))))
    assert wire == {"seq": 7, "type": kind, "at": "2027-01-15T08:00:00.000Z", "data": shown}
