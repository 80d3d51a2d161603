"""Test the files of a real model: they go into the store, have signed addresses, and are deleted with the data."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import partition_of
from director.core.settings import ApiSettings
from director.execution import run_files as storing
from director.files.choose import store_in
from director.keeper.tidier import Tidied, Tidier
from tests.support.api import api_client
from tests.support.cog import cog_schema, cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import URL, Caller, Gate, Live, live_director
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer
from tests.support.sink import sink

pytestmark = pytest.mark.cog

SOURCE = """
    import tempfile
    from typing import Iterator
    from cog import BaseModel, BasePredictor, Path

    def made(name, data):
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(data)
        return path

    class Predictor(BasePredictor):
        def predict(self, n: int = 2, size: int = 10, gate: str = "", name: str = "out.png") -> Iterator[Path]:
            for i in range(n):
                yield made(name, bytes([i]) * size)
            wait_for(gate)

    class Output(BaseModel):
        picture: Path
        caption: str

    class Whole(BasePredictor):
        def predict(self, size: int = 10) -> Output:
            return Output(picture=made("out.jpg", b"j" * size), caption="data: not a file")
"""


INPUTS = {"n": "integer", "size": "integer", "gate": "string", "name": "string"}
FILES = {"type": "array", "items": {"type": "string", "format": "uri"}, "x-cog-array-type": "iterator"}


@pytest.fixture(scope="module")
async def files_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    async with cog_server(
        write_model(tmp_path_factory.mktemp("files") / "model", SOURCE, cog_schema(INPUTS, FILES))
    ) as url:
        yield url


@pytest.fixture(scope="module")
async def whole_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[str]:
    folder = write_model(tmp_path_factory.mktemp("whole") / "model", SOURCE, cog_schema(INPUTS, {"type": "object"}))
    async with cog_server(folder, stub="predict.py:Whole") as url:
        yield url


@pytest.fixture
def model_url(files_url: str) -> str:
    return files_url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def api(server: RedisServer, redis: Redis, folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """Yield a client without a token, which knows only addresses."""
    async with api_client(ApiSettings(redis_url=server.url, files_dir=str(folder))) as client:
        yield client


async def fetched(api: httpx.AsyncClient, url: str) -> bytes:
    assert url.startswith(f"{URL}/v1/outputs/")
    answer = await api.get(url.removeprefix(URL))
    assert answer.status_code == 200
    return answer.content


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    return {"files_dir": str(folder), "webhook_allow": "loopback", **given}


async def test_yielded_files_have_addresses_during_and_after_the_run(
    caller: Caller, live: Live, folder: Path, api: httpx.AsyncClient, gate: Gate
) -> None:
    async with live.director(**settings(folder)):
        asked = await caller.submit(n=2, size=100_000, gate=str(gate))
        running = await eventually(
            lambda: caller.get(asked), "it shows both", until=lambda shown: len(shown["output"] or []) == 2
        )
        assert [await fetched(api, url) for url in running["output"]] == [bytes([i]) * 100_000 for i in (0, 1)]
        gate.open()
        ended = await caller.ended(asked)
    assert ended["status"] == "succeeded"
    assert ended["output"] == running["output"]
    events = await caller.redis.lrange(keys.events(asked), 0, -1)
    assert max(map(len, events)) < 1000


async def test_only_the_file_in_an_object_is_replaced(
    caller: Caller, live: Live, whole_url: str, folder: Path, api: httpx.AsyncClient
) -> None:
    async with live.director(whole_url, **settings(folder)):
        output = (await caller.ended(await caller.submit(size=12_000_000)))["output"]
    assert output["caption"] == "data: not a file"
    assert await fetched(api, output["picture"]) == b"j" * 12_000_000  # larger than Redis would accept


async def test_every_webhook_contains_the_addresses(caller: Caller, live: Live, folder: Path) -> None:
    async with sink() as receiver, live.director(**settings(folder)):
        ended = await caller.ended(
            await caller.submit(n=3, size=50_000, webhook=receiver.url, webhook_events="start,output,completed")
        )
        await eventually(
            lambda: receiver.received and "completed" in receiver.received[-1].headers["webhook-id"], "the end is told"
        )
        bodies = [msgspec.json.decode(each.body) for each in receiver.received]
    assert bodies[-1]["output"] == ended["output"]
    for body in bodies:
        assert (body["output"] or []) == ended["output"][: len(body["output"] or [])]


async def test_output_stays_unchanged_without_a_store(caller: Caller, live: Live, files_url: str) -> None:
    async with live.director():
        output = (await caller.ended(await caller.submit(n=1)))["output"]
    assert output[0].startswith("data:image/png;base64,")


@pytest.mark.parametrize("size", [0, 10])
async def test_text_becomes_a_file_as_any_other(
    caller: Caller, live: Live, folder: Path, api: httpx.AsyncClient, size: int
) -> None:
    async with live.director(**settings(folder)):
        [address] = (await caller.ended(await caller.submit(n=1, name="out.txt", size=size)))["output"]
    assert await fetched(api, address) == bytes(size)


async def test_short_text_stays_where_an_operator_wants_that(
    caller: Caller, live: Live, folder: Path, api: httpx.AsyncClient
) -> None:
    async with live.director(**settings(folder, inline_text_bytes=4096)):
        [short] = (await caller.ended(await caller.submit(n=1, name="out.txt")))["output"]
        [long] = (await caller.ended(await caller.submit(n=1, name="out.txt", size=5_000)))["output"]
    assert short.startswith("data:text/plain")
    assert await fetched(api, long) == bytes(5_000)


async def test_unwritable_store_fails_the_prediction_but_not_the_director(
    caller: Caller, live: Live, folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(storing, "PAUSES_S", (0.0, 0.0))
    async with live.director(**settings(folder)) as director:
        folder.rmdir()
        folder.touch()  # a real failure, which root gets too
        ended = await caller.ended(await caller.submit(n=1, gate=str(gate)))  # the run is stopped: the gate never opens
        assert (ended["status"], ended["code"]) == ("failed", "output_not_stored")
        assert ended["error"] == "A file of the output could not be stored."
        assert ended["output"] is None
        assert ended["completed_at"]
        assert caplog.messages.count("storing a file failed") == 3
        await eventually(lambda: director.servers.permits.busy, "the permit is left", until=lambda busy: busy == 0)
        folder.unlink()
        assert (await caller.ended(await caller.submit(n=1)))["status"] == "succeeded"
    await caller.nothing_is_left()


async def test_files_are_deleted_together_with_the_data(
    caller: Caller, live: Live, redis: Redis, scripts: Scripts, folder: Path, api: httpx.AsyncClient, gate: Gate
) -> None:
    store = store_in(str(folder), redis, SystemClock())
    tidier = Tidier(redis, scripts, store, SystemClock())
    async with live.director(**settings(folder)):
        removed = await caller.ended(await caller.submit(n=2, size=5_000))
        assert (await scripts.stow(ACCOUNT)).total == 10_000
        kept = await caller.ended(await caller.submit(n=1))
        running = await caller.submit(n=1, gate=str(gate))
        await eventually(lambda: caller.get(running), "it shows one", until=lambda shown: shown["output"])
        assert await tidier.run_once() == Tidied(seen=3)
        await redis.delete(keys.output_data(removed["id"]))  # as its lifetime would
        assert await tidier.run_once() == Tidied(seen=3, removed=1)
        assert (await scripts.stow(ACCOUNT)).total == 20
        gate.open()
        ended = await caller.ended(running)
    for url in removed["output"]:
        assert (await api.get(url.removeprefix(URL))).status_code == 404
    for url in [*kept["output"], *ended["output"]]:
        assert await fetched(api, url) == bytes(10)
    assert await tidier.run_once() == Tidied(seen=2)


async def test_address_lasts_at_least_as_long_as_the_data(
    caller: Caller, live: Live, redis: Redis, folder: Path, api: httpx.AsyncClient
) -> None:
    given = settings(folder, data_ttl_s=1, run_limit_s=1)
    async with live.director(**given):
        ended = await caller.ended(await caller.submit(n=1))
        [url] = ended["output"]
        assert await fetched(api, url) == bytes(10)
        expires_s = int(httpx.URL(url).params["expires"])
        now_s = SystemClock().now_ms() / 1000
        assert await redis.pttl(keys.output_data(ended["id"])) / 1000 <= expires_s - now_s <= 3
    owed = await caller.submit(webhook="http://127.0.0.1:9/", webhook_events="completed", n=1)
    async with live.director(**given):
        [url] = (await caller.ended(owed))["output"]
        left_s = int(httpx.URL(url).params["expires"]) - SystemClock().now_ms() / 1000
        assert left_s >= await redis.pttl(keys.output_data(owed)) / 1000 > 86_400
    await redis.delete(keys.owed(partition_of(owed)))


@pytest.fixture
async def address(caller: Caller, server: RedisServer, whole_url: str, folder: Path) -> str:
    """Return the signed address of a picture on this service."""
    async with live_director(server.url, whole_url, **settings(folder)):
        output = (await caller.ended(await caller.submit()))["output"]
    return str(output["picture"]).removeprefix(URL)


async def test_file_is_served_with_its_type_and_strict_security_headers(address: str, api: httpx.AsyncClient) -> None:
    answer = await api.get(address)
    head = await api.head(address)
    part = await api.get(address, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, answer.content[2:5])
    name = address.partition("?")[0].rpartition("/")[2]
    for headers in (answer.headers, head.headers):
        assert headers["content-type"] == "image/jpeg"
        assert headers["content-length"] == "10"
        assert headers["content-disposition"] == f'inline; filename="{name}"'
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert headers["access-control-allow-origin"] == "*"


async def test_changed_or_expired_address_is_refused(address: str, api: httpx.AsyncClient) -> None:
    url = httpx.URL(address)
    changed = [
        url.path,
        url.copy_merge_params({"signature": "0" * 64}),
        url.copy_merge_params({"expires": "99999999999"}),
        url.copy_merge_params({"expires": "1"}),
        url.copy_with(path=url.path.replace(".jpg", ".png")),
    ]
    for each in changed:
        answer = await api.get(each)
        assert (answer.status_code, answer.json()["status"]) == (403, 403)


@pytest.mark.parametrize(
    "path", ["/v1/outputs/", "/v1/outputs/..%2f..%2fetc%2fpasswd", "/v1/outputs/%2e%2e", "/v1/outputs/a%00.png"]
)
async def test_other_paths_are_no_files(path: str, api: httpx.AsyncClient) -> None:
    assert (await api.get(path)).status_code == 404


async def test_service_without_a_store_has_no_files(address: str, server: RedisServer) -> None:
    async with api_client(ApiSettings(redis_url=server.url)) as api:
        assert (await api.get(address)).status_code == 404


@pytest.mark.parametrize("name", ["page.html", "page.svg"])
async def test_active_content_is_only_downloaded(
    caller: Caller, live: Live, folder: Path, api: httpx.AsyncClient, name: str
) -> None:
    async with live.director(**settings(folder, inline_text_bytes=0)):
        [url] = (await caller.ended(await caller.submit(n=1, name=name)))["output"]
    answer = await api.get(url.removeprefix(URL))
    assert answer.headers["content-type"].startswith(("text/html", "image/svg+xml"))
    assert answer.headers["content-disposition"].startswith("attachment; ")
