"""Start a service in trouble, and ask its diagnostics: doctor, explain, the feed, and the alert.

API, keepers and directors are separate processes. Where Prometheus's own tool is installed, it judges the alert by
the metrics of the processes. Elsewhere the test compares the metric with the alert's threshold.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx
import msgspec
import yaml
from anyio import to_thread
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.replies import Readiness
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.local.launcher.processes import free_port
from director.operate.findings import Finding
from director.store.accounts import SCOPES, Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import live_api
from tests.support.eventually import eventually, every
from tests.support.live_director import Caller, keeper_process
from tests.support.queue_driver import VERSION
from tests.support.scrape import Scrape, scrape
from tests.unit.operate.test_alerts import FILE, RULES, Fault, told

LIMIT_S: Final = 60
BEAT_S: Final = 1.0


class Incident(Struct, frozen=True, kw_only=True):
    """The expected finding and alert, and the condition of its metric on a page of `process`."""

    code: str
    alert: str
    metric: str
    holds: Callable[[float], bool]
    labels: Mapping[str, str] = {}
    process: str = "keeper"


class Scene:
    def __init__(self, url: str, redis_url: str, redis: Redis, scripts: Scripts, token: str) -> None:
        self.url = url
        self.redis_url = redis_url
        self.redis = redis
        self.scripts = scripts
        self.token = token
        self.ports = {"keeper": free_port(), "director": free_port()}

    async def caller(self, model: str, policy: Policy | None = None, **given: Any) -> Caller:
        catalog = Catalog(self.redis, self.scripts, SystemClock())
        await catalog.register(model, VERSION, schema=OPEN_SCHEMA, server="", policy=policy or Policy())
        return Caller(self.redis, self.scripts, model=model, **given)

    @asynccontextmanager
    async def keeper(self, **given: Any) -> AsyncGenerator[None]:
        allowed = {"webhook_allow": "loopback", "port": self.ports["keeper"]}
        async with keeper_process(self.redis_url, **{**allowed, **given}):
            yield

    @asynccontextmanager
    async def served(self, queue: QueueName) -> AsyncGenerator[None]:
        """Run a director whose one slot is always busy until the block ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beats, queue)
            yield
            tasks.cancel_scope.cancel()
        await self._beat(queue, "draining")

    async def _beats(self, queue: QueueName) -> None:
        async for _ in every(BEAT_S):
            await self._beat(queue, "ready")

    async def _beat(self, queue: QueueName, state: Readiness) -> None:
        await self.scripts.extend(queue, consumer="busy", lease_s=60, claims=[], slots=1, state=state)

    async def command(self, *line: str) -> str:
        env = {**os.environ, "DIRECTOR_REDIS_URL": self.redis_url, "DIRECTOR_URL": self.url}
        done = await to_thread.run_sync(
            lambda: subprocess.run(
                [sys.executable, "-m", "director", *line],
                env={**env, "DIRECTOR_TOKEN": self.token},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        )
        assert done.stderr == ""
        return done.stdout

    async def findings(self) -> list[Finding]:
        async with self.http() as http:
            answer = await http.get("/v1/admin/live", params={"snapshots": 1})
        event, data, *_ = answer.text.split("\n")
        assert event == "event: snapshot"
        found: list[Finding] = msgspec.json.decode(data.removeprefix("data: "), type=Feed).findings
        return found

    async def finds(self, code: str, queue: str | None = None) -> Finding:
        def has(found: list[Finding]) -> list[Finding]:
            return [one for one in found if one.code == code and queue in (None, one.queue)]

        return has(await eventually(self.findings, f"{code} is found", until=has, limit_s=LIMIT_S))[0]

    async def measured(self, incident: Incident, **labels: str) -> Scrape:
        """Wait for the page of the process whose metric meets the alert's threshold."""
        wanted = {**incident.labels, **labels}
        async with self._http(f"http://127.0.0.1:{self.ports[incident.process]}") as http:

            async def look() -> Scrape | None:
                try:
                    return await scrape(http)
                except httpx.TransportError:
                    return None

            page = await eventually(
                look,
                f"{incident.metric} {wanted} is such that {incident.alert} fires",
                until=lambda page: page and incident.holds(page.total(incident.metric, **wanted)),
                limit_s=LIMIT_S,
            )
        assert page is not None
        return page

    async def is_named(self, incident: Incident, queue: str = "", **labels: str) -> Finding:
        """Check that feed, doctor and alert name the incident. Return the finding."""
        finding = await self.finds(incident.code, queue or None)
        assert finding.detail
        assert finding.ask.startswith("director ")
        assert incident.metric in RULES[incident.alert]["expr"]
        page = await self.measured(incident, **({"queue": queue} if queue else {}), **labels)
        if (promtool := shutil.which("promtool")) is not None:
            said = await to_thread.run_sync(fires, promtool, incident.alert, page, queue)
            assert "SUCCESS" in said, said
        return finding

    def http(self) -> httpx.AsyncClient:
        return self._http(self.url)

    def _http(self, url: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=LIMIT_S)


class Feed(Struct, frozen=True):
    findings: list[Finding]


def fires(promtool: str, alert: str, page: Scrape, queue: str) -> str:
    """Return what Prometheus's tool says of the alert after 80 minutes, in which the page stays the same and counters
    continue to grow once a minute.
    """
    named = set(re.findall(r"\bdirector_[a-z_]+", RULES[alert]["expr"]))
    series = {}
    for name, labels, value in page:
        if name in named and labels.get("queue", queue) == queue:
            written = ", ".join(f'{label}="{text}"' for label, text in sorted(labels.items()))
            grows = name.endswith(("_total", "_bucket"))
            series[f"{name}{{{written}}}"] = f"0+{value:g}x90" if grows else f"{value:g}x90"
    fault = Fault(series, "80m", {"queue": queue} if queue else {})
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": fault.at, "alertname": alert, "exp_alerts": [told(alert, fault)]}],
    }
    tests = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [case]}
    done = subprocess.run(
        [promtool, "test", "rules", "/dev/stdin"],
        input=yaml.safe_dump(tests),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout + done.stderr


@asynccontextmanager
async def scene(redis_url: str, *, through: str = "") -> AsyncGenerator[Scene]:
    """Start an API on this Redis. `through` is the address that its processes use for it."""
    redis = client(redis_url)
    gatherer = Gatherer(redis)
    try:
        token = await Accounts(redis).create_token("operators", scopes=SCOPES)
        async with live_api(through or redis_url) as api:
            yield Scene(api.url, through or redis_url, redis, Scripts(gatherer), token)
    finally:
        with anyio.CancelScope(shield=True):
            await gatherer.aclose()
            await redis.aclose()
