"""Run the API for a test, in its loop or as the real process. Only the director is played."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, Final

import anyio
import httpx
from anyio.abc import Process
from msgspec import Struct
from msgspec.structs import replace

from api.app import Api, create_app
from api.dashboard import elsewhere
from api.services.meters import Meters
from api.web.route import Handler, Route
from director.broker.scripts import Scripts
from director.core.errors import UnsafeBackend
from director.core.ids import QueueName
from director.core.schema import Claim
from director.core.settings import ApiSettings
from director.core.states import Status
from director.local.launcher.processes import free_port
from director.runtime.tracing import Tracing
from tests.support.eventually import eventually
from tests.support.servers import as_user

START_LIMIT_S: Final = 30.0
BASE: Final = "http://director.test"


@asynccontextmanager
async def api_client(
    settings: ApiSettings,
    *,
    token: str | None = None,
    on_unsafe: Callable[[UnsafeBackend], None] | None = None,
    peer: str = "127.0.0.1",
    tracing: Tracing | None = None,
    on_start: Callable[[Mapping[str, Any]], None] | None = None,
) -> AsyncGenerator[httpx.AsyncClient, None]:
    """Return a client of an API that runs in this loop for the whole lifespan. Its requests come from `peer`.
    `on_start` is called with the state of the lifespan.
    """
    settings = replace(settings, redis_url=as_user("api", settings.redis_url))
    app = create_app(settings, on_unsafe=on_unsafe, tracing=tracing)
    async with app.router.lifespan_context(app) as state:
        if on_start is not None:
            on_start(state or {})

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app=with_state, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as client:
            yield client


def door_to(handler: Handler, *, method: str = "GET") -> Callable[..., Awaitable[None]]:
    route = Route(method, "/", handler=handler)
    door = Api([route], otherwise=elsewhere, meters=Meters())

    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        await door({**scope, "state": {"services": None, "sites": None, "versions": None}}, receive, send)

    return with_state


class LiveApi(Struct, frozen=True, kw_only=True):
    """A running API. `url` has no /v1."""

    url: str
    process: Process


@asynccontextmanager
async def live_api(
    redis_url: str,
    *,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    log: BinaryIO | None = None,
    descriptors: int | None = None,
) -> AsyncGenerator[LiveApi, None]:
    """Run `python -m api`, with at most so many `descriptors`."""
    port = port or free_port()
    limited = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
    process = await anyio.open_process(
        [*limited, sys.executable, "-m", "api"],
        env={**os.environ, "DIRECTOR_REDIS_URL": as_user("api", redis_url), "DIRECTOR_PORT": str(port), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            await eventually(lambda: _answers(client, f"{url}/livez"), "it answers", limit_s=START_LIMIT_S)
        yield LiveApi(url=url, process=process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.aclose()


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).is_success
    except httpx.TransportError:
        return False


class PlayedDirector:
    """A director that claims as a real one and does with a claim what the test says."""

    def __init__(self, scripts: Scripts, queue: QueueName) -> None:
        self._scripts = scripts
        self._queue = queue
        self._claimed = 0

    async def claim(self) -> Claim:
        with anyio.fail_after(START_LIMIT_S):
            while True:
                self._claimed += 1
                claims = await self._scripts.claim(
                    self._queue, consumer="played", nonce=f"played{self._claimed}", count=1, lease_s=60
                )
                if claims:
                    return claims[0]
                await anyio.sleep(0.002)  # nothing waits yet

    async def begin(self, claim: Claim, *outputs: bytes) -> int:
        advanced = await self._scripts.advance(
            claim.id,
            token=claim.token,
            seq=claim.record.seq,
            ran_ms=0,
            events=[("output", piece) for piece in outputs],
        )
        return advanced.seq

    async def finish(self, claim: Claim, status: Status = Status.SUCCEEDED, **ended: Any) -> None:
        assert await self._scripts.finish(
            claim.id, queue=self._queue, token=claim.token, status=status, ran_ms=0, **ended
        )

    async def run(self, output_of: Callable[[Claim], bytes], *, pause_s: float = 0) -> None:
        while True:
            claim = await self.claim()
            await self.begin(claim)
            await anyio.sleep(pause_s)  # the run's own time
            await self.finish(claim, output=output_of(claim))
