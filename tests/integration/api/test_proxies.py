"""Test calls of OpenAI's API through proxies: as Debian installs them, and as docs/how-to/proxy.md sets them up."""

import json
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from msgspec import Struct

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.live_director import director_process, keeping
from tests.support.openai_server import OpenAiServer, openai_server
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "proxy.md"
LONG_S = 70.0  # longer than the 60 s of nginx and the 50 s of HAProxy
SHORT_S = 2
CHAT = "/openai/v1/chat/completions"


# ── the proxies ──────────────────────────────────────────────────────────────────────────────────────────────────────

NGINX = """
daemon off; master_process off; user root; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 768; }}
http {{
    access_log off; gzip on; sendfile on; tcp_nopush on;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    {config}
}}
"""
NGINX_STOCK = "server { listen 127.0.0.1:443 ssl; location / { proxy_pass http://127.0.0.1:8080; } }"
HAPROXY = """
defaults
    mode http
    option httplog
    option dontlognull
    timeout connect 5000
    timeout client 50000
    timeout server 50000
{config}
"""
HAPROXY_STOCK = """
frontend director
    bind :443 ssl crt /etc/haproxy/director.pem
    default_backend director
backend director
    server api 127.0.0.1:8080
"""
CADDY = "{{\n admin off\n auto_https off\n}}\n{config}"
CADDY_STOCK = "director.example.com {\n reverse_proxy 127.0.0.1:8080\n}\n"


def nginx_line(folder: Path, config: str, port: int) -> list[str]:
    config = re.sub(r"listen [^;]*;", f"listen 127.0.0.1:{port};", config)
    config = re.sub(r"ssl_\w+ [^;]*;|server_name [^;]*;", "", config)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, config=config))
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def haproxy_line(folder: Path, config: str, port: int) -> list[str]:
    config = re.sub(r"bind .*", f"bind 127.0.0.1:{port}", config)
    (folder / "haproxy.cfg").write_text(HAPROXY.format(config=config))
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def caddy_line(folder: Path, config: str, port: int) -> list[str]:
    config = config.replace("director.example.com", f"http://:{port}")
    (folder / "Caddyfile").write_text(CADDY.format(config=config))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


class Kind(Struct, frozen=True):
    """`start`: how its configuration begins on the page. `patience`: where it is told how long to wait, and what."""

    line: Callable[[Path, str, int], list[str]]
    stock: str
    start: str
    patience: tuple[str, str] = ("", "")

    @property
    def impatient(self) -> str:
        return self.stock.replace(*self.patience)


KINDS = {
    "nginx": Kind(
        nginx_line, NGINX_STOCK, "server {", ("location / {", f"location / {{ proxy_read_timeout {SHORT_S}s;")
    ),
    "haproxy": Kind(
        haproxy_line, HAPROXY_STOCK, "frontend ", ("    server api", f"    timeout server {SHORT_S}s\n    server api")
    ),
    "caddy": Kind(caddy_line, CADDY_STOCK, "director.example.com {"),
}


def of_page(kind: Kind) -> str:
    blocks = re.findall(r"```\w*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(kind.start)]
    return str(found)


@asynccontextmanager
async def proxied(name: str, config: str, folder: Path, api_url: str) -> AsyncIterator[str]:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    line = KINDS[name].line(folder, config.replace("127.0.0.1:8080", api_url.removeprefix("http://")), port)
    env = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = await anyio.open_process(line, stdout=log, stderr=log, env=env)
        try:
            async with httpx.AsyncClient(trust_env=False) as http:

                async def answers() -> bool:
                    assert process.returncode is None, (folder / "log").read_text()
                    try:
                        return (await http.get(f"http://127.0.0.1:{port}/livez")).is_success
                    except httpx.TransportError:
                        return False

                await eventually(answers, f"{name} answers")
            yield f"http://127.0.0.1:{port}"
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.aclose()


# ── what they stand before ───────────────────────────────────────────────────────────────────────────────────────────


class Service(Struct, frozen=True):
    """A model with one slot."""

    url: str
    token: str
    model: OpenAiServer

    def call(self, url: str, mark: str, *, stream: bool = True) -> "Call":
        return Call(url, self.token, mark, stream=stream)

    async def is_asked(self, mark: str) -> None:
        await eventually(lambda: self.calls(mark), f"the model server has {mark}")

    def calls(self, mark: str) -> list[bool]:
        """Return whether each call with this mark is open."""
        return [call.is_open for call in self.model.calls if call.mark[1] == mark]


class Call:
    """A call that is read as it comes."""

    def __init__(self, url: str, token: str, mark: str, *, stream: bool) -> None:
        messages = [{"role": "user", "content": f"hold:{mark}"}]
        self._body: dict[str, Any] = {"model": MODEL, "messages": messages, "stream": stream}
        self._url, self._token = url, token
        self.status = 0
        self.lines: list[str] = []
        self.is_over = False
        self.scope = anyio.CancelScope()

    async def read(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with self.scope:
            async with (
                httpx.AsyncClient(timeout=2 * LONG_S, trust_env=False, headers=headers) as http,
                http.stream("POST", self._url + CHAT, json=self._body) as answer,
            ):
                self.status = answer.status_code
                async for line in answer.aiter_lines():
                    self.lines.append(line)
            self.is_over = True

    def count(self, start: str) -> int:
        return sum(line.startswith(start) for line in self.lines)

    async def has(self, count: int, start: str, *, limit_s: float = 20) -> None:
        what = f"{count} lines begin with {start!r}"
        await eventually(lambda: self.count(start), what, until=lambda many: many >= count, limit_s=limit_s)

    async def ends(self) -> None:
        await eventually(lambda: self.is_over, "it is over")


@pytest.fixture(scope="module")
async def service() -> AsyncGenerator[Service]:
    with redis_server(loopback=True) as server:
        redis = client(server.url)
        gatherer = Gatherer(redis)
        catalog = Catalog(redis, Scripts(gatherer), SystemClock())
        await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())
        token = await Accounts(redis).create_token(ACCOUNT)
        await gatherer.aclose()
        await redis.aclose()
        runner = {"runner": "openai", "runner_config": '{"kind": "openai", "endpoint": "chat"}'}
        async with (
            openai_server() as model,
            director_process(server.url, model.url, concurrent_predictions=1, **runner),
            keeping(server.url),
            live_api(server.url, env={"DIRECTOR_OPENAI": "true"}) as live,
        ):
            yield Service(live.url, token, model)


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["stock", "of the page"])
async def proxy(name: str, request: pytest.FixtureRequest, service: Service, tmp_path: Path) -> AsyncGenerator[str]:
    kind = KINDS[name]
    config = kind.stock if request.param == "stock" else of_page(kind)
    async with proxied(name, config, tmp_path, service.url) as url:
        yield url


