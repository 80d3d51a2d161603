"""Test /metrics of director, API and keeper after real runs: the figures are true and contain nothing of a caller."""

import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec import Struct
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from director.local.launcher.processes import free_port
from director.runtime.metric_table import METRICS
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.live_director import Caller, DirectorProcess, Gate, director_process, keeper_process, live_director
from tests.support.queue_driver import MODEL, VERSION
from tests.support.scrape import Scrape, scrape
from tests.support.servers import RedisServer, as_user
from tests.support.sink import sink

pytestmark = pytest.mark.cog


@asynccontextmanager
async def directing(redis_url: str, *servers: str, **given: object) -> AsyncGenerator[httpx.AsyncClient]:
    port = free_port()
    async with (
        live_director(redis_url, *servers, health_port=port, **given),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        yield http


async def shows(http: httpx.AsyncClient, name: str, value: float, **labels: str) -> Scrape:
    return await eventually(
        lambda: scrape(http), f"{name} is {value}", until=lambda shown: shown.value(name, **labels) == value
    )


async def test_unavailable_server_is_reported_with_its_model(server: RedisServer, caller: Caller) -> None:
    async with directing(server.url, f"http://127.0.0.1:{free_port()}", version="") as http:
        shown = await shows(http, "director_servers", 1, queue=MODEL, state="unreachable")
        assert shown.value("director_permits", queue=MODEL) == 0


SECRET = "scrape-me-and-nothing-else"
LEASE_S = 3.0


class Service(Struct, frozen=True):
    """Clients of the processes, by name. `director` is the process itself; `keeper` starts one."""

    http: Mapping[str, httpx.AsyncClient]
    director: DirectorProcess
    keeper: Callable[[], AbstractAsyncContextManager[None]]

    async def shows(self, process: str, name: str, value: float, **labels: str) -> Scrape:
        return await eventually(
            lambda: self.scraped(process),
            f"{process} shows {name} {labels} as {value}",
            until=lambda shown: shown.value(name, **labels) == value,
        )

    async def scraped(self, process: str) -> Scrape:
        return await scrape(self.http[process], token=SECRET if process == "api" else "")


@asynccontextmanager
async def service(redis_url: str, cog_url: str) -> AsyncGenerator[Service]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ports = {"director": free_port(), "keeper": free_port()}
        given = {"lease_s": LEASE_S, "webhook_allow": "loopback"}
        api = await enter(live_api(redis_url, env={"DIRECTOR_METRICS_TOKEN": SECRET}))
        director = await enter(director_process(redis_url, cog_url, health_port=ports["director"], **given))
        urls = {"api": api.url, **{name: f"http://127.0.0.1:{port}" for name, port in ports.items()}}
        http = {name: await enter(httpx.AsyncClient(base_url=url, trust_env=False)) for name, url in urls.items()}
        await eventually(lambda: _answers(http["director"]), "the director answers")

        @asynccontextmanager
        async def keeper() -> AsyncGenerator[None]:
            of_batches = {"openai": True, "batches_redis_url": as_user("api", redis_url)}
            async with keeper_process(redis_url, port=ports["keeper"], **given, **of_batches):
                await eventually(lambda: _answers(http["keeper"]), "the keeper answers")
                yield

        yield Service(http, director, keeper)


async def _answers(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/livez")).is_success
    except httpx.TransportError:
        return False


async def test_metrics_of_three_processes_match_what_happened(
    caller: Caller, server: RedisServer, cog_url: str, gate: Gate, tmp_path: Path
) -> None:
    token, queue = await Accounts(caller.redis).create_token("its-caller"), caller.queue
    headers = {"Authorization": f"Bearer {token}"}
    ids: list[str] = []
    async with sink() as receiver, service(server.url, cog_url) as running:
        api = running.http["api"]

        async def create(wait_s: int = 30, **given: object) -> httpx.Response:
            prefer = {"Prefer": f"wait={wait_s}"} if wait_s else {}
            answer = await api.post("/v1/predictions", json={"version": VERSION, **given}, headers=headers | prefer)
            assert answer.status_code == 201, answer.text
            ids.append(answer.json()["id"])
            return answer

        told = {"webhook": receiver.url, "webhook_events_filter": ["completed"]}
        assert (await create(input={"n": 2, "text": "a secret input "}, **told)).json()["status"] == "succeeded"
        assert (await create(input={"n": 1})).json()["status"] == "succeeded"
        assert (await create(input={"then": "raise"})).json()["status"] == "failed"
        assert (await api.get(f"/v1/predictions/{'a' * 26}", headers=headers)).status_code == 404
        assert (await api.get("/v1/account", headers={"Authorization": "Bearer no-such-token"})).status_code == 401
        full_before = (await running.scraped("director")).total("director_full_seconds_total")
        await create(wait_s=0, input={"n": 1, "gate": str(gate)})
        await caller.shows(ids[-1], status="processing")  # type: ignore[arg-type]

        await running.shows("director", "director_webhooks_total", 1, outcome="delivered")
        shown = await eventually(
            lambda: running.scraped("director"),
            "every slot is taken by the one that is left",
            until=lambda shown: (
                shown.total("director_full_seconds_total") > full_before
                and shown.value("director_held_claims", queue=queue) == 1
            ),
        )
        assert shown.value("director_claims_total", queue=queue) == 4
        assert shown.value("director_starts_total", queue=queue, attempt="1") == 4
        assert shown.value("director_ends_total", queue=queue, status="succeeded", error="none") == 2
        assert shown.value("director_ends_total", queue=queue, status="failed", error="model_failed") == 1
        for name in ("run", "total", "setup_wait", "first_output"):
            assert shown.value(f"director_{name}_seconds_count", queue=queue) == 3
        assert shown.value("director_queue_seconds_count", queue=queue, lane="normal") == 4
        in_all, of_run = (shown.value(f"director_{name}_seconds_sum", queue=queue) or 0 for name in ("total", "run"))
        assert in_all >= of_run > 0
        for name in ("permits", "permits_used"):
            assert shown.value(f"director_{name}", queue=queue) == 1
        assert shown.value("director_servers", queue=queue, state="ready") == 1
        assert shown.value("director_redis_call_seconds_count", script="finish") == 3
        assert shown.value("director_redis_up") == 1
        assert shown.total("director_loop_lag_seconds_count") > 0
        assert shown.value("director_webhook_seconds_count", ok="yes") == 1
        pages = {"director": shown, "api": await running.scraped("api")}
        requests, of_one = "director_api_requests_total", "/predictions/{id}"
        assert pages["api"].value(requests, route="/predictions", method="POST", status="201") == 4
        assert pages["api"].value(requests, route=of_one, method="GET", status="404") == 1
        assert pages["api"].value("director_api_accepted_total", kind="prediction", lane="normal") == 4
        assert pages["api"].total("director_api_refusals_total") == 2

        running.director.send(signal.SIGKILL)
        async with running.keeper():  # its first look finds what is left
            state = await running.shows("keeper", "director_queues", 1)
            assert state.value("director_queue_accepted_total", queue=queue, lane="normal") == 4
            assert state.value("director_queue_ended_total", queue=queue) == 3
            assert state.value("director_queue_claimed", queue=queue) == 1
            assert state.total("director_queue_waiting", queue=queue) == 0
            assert state.value("director_webhooks_owed") == 0
            assert state.value("director_redis_durable") == 1
            pages["keeper"] = await eventually(
                lambda: running.scraped("keeper"),
                "its claim is taken back",
                until=lambda page: page.total("director_reaped_total", queue=queue) == 1,
            )
            strict = await running.http["keeper"].get("/metrics", headers={"Accept": "application/openmetrics-text"})
            assert list(text_string_to_metric_families(strict.text))

        for process, page in pages.items():
            rows = {metric.name for metric in METRICS if process in metric.by}
            told_of = {line.split(" ")[2] for line in page.text.splitlines() if line.startswith("# TYPE director_")}
            assert told_of == rows, f"what the table has of the {process}"
            private = (
                *(each[:12] for each in ids),
                "its-caller",
                token,
                SECRET,
                receiver.url,
                "a secret input",
                str(tmp_path),
                "://",
            )
            assert [each for each in private if each in page.text] == []
        gate.open()
