"""`director model`, `collection` and `hardware`: what an operator types is what callers are shown."""

from typing import Any

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.cli.main import main
from director.core.catalog import Catalog
from director.core.collections import Collection, Collections
from director.core.ids import QueueName
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


async def types(server: RedisServer, *line: str) -> int:
    return await to_thread.run_sync(lambda: main([*line, "--redis", server.url]))


async def test_a_model_is_shown_to_whom_an_operator_says(
    server: RedisServer, catalog: Catalog, queue: QueueName, capsys: Any
) -> None:
    assert await types(server, "model", "set", MODEL, "--visibility", "private", "--official", "yes") == 0
    model = await catalog.model(MODEL)
    assert model is not None
    assert (model.visibility, model.is_official, model.latest) == ("private", True, VERSION)
    capsys.readouterr()
    assert await types(server, "model", "list") == 0
    assert capsys.readouterr().out == f"{MODEL} private {VERSION}\n"
    assert await types(server, "model", "set", "acme/none", "--description", "x") == 1
    assert await types(server, "model", "set", MODEL) == 1
    assert "say what" in capsys.readouterr().err
    assert await catalog.model("acme/none") is None


async def test_collections_and_hardware_are_written_and_taken_away(server: RedisServer, redis: Redis) -> None:
    collections = Collections(redis)
    assert await types(server, "collection", "set", "best", "--name", "The best", "--models", MODEL) == 0
    assert await collections.get("best") == Collection(name="The best", models=(MODEL,))
    assert await types(server, "collection", "set", "best", "--name", "The best", "--models", "Not One") == 1
    assert await types(server, "collection", "set", "No Slug", "--name", "x") == 1
    assert await types(server, "collection", "remove", "best") == 0
    assert await collections.slugs() == []
    assert await types(server, "hardware", "set", "gpu-t4", "Nvidia T4") == 0
    assert await collections.hardware() == {"gpu-t4": "Nvidia T4"}
    assert await types(server, "hardware", "remove", "gpu-t4") == 0
