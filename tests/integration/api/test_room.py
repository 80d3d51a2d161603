"""Under all its limits, an account cannot fill the room that others need, by any route."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from httpx import AsyncClient, Response
from msgspec import Raw
from msgspec.structs import replace

from api.app import ROUTES
from director.broker import keys
from director.broker.redis_client import client
from director.core.clock import SystemClock
from director.core.ids import queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import PlayedDirector, api_client
from tests.support.queue_driver import MODEL, VERSION, QueueDriver, driving
from tests.support.servers import redis_server

pytestmark = [pytest.mark.heavy, pytest.mark.not_on("cluster", "sentinel", why="it fills a server of its own")]

ROOM: Final = 25 << 20
LIMITS: Final = {"max_data_bytes": "1000000", "max_files_bytes": "10000000"}
# The count is an estimate: a record takes up to twice its bytes, and the server allocates ahead
MOST_GROWTH: Final = 3 << 20
MOST_ROUNDS: Final = 300
AT_ONCE: Final = 20
NEW: Final = "c3" * 32
LLM, LLM_VERSION = "acme/llm", "d4" * 32
# Two at once disturb each other
ONE_BY_ONE: Final = {
    *("predictions.webhooks.redeliver", "deployments.update"),
    *("openai.chat.completions", "openai.completions", "openai.embeddings"),
}
REFUSED: Final = 60  # in a row, and then the route is closed to the account
LONG: Final = {"webhook": f"https://example.com/{'w' * 2000}", "webhook_events_filter": ["start"]}
TRACE: Final = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": f"k={'v' * 250},l={'v' * 240}"}
SCHEMA: Final = Raw(
    json.dumps({"openapi": "3.0.2", "info": {"title": "x" * 300_000, "version": "1"}, "paths": {}}).encode()
)
TEXT: Final = {"description": "d" * 5_000, "github_url": f"https://example.com/{'g' * 1_900}"}


class Town:
    def __init__(self, api: AsyncClient, driver: QueueDriver, headers: dict[str, str]) -> None:
        self.driver = driver
        self._api = api
        self._headers = headers
        self._numbers = count()
        self.llm = PlayedDirector(driver.scripts, queue_name(LLM, LLM_VERSION))

    def number(self) -> int:
        return next(self._numbers)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        return await self._api.request(method, f"/v1{path}", json=body, headers=self._headers | headers)

    async def ask_as_openai(self, path: str, body: dict[str, Any]) -> Response:
        headers = self._headers | {"idempotency-key": f"{self.number()}"} | TRACE
        return await self._api.post(f"/openai/v1{path}", json=body, headers=headers)

    async def upload_lines(self) -> Response:
        line = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"model": LLM, "prompt": "x"}}
        files = {"file": ("n" * 250 + ".json", json.dumps(line).encode())}
        return await self._api.post("/openai/v1/files", files=files, data={"purpose": "batch"}, headers=self._headers)

    async def upload(self) -> Response:
        form = {"metadata": json.dumps({"x": "y" * 1000}), "filename": "n" * 255}
        return await self._api.post("/v1/files", files={"content": b""}, data=form, headers=self._headers)

    async def post(self, path: str, **body: Any) -> Response:
        """Create something with the longest headers, and an input that is short: so the record counts most."""
        key = {"idempotency-key": f"{self.number()}", "host": f"{'h' * 200}.example", "x-affinity-key": "k"}
        return await self.ask("POST", path, {"input": {"text": "x"}, **LONG, **body}, **key, **TRACE)


Attack = Callable[[Town], Awaitable[Response]]


async def redeliver(town: Town) -> Response:
    """Create one that ends, and have its webhook delivered again."""
    made = await town.post("/predictions", version=VERSION)
    if made.status_code == 201:
        await town.driver.finish(await town.driver.claim_one(), Status.FAILED, error="No.", code="model_failed")
        await town.ask("POST", f"/predictions/{made.json()['id']}/webhooks/redeliver")
    return made


async def call(town: Town, path: str, **body: Any) -> Response:
    """Make a call of OpenAI's API, which a director ends at once."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(town.llm.run, lambda _: b'{"id":"c"}')
        answer = await town.ask_as_openai(path, {"model": LLM, **body})
        tasks.cancel_scope.cancel()
    return answer


async def open_batch(town: Town) -> Response:
    uploaded = await town.upload_lines()
    if uploaded.status_code >= 300:
        return uploaded
    asked = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return await town.ask_as_openai("/batches", {**asked, "metadata": {f"k{n}": "v" * 500 for n in range(16)}})


def tries_version(then: str) -> Attack:
    """Make a deployment that tries a version, and do that with it."""

    async def attack(town: Town) -> Response:
        made = await town.ask("POST", "/deployments", release := deploys(town))
        path = f"/deployments/mallory/{release['name']}"
        answer = await town.ask("POST", f"{path}/split", {"version": NEW, "share": 50, "force": True})
        if then and answer.status_code < 300:
            answer = await town.ask("POST", f"{path}/{then}")
        return made if made.status_code >= 300 else answer

    return attack


def changes_model(town: Town) -> Awaitable[Response]:
    text = {**TEXT, "readme": f"{town.number()}".ljust(100_000, "r")}
    return town.ask("PATCH", f"/models/mallory/m{town.number() % 40}", text)


def deploys(town: Town) -> dict[str, Any]:
    release = {"hardware": "cpu", "min_instances": 0, "max_instances": 1}
    return {"name": f"d{town.number()}", "model": MODEL, "version": VERSION, **release}


