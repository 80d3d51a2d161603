"""Sign addresses of files, so that they need no token until they expire, and check them.

All processes share one secret, which the first that needs it makes in Redis. A check never says why a signature is
wrong. The signed text of an output has a line break and no space. That of a caller's file has spaces and no line break,
and that of an order has both. So no signature is valid for another kind.
"""

import base64
import hashlib
import hmac
import secrets
from typing import Final
from urllib.parse import quote, urlencode

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import FileId, PredictionId
from director.files.store import CallerFileName, FileName

FRESH_S: Final = 5.0


class Links:
    """Signs addresses and checks them. While Redis is away it goes on with the secret that it knows.

    All methods raise BackendUnavailable while the secret is not known. Times are unix seconds.
    """

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self._secret = ""
        self._read_at = 0.0

    async def signed(self, name: str, *, base: str, expires_s: int) -> str:
        """Return the address of an output's file."""
        signature = await self._signature(name, str(expires_s))
        return f"{base}/v1/outputs/{name}?expires={expires_s}&signature={signature}"

    async def are_good(self, name: str, *, of: PredictionId, expires: str, signature: str) -> bool:
        """Return True if we signed this and it has not expired, or if the data of its prediction lives longer."""
        if not _matches(await self._signature(name, expires), signature):
            return False
        return self._is_in_future(expires) or bool(await ask(lambda: self._redis.exists(keys.output_data(of))))

    async def download(self, owner: str, file_id: FileId, *, name: str, base: str, expires_s: int) -> str:
        """Return the address of a caller's file. It ends with `name`, since model servers look at it."""
        signature = _download_signature(await self._known(), owner, file_id, str(expires_s))
        query = urlencode({"owner": owner, "expiry": expires_s, "signature": signature})
        return f"{base}/v1/files/{file_id}/download/{quote(name, safe='')}?{query}"

    async def may_download(self, owner: str, file_id: FileId, *, expiry: str, signature: str) -> bool:
        """Return True if we signed this address of a file and it has not expired."""
        right = _download_signature(await self._known(), owner, file_id, expiry)
        return _matches(right, signature) and self._is_in_future(expiry)

    async def order(self, verb: str, what: str, *, expires_s: int) -> str:
        """Return the query by which one of our processes asks the API to do `verb` to an output's files."""
        signature = await self._signature(f"{verb} {what}", str(expires_s))
        return urlencode({"expires": expires_s, "signature": signature})

    async def is_ordered(self, verb: str, what: str, *, expires: str, signature: str) -> bool:
        """Return True if we signed this order and it has not expired."""
        right = await self._signature(f"{verb} {what}", expires)
        return _matches(right, signature) and self._is_in_future(expires)

    async def _signature(self, name: str, expires: str) -> str:
        # neither part has a line break, so the signed text can be read in one way only
        signed = f"{name}\n{expires}".encode(errors="replace")
        return hmac.digest((await self._known()).encode(), signed, hashlib.sha256).hex()

    def _is_in_future(self, expires: str) -> bool:
        return int(expires) * 1000 > self._clock.now_ms()  # always a number, since we signed it

    async def _known(self) -> str:
        now_s = self._clock.monotonic()
        if not self._secret or now_s - self._read_at > FRESH_S:
            try:
                self._secret = await ask(self._read_or_make)
            except BackendUnavailable:
                if not self._secret:
                    raise
            else:
                self._read_at = now_s
        return self._secret

    async def _read_or_make(self) -> str:
        key = keys.secret("outputs")
        if (found := await self._redis.get(key)) is None:
            # after a loss of Redis's data, keep the secret that addresses were signed with before
            await self._redis.set(key, self._secret or secrets.token_urlsafe(32), nx=True)
            found = await self._redis.get(key)
        if not found:  # Redis lost its data this very moment: never sign with an empty secret
            raise BackendUnavailable("the secret that signs files is missing")
        return text(found)


def _matches(right: str, signature: str) -> bool:
    return hmac.compare_digest(right.encode(), signature.encode(errors="replace"))


def _download_signature(secret: str, owner: str, file_id: FileId, expiry: str) -> str:
    signed = f"{owner} {file_id} {expiry}".encode(errors="replace")
    return base64.b64encode(hmac.digest(secret.encode(), signed, hashlib.sha256)).decode()


class LinkedStore:
    """The base of a store whose files are fetched through the API."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        return await self._links.signed(str(name), base=base, expires_s=expires_s)

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        return await self._links.download(name.account, name.id, name=shown, base=base, expires_s=expires_s)
