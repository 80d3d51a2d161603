"""Test models, search, collections and hardware: what is shown and found, in which order, and what is never shown."""

from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store import models as collections
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.models import Collection, Collections
from tests.integration.api.conftest import HELLO_VERSION, refusal
from tests.support.api import PlayedDirector
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

HELLO, PAINTER = "example/hello", f"{ACCOUNT}/painter"
NEW = {"owner": ACCOUNT, "name": "painter", "visibility": "private", "hardware": "gpu-t4"}
SAID = {
    "description": "It paints.",
    "github_url": "https://github.com/acme/painter",
    "paper_url": "https://arxiv.org/abs/1",
    "license_url": "https://example.com/license",
}
VERSION_A, VERSION_B = "a" * 64, "b" * 64


async def make(api: AsyncClient, **body: Any) -> httpx.Response:
    return await api.post("/v1/models", json={**NEW, **body})


async def register(catalog: Catalog, model: str = PAINTER, version: str = VERSION_A, **options: Any) -> None:
    await catalog.register(model, version, schema=OPEN_SCHEMA, server="cog", policy=Policy(), **options)


async def names(api: AsyncClient, query: str = "") -> list[str]:
    page = (await api.get(f"/v1/models{query}")).json()
    return [f"{model['owner']}/{model['name']}" for model in page["results"]]


async def test_new_model_is_shown_with_every_field_of_the_clients(api: AsyncClient) -> None:
    made = await make(api, cover_image_url="https://example.com/x.png", **SAID)
    assert made.status_code == 201
    model = made.json()
    assert model.pop("created_at").endswith("Z")
    assert model == {
        "url": f"http://director.test/{PAINTER}",
        "owner": ACCOUNT,
        "name": "painter",
        "visibility": "private",
        "is_official": False,
        "run_count": 0,
        "cover_image_url": "https://example.com/x.png",
        "default_example": None,
        "latest_version": None,
        **SAID,
    }
    shown = await api.get(f"/v1/models/{PAINTER}")
    assert (shown.status_code, shown.json()) == (200, made.json())
    versions = await api.get(f"/v1/models/{PAINTER}/versions")
    assert versions.json() == {"next": None, "previous": None, "results": []}
    ran = await api.post(f"/v1/models/{PAINTER}/predictions", json={"input": {}})
    assert ran.status_code == 404


async def test_model_of_another_owner_is_not_created(api: AsyncClient, redis: Redis) -> None:
    refused = await make(api, owner="other")
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        f"A model of this account has the owner '{ACCOUNT}'.",
    )
    assert not await redis.exists(keys.model("other/painter"))


async def test_taken_name_is_refused_without_client_retries(api: AsyncClient) -> None:
    await make(api, **SAID)
    again = await make(api, description="Another.")
    assert (*refusal(again), again.headers["x-should-retry"]) == (409, "already_exists", "false")
    assert (await api.get(f"/v1/models/{PAINTER}")).json()["description"] == SAID["description"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"visibility": "secret"}, "visibility"),
        ({"hardware": "a b"}, "hardware"),
        ({"name": "Upper"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"owner": "../x"}, "owner"),
        ({"owner": None}, "owner"),
        ({"description": "x" * 5_001}, "description"),
        ({"description": f"data: {'x' * 5_000}"}, "description"),
        ({"paper_url": "javascript:alert(1)"}, "paper_url"),
        ({"cover_image_url": 7}, "cover_image_url"),
        ({"readme": "no"}, ""),
    ],
)
async def test_errors_of_a_new_model_are_named(api: AsyncClient, body: dict[str, Any], field: str) -> None:
    refused = await make(api, **body)
    assert refused.status_code == 422
    assert [fault["field"] for fault in refused.json()["invalid_fields"]] == [field]


async def test_change_affects_only_the_named_fields(api: AsyncClient) -> None:
    await make(api, **SAID)
    changed = await api.patch(f"/v1/models/{PAINTER}", json={"description": "It draws.", "paper_url": ""})
    assert changed.status_code == 200
    assert changed.json() == (await api.get(f"/v1/models/{PAINTER}")).json()
    expected = {**SAID, "description": "It draws.", "paper_url": None}
    assert {name: changed.json()[name] for name in SAID} == expected
    refused = await api.patch(f"/v1/models/{PAINTER}", json={"visibility": "public"})
    assert refused.status_code == 422


async def test_readme_that_begins_like_a_picture_may_be_long(api: AsyncClient) -> None:
    await make(api)
    changed = await api.patch(f"/v1/models/{PAINTER}", json={"readme": f"data: {'x' * 20_000}"})
    assert changed.status_code == 200, changed.text


