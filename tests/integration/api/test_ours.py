"""Test the files that a director puts through the API: each needs our signed order and must match its name."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.ids import PredictionId, new_prediction_id
from director.core.settings import ApiSettings
from director.files.choose import ApiFiles, output_store_in, store_in
from director.files.store import FileName, Links, file_name
from tests.support.api import BASE, api_client
from tests.support.servers import RedisServer

BYTES = bytes(range(256)) * 4096
ID = new_prediction_id(model="acme/echo", now_ms=SystemClock().now_ms())
OTHER = new_prediction_id(model="acme/echo", now_ms=SystemClock().now_ms())
NAME = file_name(ID, BYTES, content_type="image/png")


def in_s(seconds: int) -> int:
    return SystemClock().now_ms() // 1000 + seconds


async def pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(BYTES), 100_000):
        yield BYTES[start : start + 100_000]


@pytest.fixture
def links(product_redis: Redis) -> Links:
    return Links(product_redis, SystemClock())


@pytest.fixture
async def api(server: RedisServer, redis: Redis, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with api_client(ApiSettings(redis_url=server.url, files_dir=str(tmp_path / "files"))) as http:
        yield http


@pytest.fixture
def store(api: AsyncClient, links: Links) -> ApiFiles:
    return ApiFiles(BASE, links, SystemClock(), transport=api._transport)


@pytest.mark.parametrize("way", ["whole", "as it comes"])
async def test_file_put_by_a_director_is_served_at_its_address(api: AsyncClient, store: ApiFiles, way: str) -> None:
    for _ in range(2):  # the reply was lost, so the file is put again
        if way == "whole":
            await store.put(NAME, BYTES, content_type="image/png")
        else:
            await store.put(NAME, pieces(), content_type="image/png")
    answer = await api.get(await store.url(NAME, base=BASE, expires_s=in_s(60)))
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert answer.content == BYTES


async def test_removal_deletes_only_the_files_of_one_prediction(api: AsyncClient, store: ApiFiles) -> None:
    kept = file_name(OTHER, b"kept", content_type="text/plain")
    await store.put(NAME, BYTES, content_type="image/png")
    await store.put(kept, b"kept", content_type="text/plain")
    for _ in range(2):
        await store.remove(ID)
    assert (await api.get(await store.url(NAME, base=BASE, expires_s=in_s(60)))).status_code == 404
    assert (await api.get(await store.url(kept, base=BASE, expires_s=in_s(60)))).content == b"kept"


async def test_every_request_needs_a_signed_order_of_its_own(api: AsyncClient, links: Links, store: ApiFiles) -> None:
    later = in_s(60)
    shown = (await store.url(NAME, base=BASE, expires_s=later)).partition("?")[2]
    orders = {
        "": 403,
        "expires=9999999999&signature=": 403,
        "expires=x&signature=%00": 403,
        shown: 403,
        await links.order("remove", ID, expires_s=later): 403,
        await links.order("put", str(file_name(ID, b"x", content_type="image/png")), expires_s=later): 403,
        await links.order("put", str(NAME), expires_s=in_s(-1)): 403,
        await links.order("put", str(NAME), expires_s=later): 204,
    }
    answers = {
        order: (await api.put(f"/internal/outputs/{NAME}?{order}", content=BYTES)).status_code for order in orders
    }
    assert answers == orders
    put = await links.order("put", str(NAME), expires_s=later)
    assert (await api.delete(f"/internal/predictions/{ID}/outputs?{put}")).status_code == 403
    shows = await api.get(f"/v1/outputs/{NAME}?{put}")
    assert shows.status_code == 403, "an order shows nothing"


async def test_bytes_that_do_not_match_the_name_are_refused(api: AsyncClient, links: Links, tmp_path: Path) -> None:
    order = await links.order("put", str(NAME), expires_s=in_s(60))
    for wrong in (b"", BYTES[:-1], BYTES + b"x"):
        answer = await api.put(f"/internal/outputs/{NAME}?{order}", content=wrong)
        assert answer.status_code == 422
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_foreign_name_never_becomes_a_path(api: AsyncClient, links: Links) -> None:
    digest = hashlib.sha256(BYTES).hexdigest()[:32]
    for name in (
        f"{ID}-{digest}.",
        f"..%2f{ID}-{digest}.png",
        "x",
        str(FileName(PredictionId("x" * 26), digest, "png")),
    ):
        order = await links.order("put", name, expires_s=in_s(60))
        assert (await api.put(f"/internal/outputs/{name}?{order}", content=BYTES)).status_code == 404
    order = await links.order("put", str(NAME), expires_s=in_s(60))
    long = {"Content-Type": "a/" + "b" * 300}
    assert (await api.put(f"/internal/outputs/{NAME}?{order}", content=BYTES, headers=long)).status_code == 422


async def test_director_learns_why_the_store_fails(
    server: RedisServer, links: Links, store: ApiFiles, tmp_path: Path
) -> None:
    assert await store.probe() == ""
    (tmp_path / "file").touch()
    for folder, said in (("", "stores no files"), (str(tmp_path / "file" / "x"), "own store does not work")):
        async with api_client(ApiSettings(redis_url=server.url, files_dir=folder)) as http:
            wrong = ApiFiles(BASE, links, SystemClock(), transport=http._transport)
            assert said in await wrong.probe()
            with pytest.raises(OSError, match="the API answers"):
                await wrong.put(NAME, BYTES, content_type="image/png")
    assert "cannot be reached" in await ApiFiles("http://127.0.0.1:9", links, SystemClock()).probe()


async def test_only_directors_may_use_the_api_as_store(product_redis: Redis) -> None:
    url = "http://api:8080"
    assert isinstance(output_store_in("", product_redis, SystemClock(), url=url), ApiFiles)
    with pytest.raises(SettingsError, match="only a director"):
        store_in("", product_redis, SystemClock(), url=url)
