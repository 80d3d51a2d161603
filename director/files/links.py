"""Addresses of files that need no token: signed, and good until they expire.

The secret behind them is one for all processes, made in Redis by whoever needs it first. Never tells why a signature is
not good, and knows nothing of what is at an address. What is signed of an output has a line break and no space, what is
signed of a caller's file has spaces and no line break, and an order has both: no signature is good for another's.
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

FRESH_S: Final = 5.0


class Links:
    """Signs addresses and checks them. Goes on with the secret that it knows while Redis is away."""

    def __init__(self, redis: Redis, clock: Clock) -> None:
        self._redis = redis
        self._clock = clock
        self._secret = ""
        self._read_at = 0.0

    async def signed(self, name: str, *, base: str, expires_s: int) -> str:
        """Where this is had until then. Raises BackendUnavailable while the secret is not known."""
        signature = _signature(await self._known(), name, str(expires_s))
        return f"{base}/v1/outputs/{name}?expires={expires_s}&signature={signature}"

    async def are_good(self, name: str, *, of: PredictionId, expires: str, signature: str) -> bool:
        """Was this signed by us, and is it not over? Raises BackendUnavailable while that cannot be known.

        It is not over before the data of its prediction is, which may come to be kept for longer than it was to be.
        """
        if not _is_right(_signature(await self._known(), name, expires), signature):
            return False
        return self._is_to_come(expires) or await self._has_data(of)

    async def _has_data(self, prediction_id: PredictionId) -> bool:
        return bool(await ask(lambda: self._redis.exists(keys.output_data(prediction_id))))

    async def download(self, owner: str, file_id: FileId, *, name: str, base: str, expires_s: int) -> str:
        """Where a caller's file is had until then, under an address that ends with `name`: model servers look at it.

        Raises BackendUnavailable while the secret is not known.
        """
        signature = _download_signature(await self._known(), owner, file_id, str(expires_s))
        query = urlencode({"owner": owner, "expiry": expires_s, "signature": signature})
        return f"{base}/v1/files/{file_id}/download/{quote(name, safe='')}?{query}"

    async def may_download(self, owner: str, file_id: FileId, *, expiry: str, signature: str) -> bool:
        """As `are_good`, for the address of a caller's file."""
        right = _download_signature(await self._known(), owner, file_id, expiry)
        return _is_right(right, signature) and self._is_to_come(expiry)

    async def order(self, verb: str, what: str, *, expires_s: int) -> str:
        """The query by which one of our own processes does this to an output's files at the API until then.

        Raises BackendUnavailable while the secret is not known.
        """
        signature = _signature(await self._known(), f"{verb} {what}", str(expires_s))
        return urlencode({"expires": expires_s, "signature": signature})

    async def is_ordered(self, verb: str, what: str, *, expires: str, signature: str) -> bool:
        """Was this signed by us, and is it not over? Raises BackendUnavailable while that cannot be known."""
        return _is_right(_signature(await self._known(), f"{verb} {what}", expires), signature) and self._is_to_come(
            expires
        )

    def _is_to_come(self, expires: str) -> bool:
        return int(expires) * 1000 > self._clock.now_ms()  # a number, since we signed it

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
            # where the server was emptied, the one that addresses were signed with so far
            await self._redis.set(key, self._secret or secrets.token_urlsafe(32), nx=True)
            found = await self._redis.get(key)
        if not found:  # it was emptied this very moment; never sign with nothing
            raise BackendUnavailable("the secret of files is not there")
        return text(found)


def _is_right(right: str, signature: str) -> bool:
    return hmac.compare_digest(right.encode(), signature.encode(errors="replace"))


def _signature(secret: str, name: str, expires: str) -> str:
    # neither part has a line break: what is signed can be read one way only
    return hmac.digest(secret.encode(), f"{name}\n{expires}".encode(errors="replace"), hashlib.sha256).hex()


def _download_signature(secret: str, owner: str, file_id: FileId, expiry: str) -> str:
    signed = f"{owner} {file_id} {expiry}".encode(errors="replace")
    return base64.b64encode(hmac.digest(secret.encode(), signed, hashlib.sha256)).decode()
