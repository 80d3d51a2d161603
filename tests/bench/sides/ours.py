"""Run the product as it is shipped, each of its processes apart, with one account and one model, or with several."""

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import count as counter
from itertools import cycle
from typing import Any, Final

import httpx
import msgspec
from msgspec import Struct

from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, lowest_id_at, new_prediction_id, queue_name
from director.core.policy import Policy, shard
from director.core.states import Status
from director.execution.consumer import MOST_AT_ONCE
from director.lab.bench.load import Load
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.bench.processes import Child, child, until
from tests.bench.sides.servers import OwnRedis
from tests.support.queue_driver import enqueue

MODEL: Final = "bench/model"
VERSION: Final = "be" * 32
ACCOUNT: Final = "bench"
SLOTS: Final = 64
AT_ONCE: Final = 200
REGISTERED_AT_ONCE: Final = 16  # as many as the client has connections
START_S: Final = 60.0
INPUT: Final = {"text": "hello", "n": 3}
DIRECTOR: Final = (sys.executable, "-m", "director", "run")
OPENAI: Final = {"kind": "openai", "endpoint": "chat"}
HTTP: Final = {"kind": "http", "path": "/run", "output": "/output"}


def version_of(model: str) -> str:
    return VERSION if model == MODEL else hashlib.sha256(model.encode()).hexdigest()


def queue_of(model: str) -> QueueName:
    return queue_name(model, version_of(model))


