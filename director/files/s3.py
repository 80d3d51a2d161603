"""Store files in a bucket of S3, or of a server with the same protocol: for more than one machine.

obstore is one wheel without dependencies that uploads in parts, streams reads and signs addresses; aiobotocore brings
sixteen packages, and minio's client blocks. Credentials are never in the URL: they come as AWS's tools take them. Only
one part of 5 MiB is held in memory. A file is visible once its upload is complete. A process that dies leaves an
incomplete upload, which the bucket's own rule (AbortIncompleteMultipartUpload) should end after a day.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.store import S3Store

from director.core.clock import Clock
from director.core.errors import SettingsError
from director.core.ids import PredictionId, is_prediction_id
from director.files.store import PLAIN_TYPE, READ_BYTES, CallerFileName, LinkedStore, Links, OpenFile, StoredName

T = TypeVar("T")

OUTPUTS: Final = "outputs"
CALLERS: Final = "uploads"
PAGE: Final = 1_000
PART_BYTES: Final = 5 << 20
PARTS_AT_ONCE: Final = 12
LONGEST_S: Final = 7 * 86400  # the longest life of a presigned address that S3 allows
OPTIONS: Final = ("endpoint", "region", "virtual_hosted_style_request")
# a whole file may take long, but the connection is never silent
CLIENT: Final = {"connect_timeout": "5s", "read_timeout": "30s", "timeout": "15m"}
RETRIES: Final = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
PROBED: Final = "probe"  # no key ever begins so
CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
UNREACHED: Final = "it cannot be reached"
REFUSED: Final = "its bucket may not be listed with these credentials"
SAID: Final = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": REFUSED,
    "InvalidAccessKeyId": REFUSED,
    "SignatureDoesNotMatch": REFUSED,
    "ExpiredToken": REFUSED,
}


def bucket_of(url: str) -> S3Store:
    """Return the bucket of `s3://bucket/prefix?endpoint=…&region=…`, without connecting. Raises SettingsError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme != "s3" or not parts.hostname or "@" in parts.netloc or not set(options) <= set(OPTIONS):
        raise SettingsError(
            f"DIRECTOR_FILES_URL: s3://bucket/prefix, and after a ? what is needed of {', '.join(OPTIONS)}; "
            "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    client: Any = {**CLIENT, "allow_http": options.get("endpoint", "").startswith("http://")}
    config: Any = options
    retries: Any = RETRIES
    try:
        return S3Store(
            parts.hostname,
            prefix=parts.path.strip("/") or None,
            config=config,
            client_options=client,
            retry_config=retries,
        )
    except Exception as exc:  # the library raises errors of its own for a wrong URL or option
        raise SettingsError(f"DIRECTOR_FILES_URL: {exc}") from exc


class S3Files(LinkedStore):
    """A bucket with `outputs/<id>/<digest>.<ending>` and `uploads/<account>/<id>.<ending>`. Outputs are read through
    the API, whose addresses live longer than S3 signs for; model servers fetch callers' files from the bucket itself.
    """

    sweep_s = 600.0  # a sweep lists the bucket, which costs money

    def __init__(self, bucket: S3Store, links: Links, clock: Clock) -> None:
        self._bucket = bucket
        super().__init__(links)
        self._clock = clock

    async def probe(self) -> str:
        try:
            async for _ in self._pages(PROBED):
                break
        except Exception as exc:  # noqa: BLE001 - its text contains addresses: show only S3's own code
            found = CODE.search(str(exc))
            code = found[1] if found else ""
            return f"DIRECTOR_FILES_URL: {SAID.get(code) or (f'it answers {code}' if code else UNREACHED)}"
        return ""

    async def put(self, name: StoredName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        await obstore.put_async(
            self._bucket,
            _key(name),
            data,
            attributes={"Content-Type": content_type},
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_AT_ONCE if isinstance(data, bytes) else 1,  # a stream is read in order
        )

    async def fetch_url(self, name: CallerFileName, *, shown: str, base: str, expires_s: int) -> str:
        seconds = min(LONGEST_S, max(1, expires_s - self._clock.now_ms() / 1000))
        return await obstore.sign_async(self._bucket, "GET", _key(name), timedelta(seconds=seconds))

    async def open(self, name: StoredName) -> OpenFile | None:
        try:
            found = await obstore.get_async(self._bucket, _key(name), options={"head": True})
        except FileNotFoundError:
            return None
        kind = str(found.attributes.get("Content-Type", PLAIN_TYPE))
        return OpenFile(kind, found.meta["size"], partial(self._read, _key(name)))

    async def _read(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        if start < stop:  # an empty range is not allowed
            found = await obstore.get_async(self._bucket, key, options={"range": (start, stop)})
            async for chunk in found.stream(min_chunk_size=READ_BYTES):
                yield bytes(chunk)

    async def callers(self, most: int) -> AsyncIterator[list[CallerFileName]]:
        async for page in self._list(CALLERS, CallerFileName.parse):
            for start in range(0, len(page), most):
                yield page[start : start + most]

    async def discard(self, name: CallerFileName) -> None:
        await obstore.delete_async(self._bucket, _key(name))

    async def holders(self, most: int) -> AsyncIterator[list[PredictionId]]:
        before = ""
        async for page in self._list(OUTPUTS, _holder):
            # a page may begin amid the files of one prediction
            holders = [each for each in dict.fromkeys(page) if each != before]
            before = page[-1] if page else before
            for start in range(0, len(holders), most):
                yield holders[start : start + most]

    async def remove(self, prediction_id: PredictionId) -> None:
        keys = [key async for page in self._pages(f"{OUTPUTS}/{prediction_id}") for key in page]
        if keys:
            await obstore.delete_async(self._bucket, keys)

    async def _list(self, below: str, read: Callable[[str], T | None]) -> AsyncIterator[list[T]]:
        async for page in self._pages(below):
            named: Iterable[T | None] = (read(key.removeprefix(f"{below}/")) for key in page)
            yield [each for each in named if each is not None]

    async def _pages(self, below: str) -> AsyncIterator[list[str]]:
        async for page in obstore.list(self._bucket, below, chunk_size=PAGE):
            yield [entry["path"] for entry in page]


def _key(name: StoredName) -> str:
    if isinstance(name, CallerFileName):
        return f"{CALLERS}/{name}"
    return f"{OUTPUTS}/{name.prediction_id}/{name.digest}.{name.ending}"


def _holder(key: str) -> PredictionId | None:
    name = key.partition("/")[0]
    return PredictionId(name) if is_prediction_id(name) else None
