"""Test search, collections and hardware: which entries are found, in which order, and which are never shown."""

from unittest.mock import Mock

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store import models as collections
from director.store.catalog import Catalog
from director.store.models import Collection, Collections
from tests.support.queue_driver import ACCOUNT, MODEL

pytestmark = pytest.mark.anyio

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
