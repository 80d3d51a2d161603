"""Store a director's files through the API, for directors that see neither its folder nor a bucket.

Each request is signed with the secret that all processes share, for five minutes and for one action. The API stores
only bytes that match their name. A file is never held whole. Files are never listed here: the keeper sweeps where the
folder is.
"""

import ssl
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final

import httpx

from director.core.clock import Clock
from director.core.ids import PredictionId
from director.files.links import Links
from director.files.store import CallerFileName, FileName

ORDER_S: Final = 300  # until the request begins
TIMEOUT: Final = httpx.Timeout(30.0, connect=2.0)
PLACE: Final = "/internal"


class ApiFiles:
    """`base`: the address of the API without /v1. `transport` replaces the network."""

    def __init__(
        self, base: str, links: Links, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._base = base
        self._transport = transport
        self._links = links
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

    async def put(self, name: FileName, data: bytes, *, content_type: str) -> None:
        await self._ordered("PUT", f"/outputs/{name}", "put", str(name), content=data, content_type=content_type)

    async def take(self, name: FileName, blocks: AsyncIterator[bytes], *, content_type: str) -> None:
        await self._ordered("PUT", f"/outputs/{name}", "put", str(name), content=blocks, content_type=content_type)

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        return await self._links.signed(str(name), base=base, expires_s=expires_s)

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        return await self._links.download(name.account, name.id, name=shown, base=base, expires_s=expires_s)

    async def remove(self, prediction_id: PredictionId) -> None:
        await self._ordered("DELETE", f"/predictions/{prediction_id}/outputs", "remove", prediction_id)

    async def _ordered(
        self,
        method: str,
        path: str,
        verb: str,
        what: str,
        *,
        content: bytes | AsyncIterator[bytes] | None = None,
        content_type: str = "",
    ) -> None:
        expires_s = self._clock.now_ms() // 1000 + ORDER_S
        query = await self._links.order(verb, what, expires_s=expires_s)
        headers = {"Content-Type": content_type} if content_type else {}
        answer = await self._ask(method, f"{path}?{query}", content=content, headers=headers)
        if not answer.is_success:
            raise OSError(f"the API answers {answer.status_code}")  # the error leaves out the address, which is signed

    async def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        way: dict[str, Any] = {"verify": self._tls, "transport": self._transport}
        async with httpx.AsyncClient(**way, trust_env=False, timeout=TIMEOUT) as http:
            return await http.request(method, f"{self._base}{PLACE}{path}", **given)
