"""Run the configuration of docs/how-to/proxy-login.md in a real nginx, with a played oauth2-proxy behind it."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Final

import anyio
import httpx
import pytest
from msgspec import Struct

from director.broker.redis_client import client
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.integration.api.test_proxies import nginx_line
from tests.integration.api.test_sessions import bearer
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]

PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "proxy-login.md"
OF_PAGE: Final = {"X-Director-Page": "1"}
ANN: Final = {"Cookie": "_oauth2_proxy=ann"}
EVE: Final = {"X-Forwarded-Email": "eve@example.com", "X-Forwarded-Groups": "platform"}


class Entry(Struct, frozen=True, kw_only=True):
    url: str
    token: str


@pytest.fixture
def oauth2_proxy() -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/oauth2/auth" and "_oauth2_proxy=ann" in self.headers.get("Cookie", "")
            self.send_response(202 if is_known else 401)
            if is_known:
                self.send_header("X-Auth-Request-Email", "ann@example.com")
                self.send_header("X-Auth-Request-Groups", "dev,sre")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def entry(oauth2_proxy: int, tmp_path: Path) -> AsyncIterator[Entry]:
    if shutil.which("nginx") is None:
        pytest.skip("Debian's nginx is not installed")
    text = PAGE.read_text()
    found = re.search(r"```text\n(server \{.*?)```", text, re.DOTALL)
    settings = re.search(r"```ini\n(DIRECTOR_.*?)```", text, re.DOTALL)
    assert found is not None
    assert settings is not None
    env = dict(line.split("=", 1) for line in settings[1].splitlines())
    env["DIRECTOR_CORS_ORIGINS"] = "*"
    port = free_port()
    with redis_server() as server:
        redis = client(server.url)
        await Accounts(redis).create("page")
        token = await Accounts(redis).create_token("team")
        await redis.aclose()
        async with live_api(server.url, env=env) as api:
            config = found[1].replace("http://127.0.0.1:8080", api.url)
            config = config.replace("http://127.0.0.1:4180", f"http://127.0.0.1:{oauth2_proxy}")
            nginx = await anyio.open_process(nginx_line(tmp_path, config, port), stdout=None, stderr=None)
            try:
                url = f"http://127.0.0.1:{port}"
                await eventually(lambda: _answers(url), "nginx answers", limit_s=10)
                yield Entry(url=url, token=token)
            finally:
                nginx.terminate()
                await nginx.wait()


async def _answers(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        try:
            return (await http.get(url)).status_code > 0
        except httpx.TransportError:
            return False


async def test_page_knows_whom_the_proxy_logged_in_and_no_one_else(entry: Entry) -> None:
    async with httpx.AsyncClient(base_url=entry.url, trust_env=False) as http:
        known = await http.get("/session", headers={**OF_PAGE, **ANN})
        assert known.json() == {"username": "page", "scopes": ["read", "run", "operate"]}
        claimed = await http.get("/session", headers={**OF_PAGE, **ANN, **EVE})
        assert claimed.json() == known.json()
        assert (await http.get("/session", headers={**OF_PAGE, **EVE})).status_code == 401
        stranger = await http.get("/")
        assert (stranger.status_code, "/oauth2/start?rd=" in stranger.headers["location"]) == (302, True)


async def test_program_with_a_token_passes_and_is_no_one_else(entry: Entry) -> None:
    async with httpx.AsyncClient(base_url=entry.url, trust_env=False) as http:
        answer = await http.get("/v1/account", headers={**bearer(entry.token), **OF_PAGE, **EVE})
        assert answer.json()["username"] == "team"
        claimed = {**OF_PAGE, **EVE, "Authorization": "Bearer unknown"}
        for path in ("/v1/account", "/v1/admin/accounts"):
            assert (await http.get(path, headers=claimed)).status_code == 401
        assert (await http.get("/session", headers=claimed)).status_code == 204


async def test_signed_addresses_preflights_and_health_need_no_log_in(entry: Entry) -> None:
    origin = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with httpx.AsyncClient(base_url=entry.url, trust_env=False) as http:
        preflight = await http.options("/v1/predictions", headers=origin)
        assert preflight.headers.get("access-control-allow-origin") == "*"
        assert (await http.get("/livez")).status_code == 200
        for path in ("/outputs/a.png", "/v1/streams/x", f"/v1/files/{'0' * 26}/download", "/v1/files/0/download/a"):
            answer = await http.get(path, headers={**OF_PAGE, **EVE})
            assert answer.status_code in (401, 403, 404, 501), path
        answer = await http.get("/v1/account", headers={**OF_PAGE, **EVE})
        assert answer.status_code == 401
