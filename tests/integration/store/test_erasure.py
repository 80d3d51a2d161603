"""An erased account leaves nothing of what it sent, received or used. Others keep theirs."""

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest
from msgspec import Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import SettingsError
from director.core.ids import PredictionId, lowest_id_at, new_file_id
from director.core.settings import ApiSettings
from director.core.usage import Used, day_of
from director.store.batches import Batch, Batches
from director.store.caller_files import CallerFile, CallerFiles
from director.store.changes import FIRST
from director.store.deployments import Deployment, Deployments
from director.store.erasure import Erased, Erasure
from director.store.services import Services
from tests.integration.api.conftest import token as token
from tests.integration.cli.conftest import Operator
from tests.integration.cli.conftest import operator as operator
from tests.support.api import api_client
from tests.support.keyspace import holders, unchanged
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer

BY = "cli:tester"
RIVAL = "rival"
SECRET = "what only acme knows"
# Ids say nothing of what was sent. They stay in the log of steps, as the queue's newest, and for a day under their key
MAY_KEEP_IDS = re.compile(r"\{p\d+\}:(?:log|idem:.*|q:.*:(?:meta|last))")


@pytest.fixture
async def services(redis: Redis) -> Services:
    return Services(redis)


@pytest.fixture
def erasure(services: Services) -> Erasure:
    return services.erasure


@pytest.fixture
async def api(server: RedisServer, token: str, driver: QueueDriver, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = ApiSettings(redis_url=server.url, files_dir=str(tmp_path), cache_s=0, cancel_wait_s=0)
    async with api_client(settings, token=token) as client:
        yield client


async def created(api: httpx.AsyncClient, key: str) -> PredictionId:
    body = {"version": VERSION, "input": {"text": SECRET}, "webhook": "https://hooks.example/x"}
    answer = await api.post("/v1/predictions", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 201, answer.text
    return PredictionId(answer.json()["id"])


async def suspended(services: Services, account: str = ACCOUNT) -> None:
    ended = await services.administration.suspend(account, "end", "asked", by=BY, within_s=60)
    assert ended.left == 0


async def test_erased_account_leaves_nothing_that_it_sent_or_used(
    api: httpx.AsyncClient, services: Services, driver: QueueDriver, redis: Redis
) -> None:
    driver.now_ms = services.clock.now_ms()
    ids = [await created(api, "one")]
    used = Used(runs=1, ms=2_000, input_tokens=7)
    assert await driver.finish(await driver.claim_one(), output=SECRET.encode(), logs=SECRET, used=used)
    ids.append(await created(api, "two"))
    while await driver.release(await driver.claim_one(), spent=True, error=SECRET, code="broken") != "dead":
        pass
    ids.append(await driver.submit(kind="training"))
    await driver.scripts.enlist(ids[-1], account=ACCOUNT, oldest=lowest_id_at(0), kind="training")
    upload = await api.post("/v1/files", files={"content": (f"{SECRET}.txt", SECRET.encode())})
    assert upload.status_code == 201
    ids.append(await created(api, "three"))  # it waits until the suspension ends it
    assert await holders(redis, SECRET.encode())

    await suspended(services)
    erased = await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)
    assert erased == Erased(predictions=4, batches=0, files=1, deployments=0, tokens=1, months=1)
    assert await holders(redis, SECRET.encode()) == []
    for each in ids:
        assert [key for key in await holders(redis, each.encode()) if not MAY_KEEP_IDS.fullmatch(key)] == []
    assert not [key for key in await holders(redis, ACCOUNT.encode()) if ":ledger:" in key]
    assert (await api.get("/v1/predictions")).status_code == 401
    assert await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60) == Erased(
        predictions=0, batches=0, files=0, deployments=0, tokens=0, months=0
    )


async def test_erased_account_leaves_no_batch_and_nothing_that_it_wrote(
    services: Services, redis: Redis, token: str
) -> None:
    now_ms, batches, files = services.clock.now_ms(), Batches(redis, services.scripts), CallerFiles(redis)
    for account in (ACCOUNT, RIVAL):
        batch = Batch(
            id=new_file_id(now_ms),
            account=account,
            api_token="",
            endpoint="/v1/chat/completions",
            input=new_file_id(now_ms),
            window="24h",
            headers=b"{}",
            metadata=SECRET.encode(),
            base="",
            created=now_ms,
            expires=now_ms + 86_400_000,
            status="validating",
        )
        assert await batches.open(batch, ttl_s=86_400) == "opened"
        part = CallerFile(
            id=new_file_id(now_ms),
            account=account,
            name=SECRET,
            ending="part",
            content_type="",
            size=7,
            sha256="",
            md5="",
            metadata=Raw(b"{}"),
            created=now_ms,
            expires=now_ms + 86_400_000,
        )
        await services.scripts.stow(account, part.id, part.size, until_ms=part.expires)
        await files.keep(part, life_ms=86_400_000)
    await suspended(services)
    erased = await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)
    assert (erased.batches, erased.files) == (1, 0)
    assert [account for account, _ in (await batches.waiting(9, now_ms=now_ms))[0]] == [RIVAL]
    assert sorted(await holders(redis, SECRET.encode())) == sorted([keys.batch(batch.id), keys.file(RIVAL, part.id)])
    assert not await redis.exists(keys.stored(ACCOUNT), keys.batches_of(ACCOUNT), keys.batches_live(ACCOUNT))


