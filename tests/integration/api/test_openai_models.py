"""Test the models of OpenAI's API: which a token may call, under which names, and what the list costs."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from api.services import openai_models
from director.broker import keys
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from director.store.aliases import MOST
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import api_client
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT

MODELS = "/openai/v1/models"
LLM, OTHERS, PAINTER = "acme/llm", "globex/llm", "acme/painter"
ONE, TWO = "d4" * 32, "e5" * 32


async def register(catalog: Catalog, model: str, version: str = ONE, server: str = "openai") -> None:
    await catalog.register(model, version, schema=OPEN_SCHEMA, server=server, policy=Policy())


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    return replace(settings, openai=True, cache_s=0.001)


@pytest.fixture
async def llm(catalog: Catalog) -> str:
    await register(catalog, LLM)
    return LLM


@pytest.fixture
async def globex(settings: ApiSettings, redis: Redis) -> AsyncIterator[AsyncClient]:
    async with api_client(settings, token=await Accounts(redis).create_token("globex")) as client:
        yield client


async def ids(api: AsyncClient) -> list[str]:
    answer = await api.get(MODELS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "list"
    return [each["id"] for each in answer.json()["data"]]


async def status(api: AsyncClient, name: str) -> tuple[int, str | None]:
    answer = await api.get(f"{MODELS}/{name}")
    return answer.status_code, answer.json().get("error", {}).get("code")


NOT_FOUND = (404, "model_not_found")


async def test_list_has_models_with_openais_api_and_no_others(api: AsyncClient, catalog: Catalog, llm: str) -> None:
    await register(catalog, PAINTER, server="coglet 0.23.1")
    await register(catalog, "acme/unknown", TWO, server="")
    assert await ids(api) == ["acme/unknown", LLM]
    [_, shown] = (await api.get(MODELS)).json()["data"]
    assert set(shown) == {"id", "object", "created", "owned_by"}
    assert (shown["object"], shown["owned_by"]) == ("model", "acme")
    assert isinstance(shown["created"], int)
    assert (await api.get(f"{MODELS}/{LLM}")).json() == shown
    refused = await api.get(f"{MODELS}/{PAINTER}")
    assert (refused.status_code, refused.json()["error"]["code"]) == NOT_FOUND
    assert "another kind" in refused.json()["error"]["message"]


@pytest.mark.parametrize("name", [LLM, "acme%2Fllm", f"{LLM}:{ONE}", f"acme%2Fllm:{ONE}"])
async def test_model_is_found_by_each_spelling_of_its_name(api: AsyncClient, llm: str, name: str) -> None:
    answer = await api.get(f"{MODELS}/{name}")
    assert (answer.status_code, answer.json()["id"]) == (200, name.replace("%2F", "/"))


@pytest.mark.parametrize("name", ["llm", "acme/none", f"{LLM}:{TWO}", f"{LLM}:", "Acme/LLM", "a%00b", "%C3%A9/x", ONE])
async def test_name_of_nothing_is_refused_and_not_repeated(api: AsyncClient, llm: str, name: str) -> None:
    answer = await api.get(f"{MODELS}/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == NOT_FOUND
    assert name not in answer.text


async def test_private_model_is_seen_by_its_owner_and_operators_only(
    api: AsyncClient, globex: AsyncClient, admin: AsyncClient, catalog: Catalog
) -> None:
    await register(catalog, OTHERS)
    await catalog.models.change(OTHERS, {"visibility": "private"})
    assert (await ids(api), await ids(globex)) == ([], [OTHERS])
    assert await status(api, OTHERS) == await status(api, "globex/none") == NOT_FOUND
    assert OTHERS not in (await api.get(f"{MODELS}/{OTHERS}")).text
    with_alias = await admin.patch("/v1/admin/aliases", json={"alias": "gpt", "model": OTHERS})
    assert with_alias.status_code == 200
    assert (await status(api, "gpt"), (await status(globex, "gpt"))[0]) == (NOT_FOUND, 200)
    assert await ids(globex) == ["gpt", OTHERS]


async def test_deployment_is_a_model_of_its_account(api: AsyncClient, globex: AsyncClient, llm: str) -> None:
    release = {"model": LLM, "version": ONE, "hardware": "cpu", "min_instances": 0, "max_instances": 1}
    assert (await api.post("/v1/deployments", json={"name": "prod", **release})).status_code == 200
    mine = f"{ACCOUNT}/prod"
    assert (await ids(api), await ids(globex)) == ([LLM, mine], [LLM])
    assert ((await status(api, mine))[0], await status(globex, mine)) == (200, NOT_FOUND)
    await api.patch(f"/v1/deployments/{mine}", json={"max_instances": 0})
    assert (await ids(api), await status(api, mine)) == ([LLM], (400, "deployment_disabled"))


async def test_alias_is_listed_called_changed_and_removed(api: AsyncClient, admin: AsyncClient, llm: str) -> None:
    async def change(alias: str, model: str | None) -> Any:
        answer = await admin.patch("/v1/admin/aliases", json={"alias": alias, "model": model})
        return answer.json()["aliases"] if answer.status_code == 200 else answer.status_code

    hugging = "meta-llama/Llama-3.1-8B"
    assert await change("gpt-4o", LLM) == {"gpt-4o": LLM}
    assert await change(hugging, f"{LLM}:{ONE}") == {"gpt-4o": LLM, hugging: f"{LLM}:{ONE}"}
    assert await ids(api) == ["gpt-4o", hugging, LLM]
    shown = (await api.get(f"{MODELS}/{hugging}")).json()
    assert (shown["id"], shown["owned_by"]) == (hugging, "acme")
    assert await change("gpt-4o", "acme/none") == {"gpt-4o": "acme/none", hugging: f"{LLM}:{ONE}"}
    assert (await status(api, "gpt-4o"), await ids(api)) == (NOT_FOUND, [hugging, LLM])
    assert await change("gpt-4o", None) == {hugging: f"{LLM}:{ONE}"}
    assert await change("gpt-4o", None) == 404
    for taken in (LLM, f"{LLM}:{ONE}"):
        assert await change(taken, "acme/other") == 422, "it would take the calls of a model"
    assert await change("a b", LLM) == 400


async def test_changes_of_aliases_are_logged(admin: AsyncClient, redis: Redis, llm: str) -> None:
    for model in (LLM, None, None):
        await admin.patch("/v1/admin/aliases", json={"alias": "gpt-4o", "model": model})
    found: Any = await redis.xrange(keys.changes())
    assert [(fields[b"kind"], json.loads(fields[b"detail"])) for _, fields in found] == [
        (b"alias_set", {"alias": "gpt-4o", "model": LLM}),
        (b"alias_removed", {"alias": "gpt-4o"}),
        (b"alias_removed", {"alias": "gpt-4o"}),
        (b"void", {"alias": "gpt-4o"}),
    ]


async def test_aliases_are_for_operators_and_bounded(
    api: AsyncClient, admin: AsyncClient, redis: Redis, llm: str
) -> None:
    assert (await api.get("/v1/admin/aliases")).status_code == 403
    assert (await api.patch("/v1/admin/aliases", json={"alias": "a", "model": LLM})).status_code == 403
    await redis.hset(keys.aliases(), mapping={f"a{number}": LLM for number in range(MOST)})
    refused = await admin.patch("/v1/admin/aliases", json={"alias": "more", "model": LLM})
    assert (refused.status_code, "1,000 aliases" in refused.json()["detail"]) == (422, True)
    again = await admin.patch("/v1/admin/aliases", json={"alias": "a7", "model": "acme/other"})
    assert (again.status_code, again.json()["aliases"]["a7"]) == (200, "acme/other")
    assert await redis.hlen(keys.aliases()) == MOST


async def test_alias_of_a_deleted_model_is_refused_until_it_is_there_again(
    api: AsyncClient, admin: AsyncClient, llm: str, redis: Redis, catalog: Catalog
) -> None:
    await admin.patch("/v1/admin/aliases", json={"alias": "gpt-4o", "model": LLM})
    await redis.delete(keys.model(LLM), keys.version(LLM, ONE))
    assert (await status(api, "gpt-4o"), await ids(api)) == (NOT_FOUND, [])
    await register(catalog, LLM)
    assert ((await status(api, "gpt-4o"))[0], await ids(api)) == (200, ["gpt-4o", LLM])


async def test_openais_api_is_off_by_default(settings: ApiSettings, token: str, llm: str) -> None:
    async with api_client(replace(settings, openai=False), token=token) as api:
        answer = await api.get(MODELS)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
        assert MODELS not in (await api.get("/openapi.json")).json()["paths"]


async def commands(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_ping"))


async def test_list_that_is_asked_again_costs_no_command(
    settings: ApiSettings, token: str, redis: Redis, catalog: Catalog
) -> None:
    for number in range(30):
        await register(catalog, f"acme/m{number}", f"{number:064x}", "openai" if number % 10 == 0 else "coglet 1")
    async with api_client(replace(settings, cache_s=60), token=token) as api:
        assert len(await ids(api)) == 3
        before = await commands(redis)
        for _ in range(20):
            assert len(await ids(api)) == 3
        # the API's own loops ask a few times a second
        assert await commands(redis) - before < 20


async def test_renewed_list_reads_only_models_with_openais_api(catalog: Catalog, redis: Redis) -> None:
    for number in range(30):
        await register(catalog, f"acme/m{number}", f"{number:064x}", "openai" if number % 10 == 0 else "coglet 1")
    clock = FakeClock()
    listed = openai_models.OpenAiModels(catalog, deployments=None, clock=clock, cache_s=5)  # type: ignore[arg-type]
    assert len(await listed.all()) == 3
    clock.pass_time(6)
    before = await commands(redis)
    assert len(await listed.all()) == 3
    assert await commands(redis) - before == 1 + 3
    await register(catalog, "acme/m1", TWO)
    clock.pass_time(6)
    assert [model.name for model in await listed.all()] == ["acme/m1", "acme/m20", "acme/m10", "acme/m0"]
