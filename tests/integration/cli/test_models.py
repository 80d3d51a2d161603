"""`director model`, `collection` and `hardware`: what an operator sets is what callers see."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.cli.main import main
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.catalog import Catalog
from director.store.models import Collection, Collections
from tests.integration.api.conftest import api as api
from tests.integration.api.conftest import director as director
from tests.integration.api.conftest import token as token
from tests.support.api import PlayedDirector
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url, cache_s=0)


async def types(server: RedisServer, *line: str) -> int:
    return await to_thread.run_sync(lambda: main([*line, "--redis", server.url]))


async def test_operator_sets_visibility_of_a_model(
    server: RedisServer, catalog: Catalog, queue: QueueName, capsys: Any
) -> None:
    assert await types(server, "model", "set", MODEL, "--visibility", "private", "--official", "yes") == 0
    model = await catalog.model(MODEL)
    assert (model.visibility, model.is_official, model.latest) == ("private", True, VERSION)
    capsys.readouterr()
    assert await types(server, "model", "list") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [MODEL, "private", VERSION]
    assert await types(server, "models", "--json") == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["visibility"], shown["latest"], shown["is_official"]) == (
        *(MODEL, "private", VERSION, True),
    )
    assert await types(server, "model", "set", "acme/none", "--description", "x") == 1
    assert await types(server, "model", "set", MODEL) == 1
    assert "nothing to change" in capsys.readouterr().err
    assert await catalog.model("acme/none") is None


async def test_model_config_is_set_shown_and_unset(
    server: RedisServer, redis: Redis, queue: QueueName, tmp_path: Path, capsys: Any
) -> None:
    driven = tmp_path / "runner.json"
    driven.write_text('{"kind": "http", "path": "/run"}')
    config = ("model", "config", MODEL)
    assert (
        await types(server, *config, "--set", "attempts=5", "--set", f"runner=@{driven}", "--set", "on_lost=fail") == 0
    )
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:] == [
        '  runner = {"kind":"http","path":"/run"}',
        "  attempts = 5",
        '  on_lost = "fail"',
    ]
    assert '"change":"model_configured"' in shown.err.replace(": ", ":")
    assert "/run" not in shown.err, "a template may hold secrets"
    assert await types(server, *config, "--unset", "runner", "--unset", "on_lost") == 0
    capsys.readouterr()
    assert await types(server, *config) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  attempts = 5"]
    assert await types(server, *config, "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"] == {"attempts": 5}
    for wrong in ("attempts=99", "attempts", "nothing=1", 'runner={"kind":"cog","x":1}', "runner=@/nowhere"):
        assert await types(server, *config, "--set", wrong) == 1
    assert await types(server, "model", "config", "acme/none") == 1
    capsys.readouterr()
    assert await types(server, *config) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  attempts = 5"]


async def test_collections_and_hardware_are_written_and_removed(server: RedisServer, redis: Redis) -> None:
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


async def test_example_is_a_copy_that_hides_its_account(
    server: RedisServer, redis: Redis, api: httpx.AsyncClient, director: PlayedDirector, capsys: Any
) -> None:
    body = {"version": VERSION, "input": {"text": "hi"}, "webhook": "https://receiver.example/hook?token=secret"}
    made = (await api.post("/v1/predictions", json=body)).json()
    assert await types(server, "model", "example", MODEL, made["id"], "--default") == 1
    assert "succeeded" in capsys.readouterr().err
    await director.finish(await director.claim(), output=b'"ho"')
    assert await types(server, "model", "example", MODEL, made["id"], "--default") == 0
    [example] = (await api.get(f"/v1/models/{MODEL}/examples")).json()["results"]
    assert (example["input"], example["output"], example["status"]) == ({"text": "hi"}, "ho", "succeeded")
    assert "secret" not in str(example)
    assert "stream" not in example["urls"]
    assert (await api.get(f"/v1/models/{MODEL}")).json()["default_example"] == example
    assert (await api.delete(f"/v1/predictions/{made['id']}")).status_code in (204, 409)
    await redis.delete(keys.record(made["id"]), keys.input_data(made["id"]))
    assert (await api.get(f"/v1/models/{MODEL}/examples")).json()["results"] == [example]
    assert await types(server, "model", "example", MODEL, made["id"], "--remove") == 0
    assert (await api.get(f"/v1/models/{MODEL}")).json()["default_example"] is None
    assert await types(server, "model", "example", MODEL, made["id"], "--remove") == 1
    assert await types(server, "model", "example", "acme/other", made["id"]) == 1


async def test_catalogue_changes_are_in_the_log_of_changes(
    server: RedisServer, redis: Redis, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    for line in (
        ("model", "set", MODEL, "--visibility", "private", "--description", "painter"),
        ("model", "set", "acme/nothing", "--official", "yes"),
        ("collection", "set", "best", "--name", "Best", "--models", MODEL),
        ("collection", "remove", "best"),
        ("hardware", "set", "gpu-a", "A"),
        ("hardware", "remove", "gpu-a"),
    ):
        await types(server, *line)
    found: Any = await redis.xrange(keys.changes())
    told = [(fields[b"kind"].decode(), json.loads(fields[b"detail"])) for _, fields in found]
    assert {fields[b"by"] for _, fields in found} == {b"cli:ada"}
    assert told == [
        ("model_changed", {"model": MODEL, "fields": ["description", "visibility"], "visibility": "private"}),
        ("model_changed", {"model": "acme/nothing", "fields": ["is_official"]}),
        ("void", {"model": "acme/nothing", "fields": ["is_official"]}),
        ("collection_written", {"slug": "best", "models": [MODEL]}),
        ("collection_removed", {"slug": "best"}),
        ("hardware_written", {"sku": "gpu-a", "named": "A"}),
        ("hardware_removed", {"sku": "gpu-a"}),
    ]
