"""Test `director deploy`, `promote`, `rollback` and `deployments`, and `director explain` of what they made."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import QueueName, queue_name
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer
from tests.support.typed import Typed, typed

NEW = "c3" * 32
FRONT = f"{ACCOUNT}/front"
Types = Callable[..., Awaitable[Typed]]


@pytest.fixture
async def types(
    server: RedisServer,
    redis: Redis,
    queue: QueueName,
    catalog: Catalog,
    scripts: Scripts,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Types]:
    """A caller who types commands. A director of the new version is ready."""
    await catalog.register(MODEL, NEW, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await scripts.extend(queue_name(MODEL, NEW), consumer="d", lease_s=60, claims=[], slots=2)
    token = await Accounts(redis).create_token(ACCOUNT)
    async with live_api(server.url) as api:
        monkeypatch.setenv("DIRECTOR_URL", api.url)
        monkeypatch.setenv("DIRECTOR_TOKEN", token)
        yield lambda *line: to_thread.run_sync(lambda: typed(capsys, *line))


async def done(types: Types, *line: str) -> str:
    ended = await types(*line)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def refused(types: Types, *line: str) -> str:
    ended = await types(*line)
    assert ended.returncode == 1, ended.stdout
    return ended.stderr


async def make(types: Types) -> str:
    return await done(types, "deploy", FRONT, "--model", MODEL, "--version", VERSION[:12])


async def test_version_is_tried_promoted_and_taken_back(types: Types) -> None:
    assert await make(types) == f"{FRONT}: all calls run {MODEL}:{VERSION[:12]} (release 1)\n"
    tried = await done(types, "deploy", FRONT, "--version", NEW[:8], "--share", "10", "--margin", "2", "--least", "9")
    assert f"{NEW[:12]}  tried" in tried
    assert "above 2 percentage points more failures, from 9 ended runs on" in tried
    assert await done(types, "deployments", "show", FRONT) == tried
    assert f"{NEW[:12]}, 10 %" in await done(types, "deployments")
    assert await done(types, "promote", FRONT) == f"{FRONT}: all calls run {MODEL}:{NEW[:12]} (release 2)\n"
    assert f"`director rollback {FRONT}` brings {VERSION[:12]} back" in await done(types, "deployment", "show", FRONT)
    assert await done(types, "rollback", FRONT) == f"{FRONT}: all calls run {MODEL}:{VERSION[:12]} (release 3)\n"


async def test_changes_name_the_service_that_they_change(types: Types) -> None:
    named = f"» {os.environ['DIRECTOR_URL']} (DIRECTOR_URL)\n"
    for line in (
        ("deploy", FRONT, "--model", MODEL, "--version", VERSION),
        ("deploy", FRONT, "--version", NEW, "--share", "10"),
        ("promote", FRONT),
        ("rollback", FRONT),
    ):
        ended = await types(*line)
        assert (ended.returncode, ended.stderr) == (0, named), line
    assert (await types("deployments")).stderr == ""
    assert (await types("deployments", "show", FRONT)).stderr == ""


async def test_without_a_share_all_calls_run_the_version(types: Types) -> None:
    await make(types)
    assert "(release 2)" in await done(types, "deploy", FRONT, "--version", NEW)
    assert "(release 3)" in await done(types, "rollback", FRONT)


async def test_deploying_the_version_of_now_ends_a_trial(types: Types) -> None:
    await make(types)
    await done(types, "deploy", FRONT, "--version", NEW, "--share", "10")
    told = await done(types, "deploy", FRONT, "--version", VERSION)
    assert told == f"{FRONT}: all calls run {MODEL}:{VERSION[:12]} (release 1)\n"
    assert "tried" not in await done(types, "deployments", "show", FRONT)


async def test_margin_of_nothing_is_a_margin(types: Types) -> None:
    await make(types)
    tried = await done(types, "deploy", FRONT, "--version", NEW, "--share", "10", "--margin", "0")
    assert "above 0 percentage points" in tried


async def test_explain_says_which_version_runs_and_why(types: Types) -> None:
    await make(types)
    await done(types, "deploy", FRONT, "--version", NEW, "--share", "99")
    headers = {"Authorization": f"Bearer {os.environ['DIRECTOR_TOKEN']}"}
    async with httpx.AsyncClient(base_url=os.environ["DIRECTOR_URL"], headers=headers, trust_env=False) as http:
        for _ in range(9):
            made = (await http.post(f"/v1/deployments/{FRONT}/predictions", json={"input": {}})).json()
            if made["version"] == NEW:
                break
    told = await done(types, "explain", made["id"])
    assert f"version {NEW[:12]}, because 99 % of {FRONT} go to it since" in " ".join(told.split())


async def test_answers_are_json_for_programs(types: Types) -> None:
    await make(types)
    shown = json.loads(await done(types, "deployments", "show", FRONT, "--json"))
    assert (shown["deployment"], shown["current"]["version"]) == (FRONT, VERSION)
    [listed] = json.loads(await done(types, "deployments", "--json"))["results"]
    assert listed["current_release"]["number"] == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("deploy", FRONT, "--version", NEW), "there is no deployment"),
        (("deploy", "other/front", "--model", MODEL, "--version", VERSION), f"deployments of {ACCOUNT}"),
        (("deploy", FRONT, "--model", MODEL, "--version", VERSION, "--share", "5"), "make it first"),
        (("deploy", FRONT, "--version", NEW, "--margin", "5"), "go with --share"),
        (("promote", FRONT), "there is no deployment"),
    ],
)
async def test_wrong_lines_say_what_to_do(types: Types, line: tuple[str, ...], said: str) -> None:
    assert said in await refused(types, *line)


async def test_unknown_versions_are_refused_with_the_way_to_them(types: Types) -> None:
    await make(types)
    assert "is not a version" in await refused(types, "deploy", FRONT, "--version", "latest")
    assert "no version begins with ffffffff" in await refused(types, "deploy", FRONT, "--version", "f" * 8)
    assert "No version is tried here" in await refused(types, "promote", FRONT)
