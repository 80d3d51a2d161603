"""Every fact that a request can fix is stored by a create, and shown by GET and by lists where answers show it."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from httpx import AsyncClient
from msgspec import Raw
from msgspec.structs import fields
from redis.asyncio import Redis

from director.core.ids import PredictionId
from director.core.policy import Policy
from director.core.schema import Record, RequestFacts
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver

TRAINED: Final = "e5" * 32
OTHER: Final = "f7" * 32
SCHEMA: Final = {
    "openapi": "3.0.2",
    "components": {
        "schemas": {
            "Input": {"type": "object", "properties": {"key": {"type": "string", "x-cog-secret": True}}},
            "TrainingInput": {"type": "object", "properties": {}},
            "Output": {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"},
        }
    },
}
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS: Final = {
    "X-Priority": "high",
    "X-Cost": "2.5",
    "X-Affinity-Key": "session 7",
    "Cancel-After": "10m",
    "X-Start-After": "5m",
    "traceparent": PARENT,
    "tracestate": "rojo=00f067aa0ba902b7",
}
HOOK: Final = {"webhook": "https://example.com/hook", "webhook_events_filter": ["start", "completed"]}
CREATES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "predictions": ("/v1/predictions", {"version": TRAINED, "input": {"key": "hidden"}, **HOOK}),
    "deployments": (f"/v1/deployments/{ACCOUNT}/chat/predictions", {"input": {}, **HOOK}),
    "trainings": (f"/v1/models/{MODEL}/versions/{TRAINED}/trainings", {"destination": MODEL, "input": {}, **HOOK}),
}
# The name in answers of a fact that they show. The others are for operators and for the engine
SHOWN: Final = {
    "model": "model",
    "version": "version",
    "deployment": "deployment",
    "destination": "destination",
    "webhook": "webhook",
    "webhook_events": "webhook_events_filter",
}
HIDDEN: Final = {
    "account",
    "api_token",
    "tokens",
    "start_after",
    "budgeted",
    "endpoint",
    "once_shown",
    "queue",
    "lane",
    "cost",
    "affinity",
    "metered",
    "data_ttl_ms",
    "traceparent",
    "tracestate",
}
# by the addresses, the deadline, a redacted value, the story
SEEN_OTHERWISE: Final = {"kind", "url", "ticket", "deadline_status", "secret", "split"}
OPENAI: Final = {"endpoint", "once_shown"}  # no create of Replicate's API fixes them


Made = Mapping[str, tuple[Record, dict[str, Any]]]


@pytest.fixture
async def made(api: AsyncClient, redis: Redis, catalog: Catalog, driver: QueueDriver) -> Made:
    """Make one run by each way. Returns its record and its answer, by the way."""
    await Accounts(redis).set_limits(
        ACCOUNT, {"compute_s_per_day": "1000", "tokens_per_day": "1000", "data_ttl_s": "7200"}
    )
    schema = Raw(json.dumps(SCHEMA).encode())
    for kind in ("", "training"):
        await catalog.register_kind(MODEL, TRAINED, kind, schema=schema, server="echo", policy=Policy())
    chat = {
        "name": "chat",
        "model": MODEL,
        "version": TRAINED,
        "hardware": "cpu",
        "min_instances": 0,
        "max_instances": 1,
    }
    assert (await api.post("/v1/deployments", json=chat)).status_code == 200
    # one of 100 runs another version
    await catalog.register(MODEL, OTHER, schema=schema, server="echo", policy=Policy())
    tried = {"version": OTHER, "share": 1, "force": True}
    assert (await api.post(f"/v1/deployments/{ACCOUNT}/chat/split", json=tried)).status_code == 200
    found = {}
    for way, (path, body) in CREATES.items():
        answer = await api.post(path, json=body, headers=HEADERS)
        assert answer.status_code == 201, answer.text
        found[way] = (await driver.record(PredictionId(answer.json()["id"])), answer.json())
    return found


def test_every_fact_is_shown_or_named_as_hidden() -> None:
    assert {*SHOWN, *HIDDEN, *SEEN_OTHERWISE} == set(RequestFacts.__struct_fields__)


async def test_creates_store_every_fact_that_a_request_can_fix(made: Made) -> None:
    defaults = {field.name: field.default for field in fields(RequestFacts)}
    facts = [record.request_facts for record, _ in made.values()]
    left = {name for name, default in defaults.items() if all(of[name] == default for of in facts)}
    assert left == OPENAI


async def test_create_get_and_lists_show_the_facts_that_were_stored(api: AsyncClient, made: Made) -> None:
    for way, (record, answer) in made.items():
        listed = (await api.get(answer["urls"]["get"].rsplit("/", 1)[0])).json()["results"]
        shown = (await api.get(answer["urls"]["get"])).json()
        for seen in (answer, shown, *(one for one in listed if one["id"] == record.id)):
            for fact, key in SHOWN.items():
                value = getattr(record, fact)
                assert seen.get(key, "") == (value.split(",") if fact == "webhook_events" else value), (way, fact)
            assert seen["urls"]["get"].startswith(record.url)
            assert ("stream" in seen["urls"]) == bool(record.ticket)
            assert "deadline" in seen
        assert [one["id"] for one in listed].count(record.id) == 1
