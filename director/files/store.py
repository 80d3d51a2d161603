"""Define how stored files are named, what a file store can do, and how addresses of files are signed.

A file of an output belongs to one prediction, a caller's file to an account. A store never decides how long a file
lives: the sweeper deletes what Redis knows no owner of.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Protocol
from urllib.parse import quote, urlencode

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import existing, read_or_make_secret
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import FileId, PredictionId, is_file_id, is_prediction_id

READ_BYTES: Final = 256 * 1024
PLAIN_TYPE: Final = "application/octet-stream"
NAME: Final = re.compile(r"([0-9a-z]{26})-([0-9a-f]{32})\.([a-z0-9]{1,8}|data~)")
DATA_ENDING: Final = "data~"  # of an input or output as a whole; no public name can have it
CALLER_NAME: Final = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})/([0-9a-z]{26})\.([a-z0-9]{1,8}|part~)")
# Endings that differ from the second half of the media type
ENDINGS: Final = {
    "application/octet-stream": "bin",
    "audio/mpeg": "mp3",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "model/gltf-binary": "glb",
    "text/markdown": "md",
    "text/plain": "txt",
    "video/quicktime": "mov",
}


class FileName(Struct, frozen=True):
    """The public name of an output's file. It has a digest of the bytes: putting it twice is putting it once."""

    prediction_id: PredictionId
    digest: str
    ending: str

    def __str__(self) -> str:
        return f"{self.prediction_id}-{self.digest}.{self.ending}"

    @classmethod
    def parse(cls, text: str, *, of_data: bool = False) -> "FileName | None":
        """Return the name, or None for any other text: nothing else ever becomes a path. `of_data`: also of data."""
        found = NAME.fullmatch(text)
        if not found or not is_prediction_id(found[1]) or (found[3] == DATA_ENDING and not of_data):
            return None
        return cls(PredictionId(found[1]), found[2], found[3])


class CallerFileName(Struct, frozen=True):
    """The name of a caller's file in the store. It keeps the ending of the uploaded name, which models go by."""

    account: str
    id: FileId
    ending: str

    def __str__(self) -> str:
        return f"{self.account}/{self.id}.{self.ending}"

    @classmethod
    def parse(cls, text: str) -> "CallerFileName | None":
        found = CALLER_NAME.fullmatch(text)
        return cls(found[1], FileId(found[2]), found[3]) if found and is_file_id(found[2]) else None


StoredName = FileName | CallerFileName


def file_name(prediction_id: PredictionId, data: bytes, *, content_type: str) -> FileName:
    return name_of(prediction_id, hashlib.sha256(data).hexdigest(), content_type=content_type)


def name_of(prediction_id: PredictionId, digest: str, *, content_type: str) -> FileName:
    kind = content_type.partition(";")[0]
    own = kind.rpartition("/")[2].removeprefix("x-")
    ending = ENDINGS.get(kind) or (own if re.fullmatch(r"[a-z0-9]{1,8}", own) else "bin")
    return FileName(prediction_id, digest[:32], ending)


def ending_of(shown: str) -> str:
    own = shown.rpartition(".")[2].lower()
    return own if re.fullmatch(r"[a-z0-9]{1,8}", own) and "." in shown else "bin"


class OpenFile(Struct, frozen=True, eq=False):
    content_type: str
    size: int
    read: Callable[[int, int], AsyncGenerator[bytes, None]]


