"""Test the record of a version's last setup, who may see it, and the signed report that an operator's receiver gets."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis
from standardwebhooks import Webhook

from director.broker import keys
from director.cli.queues import report
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.policy import Policy
from director.core.schema import SetupRun, setup_run
from director.core.settings import ApiSettings, DirectorSettings
from director.core.webhooks import new_secret
from director.servers import setup_webhook
from director.servers.runners.runner import HealthStatus
from director.servers.setup_webhook import SetupWebhook
from director.store.accounts import SCOPES, Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.webhooks.sender import AllowList, Sender
from tests.support.api import api_client
from tests.support.cog import cog_server
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Live, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.scripted_cog import HEALTHY, answer, scripted_cog
from tests.support.servers import RedisServer
from tests.support.sink import Answer, sink

pytestmark = pytest.mark.cog


async def noted(catalog: Catalog, status: str) -> SetupRun:
    setup = await eventually(
        lambda: catalog.setup_run(MODEL, VERSION), "it is noted", until=lambda found: found and found.status == status
    )
    assert setup is not None
    return setup


async def shown(server: RedisServer, redis: Redis, path: str) -> Any:
    async with api_client(ApiSettings(redis_url=server.url)) as api:
        token = await Accounts(redis).create_token(ACCOUNT)
        return (await api.get(path, headers={"authorization": f"Bearer {token}"})).json()


async def test_last_setup_is_kept_and_shown_with_the_version(
    caller: Caller, server: RedisServer, redis: Redis, catalog: Catalog, folder: Path, cog_url: str
) -> None:
    path = f"/v1/models/{MODEL}/versions"
    assert (await shown(server, redis, f"{path}/{VERSION}"))["setup_run"] is None
    async with live_director(server.url, cog_url) as director:
        good = await noted(catalog, "succeeded")
        figures = director.figures["setup_run"]
    assert good.server == cog_url
    assert good.completed_at is not None
    assert figures == {
        "status": "succeeded",
        "started_at": good.started_at,
        "completed_at": good.completed_at,
        "server": cog_url,
    }
    async with (
        cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as broken,
        live_director(server.url, broken),
    ):
        bad = await noted(catalog, "failed")
    assert bad.server == broken
    assert "no weights" in bad.logs
    whole = await shown(server, redis, f"{path}/{VERSION}")
    assert whole["setup_run"] == {
        "status": "failed",
        "started_at": bad.started_at,
        "completed_at": bad.completed_at,
        "logs": bad.logs,
    }
    [listed] = (await shown(server, redis, path))["results"]
    assert "setup_run" not in listed


async def test_setup_that_failed_before_registration_is_recorded_after_it(
    server: RedisServer, redis: Redis, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.fleet.PAUSES", dict.fromkeys(HealthStatus, 0.02))
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": "SETUP_FAILED"}))
        async with live_director(server.url, cog.url) as director:
            await eventually(lambda: director.figures.get("setup_run"), "it is seen")
            assert not await redis.exists(keys.version(MODEL, VERSION))
            await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="", policy=Policy())
            await noted(catalog, "failed")


@pytest.mark.usefixtures("hurried")
async def test_missing_version_is_explained_by_what_its_director_waits_for(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.servers.fleet.PAUSES", dict.fromkeys(HealthStatus, 0.02))
    name, version = "acme/fresh", "d4" * 32
    accounts = Accounts(redis)
    tokens = {"owner": await accounts.create_token("acme"), "stranger": await accounts.create_token("stranger")}
    tokens["operator"] = await accounts.create_token("operators", scopes=SCOPES)
    setup = {"started_at": "then", "logs": "Traceback\nValueError: no weights\n"}
    async with scripted_cog() as cog, api_client(ApiSettings(redis_url=server.url)) as api:

        async def refused(who: str, asked: str = f"models/{name}/predictions", **body: Any) -> tuple[int, str]:
            headers = {"authorization": f"Bearer {tokens[who]}"}
            answer = await api.post(f"/v1/{asked}", json={"input": {}, **body}, headers=headers)
            return answer.status_code, answer.json()["detail"]

        async def told(words: str) -> str:
            until: Any = lambda found: found[1].endswith(words)  # noqa: E731
            return (await eventually(lambda: refused("operator"), "it is told", until=until))[1]

        bare = await refused("operator")
        cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": "STARTING"}))
        async with live_director(server.url, cog.url, model=name, version=version):
            said = await told(" s: Setup is running")
            assert said.startswith(f"No version of {name} is ready: a director has waited for {cog.url} for ")
            cog.on("GET", "/health-check", answer(200, {**HEALTHY, "status": "SETUP_FAILED", "setup": setup}))
            await told(" s: Its setup failed: ValueError: no weights")
            assert re.fullmatch(
                rf"No version of {name} is ready: a director has waited for its model server for \d+ s: Its setup .*",
                (await refused("owner"))[1],
            )
            seen = await api.get(f"/v1/models/{name}", headers={"authorization": f"Bearer {tokens['owner']}"})
            assert (seen.status_code, "Its setup failed" in seen.json()["detail"]) == (404, True)
            status, said = await refused("owner", "predictions", version=f"{name}:{version}")
            assert (status, said.partition(": ")[0]) == (422, f"{name}:{version} is not ready")
            assert await refused("stranger") == bare == (404, "The requested resource could not be found.")
            await make_model(redis, name, "private")
            assert await refused("stranger") == bare
            await make_model(redis, name, "public")
            status, said = await refused("stranger")
            assert (status, cog.url in said, "ValueError: no weights" in said) == (404, False, True)


async def make_model(redis: Redis, name: str, visibility: str) -> None:
    await redis.hset(keys.model(name), mapping={"created": "1", "visibility": visibility})


async def test_operators_see_the_setup_with_its_server(
    caller: Caller, server: RedisServer, catalog: Catalog, cog_url: str
) -> None:
    async with live_director(server.url, cog_url):
        good = await noted(catalog, "succeeded")
    assert f"  last setup succeeded at {good.completed_at} on {cog_url}" in await queues_show(server, caller.queue)
    told = json.loads("".join(await queues_show(server, caller.queue, "--json")))
    assert told["setup_run"]["server"] == cog_url


async def test_operators_see_the_last_line_of_a_failed_setup_without_control_characters(caller: Caller) -> None:
    bad = SetupRun(
        status="failed", started_at=None, completed_at=None, logs="Traceback\n\x1b[2Jno weights\n", server="u"
    )
    stats = await caller.scripts.stats(caller.queue)
    [line] = [line for line in report("q", stats, [], bad) if "last setup" in line]
    assert line == r"  last setup failed at an unknown time on u: '\x1b[2Jno weights'"


async def queues_show(server: RedisServer, *line: str) -> list[str]:
    words = [sys.executable, "-m", "director", "queues", "--redis", server.url, "show", *line]
    ended = await to_thread.run_sync(
        lambda: subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    )
    return ended.stdout.splitlines()


SECRET = new_secret()


def settings(url: str, **given: Any) -> dict[str, Any]:
    return {"setup_webhook": url, "setup_webhook_secret": SECRET, "webhook_allow": "loopback", **given}


def ended(status: Any = "succeeded", started_at: str = "2026-01-01T00:00:00Z") -> SetupRun:
    return setup_run(status, started_at=started_at, completed_at="", logs="ready", server="http://127.0.0.1:5000")


@asynccontextmanager
async def running(url: str, *, allow: str = "loopback") -> AsyncGenerator[SetupWebhook]:
    sender = Sender(AllowList.parse(allow))
    webhook = SetupWebhook(url, secret=SECRET, sender=sender, clock=SystemClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(webhook.run)
        yield webhook
        tasks.cancel_scope.cancel()
    await sender.aclose()


async def test_successful_setup_is_reported_with_its_logs(live: Live, caller: Caller, cog_url: str) -> None:
    async with sink() as receiver, live.director(**settings(receiver.url)):
        await receiver.arrived(1)
        await caller.ended(await caller.submit())
        [(headers, body)] = receiver.received
    Webhook(SECRET).verify(body, dict(headers))
    told = json.loads(body)
    assert {name: told[name] for name in ("model", "version", "server", "status")} == {
        "model": MODEL,
        "version": VERSION,
        "server": cog_url,
        "status": "succeeded",
    }
    assert told["started_at"] < told["completed_at"]
    assert "Server ready" in told["logs"]


async def test_failed_setup_is_reported_too(live: Live, folder: Path) -> None:
    async with (
        sink() as receiver,
        cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as url,
        live.director(url, **settings(receiver.url)),
    ):
        await receiver.arrived(1)
        [(_, body)] = receiver.received
    told = json.loads(body)
    assert told["status"] == "failed"
    assert "no weights" in told["logs"]


async def test_silent_receiver_delays_nothing(live: Live, caller: Caller, cog_url: str) -> None:
    async with sink() as receiver:
        receiver.answer = Answer(delay_s=3600)
        async with live.director(**settings(receiver.url)):
            await receiver.arrived(1)
            assert (await caller.ended(await caller.submit()))["status"] == "succeeded"


async def test_report_is_retried_with_the_same_id_until_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_webhook, "PAUSES_S", (0.0, 0.0, 0.0))
    async with sink() as receiver, running(receiver.url) as webhook:
        receiver.answers.extend([Answer(status=500), Answer(reset=True)])
        webhook.add(ended(), model=MODEL, version="")
        webhook.add(ended(), model=MODEL, version="")  # another watch that must record it again
        await receiver.arrived(3)
        webhook.add(ended(started_at="2026-01-02T00:00:00Z"), model=MODEL, version=VERSION)
        await receiver.arrived(4)
        ids = [headers["webhook-id"] for headers, _ in receiver.received]
        assert json.loads(receiver.received[0].body)["version"] is None
    assert ids[0] == ids[1] == ids[2] != ids[3]


async def test_refusing_or_forbidden_receiver_is_given_up_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(setup_webhook, "PAUSES_S", (0.0,))
    said = "the end of a setup was not delivered: see DIRECTOR_SETUP_WEBHOOK"
    async with sink() as receiver, running(receiver.url) as webhook:
        receiver.answer = Answer(status=500)
        webhook.add(ended(), model=MODEL, version="")
        await eventually(lambda: caplog.messages.count(said), "it gives up")
        assert len(receiver.received) == 2
    async with sink() as receiver, running(receiver.url, allow="") as webhook:
        webhook.add(ended(), model=MODEL, version="")
        await eventually(lambda: caplog.messages.count(said) == 2, "it gives up at once")
        assert receiver.received == []


@pytest.mark.parametrize(
    ("url", "secret", "named"),
    [
        ("nonsense", SECRET, "DIRECTOR_SETUP_WEBHOOK:"),
        ("https://a.example/hook", "", "DIRECTOR_SETUP_WEBHOOK_SECRET:"),
        ("https://a.example/hook", "whsec_short", "DIRECTOR_SETUP_WEBHOOK_SECRET:"),
    ],
    ids=["no URL", "no secret", "an invalid secret"],
)
def test_impossible_receiver_is_refused_at_the_start(url: str, secret: str, named: str) -> None:
    given = DirectorSettings(setup_webhook=url, setup_webhook_secret=secret)
    with pytest.raises(SettingsError, match=named):
        SetupWebhook.of(given, Sender(AllowList.parse("")), SystemClock())
