"""`director model`, `collection` and `hardware`: what an operator sets is what callers see."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.schema import setup_run
from director.core.settings import ApiSettings
from director.core.trends import Point, bucket
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import About, ShelfFound
from director.store.models import Collection, Collections
from director.store.trends import Trends
from tests.integration.api.conftest import api as api
from tests.integration.api.conftest import director as director
from tests.integration.api.conftest import token as token
from tests.integration.cli.conftest import Operator
from tests.support.api import PlayedDirector, live_api
from tests.support.queue_driver import MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer

SCHEMA: dict[str, Any] = {
    "components": {
        "schemas": {
            "Input": {
                "type": "object",
                "required": ["prompt"],
                "properties": {
                    "images": {"type": "array", "items": {"type": "string", "format": "uri"}, "x-order": 2},
                    "prompt": {"type": "string", "description": "what to paint", "x-order": 0},
                    "seed": {"type": "integer", "default": 7, "minimum": 0, "maximum": 9, "x-order": 1},
                },
            },
            "Output": {"type": "array", "items": {"type": "string", "format": "uri"}},
        }
    }
}


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url, cache_s=0)


async def test_operator_sets_visibility_of_a_model(operator: Operator, catalog: Catalog, queue: QueueName) -> None:
    await operator.types("model", "set", MODEL, "--visibility", "private", "--official", "yes")
    model = await catalog.model(MODEL)
    assert (model.visibility, model.is_official, model.latest) == ("private", True, VERSION)
    assert (await operator.types("model", "list")).splitlines()[1].split()[:4] == [MODEL, "private", VERSION, "idle"]
    [shown] = json.loads(await operator.types("models", "--json"))["results"]
    wanted = {"name": MODEL, "visibility": "private", "latest": VERSION, "is_official": True}
    assert shown | wanted == shown
    await operator.is_told("model", "set", "acme/none", "--description", "x")
    assert "nothing to change" in await operator.is_told("model", "set", MODEL)
    assert await catalog.model("acme/none") is None


async def test_models_are_listed_with_their_runs_and_usual_time(
    operator: Operator, catalog: Catalog, driver: QueueDriver
) -> None:
    await driver.finish(await driver.claimed())
    point = Point(at_s=int(driver.now_ms / 1000), succeeded=1, runs={bucket(2_000): 1})
    await Trends(driver.redis).add({driver.queue: point}, most=10)
    await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    shown = json.loads(await operator.types("models", "--json"))["results"]
    facts = {one["name"]: (one["runs"], one["p50_s"] and round(one["p50_s"])) for one in shown}
    assert facts == {MODEL: (1, 2), "acme/other": (0, None)}
    page = await operator.types("models", "-n", "1")
    assert "there are more: --cursor " in page.splitlines()[-1]
    rest = await operator.types("models", "--cursor", page.split("--cursor ")[1].strip())
    assert len({line.split()[0] for line in (*page.splitlines()[1:2], *rest.splitlines()[1:2])}) == 2


async def test_model_is_shown_with_its_inputs_and_a_line_that_runs_it(
    server: RedisServer, redis: Redis, catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    name, token = "acme/painter", await Accounts(redis).create_token("team")
    await catalog.register(name, VERSION, schema=Raw(json.dumps(SCHEMA).encode()), server="echo", policy=Policy())
    async with live_api(server.url) as api:
        caller = Operator(capsys, "--url", api.url, "--token", token)
        shown = (await caller.types("model", "show", name)).splitlines()
        assert shown[0] == "acme/painter  public, 0 runs"
        assert shown[2:] == [
            "inputs",
            "  prompt  string required          what to paint",
            "  seed    integer (7) from 0 to 9",
            "  images  list of string (uri)",
            "output  list of string (uri)",
            "run it  director predict acme/painter -i prompt=…",
        ]
        assert json.loads(await caller.types("model", "show", name, "--json"))["latest_version"]["id"] == VERSION
        assert "there is no model acme/paintre" in await caller.is_told("model", "show", "acme/paintre")
        # a caller without a scope over all accounts has these for its own
        assert name in await caller.types("models")
        assert "no log of a setup is kept" in await caller.types("logs", name)
        assert "nothing ran from" in await caller.types("usage")
        assert "takes a token with the scope view" in await caller.is_told("usage", "--account", "acme")


async def test_caller_lists_models_without_pages(
    server: RedisServer, redis: Redis, catalog: Catalog, queue: QueueName, capsys: pytest.CaptureFixture[str]
) -> None:
    await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    token = await Accounts(redis).create_token("team")
    async with live_api(server.url) as api:
        caller = Operator(capsys, "--url", api.url, "--token", token)
        assert "--cursor" in await caller.is_told("models", "--cursor", "x")
        page = await caller.types("models", "-n", "1")
        assert page.splitlines()[-1] == "there are more: -n lists up to 1,000"
        assert "there are more" not in await caller.types("models", "-n", "2")
        cut, whole = [json.loads(await caller.types("models", "--json", "-n", n)) for n in ("1", "2")]
        assert (len(cut["results"]), cut["more"]) == (1, True)
        assert (len(whole["results"]), "more" in whole) == (2, False)


async def test_logs_of_a_model_are_those_of_its_setups(operator: Operator, driver: QueueDriver) -> None:
    run = setup_run("failed", started_at="", completed_at="", logs="loading\nno memory\n", server="http://x")
    await Catalog(driver.redis, driver.scripts, SystemClock()).note_setup(MODEL, VERSION, run)
    shown = await operator.types("model", "logs", MODEL)
    assert shown.splitlines() == ["setup failed at an unknown time on http://x", "| loading", "| no memory"]
    assert json.loads(await operator.types("model", "logs", MODEL, "--json"))["setup_run"]["status"] == "failed"
    assert "there is no model acme/none" in await operator.is_told("model", "logs", "acme/none")


async def test_model_config_is_set_shown_and_unset(operator: Operator, queue: QueueName, tmp_path: Path) -> None:
    driven = tmp_path / "runner.json"
    driven.write_text('{"kind": "http", "path": "/run"}')
    config = ("model", "config", MODEL)
    shown = await operator.tries(*config, "--set", "attempts=5", "--set", f"runner=@{driven}", "--set", "on_lost=fail")
    assert shown.stdout.splitlines()[1:] == [
        '  runner = {"kind":"http","path":"/run"}',
        "  attempts = 5",
        '  on_lost = "fail"',
    ]
    assert '"change":"model_configured"' in shown.stderr.replace(": ", ":")
    assert "/run" not in shown.stderr, "a template may hold secrets"
    await operator.types(*config, "--unset", "runner", "--unset", "on_lost")
    assert (await operator.types(*config)).splitlines()[1:] == ["  attempts = 5"]
    for wrong in ("attempts=99", "attempts", "nothing=1", 'runner={"kind":"cog","x":1}', "runner=@/nowhere"):
        await operator.is_told(*config, "--set", wrong)
    await operator.is_told("model", "config", "acme/none")
    assert json.loads(await operator.types(*config, "--json"))["config"] == {"attempts": 5}


async def test_operator_sets_a_picture_from_a_small_file(
    operator: Operator, catalog: Catalog, queue: QueueName, tmp_path: Path
) -> None:
    small, large, text = tmp_path / "small.png", tmp_path / "large.png", tmp_path / "text.txt"
    sound, web = tmp_path / "sound.wav", tmp_path / "small.webp"
    sound.write_bytes(b"RIFF\x24\0\0\0WAVEfmt " + bytes(20))
    web.write_bytes(b"RIFF\x24\0\0\0WEBPVP8 " + bytes(20))
    small.write_bytes(b"\x89PNG\r\n" + bytes(20))
    large.write_bytes(b"\x89PNG\r\n" + bytes(20_000))
    text.write_text("no picture")
    await operator.types("model", "set", MODEL, "--cover-image-url", f"@{small}")
    model = await catalog.model(MODEL)
    assert model is not None
    kept = model.cover_image_url
    assert kept == f"data:image/png;base64,{base64.b64encode(small.read_bytes()).decode()}"
    for wrong in (f"@{large}", f"@{text}", f"@{sound}", f"@{tmp_path}/none.png", "data:text/html,<b>"):
        assert await operator.is_told("model", "set", MODEL, "--cover-image-url", wrong)
    model = await catalog.model(MODEL)
    assert model is not None
    assert model.cover_image_url == kept
    await operator.types("model", "set", MODEL, "--cover-image-url", f"@{web}")
    model = await catalog.model(MODEL)
    assert model is not None
    assert model.cover_image_url.startswith("data:image/webp;")


async def test_collections_and_hardware_are_written_and_removed(operator: Operator, redis: Redis) -> None:
    collections = Collections(redis)
    await operator.types("collection", "set", "best", "--name", "The best", "--models", MODEL)
    assert await collections.get("best") == Collection(name="The best", models=(MODEL,))
    await operator.is_told("collection", "set", "best", "--name", "The best", "--models", "Not One")
    await operator.is_told("collection", "set", "No Slug", "--name", "x")
    await operator.types("collection", "remove", "best")
    assert await collections.slugs() == []
    await operator.types("hardware", "set", "gpu-t4", "Nvidia T4")
    assert await collections.hardware() == {"gpu-t4": "Nvidia T4"}
    await operator.types("hardware", "remove", "gpu-t4")


async def test_example_is_a_copy_that_hides_its_account(
    operator: Operator,
    redis: Redis,
    api: httpx.AsyncClient,
    director: PlayedDirector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIRECTOR_FILES_DIR", str(tmp_path))
    files = DataFiles(SystemClock(), store_in(str(tmp_path), redis, SystemClock()), from_bytes=1)
    body = {"version": VERSION, "input": {"text": "hi"}, "webhook": "https://receiver.example/hook?token=secret"}
    made = (await api.post("/v1/predictions", json=body)).json()
    assert "succeeded" in await operator.is_told("model", "example", MODEL, made["id"], "--default")
    await director.finish(await director.claim(), output=await files.put(made["id"], b'"ho"'))
    await operator.types("model", "example", MODEL, made["id"], "--default")
    [example] = (await api.get(f"/v1/models/{MODEL}/examples")).json()["results"]
    assert (example["input"], example["output"], example["status"]) == ({"text": "hi"}, "ho", "succeeded")
    assert "secret" not in str(example)
    assert "stream" not in example["urls"]
    assert (await api.get(f"/v1/models/{MODEL}")).json()["default_example"] == example
    assert (await api.delete(f"/v1/predictions/{made['id']}")).status_code in (204, 409)
    await redis.delete(keys.record(made["id"]), keys.input_data(made["id"]))
    assert (await api.get(f"/v1/models/{MODEL}/examples")).json()["results"] == [example]
    await operator.types("model", "example", MODEL, made["id"], "--remove")
    assert (await api.get(f"/v1/models/{MODEL}")).json()["default_example"] is None
    await operator.is_told("model", "example", MODEL, made["id"], "--remove")
    await operator.is_told("model", "example", "acme/other", made["id"])


async def test_catalogue_changes_are_in_the_log_of_changes(
    operator: Operator, redis: Redis, queue: QueueName, monkeypatch: pytest.MonkeyPatch
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
        await operator.tries(*line)
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


async def test_operator_sets_lists_and_removes_an_alias(operator: Operator, redis: Redis, queue: QueueName) -> None:
    assert "no aliases" in await operator.types("model", "alias")
    set_ = await operator.tries("model", "alias", "gpt-4o", MODEL)
    assert set_.stdout.splitlines()[1].split() == ["gpt-4o", MODEL]
    assert '"change":"alias_set"' in set_.stderr.replace(": ", ":")
    assert "no such model yet" in await operator.types("model", "alias", "later", "acme/none")
    assert json.loads(await operator.types("model", "alias", "--json")) == {"gpt-4o": MODEL, "later": "acme/none"}
    await operator.types("model", "alias", "later", "--remove")
    assert await redis.hgetall(keys.aliases()) == {b"gpt-4o": MODEL.encode()}
    assert "no alias later" in await operator.is_told("model", "alias", "later", "--remove")
    assert "give an alias" in await operator.is_told("model", "alias", "gpt-4o")
    assert "would take its calls" in await operator.is_told("model", "alias", MODEL, "acme/none")
    assert "owner/name" in await operator.is_told("model", "alias", "x", "no model")


async def test_operator_orders_a_model_that_shares_a_device(operator: Operator, driver: QueueDriver) -> None:
    assert "shares no device" in await operator.is_told("models", "pin", driver.queue)
    shelf = ShelfFound(machine="box", state="absent", since_ms=0, place={"gpu0": 1 << 30}, room={"gpu0": 2 << 30})
    about = msgspec.json.encode(About(shelf=shelf))
    await driver.scripts.extend(driver.queue, consumer="d1", lease_s=60, claims=[], slots=0, about=about)
    for order in ("pin", "rest", "load"):
        await operator.types("models", order, driver.queue)
        assert (await driver.scripts.survey(driver.queue)).order == order
    assert (await operator.types("devices")).startswith("gpu0 on box: 0 MiB of 2 GiB taken")
