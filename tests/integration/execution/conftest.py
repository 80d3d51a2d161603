"""Provide a model that does what its input says, on real Cog servers, and a caller of it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.live_director import Caller, Gate, Live, Tally
from tests.support.model_server import ModelServer, model_server
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

SOURCE = """
    import os
    from typing import Iterator
    from cog import BasePredictor

    def ignore_cancels_until(path):
        while not os.path.exists(path):
            try:
                wait_for(path)
            except BaseException:
                pass

    class Predictor(BasePredictor):
        def predict(
            self, text: str = "a", n: int = 3, size: int = 0, log: int = 0, width: int = 100,
            gate: str = "", count: str = "", then: str = "",
        ) -> Iterator[str]:
            if count:
                with open(count, "a") as file:
                    file.write(".")
            for line in range(log // width):
                print(f"{line:0{width - 1}d}")
            for i in range(n):
                print("token", i)
                yield f"{text}{i}"
            if size:
                yield "x" * size
            if then == "stubborn":
                ignore_cancels_until(gate)
            wait_for(gate)
            if then == "raise":
                raise ValueError("it went wrong")
            if then == "exit" or (then == "exit once" and os.path.getsize(count) == 1):
                os._exit(1)

    class Broken(BasePredictor):
        def setup(self):
            raise RuntimeError("no weights")

        def predict(self, text: str = "a") -> str:
            return ""
"""
INPUTS = {
    "text": "string",
    "n": "integer",
    "size": "integer",
    "log": "integer",
    "width": "integer",
    "gate": "string",
    "count": "string",
    "then": "string",
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "streamed", SOURCE, cog_schema(INPUTS, streams=True))


@pytest.fixture(scope="session")
async def cog_url(folder: Path) -> AsyncGenerator[str]:
    """Return the address of a server that outlives the tests. Tests that end their server start another."""
    async with cog_server(folder) as url:
        yield url


@pytest.fixture(scope="session")
async def second_cog_url(folder: Path) -> AsyncGenerator[str]:
    async with cog_server(folder) as url:
        yield url


@pytest.fixture(scope="session")
async def answered_cog_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    """Return the address of a server that does not stream: callbacks bring the progress, the answer brings the end."""
    folder = write_model(tmp_path_factory.mktemp("model") / "answered", SOURCE, cog_schema(INPUTS, streams=False))
    async with cog_server(folder) as url:
        yield url


@pytest.fixture
async def caller(redis: Redis, scripts: Scripts, catalog: Catalog) -> Caller:
    """Create an account, and a queue that is known before any director starts."""
    await Accounts(redis).create_token(ACCOUNT)
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="", policy=Policy())
    return Caller(redis, scripts)


@pytest.fixture(scope="module")
async def model() -> AsyncGenerator[ModelServer]:
    """Start a model server of another protocol."""
    async with model_server() as server:
        yield server


@pytest.fixture
def model_url(cog_url: str) -> str:
    """Return the address of the model server of `live`. A module with a model of its own overrides it."""
    return cog_url


@pytest.fixture
def live(redis: Redis, server: RedisServer, model_url: str) -> Live:
    return Live(redis, server.url, model_url)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let directors of this process look every 50 ms at what they read every few seconds."""
    for name in ("registration.LOOK_AGAIN_S", "live_settings.LOOK_AGAIN_S", "director.STAY_S"):
        monkeypatch.setattr(f"director.execution.{name}", 0.05)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path / "tally")
