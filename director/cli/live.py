"""Async client of the API, for commands that also listen to keys and signals."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import httpx
import msgspec
from msgspec import Raw

from director.cli.client import ANSWER_S, Missing, Refused, Service, check_answer, reaching, read
from director.store.logs import CHANGES, Cursor, News

LIVE: Final = "/v1/admin/live"


class LiveClient:
    def __init__(self, service: Service) -> None:
        self.url = service.url
        self._http = httpx.AsyncClient(
            base_url=service.url,
            headers={"authorization": f"Bearer {service.token}"},
            timeout=ANSWER_S,
            trust_env=False,  # as in `Client`
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Raw:
        """Raises Refused, and as Away where the same may be asked again later."""
        with reaching(self.url):
            answer = await self._http.request(method, path, json=body)
        check_answer(answer)
        return Raw(answer.content)

    async def events(self, path: str) -> AsyncGenerator[tuple[str, Raw]]:
        """Yield the name and the data of each server-sent event, whose data is one line."""
        with reaching(self.url):
            async with self._http.stream("GET", path) as answer:
                if not answer.is_success:
                    await answer.aread()
                check_answer(answer)
                rest, name = b"", ""
                async for piece in answer.aiter_bytes():
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        field, _, value = line.partition(b": ")
                        if field == b"event":
                            name = value.decode()
                        elif field == b"data":
                            yield name, Raw(value)


class _Steps(News, frozen=True, kw_only=True):
    queue: str = ""


class StepsOfApi:
    """Reads the logs through the API: of all partitions, or of one queue and of changes. `queue` is its full name once
    the ends were read.
    """

    def __init__(self, client: LiveClient, queue: str = "") -> None:
        self.queue = queue
        self._client = client

    async def ends(self) -> dict[int, Cursor]:
        found = await self._read({})
        self.queue = found.queue
        return {batch.partition: batch.cursor for batch in found.batches}

    async def read_all(self, after: Mapping[int, Cursor], *, first: int = CHANGES) -> News:
        return await self._read({"after": {str(name): cursor for name, cursor in after.items()}, "first": first})

    async def _read(self, asked: dict[str, Any]) -> _Steps:
        body = msgspec.to_builtins({**asked, "queue": self.queue})
        try:
            answer = await self._client.ask("QUERY", "/v1/admin/steps", body)
        except Missing as exc:
            raise Missing("this API shows no steps, it is an older release: give --redis.") from exc
        except Refused as exc:
            if self.queue and "no such queue" in str(exc):
                raise Refused(f"there is no queue {self.queue}: `director queues` shows them.") from exc
            raise
        return read(answer, _Steps)


@asynccontextmanager
async def reading_steps(service: Service) -> AsyncGenerator[StepsOfApi]:
    async with LiveClient(service) as client:
        yield StepsOfApi(client)
