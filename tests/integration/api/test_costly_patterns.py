"""Test that a tenant whose inputs are slow to match with their model's patterns delays no other tenant."""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from httpx import AsyncClient
from msgspec import Raw
from redis.asyncio import Redis

from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.api import live_api
from tests.support.eventually import every
from tests.support.queue_driver import VERSION
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.faults]

TIMES: Final = 5  # the wait may be this many times that beside as many requests without a pattern
SENDERS: Final = 6
CREATES: Final = 10
ROUNDS: Final = 3  # each with all models in turn, as a busy machine has slow and quick minutes
# In a text of a and b all states of such a pattern stay alive, and no text matches
STATES: Final = (8, 110)
LONGEST: Final = 4_096
CONTROL: Final = "control"


def document(text: Mapping[str, Any]) -> Raw:
    schema = {"properties": {"text": {"type": "string", **text}}}
    return Raw(json.dumps({"components": {"schemas": {"Input": schema}}}).encode())


@pytest.fixture
async def models(catalog: Catalog) -> dict[str, str]:
    """Register a model for each pattern, a control that refuses texts by their length, and one that takes all."""
    schemas = {f"states-{states}": {"pattern": f"(a|b)*a(a|b){{{states}}}c"} for states in STATES}
    schemas |= {CONTROL: {"maxLength": 3}, "plain": {}}
    for name, text in schemas.items():
        await catalog.register(f"acme/{name}", VERSION, schema=document(text), server="echo", policy=Policy())
    return {name: f"/v1/models/acme/{name}/predictions" for name in schemas}


class Tenant:
    def __init__(self, http: AsyncClient, token: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"}
        self._dice = random.Random(1)

    async def create(self, path: str, *, length: int = 2) -> int:
        text = "".join(self._dice.choices("ab", k=length))
        return (await self._http.post(path, json={"input": {"text": text}}, headers=self._headers)).status_code

    async def waits_s(self, path: str) -> list[float]:
        """Return the times of ordinary creates."""
        taken = []
        async for _ in every(0.01, CREATES):
            began = time.monotonic()
            assert await self.create(path) == 201
            taken.append(time.monotonic() - began)
        return taken

    async def longest_judged(self, path: str) -> int:
        """Return the length of the longest text that the API itself compares, of those that double."""
        length = LONGEST
        while (status := await self.create(path, length=length)) != 422:
            assert (status, length > 1) == (201, True)
            length //= 2
        return length

    async def press(self, path: str, length: int, until: "asyncio.Task[list[float]]") -> None:
        while not until.done():
            assert await self.create(path, length=length) == 422


async def test_others_wait_no_longer_for_inputs_that_are_slow_to_match(
    server: RedisServer, redis: Redis, models: dict[str, str]
) -> None:
    tokens = [await Accounts(redis).create_token(name) for name in ("attacker", "tenant")]
    waits_s: dict[str, list[float]] = {name: [] for name in models}
    async with live_api(server.url) as live, AsyncClient(base_url=live.url, trust_env=False, timeout=60) as http:
        attacker, tenant = (Tenant(http, token) for token in tokens)
        plain = models.pop("plain")
        lengths = {name: await attacker.longest_judged(path) for name, path in models.items()}
        for name, path in [*models.items()] * ROUNDS:
            measuring = asyncio.create_task(tenant.waits_s(plain))
            await asyncio.gather(*(attacker.press(path, lengths[name], measuring) for _ in range(SENDERS)))
            waits_s[name] += await measuring
    await redis.flushall()  # what no director will run
    medians_s = {name: statistics.median(waits_s[name]) for name in models}
    assert max(medians_s.values()) <= TIMES * medians_s[CONTROL], medians_s
