"""Large inputs and outputs are in the file store: Redis has references, and no caller notices."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import httpx
import msgspec
import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.broker import keys
from director.broker.replies import Accepted
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.data_bytes import RECORD_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, new_prediction_id
from director.core.policy import Policy
from director.core.schema import REFERENCE_BYTES, Claim
from director.core.settings import ApiSettings
from director.core.states import Status
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.files.local import LocalFiles
from director.files.store import Links
from director.keeper.tidier import Tidied, Tidier
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.integration.api.conftest import Served, refusal
from tests.support.api import BASE, PlayedDirector
from tests.support.clock import FakeClock
from tests.support.cog import cog_schema
from tests.support.former_scripts import FormerScripts
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.release import Release
from tests.support.servers import RedisServer

INPUT = {"text": "x" * 200_000}
INPUT_BYTES = len(msgspec.json.encode(INPUT))
OUTPUT = b'"' + b"y" * 200_000 + b'"'
SECRETS_VERSION = "d4" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def store(redis: Redis, folder: Path) -> LocalFiles:
    found = store_in(str(folder), redis, SystemClock())
    assert isinstance(found, LocalFiles)
    return found


@pytest.fixture
def settings(server: RedisServer, folder: Path) -> ApiSettings:
    return ApiSettings(redis_url=server.url, cancel_wait_s=0, cache_s=0, files_dir=str(folder), data_in_files=True)


@pytest.fixture
def finish(director: PlayedDirector, store: LocalFiles) -> Callable[[Claim], Awaitable[None]]:
    """Return what ends a claim as a director does, with its output in the file store."""
    files = DataFiles(SystemClock(), store, from_bytes=32 << 10)

    async def end(claim: Claim, status: Status = Status.SUCCEEDED) -> None:
        await director.finish(claim, status, output=await files.put(claim.id, OUTPUT))

    return end


async def create(api: httpx.AsyncClient, given: Any = INPUT, **headers: str) -> httpx.Response:
    return await api.post("/v1/predictions", json={"version": VERSION, "input": given}, headers=headers)


async def in_redis(redis: Any, prediction_id: str) -> tuple[int, int]:
    name = PredictionId(prediction_id)
    return await redis.strlen(keys.input_data(name)), await redis.hstrlen(keys.output_data(name), "output")


def in_files(folder: Path) -> list[str]:
    """Return whose data is in the store, once for each file."""
    return sorted(path.parent.name for path in folder.rglob("*.data~"))


async def test_redis_has_only_references_and_every_answer_the_data(
    api: httpx.AsyncClient, redis: Redis, folder: Path, director: PlayedDirector, finish: Any
) -> None:
    made = (await create(api)).json()
    assert await in_redis(redis, made["id"]) == (REFERENCE_BYTES, 0)
    assert in_files(folder) == [made["id"]]
    waiting = (await api.get(f"/v1/predictions/{made['id']}")).json()
    await finish(await director.claim())
    ended = (await api.get(f"/v1/predictions/{made['id']}")).json()
    [listed] = (await api.get("/v1/predictions")).json()["results"]
    assert made["input"] == waiting["input"] == ended["input"] == listed["input"] == INPUT
    assert ended["output"] == listed["output"] == "y" * 200_000
    assert await in_redis(redis, made["id"]) == (REFERENCE_BYTES, REFERENCE_BYTES)
    streamed = (await api.get(made["urls"]["stream"].removeprefix(BASE))).text
    assert f"data: {'y' * 200_000}\n" in streamed
    assert streamed.rstrip().endswith("data: {}")


async def test_a_held_response_has_the_output(api: httpx.AsyncClient, director: PlayedDirector, finish: Any) -> None:
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await finish(await director.claim())

        tasks.start_soon(run)
        answer = await create(api, Prefer="wait=10")
    assert (answer.status_code, answer.json()["status"]) == (201, "succeeded")
    assert (answer.json()["input"], answer.json()["output"]) == (INPUT, "y" * 200_000)


async def test_small_inputs_and_those_with_secrets_stay_in_redis(
    api: httpx.AsyncClient, redis: Redis, folder: Path, catalog: Catalog
) -> None:
    document = cog_schema({"text": "string"})
    document["components"]["schemas"]["Input"]["properties"]["token"] = {"type": "string", "x-cog-secret": True}
    await catalog.register(MODEL, SECRETS_VERSION, schema=Raw(_encoded(document)), server="0.23.1", policy=Policy())
    small = await create(api, {"text": "small"})
    asked = {"version": SECRETS_VERSION, "input": {**INPUT, "token": "hush"}}
    secret = await api.post("/v1/predictions", json=asked)
    assert (small.status_code, secret.status_code) == (201, 201)
    assert (await in_redis(redis, small.json()["id"]))[0] == len('{"text":"small"}')
    assert (await in_redis(redis, secret.json()["id"]))[0] > 200_000
    assert in_files(folder) == []


def _encoded(document: Any) -> bytes:
    return msgspec.json.encode(document)


async def test_hoarded_inputs_cost_redis_only_their_references(
    api: httpx.AsyncClient, redis: Redis, served: Served
) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"max_data_bytes": "30000"})
    assert [(await create(api)).status_code for _ in range(4)] == [201] * 4
    used = (await Accounts(redis).usage(ACCOUNT, day=0)).data_bytes
    assert used == 4 * (RECORD_BYTES + REFERENCE_BYTES)
    async with served(data_in_files=False) as api:
        assert refusal(await create(api)) == (413, "data_full")


async def test_without_the_setting_redis_has_all(served: Served, redis: Any, folder: Path) -> None:
    async with served(data_in_files=False) as api:
        made = (await create(api)).json()
    stored = await redis.get(keys.input_data(PredictionId(made["id"])))
    assert stored == _encoded(INPUT)
    assert in_files(folder) == []


@pytest.mark.chaos
async def test_the_former_release_reads_what_is_written_without_the_setting(
    served: Served, server: RedisServer, former: Release, director: PlayedDirector
) -> None:
    async with served(data_in_files=False) as api:
        made = (await create(api)).json()
    theirs = FormerScripts(former, server.url)
    await director.finish(await director.claim(), output=OUTPUT)
    read = await theirs.get(PredictionId(made["id"]))
    await theirs.aclose()
    assert (bytes(read.input), bytes(read.output)) == (_encoded(INPUT), OUTPUT)


async def test_a_text_that_looks_like_a_reference_stays_a_text(
    api: httpx.AsyncClient, redis: Any, director: PlayedDirector
) -> None:
    other = PredictionId((await create(api)).json()["id"])
    reference = (await redis.get(keys.input_data(other))).decode()
    await director.claim()
    made = (await create(api, {"text": reference})).json()
    await director.finish(await director.claim(), output=_encoded(reference))
    shown = (await api.get(f"/v1/predictions/{made['id']}")).json()
    assert (shown["input"], shown["output"]) == ({"text": reference}, reference)
    headers = {"Content-Type": "application/json"}
    body = b'{"version": "' + VERSION.encode() + b'", "input": ' + reference.encode() + b"}"
    assert (await api.post("/v1/predictions", content=body, headers=headers)).status_code == 400


async def test_no_public_address_leads_to_data(api: httpx.AsyncClient, redis: Redis, folder: Path) -> None:
    prediction_id = (await create(api)).json()["id"]
    [path] = folder.rglob("*.data~")
    name, expires_s = f"{prediction_id}-{path.name}", SystemClock().now_ms() // 1000 + 60
    url = await Links(redis, SystemClock()).sign(name, base="", expires_s=expires_s)
    assert (await api.get(url)).status_code == 404
    assert (await api.get(f"/internal/outputs/{name}?{url.partition('?')[2]}")).status_code == 403


async def test_a_refused_or_repeated_create_leaves_no_file(api: httpx.AsyncClient, redis: Redis, folder: Path) -> None:
    first = (await create(api, **{"Idempotency-Key": "k"})).json()
    again = await create(api, **{"Idempotency-Key": "k"})
    assert (again.json()["id"], again.json()["input"]) == (first["id"], INPUT)
    await Accounts(redis).set_limits(ACCOUNT, {"max_queued": "1"})
    assert refusal(await create(api)) == (429, "too_many_queued")
    await Accounts(redis).set_limits(ACCOUNT, {"max_queued": "none", "max_data_bytes": str(RECORD_BYTES + 1)})
    assert refusal(await create(api)) == (429, "data_full")
    assert in_files(folder) == [first["id"]]


async def test_a_create_whose_answer_is_lost_keeps_its_file(
    api: httpx.AsyncClient, folder: Path, director: PlayedDirector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction is accepted all the same. The repeat stores a file of its own, and drops only that."""
    enqueue = Scripts.enqueue

    async def loses_its_answer(*given: Any) -> Accepted:
        await enqueue(*given)
        raise BackendUnavailable("its answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "enqueue", loses_its_answer)
        assert (await create(api, **{"Idempotency-Key": "k"})).status_code == 503
    accepted = (await director.claim()).id
    assert in_files(folder) == [accepted]
    again = await create(api, **{"Idempotency-Key": "k"})
    assert (again.json()["id"], again.json()["input"]) == (accepted, INPUT)
    assert in_files(folder) == [accepted]


async def test_a_store_that_is_away_refuses_no_create_and_delays_a_read(
    api: httpx.AsyncClient, redis: Redis, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (await create(api)).json()["id"]
    folder.rename(folder.with_name("away"))

    async def fails(*_: Any, **__: Any) -> None:
        raise OSError("no such disk")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "put", fails)
        made = await create(api)
    assert (made.status_code, made.json()["input"]) == (201, INPUT)
    assert (await in_redis(redis, made.json()["id"]))[0] > 200_000
    answer = await api.get(f"/v1/predictions/{kept}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    listed = (await api.get("/v1/predictions")).json()["results"]
    shown = [(each["id"], each["input"], each["data_removed"]) for each in listed]
    assert shown == [(made.json()["id"], INPUT, False), (kept, {}, True)], "one hides no other"
    folder.with_name("away").rename(folder)
    assert (await api.get(f"/v1/predictions/{kept}")).json()["input"] == INPUT


@pytest.mark.faults
async def test_files_live_as_long_as_their_data_and_their_prediction(
    api: httpx.AsyncClient,
    redis: Any,
    folder: Path,
    scripts: Scripts,
    store: LocalFiles,
    director: PlayedDirector,
    finish: Any,
) -> None:
    clock = FakeClock(now_ms=SystemClock().now_ms())
    tidier = Tidier(redis, scripts, store, clock)
    orphan = new_prediction_id(model=MODEL, now_ms=clock.now_ms())
    await DataFiles(clock, store, from_bytes=1024).put(orphan, OUTPUT)
    failed, ended, waiting = [(await create(api)).json()["id"] for _ in range(3)]
    assert await tidier.run_once() == Tidied(seen=4), "the orphan may still be accepted"
    clock.pass_time(7 * 86_400)
    assert await tidier.run_once() == Tidied(seen=4, removed=1), "they wait for days"
    await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    await finish(await director.claim())
    assert await tidier.run_once() == Tidied(seen=3)
    counted = (await scripts.stow(ACCOUNT)).total
    await redis.delete(keys.input_data(PredictionId(failed)))  # as its lifetime would
    await redis.delete(keys.input_data(PredictionId(ended)))
    assert await tidier.run_once() == Tidied(seen=3, removed=1)
    assert (counted, (await scripts.stow(ACCOUNT)).total) == (3 * INPUT_BYTES, 2 * INPUT_BYTES)
    assert in_files(folder) == sorted([ended, ended, waiting])
    assert (await api.delete(f"/v1/predictions/{ended}")).status_code == 204
    assert in_files(folder) == [waiting]
    await redis.hset(keys.record(PredictionId(waiting)), "moved", "elsewhere")  # as vacate leaves it
    await redis.delete(keys.input_data(PredictionId(waiting)))
    await tidier.run_once()
    assert in_files(folder) == []


async def test_bytes_of_a_deletion_that_was_cut_short_do_not_count(
    api: httpx.AsyncClient,
    scripts: Scripts,
    folder: Path,
    director: PlayedDirector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, waiting = [(await create(api)).json()["id"] for _ in range(2)]
    await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "delist", away)  # the record is gone by then
        assert (await api.delete(f"/v1/predictions/{ended}")).status_code == 503
    assert (await api.delete(f"/v1/predictions/{ended}")).status_code == 404
    assert (await scripts.stow(ACCOUNT)).total == INPUT_BYTES
    assert (await api.delete(f"/v1/predictions/{waiting}")).status_code == 409
    assert (await scripts.stow(ACCOUNT)).total == INPUT_BYTES
    assert waiting in in_files(folder)


async def test_files_that_are_counted_during_their_deletion_do_not_stay_counted(
    api: httpx.AsyncClient, scripts: Scripts, director: PlayedDirector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A director counts them after the end, and the caller may have heard of the end before."""
    ended = (await create(api)).json()["id"]
    await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    erase = Scripts.erase

    async def after_the_count(self: Scripts, prediction_id: PredictionId, *, account: str) -> Any:
        await self.stow(account, prediction_id, INPUT_BYTES, until_ms=SystemClock().now_ms() + 60_000)
        return await erase(self, prediction_id, account=account)

    monkeypatch.setattr(Scripts, "erase", after_the_count)
    assert (await api.delete(f"/v1/predictions/{ended}")).status_code == 204
    assert (await scripts.stow(ACCOUNT)).total == 0


async def test_a_sweep_that_cannot_uncount_leaves_the_files_to_the_next(
    api: httpx.AsyncClient,
    redis: Any,
    folder: Path,
    scripts: Scripts,
    store: LocalFiles,
    director: PlayedDirector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = PredictionId((await create(api)).json()["id"])
    await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    await redis.delete(keys.input_data(ended))  # as its lifetime would
    tidier = Tidier(redis, scripts, store, SystemClock())
    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "stow", away)
        with pytest.raises(BackendUnavailable):
            await tidier.run_once()
    assert await tidier.run_once() == Tidied(seen=1, removed=1)
    assert (in_files(folder), (await scripts.stow(ACCOUNT)).total) == ([], 0)


async def away(*_: Any, **__: Any) -> NoReturn:
    raise BackendUnavailable("Redis is away")


@pytest.mark.faults
async def test_a_dead_letter_is_shown_with_its_input_and_runs_again(
    api: httpx.AsyncClient,
    redis: Any,
    folder: Path,
    scripts: Scripts,
    store: LocalFiles,
    director: PlayedDirector,
    admin: httpx.AsyncClient,
    finish: Any,
) -> None:
    prediction_id = (await create(api)).json()["id"]
    became = ""
    while became != "dead":
        claim = await director.claim()
        became = await scripts.release(claim.id, token=claim.token, spent=True, error="It broke.", code="broken")
    await Tidier(redis, scripts, store, FakeClock(now_ms=SystemClock().now_ms() + 86_400_000)).run_once()
    shown = (await admin.get(f"/v1/admin/dead/{prediction_id}")).json()
    assert shown["input"] == INPUT
    folder.rename(folder.with_name("away"))
    without = (await admin.get(f"/v1/admin/dead/{prediction_id}")).json()
    assert without == {**shown, "input": None}, "why it died is shown in any case"
    folder.with_name("away").rename(folder)
    assert await scripts.revive(prediction_id)
    await finish(await director.claim())
    assert (await api.get(f"/v1/predictions/{prediction_id}")).json()["output"] == "y" * 200_000


@pytest.mark.parametrize("size", [200_000, 300_000])
async def test_a_retry_has_a_file_of_its_own(
    api: httpx.AsyncClient,
    admin: httpx.AsyncClient,
    redis: Redis,
    folder: Path,
    store: LocalFiles,
    director: PlayedDirector,
    size: int,
) -> None:
    given = {"text": "x" * size}
    failed = (await create(api, given)).json()["id"]
    await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    [retry] = (await admin.post(f"/v1/admin/predictions/{failed}/retry")).json()["retried"]
    claim = await director.claim()
    assert claim.id == retry["new_id"]
    assert await DataFiles(SystemClock(), store).read(claim.id, claim.input) == Raw(_encoded(given))
    assert await in_redis(redis, claim.id) == (REFERENCE_BYTES, 0)
    assert in_files(folder) == sorted([failed, claim.id])
    await Accounts(redis).set_limits(ACCOUNT, {"max_data_bytes": "1"})
    await director.finish(claim, Status.FAILED, error="It broke.")
    refused = (await admin.post(f"/v1/admin/predictions/{claim.id}/retry")).json()["refused"]
    assert [one["why"] for one in refused] == ["data_full"]
    assert in_files(folder) == sorted([failed, claim.id])


@pytest.mark.parametrize("size", [200_000, 300_000])
async def test_a_lost_file_keeps_no_other_prediction_from_its_retry(
    api: httpx.AsyncClient, admin: httpx.AsyncClient, folder: Path, director: PlayedDirector, size: int
) -> None:
    lost, kept = [(await create(api, {"text": "x" * size})).json()["id"] for _ in range(2)]
    for _ in range(2):
        await director.finish(await director.claim(), Status.FAILED, error="It broke.")
    [path] = folder.rglob(f"{lost}/*.data~")
    path.unlink()
    answer = await admin.post("/v1/admin/predictions/retry", json={"all": True})
    assert answer.status_code == 200
    assert [one["id"] for one in answer.json()["retried"]] == [kept]
    assert answer.json()["refused"] == [{"id": lost, "why": "data_away"}]


@pytest.mark.faults
async def test_a_page_of_large_data_is_as_short_as_without_files(
    api: httpx.AsyncClient, director: PlayedDirector, store: LocalFiles
) -> None:
    """The sizes of what is in files bound the page too: one page must not fill the memory of the API."""
    data = b'"' + b"y" * (3 << 20) + b'"'
    files = DataFiles(SystemClock(), store, from_bytes=1024)
    for is_in_files in (True, False, True, False):
        await create(api, {"text": "hi"})
        claim = await director.claim()
        await director.finish(claim, output=await files.put(claim.id, data) if is_in_files else data)
    pages: list[int] = []
    url = "/v1/predictions"
    while url:
        page = (await api.get(url.removeprefix(BASE))).json()
        pages.append(len(page["results"]))
        url = page["next"]
    assert pages == [1, 1, 1, 1]