class OutputStore(Protocol):
    """A store as a director uses it. The director takes any error of it for temporary, and calls again."""

    async def probe(self) -> str:
        """Return what is wrong with the store, in words for the operator and without a secret, or '' if it works."""
        ...

    async def put(self, name: FileName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        """Store a file, durable and visible when this returns. If `data` raises, nothing is kept. Safe to repeat."""
        ...

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        """Return an address valid until `expires_s`, a unix time. `base`: the API's public address, without /v1."""
        ...

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        """Return the address at which a model server finds a caller's file; `shown`: its uploaded name."""
        ...

    async def remove(self, prediction_id: PredictionId) -> None:
        """Delete all files of this prediction, and of no other."""
        ...

    async def open(self, name: FileName) -> OpenFile | None:
        """Return a stored file, or None if it is missing."""
        ...


class FileStore(OutputStore, Protocol):
    """A store as the API and the sweeper use it: it also serves files, takes callers' files and lists what it holds."""

    sweep_s: float
    """The seconds between two sweeps of the store."""

    async def put(self, name: StoredName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None: ...

    async def open(self, name: StoredName) -> OpenFile | None: ...

    def callers(self, most: int) -> AsyncIterator[list[CallerFileName]]:
        """Yield the names of all callers' files, at most `most` at a time."""
        ...

    async def discard(self, name: CallerFileName) -> None:
        """Delete a caller's file. Safe to repeat."""
        ...

    def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        """Yield all predictions that have files, at most `most` at a time."""
        ...


# Sign addresses of files, so that they need no token until they expire. All processes share one secret, made in Redis.
# The signed text of an output has a line break and no space, that of a caller's file has spaces and no line break, and
# that of an order has both. So no signature is valid for another kind.

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

    async def sign(self, name: str, *, base: str, expires_s: int) -> str:
        signature = await self._signature(name, str(expires_s))
        return f"{base}/v1/outputs/{name}?expires={expires_s}&signature={signature}"

    async def are_good(self, name: str, *, of: PredictionId, expires: str, signature: str) -> bool:
        """Return True if we signed this and it has not expired, or if the data of its prediction lives longer."""
        if not _matches(await self._signature(name, expires), signature):
            return False
        return self._is_in_future(expires) or bool(await existing(self._redis, [[keys.output_data(of)]]))

    async def download(self, owner: str, file_id: FileId, *, name: str, base: str, expires_s: int) -> str:
        """Return the address of a caller's file. It ends with `name`, since model servers look at it."""
        signature = _download_signature(await self._read_secret(), owner, file_id, str(expires_s))
        query = urlencode({"owner": owner, "expiry": expires_s, "signature": signature})
        return f"{base}/v1/files/{file_id}/download/{quote(name, safe='')}?{query}"

    async def may_download(self, owner: str, file_id: FileId, *, expiry: str, signature: str) -> bool:
        right = _download_signature(await self._read_secret(), owner, file_id, expiry)
        return _matches(right, signature) and self._is_in_future(expiry)

    async def order(self, verb: str, what: str, *, expires_s: int) -> str:
        """Return the query by which one of our processes asks the API to do `verb` to an output's files."""
        signature = await self._signature(f"{verb} {what}", str(expires_s))
        return urlencode({"expires": expires_s, "signature": signature})

    async def is_ordered(self, verb: str, what: str, *, expires: str, signature: str) -> bool:
        right = await self._signature(f"{verb} {what}", expires)
        return _matches(right, signature) and self._is_in_future(expires)

    async def _signature(self, name: str, expires: str) -> str:
        # neither part has a line break, so the signed text can be read in one way only
        signed = f"{name}\n{expires}".encode(errors="replace")
        return hmac.digest((await self._read_secret()).encode(), signed, hashlib.sha256).hex()

    def _is_in_future(self, expires: str) -> bool:
        return int(expires) * 1000 > self._clock.now_ms()  # always a number, since we signed it

    async def _read_secret(self) -> str:
        now_s = self._clock.monotonic()
        if not self._secret or now_s - self._read_at > FRESH_S:
            try:
                # after a loss of Redis's data, keep the secret that addresses were signed with before
                self._secret = await read_or_make_secret(
                    self._redis, "outputs", self._secret or secrets.token_urlsafe(32)
                )
            except BackendUnavailable:
                if not self._secret:
                    raise
            else:
                self._read_at = now_s
        return self._secret


def _matches(right: str, signature: str) -> bool:
    return hmac.compare_digest(right.encode(), signature.encode(errors="replace"))


def _download_signature(secret: str, owner: str, file_id: FileId, expiry: str) -> str:
    signed = f"{owner} {file_id} {expiry}".encode(errors="replace")
    return base64.b64encode(hmac.digest(secret.encode(), signed, hashlib.sha256)).decode()


class LinkedStore:
    def __init__(self, links: Links) -> None:
        self._links = links

    async def url(self, name: FileName, *, base: str, expires_s: int) -> str:
        return await self._links.sign(str(name), base=base, expires_s=expires_s)

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        return await self._links.download(name.account, name.id, name=shown, base=base, expires_s=expires_s)