async def test_readme_is_text_where_one_exists(api: AsyncClient) -> None:
    await make(api)
    assert (await api.get(f"/v1/models/{PAINTER}/readme")).status_code == 404
    await api.patch(f"/v1/models/{PAINTER}", json={"readme": "# Häuser\n<b>"})
    readme = await api.get(f"/v1/models/{PAINTER}/readme")
    assert (readme.status_code, readme.text) == (200, "# Häuser\n<b>")
    assert readme.headers["content-type"] == "text/plain; charset=utf-8"


async def test_model_without_versions_is_deleted_for_good(api: AsyncClient, redis: Redis) -> None:
    await make(api)
    gone = await api.delete(f"/v1/models/{PAINTER}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await api.get(f"/v1/models/{PAINTER}")).status_code == 404
    assert (await api.delete(f"/v1/models/{PAINTER}")).status_code == 404
    assert await names(api) == [MODEL]
    assert await redis.zscore(keys.models("latest"), PAINTER) is None
    assert (await make(api)).status_code == 201


async def test_public_model_or_one_with_versions_is_not_deleted(api: AsyncClient, catalog: Catalog) -> None:
    await make(api, name="shown", visibility="public")
    assert (await api.delete(f"/v1/models/{ACCOUNT}/shown")).status_code == 403
    await make(api)
    await register(catalog)
    refused = await api.delete(f"/v1/models/{PAINTER}")
    assert (refused.status_code, refused.json()["code"]) == (422, "in_use")
    assert (await api.get(f"/v1/models/{PAINTER}")).status_code == 200


async def test_director_adds_a_version_and_keeps_the_account_fields(
    api: AsyncClient, other: AsyncClient, catalog: Catalog
) -> None:
    made = (await make(api, **SAID)).json()
    await register(catalog)
    shown = (await api.get(f"/v1/models/{PAINTER}")).json()
    assert shown["latest_version"]["id"] == VERSION_A
    assert {**shown, "latest_version": None} == made
    assert (await other.get(f"/v1/models/{PAINTER}")).status_code == 404


async def test_run_count_covers_all_versions(api: AsyncClient, director: PlayedDirector) -> None:
    for version in (VERSION, VERSION, MODEL):
        made = await api.post("/v1/predictions", json={"version": version, "input": {}})
        assert made.status_code == 201
    await director.finish(await director.claim(), output=b"1")
    assert (await api.get(f"/v1/models/{MODEL}")).json()["run_count"] == 3


async def test_list_has_the_requested_order(api: AsyncClient, redis: Redis, scripts: Scripts) -> None:
    clock = FakeClock()
    catalog = Catalog(redis, scripts, clock)
    await redis.delete(keys.models("created"), keys.models("latest"))
    for name, version in (("a/one", VERSION_A), ("a/two", VERSION_A), ("a/one", VERSION_B)):
        clock.pass_time(1)
        await register(catalog, name, version)
    assert await names(api) == ["a/one", "a/two"]
    assert await names(api, "?sort_direction=asc") == ["a/two", "a/one"]
    assert await names(api, "?sort_by=model_created_at") == ["a/two", "a/one"]
    assert await names(api, "?sort_by=model_created_at&sort_direction=asc") == ["a/one", "a/two"]
    refused = await api.get("/v1/models?sort_by=name&sort_direction=up")
    assert [fault["field"] for fault in refused.json()["invalid_fields"]] == ["sort_by", "sort_direction"]


async def test_paging_misses_no_model_while_others_come_and_go(
    api: AsyncClient, redis: Redis, scripts: Scripts
) -> None:
    clock = FakeClock()
    models = Catalog(redis, scripts, clock).models
    await redis.delete(keys.models("created"), keys.models("latest"))
    made = [f"{'other' if number % 3 else ACCOUNT}/m{number:03}" for number in range(330)]
    for number, name in enumerate(made):
        clock.pass_time(number % 2)  # two models at each time
        await models.make(name, {"visibility": "private" if number % 5 == 0 else "public"})
    seen = [((number + 1) // 2, name) for number, name in enumerate(made) if number % 5 or number % 3 == 0]
    expected = [name for _, name in sorted(seen)]

    query = "?sort_by=model_created_at&sort_direction=asc"
    pages = [(await api.get(f"/v1/models{query}")).json()]
    while pages[-1]["next"]:
        await models.make(f"other/new{len(pages)}", {})  # last in this order
        await models.remove(made[0])
        pages.append((await api.get(pages[-1]["next"])).json())
    found = [f"{model['owner']}/{model['name']}" for page in pages for model in page["results"]]
    assert found[: len(expected)] == expected
    assert len(set(found)) == len(found)
    assert [len(page["results"]) for page in pages[:2]] == [100, 100]
    back = (await api.get(pages[2]["previous"])).json()
    assert back["results"] == pages[1]["results"]
    assert back["next"] == pages[1]["next"]
    assert pages[0]["previous"] is None


async def test_page_of_heavy_schemas_ends_early_with_a_next(api: AsyncClient, catalog: Catalog, redis: Redis) -> None:
    schema = bytes(OPEN_SCHEMA)[:-1] + b',"x":"' + b"x" * 1_500_000 + b'"}'
    for number in range(4):
        await register(catalog, f"a/heavy{number}")
        await redis.hset(keys.version(f"a/heavy{number}", VERSION_A), "schema", schema)
    page, seen = (await api.get("/v1/models")).json(), 0
    assert len(page["results"]) == 2
    while page["next"]:
        seen += len(page["results"])
        page = (await api.get(page["next"])).json()
    assert seen + len(page["results"]) == 5


async def test_models_of_the_former_release_are_listed_after_their_director_returns(
    api: AsyncClient, catalog: Catalog, redis: Redis
) -> None:
    await register(catalog)
    await register(catalog, version=VERSION_B)
    await redis.hset(keys.version(PAINTER, VERSION_A), "announced", "1")
    await redis.delete(keys.models("created"), keys.models("latest"))
    await register(catalog)
    assert await names(api) == [PAINTER]
    assert (await api.get(f"/v1/models/{PAINTER}")).json()["latest_version"]["id"] == VERSION_B


async def test_examples_come_in_pages_that_fit_one_answer(api: AsyncClient, redis: Redis) -> None:
    for number in range(20):
        await redis.hset(keys.examples(MODEL), f"{number:026}", f'"{number} {"x" * 250_000}"')
    pages = [(await api.get(f"/v1/models/{MODEL}/examples")).json()]
    while pages[-1]["next"]:
        pages.append((await api.get(pages[-1]["next"])).json())
    assert [int(one.partition(" ")[0]) for page in pages for one in page["results"]] == list(range(19, -1, -1))
    assert [len(page["results"]) for page in pages] == [16, 4]
    assert len((await api.get(pages[1]["previous"])).json()["results"]) == 16


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [
        ("/predictions", {"version": HELLO}, 422),
        ("/predictions", {"version": f"{HELLO}:{HELLO_VERSION}"}, 422),
        ("/predictions", {"version": HELLO_VERSION}, 422),
        (f"/models/{HELLO}/predictions", {}, 404),
    ],
)
async def test_private_model_looks_nonexistent_to_others_but_not_to_operators(
    api: AsyncClient, redis: Redis, hello: QueueName, path: str, body: dict[str, str], refused: int
) -> None:
    await redis.hset(keys.model(HELLO), "visibility", "private")

    def never(text: str) -> str:
        return text.replace("hello", "never").replace(HELLO_VERSION, "0" * 64)

    asked = await api.post(f"/v1{path}", json={**body, "input": {}})
    other = {name: never(text) for name, text in body.items()}
    unknown = await api.post(f"/v1{never(path)}", json={**other, "input": {}})
    assert (asked.status_code, asked.json()) == (refused, unknown.json())
    operator = await Accounts(redis).create_token("ops", scopes=("read", "admin"))
    for of_the_model in ("", "/versions", f"/versions/{HELLO_VERSION}"):
        found = await api.get(f"/v1/models/{HELLO}{of_the_model}", headers={"Authorization": f"Bearer {operator}"})
        assert found.status_code == 200


SHELF = {
    f"{ACCOUNT}/painter": {"description": "Makes pictures of words."},
    "other/paint-mixer": {"description": "Mixes colours."},
    "other/repainted": {"visibility": "public"},
    "other/camera": {"description": "Like a painter, but faster."},
    "other/secret-painter": {"visibility": "private"},
    "painters/x": {"readme": "Nothing but the word colours."},
}


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    return ApiSettings(redis_url=settings.redis_url, cache_s=0)


@pytest.fixture
async def shelf(catalog: Catalog, queue: QueueName) -> None:
    for name, said in SHELF.items():
        await catalog.models.make(name, said)


async def found(api: AsyncClient, query: str) -> list[str]:
    page = (await api.request("QUERY", "/v1/models", content=query, headers={"content-type": "text/plain"})).json()
    return [f"{model['owner']}/{model['name']}" for model in page["results"]]


@pytest.mark.usefixtures("shelf")
async def test_name_ranks_above_prefix_owner_and_text(api: AsyncClient) -> None:
    assert await found(api, "painter") == [f"{ACCOUNT}/painter", "painters/x", "other/camera"]
    assert await found(api, "paint") == [
        "other/paint-mixer",
        f"{ACCOUNT}/painter",
        "other/repainted",
        "painters/x",
        "other/camera",
    ]
    assert await found(api, "colours") == ["other/paint-mixer", "painters/x"]


@pytest.mark.usefixtures("shelf")
async def test_every_word_must_match_also_when_quoted(api: AsyncClient) -> None:
    assert await found(api, "Pictures PAINTER") == [f"{ACCOUNT}/painter"]
    assert await found(api, '"pictures painter"') == [f"{ACCOUNT}/painter"]
    for nothing in ("nowhere painter", "", '"', "!!!", "*"):
        assert await found(api, nothing) == []


@pytest.mark.usefixtures("shelf")
async def test_only_the_owner_finds_a_private_model(api: AsyncClient, other: AsyncClient) -> None:
    assert await found(api, "secret") == []
    assert await found(other, "secret") == ["other/secret-painter"]
    in_search = [(await client.get("/v1/search?query=secret")).json()["models"] for client in (api, other)]
    assert [len(models) for models in in_search] == [0, 1]


@pytest.mark.usefixtures("shelf")
async def test_search_answers_with_scores_and_collections_but_no_pages(api: AsyncClient, redis: Redis) -> None:
    await Collections(redis).put("painting", Collection(name="Painting", description="All that paints."))
    answer = (await api.get("/v1/search?query=paint&limit=2")).json()
    assert [each["model"]["name"] for each in answer["models"]] == ["paint-mixer", "painter"]
    scores = [each["metadata"]["score"] for each in answer["models"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["collections"] == [{"name": "Painting", "slug": "painting", "description": "All that paints."}]
    assert (answer["query"], answer["pages"]) == ("paint", [])


@pytest.mark.parametrize(
    ("query", "status"), [("", 400), ("?query=%20", 400), ("?query=a&limit=0", 422), ("?query=a&limit=51", 422)]
)
async def test_empty_or_too_long_search_is_refused(api: AsyncClient, query: str, status: int) -> None:
    assert (await api.get(f"/v1/search{query}")).status_code == status


async def test_body_that_is_no_text_or_too_long_is_refused(api: AsyncClient) -> None:
    assert (await api.request("QUERY", "/v1/models", content=b"\xff")).status_code == 400
    assert (await api.request("QUERY", "/v1/models", content=b"x" * 5_000)).status_code == 413


@pytest.mark.usefixtures("shelf")
async def test_collection_lists_its_visible_models_in_order(api: AsyncClient, redis: Redis) -> None:
    models = (MODEL, "other/secret-painter", "other/gone", f"{ACCOUNT}/painter")
    collections = Collections(redis)
    await collections.put("best", Collection(name="The best", models=models))
    page = (await api.get("/v1/collections")).json()
    assert page == {
        "next": None,
        "previous": None,
        "results": [{"name": "The best", "slug": "best", "description": ""}],
    }
    best = (await api.get("/v1/collections/best")).json()
    assert [model["name"] for model in best.pop("models")] == ["echo", "painter"]
    assert best == {"name": "The best", "slug": "best", "description": "", "full_description": None}
    await collections.remove("best")
    assert (await api.get("/v1/collections/best")).status_code == 404
    assert (await api.get("/v1/collections")).json()["results"] == []


async def test_hardware_is_a_plain_list_written_by_operators(api: AsyncClient, redis: Redis) -> None:
    assert (await api.get("/v1/hardware")).json() == [{"name": "CPU", "sku": "cpu"}, {"name": "GPU", "sku": "gpu"}]
    await Collections(redis).put_hardware("gpu-t4", "Nvidia T4")
    assert (await api.get("/v1/hardware")).json() == [{"name": "Nvidia T4", "sku": "gpu-t4"}]


async def test_all_collections_are_read_in_one_round(
    api: AsyncClient, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        await Collections(redis).put(f"shelf{number:03}", Collection(name="Painters"))
    asked, together = Mock(side_effect=collections.ask), Mock(side_effect=collections.pipelined)
    monkeypatch.setattr(collections, "ask", asked)
    monkeypatch.setattr(collections, "pipelined", together)
    results = (await api.get("/v1/search", params={"query": "painters"})).json()["collections"]
    page = (await api.get("/v1/collections")).json()
    assert (len(results), len(page["results"]), asked.call_count, together.call_count) == (120, 100, 3, 6)
    assert (await api.get(page["next"])).json()["results"][0]["slug"] == "shelf100"