@pytest.mark.parametrize("is_promoted", [True, False])
async def test_erased_account_leaves_no_split_of_a_deployment(
    services: Services, redis: Redis, token: str, is_promoted: bool
) -> None:
    tried, deployments = "c3" * 32, services.deployments
    _, made = await deployments.create(
        ACCOUNT, "front", model=MODEL, version=VERSION, hardware="cpu", min_instances=0, max_instances=1
    )
    _, trial = await deployments.share(made, by=ACCOUNT, version=tried, share=50, margin=None, least=None)
    if is_promoted:
        await deployments.release(trial, replace(trial.release, version=tried), by=ACCOUNT)
    assert await redis.exists(keys.split(made.full_name))
    await suspended(services)
    assert (await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)).deployments == 1
    assert not await redis.exists(keys.split(made.full_name), keys.splits(), keys.deployments(ACCOUNT))


async def test_deployment_that_a_keeper_changes_meanwhile_is_erased_too(
    services: Services, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments = services.deployments
    _, made = await deployments.create(
        ACCOUNT, "front", model=MODEL, version=VERSION, hardware="cpu", min_instances=0, max_instances=1
    )
    await deployments.share(made, by=ACCOUNT, version="c3" * 32, share=50, margin=None, least=None)
    await suspended(services)
    read = Deployments.with_splits

    async def stop_after_the_read(self: Deployments, found: Sequence[Deployment]) -> list[Deployment]:
        monkeypatch.undo()
        before = await read(self, found)
        await deployments.stop(before[0], by="keeper", why="it fails more")
        return before

    monkeypatch.setattr(Deployments, "with_splits", stop_after_the_read)
    assert (await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)).deployments == 1
    assert await deployments.names(ACCOUNT) == []


async def test_deployment_that_was_read_without_its_split_is_of_another_type(services: Services) -> None:
    """So the type checker refuses to change or delete it: its split would stay."""
    await services.deployments.create(
        ACCOUNT, "front", model=MODEL, version=VERSION, hardware="cpu", min_instances=0, max_instances=1
    )
    [found] = await services.deployments.many(ACCOUNT, ["front"])
    assert not isinstance(found, Deployment)
    assert not hasattr(found, "kept")
    [whole] = await services.deployments.with_splits([found])
    assert await services.deployments.delete(whole) == "written"


async def test_erasure_reports_a_deployment_that_it_cannot_remove(services: Services, redis: Redis, token: str) -> None:
    await services.deployments.create(
        ACCOUNT, "front", model=MODEL, version=VERSION, hardware="cpu", min_instances=0, max_instances=1
    )
    key = keys.deployment(ACCOUNT, "front")
    written = await redis.get(key)
    assert written
    await redis.set(key, written[:-1] + b',"of_a_later_release":1}')
    await suspended(services)
    with pytest.raises(SettingsError, match="1 deployment of"):
        await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)
    await redis.set(key, written)
    assert (await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)).deployments == 1
    kinds = [change.kind for change in await services.changes.after(FIRST, count=100)]
    assert (kinds.count("account_erased"), kinds.count("void")) == (2, 0), "the first try has erased the rest"


async def test_erasure_of_one_account_changes_no_other(services: Services, driver: QueueDriver, redis: Redis) -> None:
    driver.now_ms = services.clock.now_ms()
    await services.accounts.create(ACCOUNT)
    for account in (RIVAL, ACCOUNT):
        name = await driver.submit(account=account)
        await services.scripts.enlist(name, account=account, oldest=lowest_id_at(0))
        assert await driver.finish(await driver.claim_one(), used=Used(runs=1, ms=1))
    await suspended(services)
    await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=60)
    [left] = await services.predictions.ids(RIVAL, count=10)
    assert (await driver.record(left)).account == RIVAL
    today = day_of(driver.now_ms)
    by_account = await services.ledger.sums(["account"], today, today)
    assert [each.by for each in by_account.result({})] == [(RIVAL,)]


async def test_usage_is_kept_for_the_last_invoice(services: Services, driver: QueueDriver) -> None:
    driver.now_ms = services.clock.now_ms()
    await services.accounts.create(ACCOUNT)
    assert await driver.finish(await driver.claimed(), used=Used(runs=1, ms=9))
    await suspended(services)
    assert (await services.erasure.erase(ACCOUNT, keeps_usage=True, by=BY, within_s=60)).months == 0
    today = day_of(driver.now_ms)
    [kept] = (await services.ledger.sums([], today, today, account=ACCOUNT)).result({})
    assert kept.used.ms == 9


@pytest.mark.parametrize("policy", [None, "hold"])
async def test_account_that_may_still_run_is_not_erased(
    services: Services, redis: Redis, policy: str | None, token: str
) -> None:
    if policy == "hold":
        await services.administration.suspend(ACCOUNT, "hold", "unpaid", by=BY, within_s=0)
    async with unchanged(redis):
        with pytest.raises(SettingsError, match="--policy end"):
            await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=0)


async def test_account_with_a_run_in_progress_is_not_erased_yet(
    services: Services, driver: QueueDriver, token: str
) -> None:
    claim = await driver.claimed()
    await services.administration.suspend(ACCOUNT, "end", "asked", by=BY, within_s=0)
    with pytest.raises(SettingsError, match="1 of its predictions"):
        await services.erasure.erase(ACCOUNT, keeps_usage=False, by=BY, within_s=0)
    assert (await driver.record(claim.id)).account == ACCOUNT


async def test_operator_must_say_yes_and_the_change_is_logged(
    operator: Operator, services: Services, token: str
) -> None:
    assert "--yes" in await operator.is_told("account", "erase", ACCOUNT)
    assert "there is no account" in await operator.is_told("account", "erase", "nothing", "--yes")
    await operator.types("account", "suspend", ACCOUNT, "--policy", "end")
    assert "0 predictions, 0 batches, 0 files, 0 deployments, 1 token" in await operator.types(
        "account", "erase", ACCOUNT, "--yes"
    )
    changes = await services.changes.after(FIRST, count=100)
    assert [change.kind for change in changes][-1] == "account_erased"