class Ours:
    def __init__(self, server: OwnRedis, scripts: Scripts, token: str, models: Sequence[str] = (MODEL,)) -> None:
        self.server = server
        self.scripts = scripts
        self.token = token
        self.models = models
        self.queue = queue_of(models[0])
        self._nonces = counter(1)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def asks(self, url: str, **how: Any) -> Load:
        body = msgspec.json.encode({"version": version_of(self.models[0]), "input": INPUT}).decode()
        given = {"headers": self.headers | {"prefer": "wait"}, "wanted": '"status":"succeeded"', **how}
        return Load(url=f"{url}/v1/predictions", body=body, **given)

    async def preload(self, many: int, *, is_listed: bool = True) -> list[PredictionId]:
        """Enqueue predictions, of each model in turn."""
        streams, clock, models = shard(ACCOUNT, streams=16, size=2), SystemClock(), cycle(self.models)

        async def file() -> PredictionId:
            model = next(models)
            made = new_prediction_id(model=model, now_ms=clock.now_ms())
            filing = enqueue(
                self.scripts,
                made,
                queue=queue_of(model),
                account=ACCOUNT,
                model=model,
                version=version_of(model),
                shard=streams,
                input=msgspec.json.encode(INPUT),
                url="http://127.0.0.1:8080",
            )
            listing = [self.scripts.enlist(made, account=ACCOUNT, oldest=lowest_id_at(0))] if is_listed else []
            await asyncio.gather(*listing, filing)
            return made

        filed: list[PredictionId] = []
        while len(filed) < many:
            filed += await asyncio.gather(*(file() for _ in range(min(AT_ONCE, many - len(filed)))))
        return filed

    async def end(self, many: int) -> None:
        left = many
        while left:
            nonce = f"bench{next(self._nonces)}"
            most = min(left, MOST_AT_ONCE)
            claims = await self.scripts.claim(self.queue, consumer=ACCOUNT, nonce=nonce, count=most, lease_s=60)
            left -= len(claims)
            await asyncio.gather(
                *(
                    self.scripts.finish(
                        claim.id,
                        queue=self.queue,
                        token=claim.token,
                        status=Status.SUCCEEDED,
                        output=b'"x"',
                        ran_ms=1,
                        seq=claim.record.seq,
                    )
                    for claim in claims
                )
            )

    async def live(self) -> int:
        return (await self.scripts.stats(self.queue)).live

    async def pause(self, *, paused: bool) -> None:
        await asyncio.gather(*(self.scripts.pause(queue_of(model), paused=paused) for model in self.models))

    async def slots(self) -> int:
        """Return the slots that directors report, of the model that has fewest."""
        return min(each.slots for each in await asyncio.gather(*map(self.scripts.stats, map(queue_of, self.models))))

    async def over(self, *alive: Child) -> None:
        async def none_is_live() -> bool:
            return await self.live() == 0

        await until("every prediction ended", none_is_live, limit_s=120, alive=alive)

    def director(
        self, model_url: str, *, slots: int = SLOTS, runner: dict[str, Any] = HTTP, **env: Any
    ) -> AbstractContextManager[Child]:
        return child("director", DIRECTOR, **self.settings(model_url, slots=slots, runner=runner, **env))

    def settings(self, model_url: str, *, slots: int, runner: dict[str, Any] = HTTP, **env: Any) -> dict[str, Any]:
        """Return the variables of a director."""
        return self._variables(
            {
                "MODEL": MODEL,
                "VERSION": VERSION,
                "SERVERS": model_url,
                "RUNNER": runner["kind"],
                "RUNNER_CONFIG": msgspec.json.encode(runner).decode(),
                "CONCURRENT_PREDICTIONS": slots,
                **env,
            }
        )

    @contextmanager
    def pool(self, models: Sequence[str], model_url: str, *, slots: int) -> Iterator[Child]:
        """Run one director of several models, which all have the same server."""
        config = ", ".join(f'{key} = "{value}"' for key, value in HTTP.items())
        tables = "".join(
            f'[[model]]\nname = "{model}"\nversion = "{version_of(model)}"\nservers = ["{model_url}"]\n'
            f'runner = "http"\nrunner_config = {{ {config} }}\nslots = {slots}\n'
            for model in models
        )
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(tables)
            file.flush()
            with child("director", [*DIRECTOR, "--config", file.name], **self._variables({})) as director:
                yield director

    def keeper(self, **env: Any) -> AbstractContextManager[Child]:
        return child("keeper", [sys.executable, "-m", "director", "keeper"], **self._variables(env))

    @asynccontextmanager
    async def api(self, *, port: int = 0, **env: Any) -> AsyncIterator[tuple[str, Child]]:
        port = port or free_port()
        url = f"http://127.0.0.1:{port}"
        with child("api", [sys.executable, "-m", "api"], **self._variables({"PORT": port, **env})) as api:
            await answers(f"{url}/livez", api)
            yield url, api

    def _variables(self, env: dict[str, Any]) -> dict[str, Any]:
        common = {"REDIS_URL": self.server.url, "DURABILITY": self.server.durability}
        return {f"DIRECTOR_{key}": value for key, value in (common | env).items()}


@asynccontextmanager
async def ours(server: OwnRedis, models: Sequence[str] = (MODEL,), *, kind: str = "bench") -> AsyncIterator[Ours]:
    """Register the models, with servers of this kind, and an account. The first model is the one that `asks` is for."""
    gatherer = Gatherer(server.redis)
    scripts = Scripts(gatherer)
    catalog = Catalog(server.redis, scripts, SystemClock())

    async def register(model: str) -> None:
        await catalog.register(model, version_of(model), schema=OPEN_SCHEMA, server=kind, policy=Policy())

    for first in range(0, len(models), REGISTERED_AT_ONCE):
        await asyncio.gather(*map(register, models[first : first + REGISTERED_AT_ONCE]))
    token = await Accounts(server.redis).create_token(ACCOUNT)
    try:
        yield Ours(server, scripts, token, models)
    finally:
        await gatherer.aclose()


class Answers(Struct):
    url: str

    async def __call__(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            try:
                return (await http.get(self.url)).status_code < 500
            except httpx.TransportError:
                return False


async def answers(url: str, *alive: Child) -> None:
    await until(f"{url} answers", Answers(url), limit_s=START_S, alive=alive)
