"""Choose the file store that the settings name, and check that it works."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client import Gauge
from redis.asyncio import Redis

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.ids import PredictionId
from director.files.local import LocalFiles
from director.files.store import PLAIN_TYPE, FileName, FileStore, LinkedStore, Links, OpenFile, OutputStore

# Store a director's files through the API, for directors that see neither its folder nor a bucket. Each request is
# signed with the secret of all processes, for five minutes and one action. The API stores only bytes that match their
# name. Files are never listed here: the keeper sweeps where the folder is.

ORDER_S: Final = 300  # until the request begins
TIMEOUT: Final = httpx.Timeout(30.0, connect=2.0)
PLACE: Final = "/internal"


class ApiFiles(LinkedStore):
    """`base`: the address of the API without /v1. `transport` replaces the network."""

    def __init__(
        self, base: str, links: Links, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._base = base
        self._transport = transport
        super().__init__(links)
        self._clock = clock
        self._tls: Any = ssl.create_default_context() if base.startswith("https:") else False

    async def probe(self) -> str:
        try:
            answer = await self._ask("GET", "/files")
        except (httpx.HTTPError, OSError):
            return "DIRECTOR_FILES_URL: the API cannot be reached"
        if answer.status_code == HTTPStatus.NOT_IMPLEMENTED:
            return "DIRECTOR_FILES_URL: the API stores no files: it needs DIRECTOR_FILES_DIR itself"
        if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
            return "DIRECTOR_FILES_URL: the API's own store does not work"
        return "" if answer.is_success else f"DIRECTOR_FILES_URL: there is no such API, it answers {answer.status_code}"

    async def put(self, name: FileName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        headers = {"Content-Type": content_type}
        await self._send_order("PUT", f"/outputs/{name}", "put", str(name), content=data, headers=headers)

    async def remove(self, prediction_id: PredictionId) -> None:
        await self._send_order("DELETE", f"/predictions/{prediction_id}/outputs", "remove", prediction_id)

    async def open(self, name: FileName) -> OpenFile:
        body = (await self._send_order("GET", f"/outputs/{name}", "get", str(name))).content

        async def read(start: int, stop: int) -> AsyncGenerator[bytes, None]:
            yield body[start:stop]

        return OpenFile(PLAIN_TYPE, len(body), read)

    async def _send_order(self, method: str, path: str, verb: str, what: str, **given: Any) -> httpx.Response:
        expires_s = self._clock.now_ms() // 1000 + ORDER_S
        query = await self._links.order(verb, what, expires_s=expires_s)
        answer = await self._ask(method, f"{path}?{query}", **given)
        if not answer.is_success:
            raise OSError(f"the API answers {answer.status_code}")  # the error leaves out the address, which is signed
        return answer

    async def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        way: dict[str, Any] = {"verify": self._tls, "transport": self._transport}
        async with httpx.AsyncClient(**way, trust_env=False, timeout=TIMEOUT) as http:
            return await http.request(method, f"{self._base}{PLACE}{path}", **given)


log = logging.getLogger(__name__)

GOOD_S: Final = 60.0  # each check of a bucket costs money
BAD_S: Final = 5.0
LONGEST_S: Final = 1.5  # shorter than the timeout of a probe of the process


def output_store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "") -> OutputStore | None:
    """Return the store for a director's outputs: the API if `url` is HTTP, else as `store_in` returns or raises."""
    if _is_api(url):
        return ApiFiles(url.rstrip("/"), Links(redis, clock), clock)
    return store_in(folder, redis, clock, url=url, writes=True)


def store_in(folder: str, redis: Redis, clock: Clock, *, url: str = "", writes: bool = False) -> FileStore | None:
    """Return the store that the settings name, a bucket before a folder, or None if they name none.
    Raises SettingsError if the store cannot exist, or cannot be written although this process `writes`.
    """
    if _is_api(url):
        raise SettingsError(
            "DIRECTOR_FILES_URL: only a director can store files through the API, which needs a folder or a bucket."
        )
    if url:
        try:
            from director.files.s3 import S3Files, bucket_of
        except ImportError as exc:
            raise SettingsError("DIRECTOR_FILES_URL needs a package: pip install obstore") from exc
        return S3Files(bucket_of(url), Links(redis, clock), clock)
    if not folder:
        return None
    store = LocalFiles(Path(folder), Links(redis, clock))
    if writes:
        store.prepare()
    return store


def _is_api(url: str) -> bool:
    return url.startswith(("http://", "https://"))


class StoreCheck:
    """Checks one store for one process, at its start and again when asked later. Never raises, never takes long.

    `up` is 1 while it works.
    """

    def __init__(self, store: OutputStore, clock: Clock, *, up: Gauge | None = None) -> None:
        self._store = store
        self._clock = clock
        self._up = up
        self._reason = ""
        self._known_until: float | None = None
        self._looking = asyncio.Lock()

    @property
    def last(self) -> str:
        """Return what the newest check found."""
        return self._reason

    async def missing(self) -> str:
        async with self._looking:
            if self._known_until is None or self._clock.monotonic() >= self._known_until:
                await self._look()
            return self._reason

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                reason = await self._store.probe()
        except TimeoutError:
            reason = f"the file store did not answer within {LONGEST_S:g} s"
        except Exception as exc:  # noqa: BLE001 - the store's library may raise anything
            reason = f"the file store fails: {type(exc).__name__}"
        if reason and reason != self._reason:
            log.error("the file store does not work", extra={"reason": reason})
        elif self._reason and not reason:
            log.info("the file store works again")
        self._reason = reason
        if self._up is not None:
            self._up.set(not reason)
        self._known_until = self._clock.monotonic() + (BAD_S if reason else GOOD_S)