async def test_chunks_and_comments_pass_as_they_are_sent(service: Service, proxy: str) -> None:
    mark = f"pass-{time.monotonic_ns()}"
    first, second = service.call(proxy, mark), service.call(proxy, f"{mark}-then")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.read)
        await first.has(1, "data: ")  # its run is held from here on
        tasks.start_soon(second.read)
        await second.has(1, ": 0 ahead")  # its run waits for the slot
        service.model.release(mark)
        await second.has(1, "data: ")
        service.model.release(f"{mark}-then")
        await first.ends()
        await second.ends()
    for call in (first, second):
        assert (call.status, [line for line in call.lines if line][-1]) == (200, "data: [DONE]")
        assert json.loads([line for line in call.lines if line][-2].removeprefix("data: "))["choices"]


@pytest.mark.long
async def test_stream_whose_first_chunk_is_late_survives_the_defaults(
    service: Service, name: str, tmp_path: Path
) -> None:
    mark = f"late-{name}"
    async with (
        proxied(name, KINDS[name].stock, tmp_path, service.url) as url,
        anyio.create_task_group() as tasks,
    ):
        first, late = service.call(service.url, mark), service.call(url, f"{mark}-then")
        tasks.start_soon(first.read)
        await first.has(1, "data: ")
        tasks.start_soon(late.read)
        await anyio.sleep(LONG_S)  # the time-outs that are tried
        assert late.count("data: ") == 0
        assert late.count(": ") >= LONG_S / 11
        service.model.release(mark)
        service.model.release(f"{mark}-then")
        await late.ends()
    assert [line for line in late.lines if line][-1] == "data: [DONE]"


@pytest.mark.parametrize("name", ["nginx", "haproxy"])  # Caddy waits for ever
async def test_proxy_that_gives_up_ends_the_run(service: Service, name: str, tmp_path: Path) -> None:
    mark = f"slow-{name}"
    assert KINDS[name].impatient != KINDS[name].stock
    async with (
        proxied(name, KINDS[name].impatient, tmp_path, service.url) as url,
        anyio.create_task_group() as tasks,
    ):
        slow = service.call(url, mark, stream=False)
        tasks.start_soon(slow.read)
        await service.is_asked(mark)
        await slow.ends()
        await eventually(lambda: service.calls(mark), "its run is canceled", until=[False].__eq__)
    assert slow.status == 504


# HAProxy may overlook a hang-up, 3 of 24 in a trial: the next comment of a stream ends that, and nothing else does
@pytest.mark.parametrize(
    ("name", "stream"), [("nginx", True), ("nginx", False), ("haproxy", True), ("caddy", True), ("caddy", False)]
)
async def test_caller_that_hangs_up_frees_the_slot(service: Service, proxy: str, stream: bool) -> None:
    mark = f"hang-{time.monotonic_ns()}"
    left, other = service.call(proxy, mark, stream=stream), service.call(proxy, f"{mark}-then")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(left.read)
        await service.is_asked(mark)
        if stream:
            await left.has(1, "data: ")
        left.scope.cancel()
        await eventually(lambda: service.calls(mark), "its run is canceled", until=[False].__eq__)
        service.model.release(f"{mark}-then")
        tasks.start_soon(other.read)
        await other.ends()