# By route that stores something: the call that stores the most
ATTACKS: Final[dict[str, Attack]] = {
    "predictions.create": lambda town: town.post("/predictions", version=VERSION),
    "models.predictions.create": lambda town: town.post(f"/models/{MODEL}/predictions", input={"text": "x" * 90_000}),
    "procedures.create": lambda town: town.post("/procedures", version=VERSION),
    "trainings.create": lambda town: town.post(
        f"/models/{MODEL}/versions/{VERSION}/trainings", destination="mallory/m0"
    ),
    "predictions.webhooks.redeliver": redeliver,
    "predictions.batch": lambda town: town.ask(
        "POST", "/predictions/batch", {"predictions": [{"version": VERSION, "input": {"text": "x"}, **LONG}] * 100}
    ),
    "models.create": lambda town: town.ask(
        "POST",
        "/models",
        {"owner": "mallory", "name": f"n{town.number()}", "visibility": "private", "hardware": "cpu", **TEXT},
    ),
    "models.update": changes_model,
    "deployments.create": lambda town: town.ask("POST", "/deployments", deploys(town)),
    "deployments.update": lambda town: town.ask(
        "PATCH", "/deployments/mallory/d", {"max_instances": town.number() % 20}
    ),
    "deployments.predictions.create": lambda town: town.post("/deployments/mallory/d/predictions"),
    "deployments.split.set": tries_version(""),
    "deployments.promote": tries_version("promote"),
    "deployments.rollback": tries_version("rollback"),
    "files.create": lambda town: town.upload(),
    "account.login_link": lambda town: town.ask("POST", "/account/login-link", {}),
    "openai.files.create": lambda town: town.upload_lines(),
    "openai.batches.create": open_batch,
    "openai.chat.completions": lambda town: call(
        town, "/chat/completions", messages=[{"role": "user", "content": "x" * 90_000}]
    ),
    "openai.completions": lambda town: call(town, "/completions", prompt="x"),
    "openai.embeddings": lambda town: call(town, "/embeddings", input="x"),
}
# These only read, or change something at once and store nothing
STORE_NOTHING: Final = {"webhooks.default.secret.get"}


def test_each_route_that_stores_something_is_tried() -> None:
    stores = {
        route.name for route in ROUTES if set(route.scopes) & {"run"} and not route.frees and "read" not in route.scopes
    }
    assert set(ATTACKS) | STORE_NOTHING == stores


@asynccontextmanager
async def crowded(folder: Path) -> AsyncGenerator[tuple[Town, Town, Any]]:
    """Yield an attacker under all limits and a bystander, beside a Redis with 25 MiB of room."""
    with redis_server() as server:
        redis = client(server.url)
        admin = client(server.admin_url)
        settings = replace(ApiSettings(redis_url=server.url), files_dir=str(folder), openai=True)
        async with driving(server.url) as driver, api_client(settings) as api:
            catalog, accounts = Catalog(redis, driver.scripts, SystemClock()), Accounts(redis)
            for kind in ("training", "procedure"):
                await catalog.register_kind(MODEL, VERSION, kind, schema=SCHEMA, server="", policy=Policy())  # type: ignore[arg-type]
            await redis.hset(keys.version(MODEL, VERSION), "schema", bytes(SCHEMA))  # type: ignore[misc]
            await catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="echo", policy=Policy())
            await catalog.register(LLM, LLM_VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())
            headers = [{"authorization": f"Bearer {await accounts.create_token(name)}"} for name in ("mallory", "bob")]
            mallory, bob = (Town(api, driver, each) for each in headers)
            model = {"owner": "mallory", "visibility": "private", "hardware": "cpu"}
            for number in range(40):
                made = await mallory.ask("POST", "/models", {**model, "name": f"m{number}"})
                assert made.status_code == 201, made.text
            made = await mallory.ask("POST", "/deployments", {**deploys(mallory), "name": "d"})
            assert made.status_code == 200, made.text
            await accounts.set_limits("mallory", LIMITS)
            await admin.config_set("maxmemory", await used(redis) + ROOM)
            async with api_client(settings) as fresh:  # knows the limits
                mallory, bob = (Town(fresh, driver, each) for each in headers)
                yield mallory, bob, redis
        await redis.aclose()
        await admin.aclose()


async def used(redis: Any) -> int:
    return int((await redis.info("memory"))["used_memory"])


@pytest.mark.parametrize("route", ATTACKS)
async def test_one_account_cannot_fill_the_room_of_others(route: str, tmp_path: Path) -> None:
    async with crowded(tmp_path) as (mallory, bob, redis):
        before, refused, accepted = await used(redis), 0, 0

        async def attack() -> None:
            nonlocal refused, accepted
            answer = await ATTACKS[route](mallory)
            assert answer.status_code < 500, answer.text
            is_stored = answer.status_code < 300 and not (
                "results" in answer.json() and '"status":201' not in answer.text
            )
            accepted, refused = accepted + is_stored, 0 if is_stored else refused + 1

        for _ in range(MOST_ROUNDS):
            async with anyio.create_task_group() as tasks:
                for _ in range(1 if route in ONE_BY_ONE else AT_ONCE):
                    tasks.start_soon(attack)
            if refused >= REFUSED or await used(redis) - before > ROOM:
                break
        assert accepted, "the attack itself works"
        assert await used(redis) - before < MOST_GROWTH
        answers = [await bob.ask("POST", "/predictions", {"version": VERSION, "input": {}}) for _ in range(20)]
        assert [answer.status_code for answer in answers] == [201] * 20
